"""Recovers a log when it is opened: finds its end, cuts a torn tail, and refuses damage.

The first byte that is not part of a valid frame is either the end of the log or damage. A crash during a flush can
leave any bytes, but only behind the last durable position. Each frame has the durable position at the time it was
written (`durable_of`). If a valid frame behind the bad byte was written when that byte was already durable, the byte
went bad later: nothing is cut, and the log does not open. Otherwise the bytes are a torn tail, which was never
acknowledged, and they are overwritten with zeros.

Ranges that are gone, damaged or removed (`Segments.gone`), are skipped.
"""

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final

import record
from record.layout import HEADER_SIZE, MAGIC, MAX_FRAME, VERSION
from store.errors import LogCorrupt
from store.log.segments import Segments, segment_name
from store.log.writer import SealedBatch

_CHUNK: Final = 4 << 20  # bytes read at once
_BATCH: Final = 256 << 10  # bytes of frames, which stay in the CPU's cache while they are read, verified and folded
_MARK: Final = MAGIC.to_bytes(2, "little") + bytes([VERSION])
_MARK_AT: Final = 8  # where the mark is in a frame


@dataclass(slots=True, frozen=True)
class Recovered:
    """The bounds of a recovered log."""

    begin: int
    begin_time: int  # store time of the first record, ms; 0: nothing was reclaimed, or that record is damaged
    end: int
    store_time: int  # of the newest record, ms; 0: no record was read
    cut: int  # bytes of torn tail that were cleared


def recover(segments: Segments, checked: int, durable: int) -> Recovered:
    """Verify the log from the segment of `checked` on, and cut its torn tail.

    `checked` is the position of the views, `durable` the position up to which they know that the log was on disk.
    Raises `LogCorrupt` for damage. The caller has to handle an end before `checked`, which is possible under the
    interval policy.
    """
    begin, end, last = find_end(segments, checked, durable)
    if last is not None:
        _rewrite(segments, last)
    store_time = 0 if last is None else last.store_time
    return Recovered(begin, begin_time(segments, begin), end, store_time, clear(segments, end))


def find_end(segments: Segments, checked: int, durable: int) -> tuple[int, int, SealedBatch | None]:
    """Find where the log begins and ends, and its last batch, as `recover` does but without changing anything."""
    if not segments.bases:
        if durable:
            raise LogCorrupt(segment_name(0), 0, "the segments are gone")
        return 0, 0, None
    begin = segments.bases[0]
    first = max(segments.base_of(checked), begin)
    first = min(first, segments.bases[-1])
    last = _last_batch(segments, first)
    while last is None and first > begin:  # the views have records of this segment that never reached the disk
        first -= segments.size
        last = _last_batch(segments, first)
    end = segments.gone.behind(begin if last is None else last.position + len(last.data))
    _refuse_damage(segments, end)
    if end < durable:
        raise LogCorrupt(segment_name(segments.base_of(end)), end, f"records up to {durable} are lost: the log ends")
    return begin, end, last


def missing_at_begin(segments: Segments, log_begin: int) -> LogCorrupt | None:
    """The damage if segments are missing before the first one; None if not.

    `log_begin` is where the views know that the log begins. Files before it may still be there.
    """
    base = segments.base_of(log_begin)
    if not segments.bases or segments.begin <= base:
        return None
    count = (segments.begin - base) // segments.size
    what = "the segment is missing" if count == 1 else f"{count} segments are missing"
    return LogCorrupt(segment_name(base), base, what)


def begin_time(segments: Segments, begin: int) -> int:
    """Store time of the log's first record; 0 when nothing was reclaimed, or that record is damaged."""
    first = next(sound_batches(segments, begin), None) if begin else None
    return 0 if first is None else record.store_time_of(first.data, 0)


def _last_batch(segments: Segments, position: int) -> SealedBatch | None:
    last = None
    for last in sound_batches(segments, position):  # noqa: B007  all are read, the last is kept
        pass
    return last


def sound_batches(segments: Segments, position: int) -> Iterator[SealedBatch]:
    """Yield the log from `position` on, up to the first byte that is neither in a valid frame nor in a range that is
    gone."""
    base = segments.base_of(position)
    while segments.has(base):
        for batch in segment_batches(segments, position):
            yield batch
            position = batch.position + len(batch.data)
        behind = segments.gone.behind(position)
        if behind == position:
            base += segments.size
            if not continues(segments, base, position):
                break
            position = base
        else:
            position, base = behind, segments.base_of(behind)


def segment_batches(segments: Segments, position: int) -> Generator[SealedBatch, None, None]:
    """Yield the batches of one segment from `position` on, as `sound_batches` does."""
    with segments.reading(segments.base_of(position)) as read:
        yield from batches_read(read, segments, position)


