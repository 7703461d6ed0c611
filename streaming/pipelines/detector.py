"""A detector of anomalies in one device's readings: a seasonal baseline, robust deviations, and evidence that adds up.

Pure and online: one reading after the other, a state of a fixed size, no clock. What is expected is a level that moves
slowly, and the time of day's own offset from it; how far readings usually lie from that is the mean absolute deviation
of *clipped* residuals, so neither outliers nor an incident move the baseline much. A residual counts in standard
deviations; what lies beyond `drift` of them adds to a sum, upwards and downwards (a CUSUM, Page 1954) which leaks by
`keep`: two far outliers and a long small shift are both found, and noise is not. When a sum passes `threshold` that is
an anomaly, and for `rest_s` there is no other.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

_DAY_S: Final = 86_400
_SIGMA: Final = 1.2533  # the standard deviation of a normal distribution, in mean absolute deviations
_HEAD: Final = Struct(">BHQdddddd")
_VERSION: Final = 1


@dataclass(slots=True, frozen=True)
class Settings:
    """How a detector judges. The defaults are for readings every few minutes to every hour."""

    slots: int = 24  # of a day, each with a baseline of its own
    warm_up: int = 300  # readings from which nothing is an anomaly yet
    threshold: float = 15.0  # standard deviations, summed up
    drift: float = 2.5  # of each reading, that count as nothing
    keep: float = 0.98  # of a sum, from one reading to the next
    most: float = 12.0  # that one reading may count
    clip: float = 4.0  # mean absolute deviations beyond which a residual moves the baseline no further
    level_rate: float = 0.001  # how fast the level follows
    season_rate: float = 0.02  # how fast the offset of a slot does
    scale_rate: float = 0.0005  # how fast the deviation does
    min_scale: float = 0.0  # the least deviation, in units of the value: what the sensor itself may jitter
    rest_s: float = 86_400.0  # seconds after an anomaly until there can be the next


@dataclass(slots=True, frozen=True)
class Anomaly:
    """A reading at which the evidence was enough."""

    time: float  # seconds since 1970
    value: float
    expected: float
    score: float  # the sum of deviations, signed; its amount is at least the threshold


class Detector:
    """The state of one device. Readings must come in the order of their time: others are passed over."""

    __slots__ = ("_down", "_last", "_level", "_quiet", "_scale", "_season", "_seen", "_settings", "_up", "readings")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.readings = 0  # that were taken
        self._level = self._scale = self._up = self._down = 0.0
        self._last = self._quiet = float("-inf")  # time of the last reading; nothing is found before
        self._season = [0.0] * settings.slots
        self._seen = [0] * settings.slots

    def observe(self, time: float, value: float) -> Anomaly | None:
        """Take a reading: seconds since 1970, and a finite value. One that is not newer than the last changes nothing,
        so a reading that a device sent twice counts once."""
        if time <= self._last:
            return None
        self._last = time
        self.readings += 1
        slot = int(time % _DAY_S * self._settings.slots / _DAY_S) % self._settings.slots  # a float may be all of a day
        if self.readings == 1:
            self._level = value
        expected = self._level + self._season[slot]
        found = self._judge(time, value, expected)
        self._learn(slot, value - expected)
        return found

    def _judge(self, time: float, value: float, expected: float) -> Anomaly | None:
        settings = self._settings
        sigma = max(self._scale, settings.min_scale) * _SIGMA
        if self.readings <= settings.warm_up or sigma <= 0:
            return None
        deviation = max(-settings.most, min(settings.most, (value - expected) / sigma))
        self._up = max(0.0, self._up * settings.keep + deviation - settings.drift)
        self._down = max(0.0, self._down * settings.keep - deviation - settings.drift)
        most = max(self._up, self._down)
        if most < settings.threshold or time < self._quiet:
            return None
        score = self._up if self._up >= self._down else -self._down
        self._quiet = time + settings.rest_s
        self._up = self._down = 0.0
        return Anomaly(time, value, expected, score)

    def _learn(self, slot: int, residual: float) -> None:
        """Move the baseline, faster while little is known. Residuals of the warm-up count in full."""
        settings = self._settings
        scale = max(self._scale, settings.min_scale)
        if self.readings > settings.warm_up and scale > 0:
            most = settings.clip * scale
            residual = max(-most, min(most, residual))
        self._level += max(settings.level_rate, 1 / (self.readings + 1)) * residual
        seen = self._seen[slot]
        if seen >= 2:
            self._season[slot] += max(settings.season_rate, 1 / (seen + 2)) * residual
        self._seen[slot] = min(seen + 1, 0xFFFF)
        self._scale += max(settings.scale_rate, 1 / (self.readings + 1)) * (abs(residual) - self._scale)

    def packed(self) -> bytes:
        """The state, of a size that only `slots` decides."""
        head = _HEAD.pack(
            _VERSION,
            len(self._season),
            self.readings,
            self._level,
            self._scale,
            self._up,
            self._down,
            self._last,
            self._quiet,
        )
        slots = Struct(f">{len(self._season)}d{len(self._seen)}H")
        return head + slots.pack(*self._season, *self._seen)

    @classmethod
    def unpacked(cls, state: bytes, settings: Settings) -> "Detector":
        """The reverse. Raises `ValueError` where the state is of other slots or of another version."""
        version, slots, *fields = _HEAD.unpack_from(state)
        if version != _VERSION or slots != settings.slots:
            raise ValueError(
                f"the detector's state has {slots} slots a day (version {version}), not {settings.slots}: start with a "
                "new checkpoint"
            )
        detector = cls(settings)
        (
            detector.readings,
            detector._level,
            detector._scale,
            detector._up,
            detector._down,
            detector._last,
            detector._quiet,
        ) = fields
        values = Struct(f">{slots}d{slots}H").unpack_from(state, _HEAD.size)
        detector._season, detector._seen = list(values[:slots]), list(values[slots:])
        return detector
