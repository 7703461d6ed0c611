"""Counts and times of calls by method, of gRPC or HTTP, for `/metrics`. A gateway sends its own to the store."""

from collections.abc import Mapping
from typing import Final

from store.histogram import Histogram

# Microseconds: from a read of what is in memory to a long poll that found nothing.
CALL_US: Final = (
    500,
    1000,
    2500,
    5000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
)
_ENDED: Final = "ended"
_TIMED: Final = "timed"
_TOTAL: Final = "sum"


class Calls:
    """Calls of one front. A method is a name without `|`: methods that do not exist have to share one."""

    def __init__(self) -> None:
        self.under_way = 0
        self.ended: dict[tuple[str, str], int] = {}  # by method and code
        self.times: dict[str, Histogram] = {}  # by method, microseconds; without streams

    def count(self, method: str, code: str) -> None:
        """A call has ended."""
        self.ended[method, code] = self.ended.get((method, code), 0) + 1

    def time(self, method: str, microseconds: int) -> None:
        """A call took so long."""
        times = self.times.get(method)
        if times is None:
            times = self.times[method] = Histogram(CALL_US)
        times.add(microseconds)

    def figures(self) -> dict[str, int]:
        """All of it as figures of a gateway; empty buckets are left out."""
        found = {f"{_ENDED}|{method}|{code}": count for (method, code), count in self.ended.items()}
        for method, times in self.times.items():
            found |= histogram_figures(f"{_TIMED}|{method}", times)
        return found

    def add(self, figures: Mapping[str, int]) -> None:
        """Add what the `figures` of a gateway say."""
        for name, number in figures.items():
            kind, _, rest = name.partition("|")
            method, _, part = rest.rpartition("|")
            if kind == _ENDED:
                self.ended[method, part] = self.ended.get((method, part), 0) + number
            elif kind == _TIMED and part == _TOTAL:
                self.times[method] = read_histogram(figures, f"{_TIMED}|{method}", CALL_US)


def histogram_figures(name: str, histogram: Histogram) -> dict[str, int]:
    """A histogram as figures of a gateway; empty buckets are left out."""
    found = {f"{name}|{number}": count for number, count in enumerate(histogram.counts) if count}
    return found | {f"{name}|{_TOTAL}": histogram.total} if found else {}


def read_histogram(figures: Mapping[str, int], name: str, bounds: tuple[int, ...]) -> Histogram:
    """The histogram of that name in the figures of a gateway."""
    found = Histogram(bounds)
    found.counts = [figures.get(f"{name}|{number}", 0) for number in range(len(bounds) + 1)]
    found.total = figures.get(f"{name}|{_TOTAL}", 0)
    return found
