"""Finds where queues begin: behind the records that retention removed, and at their parent topic's retention floor.

Store times never run backwards along a queue, so all references that are too old are before the first one that is
not. Positions do run backwards: the record of a held message is older than its neighbours' and may be removed before
them. Such references at the beginning of a queue are skipped here. Further back they are holes, which a fetch skips.
"""

from collections.abc import Callable, Mapping
from typing import Final

from matcher.names import parent_of
from record import unpack_refs
from store.views.queues.index import Index

_MAX_BEGINS: Final = 1 << 16  # queues whose begin is cached
_PAGE: Final = 1024  # references that are read at once
_PAGES: Final = 64  # pages searched for a record that exists; a queue may begin with a hole after them

References = Callable[[bytes, int, int], bytes]  # (queue, offset, limit) → packed references


class Floors:
    """Retention floors by parent topic: older messages are not returned. Store times in ms."""

    __slots__ = ("_by_parent", "highest", "others")

    def __init__(self, by_parent: Mapping[bytes, int] | None = None, others: int = 0) -> None:
        self._by_parent = by_parent or {}
        self.others = others  # the floor of all other parents
        self.highest = max([others, *self._by_parent.values()])  # newer messages are returned, whatever their parent

    def of_parent(self, parent: bytes) -> int:
        """The floor of a parent topic."""
        return self._by_parent.get(parent, self.others)

    def of_queue(self, queue: bytes) -> int:
        """The floor of a queue; 0 if it can have messages of several parent topics."""
        if queue[:1] == b"t":
            return self.of_parent(parent_of(queue[1:]))
        return self.of_parent(queue[1:-3]) if queue[:1] == b"p" else 0


class Begins:
    """The begins of queues. `store_time` is that of the log's first record (ms)."""

    __slots__ = ("_begins", "_index", "_references", "floors", "store_time")

    def __init__(self, index: Index, references: References, store_time: int) -> None:
        self._index = index
        self._references = references
        # By digest: the offset, and up to which position and time the log and the floor may move without changing it.
        self._begins: dict[bytes, tuple[int, int, int]] = {}
        self.store_time = store_time  # ms
        self.floors = Floors()

    @property
    def are_zero(self) -> bool:
        """Whether all queues begin at 0."""
        return self._index.begin == 0 and self.floors.highest == 0

    def move(self, begin: int, store_time: int) -> None:
        """Let the log begin at `begin`, with a record of `store_time`."""
        self._index.begin = begin
        self.store_time = store_time

    def first(self, queue: bytes, digest: bytes, indexed: int, end: int) -> int:
        """The first offset that can be read, `end` if there is none. References from `indexed` on are not in the index
        yet."""
        floor = max(self.store_time, self.floors.of_queue(queue))
        known = self._begins.get(digest)
        if known is not None and known[1] >= self._index.begin and known[2] >= floor:
            return known[0]
        offset, position, time = self._step(queue, self._index.first_since(digest, floor, indexed), end, floor)
        if offset < end:  # otherwise the next message may get this offset
            if digest not in self._begins and len(self._begins) >= _MAX_BEGINS:
                self._begins.clear()
            self._begins[digest] = (offset, position, time)
        return offset

    def has_entered(
        self, queue: bytes, digest: bytes, indexed: int, end: int, times: tuple[int, int], log: range
    ) -> bool:
        """Whether a record of the range `log` entered the queue between two store times, both included.

        Also True if the search takes too long.
        """
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
        """Skip references to removed or too old records. Returns the first other offset, its position and time."""
        for page in range(_PAGES):
            if offset == end:
                break
            limit = _PAGE if page else 1  # usually the first reference is the one
            positions, _, times, _ = unpack_refs(self._references(queue, offset, limit))
            for position, time in zip(positions, times, strict=True):
                if position >= self._index.begin and time >= floor:
                    return offset, position, time
                offset += 1
        return offset, self._index.begin, floor
