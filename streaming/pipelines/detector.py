"""A detector of anomalies in the readings of one device. Pure: no Spark and no clock.

It processes one reading at a time, with a state of fixed size. `baseline` predicts the reading, and sigma, the standard
deviation of readings from the prediction. There are three kinds of anomalies:

* `spike`: one reading is more than `spike` sigma away, and `tail` standard deviations further than the largest
  deviations of the device usually are (`tail.Tail`).
* `shift`: the excess over `drift` sigma is summed up, separately upwards and downwards (a CUSUM, Page 1954). The sums
  decay over `span_s`. A sum of n independent readings grows with the square root of n, so a sum must exceed `threshold`
  times the root of the number of readings in it, whether they come every minute or every hour. A new device needs more.
  A shift that lasts for `settle_s` becomes the new level.
* `flat`: the value is constant for `flat` of a day's readings, and for three times as long as ever before.

Noise has longer tails than theory. So the next anomaly of the same kind needs `louder` times as much evidence, which
fades over `memory_s`: the limits adapt to devices with frequent anomalies (the idea of adaptive conformal inference,
Gibbs and Candès 2021). No anomaly is reported for `rest_s` after another one, nor in the first `warm_up` readings or
the first `warm_up_s`.
"""

import math
from dataclasses import dataclass
from struct import Struct
from typing import Final

from streaming.pipelines import tail
from streaming.pipelines.baseline import Baseline
from streaming.pipelines.tail import Tail

_DAY_S: Final = 86_400.0
_HEAD: Final = Struct(">BQQQ11d")
_VERSION: Final = 3
_MOST: Final = 8.0  # the most sigma that one reading adds to a sum
_AGE_S: Final = 2 * _DAY_S  # at this age a device needs twice the evidence of an old one
_CARRIED: Final = 2.0  # limits a sum to a multiple of what is needed, so that it decreases soon after a shift
_LOUDEST: Final = 16.0  # the most by which earlier anomalies multiply the needed evidence
_FEWEST: Final = 12  # a shorter run of equal values is never flat
_TIMES: Final = 3  # a flat run is so many times as long as the longest one before
_LONGER: Final = 2  # the longest run of a known device grows by this factor at most
_BEHIND: Final = 100  # so many readings in a row from before the last day: the clock of the device was put back

LARGEST: Final = 1e150  # the largest absolute value; sums of larger ones would overflow
KINDS: Final = ("spike", "shift", "flat")
_SHIFT: Final = 1


