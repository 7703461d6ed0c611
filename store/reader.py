"""Reads records back: from the tail cache, else from the segments, where each record's CRC is checked.

A read that the page cache can answer never leaves the loop; one that needs the device goes to a thread.
"""

import asyncio
import logging
import os
from typing import Final

import record
from record.layout import HEADER_SIZE, MAX_FRAME
from store.api import Chunk
from store.disk import UNREADABLE
from store.errors import LogCorrupt
from store.recovery import segment_batches
from store.segments import Segments, segment_name
from store.tail import TailCache

logger = logging.getLogger(__name__)

_MAX_MET: Final = 10_000  # damaged places that are remembered
_GAP: Final = 4096  # bytes between two wanted records that are read along rather than skipped
_SPAN: Final = 1 << 20  # bytes read at once for several records


class Reader:
    """Committed records by reference and by position. Raises `LogCorrupt` where the disk has something else."""

    __slots__ = ("_segments", "_tail", "met")

    def __init__(self, segments: Segments, tail: TailCache) -> None:
        self._segments = segments
        self._tail = tail
        self.met: set[int] = set()  # positions where reads met damage

    async def records(self, positions: list[int], lengths: list[int]) -> bytes:
        """The sealed frames at `positions`, back to back. What lies close behind the one before is read with it."""
        pieces: list[bytes] = []
        i = 0
        while i < len(positions):
            cached = self._tail.find(positions[i])
            if cached is None:
                last = self._span(positions, lengths, i)
                pieces.append(await self._from_disk(positions[i:last], lengths[i:last]))
                i = last
                continue
            begin, data = cached
            end = begin + len(data)
            last = i + 1
            while last < len(positions) and begin <= positions[last] < end:
                last += 1
            if last == i + 1:
                at = positions[i] - begin
                pieces.append(data[at : at + lengths[i]])
            else:
                pieces.append(self._picked(data, begin, positions[i:last], lengths[i:last]))
            i = last
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def record_at(self, position: int, end: int) -> bytes | None:
        """The sound record at `position`, which may be any place before `end`; None where none begins."""
        room = min(end, self._segments.base_of(position) + self._segments.size) - position
        header = await self._piece(position, min(HEADER_SIZE, room))
        length = int.from_bytes(header[4:8], "little")
        if not HEADER_SIZE <= length <= min(room, MAX_FRAME):
            return None
        data = await self._piece(position, length)
        return data if record.verify(data, position)[1] == length else None

    async def begins(self, position: int) -> bool:
        """Whether a record begins at a position of the log. Reads its segment up to there: slow."""
        cached = self._tail.find(position)
        if cached is not None:
            begin, data = cached
            return position - begin in record.split(data)
        return await asyncio.get_running_loop().run_in_executor(None, self._begins, position)

    def _begins(self, position: int) -> bool:
        base = self._segments.base_of(position)
        try:
            for batch in segment_batches(self._segments, base):
                if batch.position + len(batch.data) > position:
                    return position - batch.position in record.split(batch.data)
        except FileNotFoundError:
            raise LogCorrupt(segment_name(base), position, "segment is missing") from None
        return False

    async def position_at(self, time_ms: int, begin: int, end: int) -> int:
        """Position of the first record in [begin, end), which is not empty, whose store time is not before `time_ms`;
        `end` if there is none. Reads one segment up to there."""
        low, high = self._segments.base_of(begin), self._segments.base_of(end - 1)
        while low < high:  # the last segment that begins before that time: store times never run backwards
            middle = low + (high - low + self._segments.size) // (2 * self._segments.size) * self._segments.size
            first = await self.chunk(max(middle, begin), end, 1)
            if first.data and record.store_time_of(first.data, 0) < time_ms:
                low = middle
            else:
                high = middle - self._segments.size
        position = max(low, begin)
        while position < end:
            found = await self.chunk(position, end, _SPAN)
            for start in record.split(found.data):
                if record.store_time_of(found.data, start) >= time_ms:
                    return found.position + start
            position = found.next_position
            await asyncio.sleep(0)
        return end

    async def chunk(self, position: int, end: int, max_bytes: int) -> Chunk:
        """Whole frames from `position` on, about `max_bytes` of them but at least one, none at `end`. What is known as
        damaged is passed over."""
        behind = self._segments.damaged.behind(position)
        if behind != position:
            found = Chunk(end, end, b"") if behind >= end else await self.chunk(behind, end, max_bytes)
            found.damaged = behind - position
            return found
        cached = self._tail.find(position)
        if cached is not None:
            begin, data = cached
            if position != begin:
                data = data[position - begin :]
            return _chunk(position, _whole(data, max_bytes))
        base = self._segments.base_of(position)
        room = self._segments.damaged.before(position, min(end, base + self._segments.size)) - position
        size = min(max(max_bytes, HEADER_SIZE), room)
        data = await self._read(position, size)
        length = int.from_bytes(data[4:8], "little")
        if len(data) >= HEADER_SIZE and size < length <= min(room, MAX_FRAME):
            data = await self._read(position, length)
        valid = record.verify(data, position)[1]
        if valid == 0:
            return await self._behind_padding(position, base + self._segments.size, end, max_bytes)
        return _chunk(position, data[:valid])

    async def _behind_padding(self, position: int, base: int, end: int, max_bytes: int) -> Chunk:
        """The segment ends at `position`, if the next one agrees. Zeros follow there, or, when the sync that cleared a
        torn tail failed, what is left of that: no record either."""
        if base >= end:
            raise self._corrupt(position)
        found = await self.chunk(base, end, max_bytes)
        if record.durable_of(found.data, 0) != position:
            raise self._corrupt(position)
        return found

    async def _piece(self, position: int, length: int) -> bytes:
        """Bytes from any position on, fewer where a batch of the tail cache ends."""
        cached = self._tail.find(position)
        if cached is None:
            return await self._read(position, length)
        begin, data = cached
        return data[position - begin : position - begin + length]

    def _span(self, positions: list[int], lengths: list[int], first: int) -> int:
        """Index behind the last record that one read brings along with the first."""
        begin = positions[first]
        segment_end = self._segments.base_of(begin) + self._segments.size
        end = begin + lengths[first]
        i = first + 1
        while i < len(positions):
            behind = positions[i] + lengths[i]
            if not end <= positions[i] <= end + _GAP or positions[i] >= segment_end or behind - begin > _SPAN:
                break
            end = behind
            i += 1
        return i

    async def _from_disk(self, positions: list[int], lengths: list[int]) -> bytes:
        begin = positions[0]
        data = await self._read(begin, positions[-1] + lengths[-1] - begin)
        return self._picked(data, begin, positions, lengths)

    def _picked(self, data: bytes, begin: int, positions: list[int], lengths: list[int]) -> bytes:
        """The records at `positions` out of a piece of the log; each is checked."""
        frames, count = record.pick(data, begin, positions, lengths)
        if count != len(positions):
            raise self._corrupt(positions[count])
        return frames

    async def _read(self, position: int, length: int) -> bytes:
        segments = self._segments
        base = segments.base_of(position)
        if not segments.has(base):
            raise LogCorrupt(segment_name(base), position, "segment is missing")
        try:
            data = segments.disk.read_cached(segments.descriptor(base), length, position - base)
            if data is None:
                loop = asyncio.get_running_loop()
                data = await loop.run_in_executor(None, self._read_slowly, base, position, length)
        except FileNotFoundError:
            raise LogCorrupt(segment_name(base), position, "segment is missing") from None
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            raise self._corrupt(position) from error
        return data

    def _read_slowly(self, base: int, position: int, length: int) -> bytes:
        fd = self._segments.open(base)  # its own: the loop may close the one it keeps
        try:
            return self._segments.disk.read(fd, length, position - base)
        finally:
            os.close(fd)

    def _corrupt(self, position: int) -> LogCorrupt:
        """Tells once of each place."""
        error = LogCorrupt(segment_name(self._segments.base_of(position)), position, "damaged record")
        if position not in self.met and len(self.met) < _MAX_MET and not self._segments.damaged.covers(position):
            self.met.add(position)
            logger.error("%s", error)
        return error


def _whole(data: bytes, max_bytes: int) -> bytes:
    """The frames of `data` that fit into `max_bytes`, at least the first."""
    if len(data) <= max_bytes:
        return data
    end = 0
    for start in record.split(data):
        if start > max_bytes:
            break
        end = start
    return data[: end or record.length_of(data, 0)]


def _chunk(position: int, data: bytes) -> Chunk:
    return Chunk(position, position + len(data), data)
