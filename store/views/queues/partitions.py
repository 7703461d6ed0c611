"""The view of partitions: how many a parent topic has, and where its partitions ended each time that it got more.

A parent topic that has messages never gets fewer. Messages stay in their partitions, so those of one ordering key may
be in several. The ends tell an ordered group which of them are older (`store.groups.partition_growth`).
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from store.api import partition_of, partition_queue
from store.views.database.state import State

_COUNTS: Final = b"T"
_COUNT: Final = Struct(">H")
_NEVER: Final = 1 << 63


class PartitionGrowth:
    """One time that a parent topic got more partitions. `ends` has the end of each partition that it had, by queue."""

    __slots__ = ("_parent", "_prefix", "ends")

    def __init__(self, parent: bytes, ends: Sequence[int]) -> None:
        self._parent = parent
        self._prefix = partition_queue(parent, 0)[:-2]
        self.ends = {partition_queue(parent, number): end for number, end in enumerate(ends)}

    def begin(self, queue: bytes) -> int:
        """The first offset of a queue that is from after the growth; 2^63 for queues of other parent topics."""
        return self.ends.get(queue, 0) if queue[:-2] == self._prefix else _NEVER

    def queue_of(self, tag: int) -> bytes:
        """The partition that messages with this tag were in before."""
        return partition_queue(self._parent, partition_of(tag, len(self.ends)))


class Partitions:
    """The number of partitions of each parent topic."""

    __slots__ = ("_growths", "_state", "counts", "default", "have_grown")

    def __init__(self, state: State, default: int) -> None:
        self._state = state
        self.default = default  # of parent topics without a number of their own
        self.counts: dict[bytes, int] = {}  # of those with one; `Tails` reads it too
        self.have_grown = False  # whether any parent topic with messages ever got more partitions
        self._growths: dict[bytes, list[PartitionGrowth]] = {}
        for parent, row in state.all(_COUNTS):
            self.counts[parent], growths = _unpacked(row)
            if growths:
                self._growths[parent] = [PartitionGrowth(parent, ends) for ends in growths]
                self.have_grown |= any(growths[-1])

    def of(self, parent: bytes) -> int:
        """How many partitions a parent topic has."""
        return self.counts.get(parent, self.default)

    def growths(self, parent: bytes) -> Sequence[PartitionGrowth]:
        """Each time that a parent topic got more partitions, the oldest first."""
        return self._growths.get(parent, ())

    def set(self, parent: bytes, count: int, ends: list[int]) -> None:
        """Apply TOPIC_PARTITIONS. ends: of the partitions that the parent topic has."""
        has_messages = any(ends)
        if count > len(ends):
            self._growths[parent] = [*self.growths(parent), PartitionGrowth(parent, ends)]
            self.have_grown |= has_messages
        elif has_messages:
            return
        else:
            self._growths[parent] = [each for each in self.growths(parent) if len(each.ends) < count]
        self.counts[parent] = count
        self._state.put(_COUNTS, parent, _packed(count, self.growths(parent)))


def _packed(count: int, growths: Sequence[PartitionGrowth]) -> bytes:
    row = _COUNT.pack(count)
    for growth in growths:
        row += _COUNT.pack(len(growth.ends)) + b"".join([end.to_bytes(8, "big") for end in growth.ends.values()])
    return row


def _unpacked(row: bytes) -> tuple[int, list[list[int]]]:
    growths: list[list[int]] = []
    at = _COUNT.size
    while at < len(row):
        behind = at + _COUNT.size + 8 * _COUNT.unpack_from(row, at)[0]
        at += _COUNT.size
        growths.append([int.from_bytes(row[each : each + 8], "big") for each in range(at, behind, 8)])
        at = behind
    return _COUNT.unpack_from(row)[0], growths
