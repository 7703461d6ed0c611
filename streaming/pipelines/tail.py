"""How large the deviations of a device become by themselves: the tail of their distribution.

The largest deviation of each quarter of a day is remembered by its logarithm, as a mean and a variance. For the largest
of many independent values, theory has a distribution (Gumbel 1958), of the logarithms if the tail is heavy. So the
deviation that a quarter of a day exceeds rarely is the mean plus a number of standard deviations. A device with many
outliers needs a larger one than a device whose noise is normal.
"""

import math
from struct import Struct
from typing import Final

_STATE: Final = Struct(">dddqd")
_BLOCK_S: Final = 86_400.0 / 4
_MEMORY: Final = 120  # blocks: a month
_MEAN: Final = math.log(2.5)  # before the first block: that of the largest of 72 normal deviations
_SPREAD: Final = 0.5
_NARROWEST: Final = 0.1  # the least standard deviation of the logarithms
_WEIGHT: Final = 2  # blocks that the begin counts for
_LEARNED: Final = 8  # blocks after which an outlier counts up to `_CLIP` standard deviations
_CLIP: Final = 3.0
_CAUTION: Final = 2.0  # raises the limit while there are few blocks
_LEAST: Final = 1.0  # a smaller deviation counts as this


class Tail:
    """The largest deviations of one device."""

    __slots__ = ("_block", "_blocks", "_largest", "_mean", "_variance")

    def __init__(self) -> None:
        self._blocks = 0.0  # complete ones
        self._mean, self._variance = _MEAN, _SPREAD**2
        self._block = 0  # the number of the current block since 1970
        self._largest = 0.0  # the logarithm of the largest deviation in it

    def limit(self, deviations: float) -> float:
        """Return the deviation that lies so many standard deviations above the largest one of a usual block."""
        spread = math.sqrt(self._variance) * deviations * (1 + _CAUTION / (self._blocks + 0.5))
        return math.exp(min(self._mean + spread, 500.0))

    def add(self, time: float, deviation: float) -> None:
        """Add the absolute deviation of a reading in sigma."""
        block = int(time // _BLOCK_S)
        if block != self._block:
            if self._block:
                self._close()
            self._block, self._largest = block, 0.0
        if deviation > _LEAST:
            self._largest = max(self._largest, math.log(deviation))

    def packed(self) -> bytes:
        """Return the state. Its size is constant."""
        return _STATE.pack(self._blocks, self._mean, self._variance, self._block, self._largest)

    @classmethod
    def unpacked(cls, state: bytes) -> "Tail":
        """Return the tail with the state at the beginning of `state`."""
        tail = cls()
        tail._blocks, tail._mean, tail._variance, tail._block, tail._largest = _STATE.unpack_from(state)
        return tail

    def _close(self) -> None:
        """Count the largest deviation of a complete block."""
        self._blocks += 1
        weight = 1 / min(self._blocks + _WEIGHT, _MEMORY)
        step = self._largest - self._mean
        if self._blocks > _LEARNED:
            most = _CLIP * math.sqrt(self._variance)
            step = max(-most, min(most, step))
        self._mean += weight * step
        self._variance = max(self._variance + weight * (step * step * (1 - weight) - self._variance), _NARROWEST**2)


SIZE: Final = _STATE.size
