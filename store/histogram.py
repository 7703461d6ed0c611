"""Histograms of what happens once for each batch: whole numbers by upper bound, as Prometheus counts them."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Microseconds: from a write to a fast disk to what only a broken one takes.
LATENCIES_US: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000)
# Milliseconds: from a handler that only counts to one that waits for other systems.
HANDLING_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
BATCH_MESSAGES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
BATCH_BYTES: Final = (256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20)


class Histogram:
    """How many values were at most each of some bounds. Nothing but `add` costs anything."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        """bounds: ascending."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # of values up to each bound and beyond the one before; of larger ones
        self.total: int = 0  # of all values

    def add(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
