"""Reads records from the tail cache or the segments. It checks the CRC of each record from a segment.

A small read that the page cache can answer stays on the loop. One that needs the device runs in a thread. A large read
runs in a thread too, which also checks and copies the records: a client that reads the past must not delay the others.
At most `max_reads` reads are in threads at a time. They hold the GIL for a few microseconds for each piece.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar, TypeVarTuple

import record
from record.layout import HEADER_SIZE, MAX_FRAME, REFERENCE
from store.api import Chunk
from store.errors import LogCorrupt
from store.log.disk import UNREADABLE
from store.log.recovery import batches_read
from store.log.segments import Segments, segment_name
from store.log.tail_cache import TailCache

logger = logging.getLogger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Read = Callable[[int, int], bytes]  # bytes of a segment: how many, from which offset on

_MAX_MET: Final = 10_000  # positions of damage that are remembered
_GAP: Final = 16 << 10  # bytes between two wanted records up to which one read covers both; so many cost as a read
_GAP_IN_THREAD: Final = 64 << 10  # there a read costs more: it gives the GIL away and waits for it
_SPAN: Final = 1 << 20  # bytes of one read for several records
_SMALL: Final = 256 << 10  # bytes that are read, checked and copied on the loop in a fraction of a millisecond
_TURN: Final = 64  # reads of the page cache in one turn of the loop


class ColdSegments(Protocol):
    """Segments that are not here, or not only here."""

    def has(self, base: int) -> bool:
        """Whether the segment at `base` is one of them."""

    def time_of(self, base: int) -> int:
        """Store time of its first record, ms; 0 if that is not known."""

    async def run(self, base: int, function: Callable[[Read, *Arguments], T], *arguments: *Arguments) -> T:
        """Call a function that reads it, in a thread for that. Raises `StoreError`."""


class LogReader:
    """Reads committed records by reference and by position. Raises `LogCorrupt` where the log is damaged.

    What `cold` has is read there if it has no file here; `TierUnavailable` may be raised then.
    """

    __slots__ = ("_buffer", "_cold", "_segments", "_tail", "_threads", "met")

    def __init__(self, segments: Segments, tail: TailCache, max_reads: int, cold: ColdSegments | None = None) -> None:
        self._cold = cold
        self._buffer = memoryview(bytearray(_SPAN))  # of the last read from the page cache
        self._threads = asyncio.Semaphore(max_reads)
        self._segments = segments
        self._tail = tail
        self.met: set[int] = set()  # positions where reads met damage

    async def records(self, positions: list[int], lengths: list[int]) -> bytes:
        """The sealed frames at `positions`, back to back."""
        nothing = [0] * len(positions)
        return await self.frames(record.pack_refs(positions, lengths, nothing, nothing))

    async def each(self, wanted: list[tuple[int, int]]) -> list[bytes | None]:
        """The sealed frame at each (position, length), None for a damaged one. One thread reads all from the segments.

        Reads in order of positions are the fastest. It does not wait for other reads: retention must follow the writer.
        """
        found = await asyncio.get_running_loop().run_in_executor(None, self._read_each, wanted)
        for (position, _), frame in zip(wanted, found, strict=True):
            if frame is None:
                self._corrupt(position)
        return found

    async def frames(self, refs: bytes, without: int = 0) -> bytes:
        """The sealed frames of packed references, back to back, each without these parts (`record.without`).

        Frames that lie close to each other are read together.
        """
        pieces: list[bytes] = []
        i, count, reads = 0, len(refs) // REFERENCE, 0
        is_large = False
        while i < count:
            frames, found = self._tail.pick(refs, i, without)
            if not found:
                is_large = is_large or (not reads and record.count_within(refs, _SMALL) < count)
                if is_large:
                    frames, found = await self._in_thread(refs, i, without)
                else:
                    frames, found = await self._from_segment(refs, i, without)
                reads += 1
                if reads % _TURN == 0:
                    await asyncio.sleep(0)
            pieces.append(frames)
            i += found
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _from_segment(self, refs: bytes, first: int, without: int) -> tuple[bytes, int]:
        """The frames of packed references, from `first` on, that one read of a segment covers, and how many they
        are."""
        position = _position(refs, first)
        stop, begin, end = record.read_span(refs, first, self._limit(position), _GAP, _SMALL)
        if end - begin > _SMALL:
            return await self._in_thread(refs, first, without)
        data: bytes | memoryview | None = self._cached(begin, end - begin)
        if data is None:
            data = await self._from_device(begin, end - begin)
        frames, found = record.pick(data, begin, refs, first, stop, without)
        if first + found < stop:
            raise self._corrupt(_position(refs, first + found))
        return frames, found

    async def _in_thread(self, refs: bytes, first: int, without: int) -> tuple[bytes, int]:
        """The next frames of packed references, at least one and about `_SPAN` bytes, and how many they are."""
        position = _position(refs, first)
        limit = self._limit(position)
        frames, found = await self._away(position, self._pick_slowly, refs, first, without, limit)
        if not found:
            raise self._corrupt(position)
        return frames, found

    def _limit(self, position: int) -> int:
        """Where a read of the segment of `position` has to end: behind it, or before what is in the tail cache. The
        last batch there may not be in the segment yet."""
        segment_end = self._segments.base_of(position) + self._segments.size
        return self._tail.begin if position < self._tail.begin < segment_end else segment_end

    def _pick_slowly(self, read: Read, refs: bytes, first: int, without: int, limit: int) -> tuple[bytes, int]:
        """Read frames of one segment before `limit`, up to the first that is damaged or cannot be read. Raises
        OSError."""
        count = len(refs) // REFERENCE
        base = self._segments.base_of(_position(refs, first))
        pieces: list[bytes] = []
        size, i = 0, first
        try:
            while i < count and size < _SPAN and base <= _position(refs, i) < limit:
                stop, begin, end = record.read_span(refs, i, limit, _GAP_IN_THREAD, _SPAN)
                data = read(end - begin, begin - base)
                frames, found = record.pick(data, begin, refs, i, stop, without)
                pieces.append(frames)
                size += end - begin
                i += found
                if i < stop:
                    break
        except OSError:
            if i == first:
                raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), i - first

    async def record_at(self, position: int, end: int) -> bytes | None:
        """The valid record that begins at `position`, which may be any position before `end`; None if none does."""
        room = min(end, self._segments.base_of(position) + self._segments.size) - position
        header = await self._piece(position, min(HEADER_SIZE, room))
        length = int.from_bytes(header[4:8], "little")
        if not HEADER_SIZE <= length <= min(room, MAX_FRAME):
            return None
        data = await self._piece(position, length)
        return data if record.verify(data, position)[1] == length else None

    async def begins(self, position: int) -> bool:
        """Whether a record begins at a position of the log. Slow: reads the segment up to the position."""
        cached = self._tail.find(position)
        if cached is not None:
            begin, data = cached
            return position - begin in record.split(data)
        return await self._away(position, self._begins, position)

    def _begins(self, read: Read, position: int) -> bool:
        for batch in batches_read(read, self._segments, self._segments.base_of(position)):
            if batch.position + len(batch.data) > position:
                return position - batch.position in record.split(batch.data)
        return False

    async def position_at(self, time_ms: int, begin: int, end: int) -> int:
        """Position of the first record in [begin, end) that was stored at `time_ms` or later; `end` if there is none.

        The range must not be empty. Reads one segment up to that record.
        """
        low, high = self._segments.base_of(begin), self._segments.base_of(end - 1)
        while low < high:  # find the last segment that begins before that time: store times never run backwards
            middle = low + (high - low + self._segments.size) // (2 * self._segments.size) * self._segments.size
            found_ms = self.known_time(middle)
            if not found_ms:
                first = await self.chunk(max(middle, begin), end, 1)
                found_ms = record.store_time_of(first.data, 0) if first.data else time_ms
            if found_ms < time_ms:
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

    def known_time(self, base: int) -> int:
        """Store time of the first record in the segment at `base`, ms; 0 if that has to be read."""
        return 0 if self._cold is None else self._cold.time_of(base)

    async def chunk(self, position: int, end: int, max_bytes: int) -> Chunk:
        """Whole frames from `position` on, about `max_bytes` but at least one frame; none at `end`.

        Ranges that are gone are skipped.
        """
        behind = self._segments.gone.behind(position)
        if behind != position:
            found = Chunk(end, end, b"") if behind >= end else await self.chunk(behind, end, max_bytes)
            if self._segments.damaged.touches(position, behind - 1):
                found.damaged = behind - position
            return found
        cached = self._tail.find(position)
        if cached is not None:
            begin, data = cached
            if position != begin:
                data = data[position - begin :]
            return _chunk(position, _whole(data, max_bytes))
        base = self._segments.base_of(position)
        room = self._segments.gone.before(position, min(end, base + self._segments.size)) - position
        size = min(max(max_bytes, HEADER_SIZE), room)
        if size <= _SMALL:
            data = await self._read(position, size)
            length = _length(data)
            if size < length <= min(room, _SMALL):
                data = await self._read(position, length)
            data = data[: record.verify(data, position)[1]]
        if size > _SMALL or (not data and length > _SMALL):
            data = await self._away(position, self._verify_slowly, position, size, room)
        if not data:
            return await self._behind_padding(position, base + self._segments.size, end, max_bytes)
        return _chunk(position, data)

    def _verify_slowly(self, read: Read, position: int, size: int, room: int) -> bytes:
        """The valid frames of `size` bytes, or a single larger one within `room` bytes. Raises OSError."""
        offset = position - self._segments.base_of(position)
        data = read(size, offset)
        length = _length(data)
        if size < length <= min(room, MAX_FRAME):
            data = read(length, offset)
        return data[: record.verify(data, position)[1]]

    async def _behind_padding(self, position: int, base: int, end: int, max_bytes: int) -> Chunk:
        """Read on in the next segment if its first frame proves that this one ends at `position`.

        The rest of this segment is zeros, or a torn tail whose clearing failed to sync: no record in either case.
        """
        if base >= end:
            raise self._corrupt(position)
        found = await self.chunk(base, end, max_bytes)
        if record.durable_of(found.data, 0) != position:
            raise self._corrupt(position)
        return found

    async def _piece(self, position: int, length: int) -> bytes:
        """Read bytes from any position; fewer where a batch of the tail cache ends."""
        cached = self._tail.find(position)
        if cached is None:
            return await self._read(position, length)
        begin, data = cached
        return data[position - begin : position - begin + length]

    async def _read(self, position: int, length: int) -> bytes:
        view = self._cached(position, length)
        return await self._from_device(position, length) if view is None else bytes(view)

    def _cached(self, position: int, length: int) -> memoryview | None:
        """Bytes of a segment if the page cache has all of them. The view is valid until the next call."""
        base = self._segments.base_of(position)
        if not self._segments.has(base):
            return None
        try:
            fd = self._segments.descriptor(base)
        except FileNotFoundError:
            return None
        view = self._buffer[:length] if length <= _SPAN else memoryview(bytearray(length))
        return view if self._segments.disk.read_cached(fd, view, position - base) else None

    async def _from_device(self, position: int, length: int) -> bytes:
        offset = position - self._segments.base_of(position)
        return await self._away(position, lambda read: read(length, offset))

    async def _away(self, position: int, function: Callable[[Read, *Arguments], T], *arguments: *Arguments) -> T:
        """Call `function`, which reads the segment of `position`, in a thread. Raises `LogCorrupt`, `TierUnavailable`
        and OSError."""
        base = self._segments.base_of(position)
        if self._segments.has(base):
            async with self._threads:
                try:
                    return await asyncio.get_running_loop().run_in_executor(
                        None, self._with_file, base, function, *arguments
                    )
                except FileNotFoundError:
                    pass  # it was removed meanwhile
                except OSError as error:
                    if error.errno not in UNREADABLE:
                        raise
                    raise self._corrupt(position) from error
        if self._cold is None or not self._cold.has(base):
            raise LogCorrupt(segment_name(base), position, "segment is missing")
        return await self._cold.run(base, function, *arguments)

    def _with_file(self, base: int, function: Callable[[Read, *Arguments], T], *arguments: *Arguments) -> T:
        with self._segments.reading(base) as read:  # a descriptor of its own: the loop may close the cached one
            return function(read, *arguments)

    def _read_each(self, wanted: list[tuple[int, int]]) -> list[bytes | None]:
        found: list[bytes | None] = []
        fd, opened = -1, -1
        try:
            for position, length in wanted:
                base = self._segments.base_of(position)
                if base != opened:
                    if fd >= 0:
                        os.close(fd)
                    fd, opened = -1, base
                    with suppress(FileNotFoundError):
                        fd = self._segments.open(base)
                found.append(None if fd < 0 else self._whole_frame(fd, position, length))
        finally:
            if fd >= 0:
                os.close(fd)
        return found

    def _whole_frame(self, fd: int, position: int, length: int) -> bytes | None:
        """The frame at a position of an open segment; None if it is damaged."""
        try:
            frame = self._segments.disk.read(fd, length, position % self._segments.size)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None
        return frame if record.verify(frame, position)[1] == length else None

    def _corrupt(self, position: int) -> LogCorrupt:
        """Build the error for damage at a position. Logs each position once."""
        error = LogCorrupt(segment_name(self._segments.base_of(position)), position, "damaged record")
        if position not in self.met and len(self.met) < _MAX_MET and not self._segments.gone.covers(position):
            self.met.add(position)
            logger.error("%s", error)
        return error


def _position(refs: bytes, index: int) -> int:
    """The position of a packed reference."""
    at = index * REFERENCE
    return int.from_bytes(refs[at : at + 8], "little")


def _length(data: bytes) -> int:
    """The length of the frame that `data` begins with; 0 if its header is not whole."""
    return int.from_bytes(data[4:8], "little") if len(data) >= HEADER_SIZE else 0


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
