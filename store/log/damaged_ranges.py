"""Damaged ranges of a log, which readers skip once an operator has accepted them.

`damaged.json` in the log's folder lists them. Whoever opens a log reads it, and `store.repair.salvage` writes it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import orjson

from store.errors import StoreError
from store.log.disk import Disk, replace_file

FORMAT: Final = 1
FILE: Final = "damaged.json"


class DamagedRanges:
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

    def touches(self, first: int, last: int) -> bool:
        """Whether a position from `first` to `last` is in a range."""
        return self.covers(first) or self.before(first, last + 1) <= last

    def up_to(self, position: int) -> "DamagedRanges":
        """The ranges that begin before a position. A copy of the log that ends there has these."""
        return DamagedRanges((begin, end) for begin, end in self if begin < position)

    def size(self, begin: int = 0) -> tuple[int, int]:
        """The number of ranges that end after `begin`, and their bytes from `begin` on."""
        sizes = [end - max(first, begin) for first, end in self if end > begin]
        return len(sizes), sum(sizes)


NO_DAMAGE: Final = DamagedRanges()


def read_damaged(folder: Path) -> DamagedRanges:
    """Read the damaged ranges of the log in the folder. Raises `StoreError` for a damaged file or another version."""
    path = folder / FILE
    try:
        known = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return DamagedRanges()
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
    try:
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, but this version reads only {FORMAT}")
        return DamagedRanges((int(begin), int(end)) for begin, end in known["ranges"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error


def write_damaged(folder: Path, damaged: DamagedRanges, disk: Disk) -> None:
    """Replace the damaged ranges of the log in the folder, durably. Raises OSError."""
    if not damaged and not (folder / FILE).exists():
        return
    rows = {"format": FORMAT, "ranges": list(damaged)}
    replace_file(folder / FILE, orjson.dumps(rows, option=orjson.OPT_INDENT_2), disk)
