"""A moment of the log, as people name it: a position, or a time. Where the log is cut for it."""

from bisect import bisect_right
from dataclasses import dataclass

import record
from store.errors import LogCorrupt
from store.log.recovery import segment_batches
from store.log.segments import Segments
from store.repair.verify import Damage, pieces


@dataclass(slots=True, frozen=True)
class Until:
    """The records before `position`, and those that were stored no later than `time_ms`; one of the two is None."""

    position: int | None = None
    time_ms: int | None = None

    def has(self, data: bytes, at: int) -> bool:
        """Whether the record at `at` was there at that moment."""
        if self.position is not None:
            return record.position_of(data, at) < self.position
        return self.time_ms is None or record.store_time_of(data, at) <= self.time_ms


def cut(segments: Segments, until: Until) -> int:
    """The end of the last record that was there; the log's begin if none was.

    Of the log a segment or two are read, and the beginnings of some. Raises `LogCorrupt` for damage there, OSError.
    """
    bases = segments.bases
    if not bases:
        return 0
    after = bisect_right(bases, False, key=lambda base: not _begins_with(segments, base, until))
    start = bases[max(after - 1, 0)]
    end = start
    for piece in pieces(segments, start):
        if isinstance(piece, Damage):
            raise LogCorrupt(piece.segment, piece.position, piece.what)
        for at in record.split(piece.data):
            if not until.has(piece.data, at):
                return end
            end = piece.position + at + record.length_of(piece.data, at)
    return segments.damaged.behind(end)


def _begins_with(segments: Segments, base: int, until: Until) -> bool:
    """Whether the segment's first record was there."""
    for batch in segment_batches(segments, base):
        return until.has(batch.data, 0)
    return False