def batches_read(
    read: Callable[[int, int], bytes], segments: Segments, position: int
) -> Generator[SealedBatch, None, None]:
    """Yield the batches of one segment from `position` on. `read` returns so many of its bytes from an offset on."""
    base = segments.base_of(position)
    while (position := segments.gone.behind(position)) < base + segments.size:
        data, last = _sound(read, segments, base, position)
        if not data:
            break
        yield SealedBatch(position, data, record.store_time_of(data, last))
        position += len(data)


def _sound(read: Callable[[int, int], bytes], segments: Segments, base: int, position: int) -> tuple[bytes, int]:
    """Read valid frames at `position`, about as many as fit a batch but at least one. Returns them and where the last
    one begins in them."""
    room = segments.gone.before(position, base + segments.size) - position
    data = read(min(_BATCH, room), position - base)
    last, valid = record.verify(data, position)
    if valid == 0 and len(data) >= HEADER_SIZE:
        length = int.from_bytes(data[4:8], "little")
        if len(data) < length <= min(room, MAX_FRAME) and data[_MARK_AT : _MARK_AT + 3] == _MARK:
            data = read(length, position - base)
            last, valid = record.verify(data, position)
    return data[:valid], last


def continues(segments: Segments, base: int, end: int) -> bool:
    """Whether the segment at `base` begins with a frame that was written when the log ended at `end`."""
    if not segments.has(base):
        return False
    with segments.reading(base) as read:
        data, _ = _sound(read, segments, base, base)
    return bool(data) and record.durable_of(data, 0) == end


def _refuse_damage(segments: Segments, end: int) -> None:
    """Raise `LogCorrupt` if a valid frame behind `end` proves that the bytes at `end` were durable once."""
    for _, durable in frames_behind(segments, end):
        if durable > end:
            raise LogCorrupt(segment_name(segments.base_of(end)), end, "damaged record")


def frames_behind(segments: Segments, position: int) -> Iterator[tuple[int, int]]:
    """Yield (position, durable position) of each valid frame from `position` on, at any byte."""
    base = segments.base_of(position)
    offset = position - base
    while segments.has(base):
        fd = segments.open(base)
        try:
            yield from _frames_from(segments, fd, base, offset)
        finally:
            os.close(fd)
        base += segments.size
        offset = 0


def _frames_from(segments: Segments, fd: int, base: int, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the valid frames of one segment from byte `offset` on, as `frames_behind` does."""
    for begin, end in segments.disk.written_ranges(fd, offset):
        yield from _frames_within(segments, fd, base, begin, end)


def _frames_within(segments: Segments, fd: int, base: int, offset: int, end: int) -> Iterator[tuple[int, int]]:
    overlap = HEADER_SIZE
    while offset < end:
        data = segments.disk.read(fd, min(_CHUNK + overlap, end - offset), offset)
        at = data.find(_MARK, _MARK_AT)
        while at >= 0:
            start = offset + at - _MARK_AT
            own = data[at + 8 : at + 16]
            if own == (base + start).to_bytes(8, "little"):
                length = int.from_bytes(data[at - 4 : at], "little")
                if HEADER_SIZE <= length <= segments.size - start:
                    frame = segments.disk.read(fd, length, start)
                    if record.verify(frame, base + start)[1] == length:
                        yield base + start, record.durable_of(frame, 0)
            at = data.find(_MARK, at + 1)
        offset += _CHUNK


def _rewrite(segments: Segments, batch: SealedBatch) -> None:
    """Write the end of the log again, from the last position that the last batch proves durable, and sync it.

    A killed process may have left these bytes in the page cache only. After a failed sync the kernel marks such pages
    as clean, so a sync alone would not write them. Earlier segments were synced before the writer left them.
    """
    last = record.split(batch.data)[-1]
    base = segments.base_of(batch.position + last)
    begin = max(record.durable_of(batch.data, last), base, segments.gone.last_end(batch.position))
    fd = segments.open(base)
    try:
        end = batch.position + len(batch.data)
        while begin < end:
            data = segments.disk.read(fd, min(_CHUNK, end - begin), begin - base)
            segments.disk.write(fd, data, begin - base)
            begin += len(data)
        segments.disk.sync(fd)
    finally:
        os.close(fd)


def clear(segments: Segments, end: int, dry: bool = False) -> int:
    """Overwrite all bytes behind `end` with zeros, durably, and return how many were not zero. `dry` only counts."""
    cleared = 0
    base = segments.base_of(end)
    offset = end - base
    while segments.has(base):
        fd = segments.open(base)
        try:
            # All of them first: what is read counts as written from then on, and so does what is read ahead.
            for begin, written_to in segments.disk.written_ranges(fd, offset):
                for at in range(begin, written_to, _CHUNK):
                    data = segments.disk.read(fd, min(_CHUNK, written_to - at), at)
                    dirty = len(data.rstrip(b"\0"))
                    if dirty:
                        if not dry:
                            segments.disk.write(fd, bytes(dirty), at)
                        cleared += dirty
            if cleared and not dry:
                segments.disk.sync(fd)
        finally:
            os.close(fd)
        base += segments.size
        offset = 0
    return cleared
