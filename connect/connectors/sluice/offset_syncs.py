"""Which offsets of the source belong to which time at the target: the offset syncs of Kafka's MirrorMaker 2."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self

import orjson

MOST: Final = 64  # syncs of a parent topic
_MOST_NUMBER: Final = 1 << 63  # times and offsets are less
_SHOWN: Final = 40  # characters in an error


class OffsetSync(NamedTuple):
    """Whatever the source stores in partitions of a parent topic from these offsets on, the target stores at this time
    or later."""

    ends: Sequence[int]  # by partition of the source; a partition that came later begins at 0
    time_ms: int  # of the target's log, since 1970-01-01 UTC


class OffsetSyncs:
    """The syncs of a parent topic, the oldest first. The older they are, the further they are apart."""

    def __init__(self, syncs: Iterable[OffsetSync] = ()) -> None:
        self._syncs = list(syncs)

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Raises `ValueError` for what `packed` has not made."""
        try:
            syncs = [OffsetSync(list(ends), time_ms) for time_ms, ends in orjson.loads(data)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"these are no offset syncs: {error}") from error
        numbers: list[object] = [number for each in syncs for number in (each.time_ms, *each.ends)]
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number < _MOST_NUMBER:
                raise ValueError(f"these are no offset syncs: {str(number)[:_SHOWN]} is no time and no offset")
        return cls(syncs)

    def packed(self) -> bytes:
        """The value of an entry: JSON, `[[time_ms, [end of partition 0, …]], …]`."""
        return orjson.dumps([(each.time_ms, each.ends) for each in self._syncs])

    def add(self, sync: OffsetSync) -> None:
        """Add the newest sync. One with the same offsets is replaced: it says less. Of more than `MOST`, that one is
        dropped between whose neighbours is the least time, compared with its age. If offsets went back, the source has
        another log now, and all are dropped."""
        last = self._syncs[-1].ends if self._syncs else ()
        if any(new < old for new, old in zip(sync.ends, last, strict=False)):
            self._syncs.clear()
        elif self._syncs and list(last) == list(sync.ends):
            self._syncs.pop()
        self._syncs.append(sync)
        if len(self._syncs) > MOST:
            del self._syncs[min(range(1, len(self._syncs) - 1), key=self._gap)]

    def _gap(self, index: int) -> float:
        before, this, behind = (each.time_ms for each in self._syncs[index - 1 : index + 2])
        return (behind - before) / (self._syncs[-1].time_ms - this + 1)

    def time_of(self, floors: Mapping[int, int]) -> int:
        """A time at the target before which it has stored no message from these offsets on, by partition of the source;
        0 if no sync is that old."""
        for sync in reversed(self._syncs):
            if all(floors.get(partition, 0) >= end for partition, end in enumerate(sync.ends)):
                return sync.time_ms
        return 0