@dataclass(slots=True, frozen=True)
class Settings:
    """The settings of a detector. The defaults are for readings every few seconds to every few hours."""

    slots: int = 24  # of a day, each with its own offset from the level
    warm_up: int = 300  # readings at the start that are never anomalies
    warm_up_s: float = _DAY_S  # seconds at the start without anomalies: each hour of the day must be learned
    spike: float = 5.0  # sigma
    tail: float = 3.0  # standard deviations above the largest deviations of a quarter of a day
    threshold: float = 3.0  # of a sum, in sigma times the root of the number of readings in it
    drift: float = 2.0  # sigma of each reading that add nothing to a sum
    span_s: float = _DAY_S  # seconds over which a sum decays
    flat: float = 0.25  # the share of a day's readings that may be equal
    min_scale: float = 0.0  # the least sigma, in the unit of the value: the noise of the sensor
    louder: float = 1.5  # multiplies the needed evidence after an anomaly
    settle_s: float = 3 * _DAY_S  # seconds until a shift becomes the new level
    memory_s: float = 30 * _DAY_S  # seconds over which the baseline looks back
    rest_s: float = _DAY_S  # seconds without anomalies after one

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid setting."""
        for name in ("slots", "spike", "threshold", "span_s", "flat", "memory_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and above 0, not {getattr(self, name)}")
        for name in ("min_scale", "tail"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, not {getattr(self, name)}")
        if not self.louder >= 1:
            raise ValueError(f"louder must be at least 1, not {self.louder}")


# Settings by how much is reported, from little to much.
SENSITIVITIES: Final[dict[str, Settings]] = {
    "low": Settings(tail=4.0),
    "normal": Settings(),
    "high": Settings(tail=2.0, threshold=2.5),
}


@dataclass(slots=True, frozen=True)
class Anomaly:
    """A reading with enough evidence of an anomaly."""

    time: float  # seconds since 1970
    value: float
    expected: float
    score: float  # evidence divided by what was needed: at least 1, negative below the expected value
    kind: str  # one of `KINDS`


class Detector:
    """The detector of one device. Readings must come in the order of their time; others are ignored."""

    __slots__ = (
        "_baseline",
        "_behind",
        "_count",
        "_down",
        "_last",
        "_longest",
        "_needed",
        "_over",
        "_quiet",
        "_raised",
        "_run",
        "_settings",
        "_tail",
        "_up",
        "_value",
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._baseline = Baseline(settings.slots, settings.memory_s)
        self._tail = Tail()
        self._last = self._quiet = -math.inf  # time of the last reading; no anomaly is reported before `_quiet`
        self._behind = 0  # readings ignored since the last one
        self._up = self._down = 0.0
        self._count = 0.0  # readings in the sums, decayed like them
        self._over = math.inf  # the time since which a sum exceeds what is needed
        self._needed = [1.0] * len(KINDS)  # factors of the needed evidence, by kind
        self._raised = -math.inf  # the time at which the factor of shifts was raised last
        self._value = math.nan
        self._run = self._longest = 0  # the number of equal readings, now and at most before

    @property
    def readings(self) -> int:
        """The number of readings, without ignored ones."""
        return self._baseline.readings

    def observe(self, time: float, value: float) -> Anomaly | None:
        """Process a reading: its time in seconds since 1970, and a value of at most `LARGEST`. Return its anomaly, or
        None.

        A reading that is not newer than the last one is ignored, so a repeated reading counts once. If the clock of a
        device was ahead and is put back, its readings count again after `_BEHIND` of them.
        """
        if time <= self._last and not self._is_put_back(time):
            return None
        settings, baseline = self._settings, self._baseline
        elapsed_s = max(0.0, time - self._last) if baseline.readings else 0.0
        self._last, self._behind = time, 0
        keep = math.exp(-elapsed_s / settings.span_s)
        self._count = self._count * keep + 1
        sigma = max(baseline.sigma, settings.min_scale)
        known = baseline.readings >= settings.warm_up and baseline.age_s >= settings.warm_up_s and sigma > 0
        self._count_equal(value, known=known)
        expected = baseline.update(time, value, elapsed_s, known=known)
        return self._judge(time, value, expected, sigma, elapsed_s, keep) if known else None

    def _is_put_back(self, time: float) -> bool:
        """Return whether the clock of the device was put back: many readings in a row are from before the last day.
        Forget the times of the old clock then."""
        self._behind += 1
        if self._behind < _BEHIND or time > self._last - _DAY_S:
            return False
        self._quiet = self._raised = -math.inf
        self._over = math.inf
        return True

    def _count_equal(self, value: float, *, known: bool) -> None:
        """Count equal readings in a row. The longest run of a known device grows slowly only."""
        if value == self._value:
            self._run += 1
            return
        most = _LONGER * max(self._longest, _FEWEST)
        self._longest = max(self._longest, min(self._run, most) if known else self._run)
        self._value, self._run = value, 1

    def _judge(
        self, time: float, value: float, expected: float, sigma: float, elapsed_s: float, keep: float
    ) -> Anomaly | None:
        """Return the anomaly of a reading with the highest score, or None."""
        settings, needed = self._settings, self._needed
        if max(needed) > 1:
            fade = math.exp(-elapsed_s / settings.memory_s)
            needed[:] = [1 + (each - 1) * fade for each in needed]
        residual = value - expected
        deviation = residual / sigma
        shift = self._shift(deviation, keep)
        still = max(settings.flat * self._count, _TIMES * self._longest, _FEWEST)
        limit = max(settings.spike, self._tail.limit(settings.tail))
        self._tail.add(time, abs(deviation))
        scores = (
            abs(deviation) / (limit * needed[0]),
            shift / needed[1]
            if abs(deviation) > settings.drift
            else 0.0,  # a reading near the prediction is no shift, even if the sum is still high
            self._run / (still * needed[2]),
        )
        self._settle(time, residual, shift)
        score = max(scores)
        if score < 1 or time < self._quiet:
            return None
        kind = scores.index(score)
        self._quiet = time + settings.rest_s
        if kind != _SHIFT or time >= self._raised + settings.settle_s:  # a lasting shift is one episode
            needed[kind] = min(_LOUDEST, needed[kind] * settings.louder)
            self._raised = time if kind == _SHIFT else self._raised
        below = self._down > self._up if kind == _SHIFT else residual < 0
        return Anomaly(time, value, expected, -score if below else score, KINDS[kind])

    def _shift(self, deviation: float, keep: float) -> float:
        """Add a deviation to the sums. Return the larger sum divided by what is needed."""
        settings = self._settings
        needed = settings.threshold * math.sqrt(self._count)
        needed *= 1 + _AGE_S / max(self._baseline.age_s, 1.0)
        most = _CARRIED * needed * self._needed[_SHIFT]
        deviation = max(-_MOST, min(_MOST, deviation))
        self._up = min(most, max(0.0, self._up * keep + deviation - settings.drift))
        self._down = min(most, max(0.0, self._down * keep - deviation - settings.drift))
        return max(self._up, self._down) / needed

    def _settle(self, time: float, residual: float, score: float) -> None:
        """Make a shift that lasts for `settle_s` the new level."""
        if score < 1:
            self._over = math.inf
            return
        self._over = min(self._over, time)
        if time - self._over >= self._settings.settle_s:
            self._baseline.shift_level(residual)
            self._up = self._down = 0.0
            self._over = math.inf

    def packed(self) -> bytes:
        """Return the state. Its size depends on `slots` only: about 2 KiB with 24."""
        head = _HEAD.pack(
            _VERSION,
            self._behind,
            self._run,
            self._longest,
            self._value,
            self._last,
            self._quiet,
            self._up,
            self._down,
            self._count,
            self._over,
            self._raised,
            *self._needed,
        )
        return head + self._tail.packed() + self._baseline.packed()

    @classmethod
    def unpacked(cls, state: bytes, settings: Settings) -> "Detector":
        """Return the detector with a packed state. Raises `ValueError` if the state has another version or another
        number of slots."""
        if state[0] != _VERSION:
            raise ValueError(
                f"the detector's state has version {state[0]}, not {_VERSION}: start with a new checkpoint"
            )
        detector = cls(settings)
        _, detector._behind, detector._run, detector._longest, *fields = _HEAD.unpack_from(state)
        detector._value, detector._last, detector._quiet, detector._up, detector._down = fields[:5]
        detector._count, detector._over, detector._raised, *detector._needed = fields[5:]
        state = state[_HEAD.size :]
        detector._tail = Tail.unpacked(state)
        detector._baseline = Baseline.unpacked(state[tail.SIZE :], settings.slots, settings.memory_s)
        return detector
