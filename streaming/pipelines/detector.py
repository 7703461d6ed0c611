"""A detector of anomalies in one device's readings: far from a seasonal baseline, for long or at once; or stuck.

Pure and online: one reading after the other, a state of a fixed size, no clock. `baseline` says what is expected and
how far readings usually lie from it, `sigma`. Three things are anomalies:

* a `spike`: one reading further than `spike` sigma;
* a `shift`: what lies beyond `drift` sigma adds to a sum, upwards and downwards (a CUSUM, Page 1954), which leaks over
  `span_s`. A sum of n independent readings strays with the root of n: it must pass `threshold` times the root of the
  readings in it, whether they come every minute or every hour, and more as long as the device is new. A shift that
  stays for `settle_s` is the new level;
* `flat`: the value stands still for `flat` of a day's readings, and three times as long as it ever did.

Noise has longer tails than theory: after an anomaly the next of its kind needs `louder` times as much, and that fades
over `memory_s`. So a device that cries often must cry louder, whatever its noise is (the idea of adaptive conformal
inference, Gibbs and Candès 2021). After an anomaly there is none for `rest_s`. The first `warm_up` readings, and those
of the first `warm_up_s`, only teach.
"""

import math
from dataclasses import dataclass
from struct import Struct
from typing import Final

from streaming.pipelines.baseline import Baseline

_DAY_S: Final = 86_400.0
_HEAD: Final = Struct(">BQQQ11d")
_VERSION: Final = 2
_MOST: Final = 8.0  # standard deviations that one reading may add
_AGE_S: Final = 2 * _DAY_S  # a device known for so long must show twice as much
_CARRIED: Final = 2.0  # times what it needs, that a sum may grow to: it must come down again when all is well
_LOUDEST: Final = 16.0  # times what it needs, that is asked of a device that had many anomalies
_FEWEST: Final = 12  # readings that say a value stands still
_TIMES: Final = 3  # as long as it ever stood still
_LONGER: Final = 2  # times as long as ever, that a known device may stand still from then on
_BEHIND: Final = 100  # readings from before the last day say that the clock was put back

LARGEST: Final = 1e150  # the amount of a value: sums of more would have no end
KINDS: Final = ("spike", "shift", "flat")
_SHIFT: Final = 1


@dataclass(slots=True, frozen=True)
class Settings:
    """How a detector judges. The defaults are for readings every few seconds to every few hours."""

    slots: int = 24  # of a day, each with a baseline of its own
    warm_up: int = 300  # readings from which nothing is an anomaly yet,
    warm_up_s: float = _DAY_S  # and seconds: the hours of the day must have been seen
    spike: float = 5.0  # standard deviations that one reading may not lie away
    threshold: float = 2.5  # of a sum: standard deviations times the root of the readings in it
    drift: float = 2.0  # standard deviations of each reading that add nothing to a sum
    span_s: float = _DAY_S  # over which a sum leaks
    flat: float = 0.25  # of a day's readings, that may be all the same
    min_scale: float = 0.0  # the least deviation, in units of the value: what the sensor itself may jitter
    louder: float = 1.5  # times as much is needed after an anomaly
    settle_s: float = 3 * _DAY_S  # seconds until a shift is what is usual
    memory_s: float = 30 * _DAY_S  # seconds that level, seasons and deviations look back
    rest_s: float = _DAY_S  # seconds after an anomaly until there can be the next

    def __post_init__(self) -> None:
        """Raises `ValueError` for what no detector can judge by."""
        for name in ("slots", "spike", "threshold", "span_s", "flat", "memory_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, which is not above 0")
        if not self.min_scale >= 0:
            raise ValueError(f"min_scale is {self.min_scale}, which is not 0 or above")
        if not self.louder >= 1:
            raise ValueError(f"louder is {self.louder}, which is not 1 or above")


@dataclass(slots=True, frozen=True)
class Anomaly:
    """A reading at which the evidence was enough."""

    time: float  # seconds since 1970
    value: float
    expected: float
    score: float  # times as much evidence as needed, at least 1; below the expected it is negative
    kind: str  # one of `KINDS`


