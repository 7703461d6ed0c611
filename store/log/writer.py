"""Seals frames and writes them at the end of the log. The state belongs to the flush thread while a flush is under way,
and to the loop otherwise: the loop prepares and completes small writes.

A record never spans segments. If one does not fit, the rest of the segment stays zero. The first frame of the next
segment names the true end as its durable position, so a reader can tell this padding from damage.

Frames of a shared log are sealed first (`seal`), and written when they are decided (`apply`). What is decided counts as
durable in them, although this disk may lose it.
"""

import os
import time
from collections.abc import Callable
from itertools import accumulate

import record
from store.errors import RecordInvalid, StoreError
from store.log.disk import Disk
from store.log.pages import PAGE, Pages
from store.log.segments import Segments

Clock = Callable[[], int]

_MAX_UNDURABLE = 64 << 20  # bytes that the interval policy leaves unsynced


def clock_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


class SealedBatch:
    """Sealed frames that were written together, at `position` of the log."""

    __slots__ = ("data", "position", "store_time")

    def __init__(self, position: int, data: bytes, store_time: int) -> None:
        self.position = position
        self.data = data
        self.store_time = store_time  # ms


class PreparedWrite:
    """A sealed batch and the whole pages that have to be written durably for it."""

    __slots__ = ("batch", "fd", "offset", "pages", "positions")

    def __init__(self, batch: SealedBatch, positions: list[int], fd: int, pages: memoryview, offset: int) -> None:
        self.batch = batch
        self.positions = positions  # of each frame in the log
        self.fd = fd
        self.pages = pages
        self.offset = offset  # in the file


