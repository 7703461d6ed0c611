"""Verifies a copy of a log by reading all of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import record
from store.errors import LogCorrupt
from store.log.recovery import segment_batches
from store.log.segments import Segments, segment_name


@dataclass(slots=True, frozen=True)
class CheckedLog:
    """The content of a verified copy."""

    ends: dict[int, int]  # by segment: the end of its last record
    time_ms: int  # store time of the newest record that was read; 0: none


def check_log(
    segments: Segments, position: int, known: Mapping[int, int], on_read: Callable[[int], None]
) -> CheckedLog:
    """Read all segments except those whose end is `known`. Call `on_read` with the bytes of each batch.

    Raises `LogCorrupt` unless they have valid records without a gap up to exactly `position`.
    """
    ends: dict[int, int] = {}
    end, time_ms = segments.bases[0] if segments.bases else position, 0
    for base in segments.bases:
        behind = known.get(base, base)
        if base not in known:
            for batch in segment_batches(segments, base):
                is_next = batch.position == base and base not in (segments.bases[0], segments.gone.behind(end))
                if is_next and record.durable_of(batch.data, 0) != end:
                    break  # the segment before it had other records when it was written
                behind = batch.position + len(batch.data)
                time_ms = batch.store_time
                on_read(len(batch.data))
        if behind == base and segments.gone.behind(end) < base + segments.size:
            break
        ends[base] = behind
        end = end if behind == base else behind
    end = segments.gone.behind(end)
    if end != position or len(ends) != len(segments.bases):
        raise LogCorrupt(segment_name(segments.base_of(end)), end, "damaged record")
    return CheckedLog(ends, time_ms)
