"""Offsets of partitions of parent topics: pure, no Spark, no I/O.

Spark keeps offsets in its checkpoint as JSON, `{"sensors": {"0": 17, "1": 4}}`: by parent topic and partition, the next
offset to read. It compares them as text, so all is written in ascending order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Partition = tuple[str, int]  # of a parent topic, and its number
Offsets = dict[Partition, int]  # the next offset

_SKIPPED: Final = "#skipped"  # no parent topic has a # in its name
_SCALE: Final = 1 << 32
_GOLDEN: Final = 2654435769  # of `_SCALE`: multiples of it are spread evenly


class DataLossError(RuntimeError):
    """Records that the query has to read are gone from the log, or never were in this one."""


@dataclass(slots=True, frozen=True)
class Holding:
    """What a partition holds now: [begin, end)."""

    partition: Partition
    begin: int
    end: int


@dataclass(slots=True, frozen=True)
class StreamProgress:
    """Where a stream is, as Spark's checkpoint holds it."""

    offsets: Offsets
    skipped: int = 0  # records that were gone before the stream came to them, since it began (`failOnDataLoss`)

    def to_json(self) -> dict[str, object]:
        value: dict[str, object] = {**offsets_to_json(self.offsets)}
        return {_SKIPPED: self.skipped, **value} if self.skipped else value

    @classmethod
    def from_json(cls, value: Mapping[str, object], parents: Sequence[str] | None) -> "StreamProgress":
        """The reverse. Raises `ValueError`."""
        skipped = value.get(_SKIPPED, 0)
        if not isinstance(skipped, int):
            raise ValueError(f"not a number of records: {skipped!r}")
        rest = {parent: each for parent, each in value.items() if parent != _SKIPPED}
        return cls(offsets_from_json(rest, parents), skipped)


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """By parent topic and partition."""
    value: dict[str, dict[str, int]] = {}
    for parent, number in sorted(offsets):
        value.setdefault(parent, {})[str(number)] = offsets[parent, number]
    return value


def offsets_from_json(value: object, parents: Sequence[str] | None) -> Offsets:
    """The reverse. Of one parent topic alone, partitions may stand without it: `{"0": 17}`. Raises `ValueError` for
    anything but whole numbers from 0 up."""
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
            offsets[str(parent), _number(partition)] = _offset(offset)
    return offsets


def begins(holdings: Iterable[Holding]) -> Offsets:
    """Where each partition begins."""
    return {each.partition: each.begin for each in holdings}


def ends(holdings: Iterable[Holding]) -> Offsets:
    """Where each partition ends."""
    return {each.partition: each.end for each in holdings}


def advance(start: Offsets, available: Offsets, limit: int | None) -> Offsets:
    """The end of the next micro-batch: what is available, at most `limit` records beyond `start`.

    Each partition gets a part of that by what is left of it, so that all come to their ends together. With equal parts
    those of few records would run ahead in time and carry the watermark with them: the rest of the others would be
    late. A partition whose part is less than a record has one every so often. One that `start` does not know begins at
    0: it was created later. None goes backwards.
    """
    backlog = {partition: max(0, end - start.get(partition, 0)) for partition, end in available.items()}
    total = sum(backlog.values())
    limit = total if limit is None else min(limit, total)
    reached, counted, shared = dict(start), 0, 0
    rounding = sum(start.values()) * _GOLDEN % _SCALE  # other ones have the odd records each time
    for partition in sorted(backlog):
        counted += backlog[partition]
        upto = (counted * limit * _SCALE // total + rounding) // _SCALE if total else 0
        reached[partition] = start.get(partition, 0) + upto - shared
        shared = upto
    return reached


def skip_lost(start: Offsets, holdings: Sequence[Holding], *, fail: bool) -> tuple[Offsets, int]:
    """`start` moved up to what the log still holds, and how many records that skips. With `fail`, raises
    `DataLossError` where it has to move.

    A start beyond the end is loss as well: the checkpoint belongs to another log, or the log was cut.
    """
    moved = dict(start)
    skipped = 0
    for each in holdings:
        wanted = start.get(each.partition, 0)
        if wanted > each.end:
            problem = f"the log ends at {each.end}, before the offset {wanted} where the query stands"
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
                f"partition {number} of {parent!r}: {problem}. Set failOnDataLoss to false to go on without them, "
                "or start with a new checkpoint."
            )
    return moved, skipped


def _number(partition: object) -> int:
    if not str(partition).isdecimal():
        raise ValueError(f"not the number of a partition: {partition!r}; its offset cannot be used")
    return int(str(partition))


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"not an offset: {value!r}")
    return value