class Writer:
    """Writes to the log from `position` on. After any error but `RecordInvalid` it must not be used again, because the
    content of the disk is unknown."""

    __slots__ = (
        "_base",
        "_clock",
        "_fd",
        "_pages",
        "_policy",
        "_segments",
        "disk",
        "durable",
        "epoch",
        "position",
        "store_time",
    )

    def __init__(
        self,
        segments: Segments,
        position: int,
        store_time: int,
        epoch: int,
        policy: str,
        clock: Clock = clock_ms,
    ) -> None:
        self._segments = segments
        self.disk: Disk = segments.disk
        self._policy = policy
        self._clock = clock
        self._base = -1
        self._fd = -1
        self._pages = Pages()
        self.position = position  # of the next frame
        self.durable = position  # all bytes before it are on disk
        self.epoch = epoch
        self.store_time = store_time  # of the newest batch; never runs backwards

    def open(self) -> None:
        """Open the segment that is written first. Raises OSError."""
        self._enter(1)

    def write(self, frames: list[bytes]) -> tuple[list[SealedBatch], list[int]]:
        """Write the frames, durably under the fsync policy. Returns the batches and each frame's position.

        Raises `RecordInvalid`, with nothing written, when one is not an unsealed frame; OSError when the disk fails.
        """
        sizes = list(map(len, frames))
        self.store_time = max(self.store_time, self._clock())
        if not frames:
            return [], []
        if sum(sizes) <= self._enter(sizes[0]):
            positions = list(accumulate(sizes[:-1], initial=self.position))
            return [self._write_batch(self._seal(frames, self.position, self.durable))], positions
        for frame in frames:  # check all before writing the first
            self._seal([frame], self.position, self.durable)
        return self._write_across(frames, sizes)

    def prepare(self, frames: list[bytes], size: int) -> PreparedWrite | None:
        """Seal frames of `size` bytes together for one durable write, which the caller does. `complete` follows it.

        Returns None if they need `write`: under the interval policy, and for the next segment. Raises what `write`
        does, which may be called then.
        """
        segments, base, position = self._segments, self._base, self.position
        if not frames or self._policy != "fsync" or base < 0 or size > base + segments.size - position:
            return None
        self._prepare_next(base, position)
        self.store_time = max(self.store_time, self._clock())
        batch = SealedBatch(position, self._seal(frames, position, self.durable), self.store_time)
        positions = list(accumulate(map(len, frames[:-1]), initial=position))
        offset = position - base
        return PreparedWrite(batch, positions, self._fd, self._pages.fill(batch.data), offset - offset % PAGE)

    def complete(self, write: PreparedWrite) -> None:
        """The pages of a prepared write are on disk."""
        self._pages.keep()
        self.position += len(write.batch.data)
        self.durable = self.position

    def seal(self, frames: list[bytes], end: int, most: int) -> tuple[list[SealedBatch], list[int]]:
        """Seal frames for a shared log that ends at `end` into batches of at most `most` bytes, which no frame exceeds.

        Nothing is written: `apply` does that with each batch, when it is decided. Returns the batches and each frame's
        position. Raises `RecordInvalid` when one is not an unsealed frame.
        """
        self.store_time = max(self.store_time, self._clock())
        segments = self._segments
        sizes = list(map(len, frames))
        batches: list[SealedBatch] = []
        positions: list[int] = []
        first = 0
        while first < len(frames):
            position, next_base = end, segments.base_of(end) + segments.size
            if next_base - end < sizes[first]:
                position, next_base = next_base, next_base + segments.size
            room = max(min(next_base - position, most), sizes[first])
            last, size = first, 0
            while last < len(frames) and size + sizes[last] <= room:
                positions.append(position + size)
                size += sizes[last]
                last += 1
            data = self._seal(frames[first:last], position, end)
            batches.append(SealedBatch(position, data, self.store_time))
            first, end = last, position + size
        return batches, positions

    def apply(self, batch: SealedBatch) -> None:
        """Write a sealed batch that is decided and continues the log. Raises OSError. Meanwhile the loop may seal."""
        self._enter(len(batch.data))  # the next segment, if its writer began that one with the batch
        if self.position != batch.position:
            raise StoreError(f"a batch for position {batch.position} came to a log that goes on at {self.position}")
        self._put_batch(batch)

    def is_open_at(self, batch: SealedBatch) -> bool:
        """Whether a sealed batch continues the segment that is open."""
        return batch.position == self.position and self._segments.base_of(batch.position) == self._base

    def sync(self) -> None:
        """Make all written bytes durable."""
        if self.durable < self.position:
            self.disk.sync(self._fd)
            self.durable = self.position

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = self._base = -1

    def _enter(self, length: int) -> int:
        """Open the segment that the next frame, of `length` bytes, goes into. Returns the bytes left in it."""
        segments = self._segments
        base = segments.base_of(self.position)
        if base + segments.size - self.position < length:
            base += segments.size
        if base != self._base:
            self.sync()  # the old segment, before its descriptor is closed
            fd = segments.open_for_writing(base)
            self.close()
            self._fd, self._base = fd, base
            self.position = max(self.position, base)
            if self._policy != "shared":
                kept = (self.position - base) % PAGE
                self._pages.begin(self.disk.read(fd, kept, self.position - base - kept))
            if self._policy == "fsync":
                self.disk.write_past_cache(fd)
        else:
            self._prepare_next(base, self.position)
        return base + segments.size - self.position

    def _prepare_next(self, base: int, position: int) -> None:
        """Have the next segment created when half of this one is full."""
        segments = self._segments
        if position - base > segments.size // 2:
            segments.prepare(base + segments.size)

    def _write_across(self, frames: list[bytes], sizes: list[int]) -> tuple[list[SealedBatch], list[int]]:
        """Write frames that do not fit into one segment, as one batch per segment."""
        batches: list[SealedBatch] = []
        positions: list[int] = []
        first = 0
        while first < len(frames):
            room = self._enter(sizes[first])
            last, size = first, 0
            while last < len(frames) and size + sizes[last] <= room:
                positions.append(self.position + size)
                size += sizes[last]
                last += 1
            batches.append(self._write_batch(self._seal(frames[first:last], self.position, self.durable)))
            first = last
        return batches, positions

    def _put(self, pages: memoryview, offset: int) -> None:
        if self._policy == "fsync":
            self.disk.write_durable(self._fd, pages, offset)
        else:
            self.disk.write(self._fd, pages, offset)

    def _seal(self, frames: list[bytes], position: int, durable: int) -> bytes:
        try:
            return record.seal(frames, position, self.epoch, self.store_time, durable)
        except ValueError as error:
            raise RecordInvalid(f"not an unsealed frame: {error}") from None

    def _write_batch(self, data: bytes) -> SealedBatch:
        batch = SealedBatch(self.position, data, self.store_time)
        self._put_batch(batch)
        return batch

    def _put_batch(self, batch: SealedBatch) -> None:
        data = batch.data
        if self._policy == "shared":  # the pages of a reserved segment are not read before they are written
            self.disk.write(self._fd, data, self.position - self._base)
        else:
            self._pages.write(data, self.position - self._base, self._put)
        if self._policy == "fsync":
            self.durable = self.position + len(data)
        self.position += len(data)
        if self.position - self.durable > _MAX_UNDURABLE:
            self.sync()
