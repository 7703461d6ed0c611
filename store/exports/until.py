"""A moment of the log, as people name it: a position, or a time. Where the log is cut for it."""

from bisect import bisect_right
from dataclasses import dataclass

import record
from store.errors import LogCorrupt
from store.log.recovery import sound_batches
from store.log.segments import Segments
from store.repair.verify import Damage, pieces


@dataclass(slots=True, frozen=True)
class Until:
    """A moment: the records before `position`, or those stored at `time_ms` or earlier. None for both: all records."""

    position: int | None = None
    time_ms: int | None = None

    def has(self, data: bytes, at: int) -> bool:
        """Whether the record at byte `at` of `data` existed at that moment."""
        if self.position is not None:
            return record.position_of(data, at) < self.position
        return self.time_ms is None or record.store_time_of(data, at) <= self.time_ms


def cut(segments: Segments, until: Until) -> int:
    """The end of the last record that existed at a moment; the log's begin if none did.

    Reads one or two segments and the beginnings of some others. Raises `LogCorrupt` for damage there, and OSError.
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
    return segments.gone.behind(end)


def _begins_with(segments: Segments, base: int, until: Until) -> bool:
    """Whether the first record in the segment or behind it existed at that moment."""
    for batch in sound_batches(segments, base):
        return until.has(batch.data, 0)
    return False
