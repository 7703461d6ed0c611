"""Ends of queues that have no tail in memory, packed: a queue costs bytes and no object.

A memory of what RocksDB would answer with a seek: what is forgotten is sought there again. Compiled from
`_ends.pyx`; `PlainEnds` stands in where there is no C compiler.
"""

from typing import TYPE_CHECKING


class PlainEnds:
    """Ends of queues by digest (16 bytes), at most `limit` of them: the oldest are forgotten."""

    __slots__ = ("_ends", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ends: dict[bytes, int] = {}

    def get(self, digest: bytes) -> int:
        """The end that was put for the digest, -1 if there is none."""
        if len(digest) != 16:
            raise ValueError("a digest has 16 bytes")
        return self._ends.get(digest, -1)

    def put(self, digest: bytes, end: int) -> None:
        """Remember an end."""
        if len(digest) != 16:
            raise ValueError("a digest has 16 bytes")
        if digest not in self._ends and len(self._ends) >= self._limit:
            del self._ends[next(iter(self._ends))]
        self._ends[digest] = end


if TYPE_CHECKING:
    Ends = PlainEnds
else:
    try:
        from store.views._ends import Ends
    except ImportError:
        Ends = PlainEnds
