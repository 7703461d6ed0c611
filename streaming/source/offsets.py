"""Offsets of partitions of parent topics: pure, no Spark, no I/O.

Spark keeps offsets in its checkpoint as JSON, `{"sensors": {"0": 17, "1": 4}}`: the next offset to read by parent topic
and partition. It compares them as text, so the names are in ascending order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Partition = tuple[str, int]  # the parent topic and the number of the partition
Offsets = dict[Partition, int]  # the next offset

# No parent topic has a # in its name.
_SKIPPED: Final = "#skipped"
LAG: Final = "#lag"  # in reports of the log's end: what is not read yet, by parent topic and partition
_SCALE: Final = 1 << 32
_GOLDEN: Final = 2654435769  # its multiples modulo `_SCALE` are spread evenly


class DataLossError(RuntimeError):
    """Records that the query must read are gone from the log, or are of another log."""


@dataclass(slots=True, frozen=True)
class Holding:
    """The offsets that a partition holds now: [begin, end)."""

    partition: Partition
    begin: int
    end: int


@dataclass(slots=True, frozen=True)
class StreamProgress:
    """The progress of a stream, as in Spark's checkpoint."""

    offsets: Offsets
    skipped: int = 0  # records removed before the stream read them, since its start (`failOnDataLoss`)

    def to_json(self) -> dict[str, object]:
        value: dict[str, object] = {**offsets_to_json(self.offsets)}
        return {_SKIPPED: self.skipped, **value} if self.skipped else value

    @classmethod
    def from_json(cls, value: Mapping[str, object], parents: Sequence[str] | None) -> "StreamProgress":
        """Parse progress from JSON. Raises `ValueError`."""
        skipped = value.get(_SKIPPED, 0)
        if not isinstance(skipped, int):
            raise ValueError(f"not a number of records: {skipped!r}")
        rest = {parent: each for parent, each in value.items() if not parent.startswith("#")}
        return cls(offsets_from_json(rest, parents), skipped)


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Convert offsets to JSON, by parent topic and partition."""
    value: dict[str, dict[str, int]] = {}
    for parent, number in sorted(offsets):
        value.setdefault(parent, {})[str(number)] = offsets[parent, number]
    return value


def offsets_from_json(value: object, parents: Sequence[str] | None, *, least: int = 0) -> Offsets:
    """Parse offsets from JSON. With one parent topic, its name may be left out: `{"0": 17}`. Raises `ValueError` for
    anything but whole numbers from `least`."""
    if not isinstance(value, Mapping):
        raise ValueError(f"offsets must be an object, not {value!r}")
    if value and not any(isinstance(each, Mapping) for each in value.values()):
        if parents is None or len(parents) != 1:
            raise ValueError("offsets of several parent topics are objects by parent")
        value = {parents[0]: value}
    offsets: Offsets = {}
    for parent, each in value.items():
        if not isinstance(each, Mapping):
            raise ValueError(f"offsets of {parent!r} must be an object, not {each!r}")
        if parents is not None and parent not in parents:
            raise ValueError(f"offsets of {parent!r}, which is not read")
        for partition, offset in each.items():
            offsets[str(parent), _number(partition)] = _offset(offset, least)
    return offsets


def begins(holdings: Iterable[Holding]) -> Offsets:
    """Return the first offset of each partition."""
    return {each.partition: each.begin for each in holdings}


def ends(holdings: Iterable[Holding]) -> Offsets:
    """Return the end of each partition."""
    return {each.partition: each.end for each in holdings}


def advance(start: Offsets, available: Offsets, limit: int | None) -> Offsets:
    """Return the end of the next micro-batch: what is available, but at most `limit` records after `start`.

    Each partition gets a share in proportion to its backlog, so that all partitions reach their ends together. With
    equal shares, partitions with few records would run ahead in time and advance the watermark, and the records of the
    others would be late. A partition whose share is less than one record gets one from time to time. A partition that
    is not in `start` was created later and begins at 0. No partition moves backwards.
    """
    backlog = {partition: max(0, end - start.get(partition, 0)) for partition, end in available.items()}
    total = sum(backlog.values())
    limit = total if limit is None else min(limit, total)
    reached, counted, shared = dict(start), 0, 0
    rounding = sum(start.values()) * _GOLDEN % _SCALE  # gives the odd records to other partitions each time
    for partition in sorted(backlog):
        counted += backlog[partition]
        upto = (counted * limit * _SCALE // total + rounding) // _SCALE if total else 0
        reached[partition] = start.get(partition, 0) + upto - shared
        shared = upto
    return reached


def skip_lost(start: Offsets, holdings: Sequence[Holding], *, fail: bool) -> tuple[Offsets, int]:
    """Move `start` to what the log still holds. Return the new offsets and the number of skipped records.

    With `fail`, raises `DataLossError` instead of moving. A start beyond the end is a loss as well: the checkpoint
    belongs to another log, or the log was cut.
    """
    moved = dict(start)
    skipped = 0
    for each in holdings:
        wanted = start.get(each.partition, 0)
        if wanted > each.end:
            problem = f"the log ends at {each.end}, before the offset {wanted} of the query"
            moved[each.partition] = each.end
        elif wanted < each.begin:
            problem = f"offsets [{wanted}, {each.begin}) were deleted by retention before they were read"
            moved[each.partition] = each.begin
            skipped += each.begin - wanted
        else:
            continue
        if fail:
            parent, number = each.partition
            raise DataLossError(
                f"partition {number} of {parent!r}: {problem}. Set failOnDataLoss to false to continue without them, "
                "or start with a new checkpoint."
            )
    return moved, skipped


def _number(partition: object) -> int:
    if not str(partition).isdecimal():
        raise ValueError(f"not the number of a partition: {partition!r}; its offset cannot be used")
    return int(str(partition))


def _offset(value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"not an offset: {value!r}")
    return value
