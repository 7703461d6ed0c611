"""Sorted ranges of positions of a log."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final


class Ranges:
    """Sorted ranges [begin, end) of positions that do not touch each other. False if there are none."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in sorted(ranges):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            elif begin < end:
                self._begins.append(begin)
                self._ends.append(end)

    def __len__(self) -> int:
        return len(self._begins)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    def behind(self, position: int) -> int:
        """Where to continue reading: the position itself, or the end of the range that it is in."""
        at = bisect_right(self._begins, position) - 1
        return max(position, self._ends[at]) if at >= 0 else position

    def covers(self, position: int) -> bool:
        """Whether the position is in a range."""
        return self.behind(position) != position

    def before(self, position: int, limit: int) -> int:
        """Where reading from a position outside all ranges has to stop: the next range, at most `limit`."""
        at = bisect_right(self._begins, position)
        return min(limit, self._begins[at]) if at < len(self._begins) else limit

    def last_end(self, position: int) -> int:
        """The end of the last range before a position outside all ranges; 0 if there is none."""
        at = bisect_right(self._begins, position) - 1
        return self._ends[at] if at >= 0 else 0

    @property
    def end(self) -> int:
        """The end of the last range; 0 without ranges."""
        return self._ends[-1] if self._ends else 0

    def touches(self, first: int, last: int) -> bool:
        """Whether a position from `first` to `last` is in a range."""
        return self.covers(first) or self.before(first, last + 1) <= last

    def up_to(self, position: int) -> "Ranges":
        """The ranges that begin before a position."""
        return Ranges((begin, end) for begin, end in self if begin < position)

    def size(self, begin: int = 0) -> tuple[int, int]:
        """The number of ranges that end after `begin`, and their bytes from `begin` on."""
        sizes = [end - max(first, begin) for first, end in self if end > begin]
        return len(sizes), sum(sizes)


NO_RANGES: Final = Ranges()
