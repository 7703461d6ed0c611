"""The newest batches of the log in memory. Live delivery reads from here."""

from bisect import bisect_right
from typing import Final

import record

_BATCH_BYTES: Final = 100  # of a batch beside its data
_COMPACT: Final = 1024  # dropped batches after which the lists are shortened


class TailCache:
    """Recent batches by position, at most `limit` bytes but always the last one."""

    __slots__ = ("_batches", "_first", "_limit", "_positions", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._positions: list[int] = []
        self._batches: list[bytes] = []
        self._first = 0  # index of the oldest batch that is kept
        self.size = 0  # bytes

    def add(self, position: int, data: bytes) -> None:
        """Add a batch whose `position` is behind all others."""
        self._positions.append(position)
        self._batches.append(data)
        self.size += len(data) + _BATCH_BYTES
        while self.size > self._limit and self._first < len(self._batches) - 1:
            self.size -= len(self._batches[self._first]) + _BATCH_BYTES
            self._batches[self._first] = b""
            self._first += 1
        if self._first > _COMPACT:
            del self._positions[: self._first]
            del self._batches[: self._first]
            self._first = 0

    @property
    def begin(self) -> int:
        """Position of the oldest batch that is kept; -1 if there is none."""
        return self._positions[self._first] if self._positions else -1

    def find(self, position: int) -> tuple[int, bytes] | None:
        """(position, data) of the batch with the byte at `position`; None if it is not here."""
        at = bisect_right(self._positions, position) - 1
        if at < self._first:
            return None
        data = self._batches[at]
        begin = self._positions[at]
        return (begin, data) if position < begin + len(data) else None

    def pick(self, refs: bytes, first: int, without: int) -> tuple[bytes, int]:
        """The sealed frames of packed references, from `first` up to the one whose record is not here, and how many
        they are. See `record.gather`."""
        return record.gather(self._positions, self._batches, self._first, refs, first, without)