class Detector:
    """The state of one device. Readings must come in the order of their time: others are passed over."""

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
        "_up",
        "_value",
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._baseline = Baseline(settings.slots, settings.memory_s)
        self._last = self._quiet = -math.inf  # time of the last reading; nothing is found before
        self._behind = 0  # readings passed over since the last
        self._up = self._down = 0.0
        self._count = 0.0  # readings in the sums, those that leaked out taken off
        self._over = math.inf  # since when a sum is enough
        self._needed = [1.0] * len(KINDS)  # times as much as the settings say, by kind
        self._raised = -math.inf  # when that was last raised for a shift
        self._value = math.nan
        self._run = self._longest = 0  # readings that are all the same, now and at most before

    @property
    def readings(self) -> int:
        """That were taken."""
        return self._baseline.readings

    def observe(self, time: float, value: float) -> Anomaly | None:
        """Take a reading: seconds since 1970, and a value of at most `LARGEST`. One that is not newer than the last
        changes nothing, so a reading that a device sent twice counts once. Of a device whose clock was ahead and was
        put right, the readings count again after some."""
        if time <= self._last and not self._is_put_back(time):
            return None
        settings, baseline = self._settings, self._baseline
        elapsed_s = max(0.0, time - self._last) if baseline.readings else 0.0
        self._last, self._behind = time, 0
        keep = math.exp(-elapsed_s / settings.span_s)
        self._count = self._count * keep + 1
        sigma = max(baseline.sigma, settings.min_scale)
        known = baseline.readings >= settings.warm_up and baseline.age_s >= settings.warm_up_s and sigma > 0
        self._stand(value, known=known)
        expected = baseline.update(time, value, elapsed_s, known=known)
        return self._judge(time, value, expected, sigma, elapsed_s, keep) if known else None

    def _is_put_back(self, time: float) -> bool:
        """Whether the device's clock was: many readings, one after the other, come from before the last day. What was
        noted in the old time is void."""
        self._behind += 1
        if self._behind < _BEHIND or time > self._last - _DAY_S:
            return False
        self._quiet = self._raised = -math.inf
        self._over = math.inf
        return True

    def _stand(self, value: float, *, known: bool) -> None:
        """Count how long the value stands still. Who is known and stands still for longer is believed by and by."""
        if value == self._value:
            self._run += 1
            return
        most = _LONGER * max(self._longest, _FEWEST)
        self._longest = max(self._longest, min(self._run, most) if known else self._run)
        self._value, self._run = value, 1

    def _judge(
        self, time: float, value: float, expected: float, sigma: float, elapsed_s: float, keep: float
    ) -> Anomaly | None:
        """What is found in this reading; the loudest where that is more than one thing."""
        settings, needed = self._settings, self._needed
        if max(needed) > 1:
            fade = math.exp(-elapsed_s / settings.memory_s)
            needed[:] = [1 + (each - 1) * fade for each in needed]
        residual = value - expected
        deviation = residual / sigma
        shift = self._shift(deviation, keep)
        still = max(settings.flat * self._count, _TIMES * self._longest, _FEWEST)
        scores = (
            abs(deviation) / (settings.spike * needed[0]),
            shift / needed[1] if abs(deviation) > settings.drift else 0.0,  # what is left of a sum is no news
            self._run / (still * needed[2]),
        )
        self._settle(time, residual, shift)
        score = max(scores)
        if score < 1 or time < self._quiet:
            return None
        kind = scores.index(score)
        self._quiet = time + settings.rest_s
        if kind != _SHIFT or time >= self._raised + settings.settle_s:  # a shift that goes on is one episode
            needed[kind] = min(_LOUDEST, needed[kind] * settings.louder)
            self._raised = time if kind == _SHIFT else self._raised
        below = self._down > self._up if kind == _SHIFT else residual < 0
        return Anomaly(time, value, expected, -score if below else score, KINDS[kind])

    def _shift(self, deviation: float, keep: float) -> float:
        """Add a deviation to the sums. Returns how much they are of what is needed."""
        settings = self._settings
        needed = settings.threshold * math.sqrt(self._count)
        needed *= 1 + _AGE_S / max(self._baseline.age_s, 1.0)
        most = _CARRIED * needed * self._needed[_SHIFT]
        deviation = max(-_MOST, min(_MOST, deviation))
        self._up = min(most, max(0.0, self._up * keep + deviation - settings.drift))
        self._down = min(most, max(0.0, self._down * keep - deviation - settings.drift))
        return max(self._up, self._down) / needed

    def _settle(self, time: float, residual: float, score: float) -> None:
        """Take a shift that stays for the new level."""
        if score < 1:
            self._over = math.inf
            return
        self._over = min(self._over, time)
        if time - self._over >= self._settings.settle_s:
            self._baseline.begin_level(residual)
            self._up = self._down = 0.0
            self._over = math.inf

    def packed(self) -> bytes:
        """The state, of a size that only `slots` decides: about 2 KiB with 24."""
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
        return head + self._baseline.packed()

    @classmethod
    def unpacked(cls, state: bytes, settings: Settings) -> "Detector":
        """The reverse. Raises `ValueError` where the state is of other slots or of another version."""
        if state[0] != _VERSION:
            raise ValueError(
                f"the detector's state is of version {state[0]}, not {_VERSION}: start with a new checkpoint"
            )
        detector = cls(settings)
        _, detector._behind, detector._run, detector._longest, *fields = _HEAD.unpack_from(state)
        detector._value, detector._last, detector._quiet, detector._up, detector._down = fields[:5]
        detector._count, detector._over, detector._raised, *detector._needed = fields[5:]
        detector._baseline = Baseline.unpacked(state[_HEAD.size :], settings.slots, settings.memory_s)
        return detector
