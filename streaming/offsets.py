"""Offsets of a parent topic's partitions and the plan of what to read: pure, no Spark, no I/O.

Spark keeps offsets in its checkpoint as JSON, `{"0": 17, "1": 4}`: by partition, the next offset to
read. It compares them as text, so partitions are always written in ascending order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Offsets = dict[int, int]  # partition → next offset


class DataLossError(RuntimeError):
    """Records that the query has to read are gone from the log, or never were in this one."""


class PartitionBounds(Protocol):
    """What a partition holds now: [begin, end). `cloud_sdk` answers `partitions` with these."""

    @property
    def partition(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


@dataclass(slots=True, frozen=True)
class OffsetRange:
    """Offsets [start, end) of one partition: the work of one task."""

    partition: int
    start: int
    end: int


def offsets_to_json(offsets: Offsets) -> dict[str, int]:
    """As Spark's checkpoint holds them."""
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def offsets_from_json(value: object) -> Offsets:
    """The reverse. Raises `ValueError` for anything but whole numbers from 0 up."""
    if not isinstance(value, Mapping):
        raise ValueError(f"offsets must be an object, not {value!r}")
    offsets: Offsets = {}
    for partition, offset in value.items():
        if not str(partition).isdecimal() or not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise ValueError(f"not a partition and an offset: {partition!r}: {offset!r}")
        offsets[int(partition)] = offset
    return offsets


def begins(bounds: Iterable[PartitionBounds]) -> Offsets:
    """Where each partition begins."""
    return {bound.partition: bound.begin for bound in bounds}


def ends(bounds: Iterable[PartitionBounds]) -> Offsets:
    """Where each partition ends."""
    return {bound.partition: bound.end for bound in bounds}


def advance(start: Offsets, available: Offsets, limit: int | None) -> Offsets:
    """The end of the next micro-batch: what is available, at most `limit` records beyond `start`.

    Each partition gets an equal share, and what small backlogs leave over goes to the larger ones. A
    partition that `start` does not know begins at 0: it was created later. None goes backwards.
    """
    backlog = {partition: max(0, end - start.get(partition, 0)) for partition, end in available.items()}
    reached = dict(start)
    remaining = sum(backlog.values()) if limit is None else limit
    waiting = len(backlog)
    for partition in sorted(backlog, key=lambda number: (backlog[number], number)):
        take = min(backlog[partition], remaining // waiting)
        reached[partition] = start.get(partition, 0) + take
        remaining -= take
        waiting -= 1
    return reached


def skip_lost(start: Offsets, bounds: Sequence[PartitionBounds], *, fail: bool) -> Offsets:
    """`start` moved up to what the log still holds. With `fail`, raises `DataLossError` where it has to move.

    A start beyond the end is loss as well: the checkpoint belongs to another log, or the log was cut.
    """
    moved = dict(start)
    for bound in bounds:
        wanted = start.get(bound.partition, 0)
        if wanted > bound.end:
            problem = f"the log ends at {bound.end}, before the offset {wanted} where the query stands"
            moved[bound.partition] = bound.end
        elif wanted < bound.begin:
            problem = f"offsets [{wanted}, {bound.begin}) were deleted by retention before they were read"
            moved[bound.partition] = bound.begin
        else:
            continue
        if fail:
            raise DataLossError(
                f"partition {bound.partition}: {problem}. Set failOnDataLoss to false to go on without them, "
                "or start with a new checkpoint."
            )
    return moved


def plan(start: Offsets, end: Offsets, records_per_task: int) -> list[OffsetRange]:
    """Ranges that cover [start, end) of each partition, each of at most `records_per_task` offsets."""
    ranges = []
    for partition in sorted(end):
        first, stop = start.get(partition, 0), end[partition]
        ranges += [
            OffsetRange(partition, low, min(low + records_per_task, stop))
            for low in range(first, stop, records_per_task)
        ]
    return ranges
