"""Where queues begin: behind what retention has taken, and at the age that their parent topic keeps.

Store times never run backwards along a queue, so what entered before the log's first record, or is too old, is in front
of the first reference that is young enough. Positions do run backwards: a message that was held is older than its
neighbours and may be gone before them. Such references in front are stepped over; those further back are holes,
which a fetch skips.
"""

from collections.abc import Callable, Mapping
from typing import Final

from matcher.names import parent_of
from record import unpack_refs
from store.views.index import Index

_MAX_BEGINS: Final = 1 << 16  # queues whose begin is remembered
_PAGE: Final = 1024  # references looked at at once
_PAGES: Final = 64  # looked through in search of a record that is there; behind them a queue may begin with a hole

References = Callable[[bytes, int, int], bytes]  # (queue, offset, limit) → packed references


class Floors:
    """How young messages have to be to be answered, by parent topic: store times in ms."""

    __slots__ = ("_by_parent", "highest", "others")

    def __init__(self, by_parent: Mapping[bytes, int] | None = None, others: int = 0) -> None:
        self._by_parent = by_parent or {}
        self.others = others  # of parents that are not named
        self.highest = max([others, *self._by_parent.values()])  # what is as young is answered, whatever its parent

    def of(self, parent: bytes) -> int:
        """The floor of a parent topic."""
        return self._by_parent.get(parent, self.others)

    def of_queue(self, queue: bytes) -> int:
        """The floor of all of a queue; 0 where it has messages of several parents, each with its own."""
        if queue[:1] == b"t":
            return self.of(parent_of(queue[1:]))
        return self.of(queue[1:-3]) if queue[:1] == b"p" else 0


class Begins:
    """The begins of queues in the log of an index, whose first record has `store_time`."""

    __slots__ = ("_begins", "_index", "_references", "floors", "store_time")

    def __init__(self, index: Index, references: References, store_time: int) -> None:
        self._index = index
        self._references = references
        # By digest: the offset, and position and time up to which log and floor may move until it moves too.
        self._begins: dict[bytes, tuple[int, int, int]] = {}
        self.store_time = store_time  # ms
        self.floors = Floors()

    @property
    def are_zero(self) -> bool:
        """Whether all queues begin at 0."""
        return self._index.begin == 0 and self.floors.highest == 0

    def move(self, begin: int, store_time: int) -> None:
        """The log begins there from here on."""
        self._index.begin = begin
        self.store_time = store_time

    def first(self, queue: bytes, digest: bytes, indexed: int, end: int) -> int:
        """The first offset that is answered, `end` if there is none. References from offset `indexed` on are not in
        the index yet."""
        floor = max(self.store_time, self.floors.of_queue(queue))
        known = self._begins.get(digest)
        if known is not None and known[1] >= self._index.begin and known[2] >= floor:
            return known[0]
        offset, position, time = self._step(queue, self._index.first_since(digest, floor, indexed), end, floor)
        if offset < end:  # else the next message may be at it
            if digest not in self._begins and len(self._begins) >= _MAX_BEGINS:
                self._begins.clear()
            self._begins[digest] = (offset, position, time)
        return offset

    def has_entered(
        self, queue: bytes, digest: bytes, indexed: int, end: int, times: tuple[int, int], log: range
    ) -> bool:
        """Whether a record of the range `log` entered the queue between two store times, both included. Also True
        where that is not to be found out at once."""
        offset = self._index.first_since(digest, times[0], indexed)
        for page in range(_PAGES):
            if offset >= end:
                return False
            positions, _, store_times, _ = unpack_refs(self._references(queue, offset, _PAGE if page else 1))
            for position, store_time in zip(positions, store_times, strict=True):
                if store_time > times[1]:
                    return False
                if position in log:
                    return True
            offset += len(positions)
        return True

    def _step(self, queue: bytes, offset: int, end: int, floor: int) -> tuple[int, int, int]:
        """The first offset from `offset` on whose record is not below the log's begin, with its position and time."""
        for page in range(_PAGES):
            if offset == end:
                break
            limit = _PAGE if page else 1  # it is the first, as a rule
            positions, _, times, _ = unpack_refs(self._references(queue, offset, limit))
            for position, time in zip(positions, times, strict=True):
                if position >= self._index.begin and time >= floor:
                    return offset, position, time
                offset += 1
        return offset, self._index.begin, floor
