"""Where queues begin, once retention has taken the log's beginning.

Store times never run backwards along a queue, so what entered before the log's first record is in front of the first
reference that is as young as that record. Positions do run backwards: a message that was held is older than its
neighbours and may be gone before them. Such references in front are stepped over; those further back are holes,
which a fetch skips.
"""

from collections.abc import Callable
from typing import Final

from record import unpack_refs
from store.views.index import Index

_MAX_BEGINS: Final = 1 << 16  # queues whose begin is remembered
_PAGE: Final = 1024  # references looked at at once
_PAGES: Final = 64  # looked through in search of a record that is there; behind them a queue may begin with a hole

References = Callable[[bytes, int, int], bytes]  # (queue, offset, limit) → packed references


class Begins:
    """The begins of queues in the log of an index, whose first record has `store_time`."""

    __slots__ = ("_begins", "_index", "_references", "store_time")

    def __init__(self, index: Index, references: References, store_time: int) -> None:
        self._index = index
        self._references = references
        self._begins: dict[bytes, int] = {}  # by digest, true for the index's `begin`
        self.store_time = store_time  # ms

    def move(self, begin: int, store_time: int) -> None:
        """The log begins there from here on."""
        self._index.begin = begin
        self.store_time = store_time
        self._begins.clear()

    def first(self, queue: bytes, digest: bytes, indexed: int, end: int) -> int:
        """The first offset whose record is in the log, `end` if there is none. References from offset `indexed` on
        are not in the index yet."""
        found = self._begins.get(digest)
        if found is None:
            found = self._index.first_since(digest, self.store_time, indexed)
            found = self._step(queue, found, end)
            if found == end:
                return end  # not to be remembered: the next message may be at it
            if len(self._begins) >= _MAX_BEGINS:
                self._begins.clear()
            self._begins[digest] = found
        return found

    def _step(self, queue: bytes, offset: int, end: int) -> int:
        """The first offset from `offset` on whose record is not below the log's begin."""
        for page in range(_PAGES):
            if offset == end:
                break
            limit = _PAGE if page else 1  # it is the first, as a rule
            for position in unpack_refs(self._references(queue, offset, limit))[0]:
                if position >= self._index.begin:
                    return offset
                offset += 1
        return offset
