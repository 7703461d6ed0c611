"""Counting readings by device and sequence number."""

from collections import Counter
from collections.abc import Iterable, Mapping


class Tally:
    """The readings that one consumer has received. The sequence numbers of a device begin at 0."""

    __slots__ = ("_highest", "_seen", "disorder", "repeats")

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {}
        self._highest: dict[str, int] = {}
        self.repeats: Counter[str] = Counter()  # readings received again, by device
        self.disorder = 0  # readings first received after a later one of the same device

    def add(self, device: str, seq: int) -> None:
        seen = self._seen.setdefault(device, set())
        if seq in seen:
            self.repeats[device] += 1
            return
        seen.add(seq)
        if seq < self._highest.get(device, -1):
            self.disorder += 1
        else:
            self._highest[device] = seq

    @property
    def distinct(self) -> int:
        return sum(map(len, self._seen.values()))

    @property
    def duplicates(self) -> int:
        """Readings received again."""
        return self.repeats.total()

    def missing(self, expected: Mapping[str, Iterable[int]]) -> list[tuple[str, int]]:
        """Return the `expected` sequence numbers that were not received, as ordered (device, number) pairs."""
        nothing: set[int] = set()
        return [
            (device, seq)
            for device, numbers in sorted(expected.items())
            for seq in sorted(set(numbers) - self._seen.get(device, nothing))
        ]


def to_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Convert numbers to ascending ranges [first, last], as the fleet reports acknowledged readings."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def from_ranges(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """Convert ranges [first, last] back to numbers."""
    return {number for first, last in ranges for number in range(first, last + 1)}


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` (0..1) of the values lie, by nearest rank; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
