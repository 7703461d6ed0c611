"""The expected value of a device's readings, and how far readings usually lie from it.

The expected value is a level that moves slowly plus the effects of the time of day and of the day of the week. The
state has a fixed size and is updated by each reading. A residual counts up to a few mean absolute deviations, so
neither outliers nor an incident move the baseline much. Level, effects and deviations look back over `memory_s`, and
over less while the device is new. Effects are interpolated linearly between the middles of slots. The effect of the
day of the week is used if it predicts better than the time of day alone, from the third week on.
"""

from math import floor
from struct import Struct
from typing import Final

_DAY_S: Final = 86_400.0
_DAYS: Final = 7
_HEAD: Final = Struct(">H?QQQdddd")
_SIGMA: Final = 1.2533  # the standard deviation of a normal distribution, in mean absolute deviations
_CLIP: Final = 4.0  # residuals are clipped to this many mean absolute deviations
_CLIP_LEARNING: Final = 10.0  # while the device is new
_STEP_S: Final = _DAY_S / 8  # the most time that one reading stands for: it says little about a gap before it
_FASTEST: Final = 0.25  # the most of a residual that level, day or week follow; together they must not exceed it
_TRUSTED_S: Final = 2 * _DAYS * _DAY_S  # the age from which the effect of the week may be used
_BETTER: Final = 0.9  # the effect of the week is used if it reduces the deviation to less than this share
_SEEN: Final = 0xFFFF  # the count of readings of a slot stops here
_FIRST_DAY: Final = 10  # one in ten of its readings counts for the deviation, because the effects were not learned yet
_RECENT: Final = 2.0  # a new slot looks back over half of its readings: the level was inaccurate before


class Baseline:
    """The baseline of one device. The day is divided into `slots`. Each slot has an offset from the level, and one more
    for each day of the week."""

    __slots__ = (
        "_by_day",
        "_by_week",
        "_day",
        "_day_seen",
        "_level",
        "_memory_s",
        "_on_level",
        "_slots",
        "_week",
        "_week_seen",
        "_weekly",
        "_weighed",
        "age_s",
        "readings",
    )

    def __init__(self, slots: int, memory_s: float) -> None:
        self._slots = slots
        self._memory_s = memory_s
        self.readings = 0
        self.age_s = 0.0  # seconds that the readings span; a gap counts as a day at most
        self._on_level = 0  # readings since the level began
        self._weighed = 0  # readings that the deviations average
        self._level = 0.0
        self._by_day = self._by_week = 0.0  # mean absolute deviations from the prediction by day, and by day and week
        self._weekly = False  # whether the effect of the week is used
        self._day = [0.0] * slots
        self._week = [0.0] * (slots * _DAYS)  # Thursday is the first day: 1970 began on one
        self._day_seen = [0] * len(self._day)  # readings that moved each slot
        self._week_seen = [0] * len(self._week)

    @property
    def sigma(self) -> float:
        """The standard deviation of readings from their expected values."""
        return (self._by_week if self._weekly else self._by_day) * _SIGMA

    def update(self, time: float, value: float, elapsed_s: float, *, known: bool) -> float:
        """Learn from a reading that came `elapsed_s` after the last one, and return the value that was expected. While
        the device is not `known`, a residual may count for more."""
        if not self.readings:
            self._level = value
        place = time * self._slots / _DAY_S - 0.5
        before = floor(place)
        share = place - before  # of the later slot
        first, second = before % len(self._week), (before + 1) % len(self._week)
        week, day = self._week, self._day
        first_day, second_day = first % self._slots, second % self._slots
        of_day = self._level + (1 - share) * day[first_day] + share * day[second_day]
        of_week = of_day + (1 - share) * week[first] + share * week[second]
        expected = of_week if self._weekly else of_day

        self.readings += 1
        self._weighed += 1
        if self.age_s < _DAY_S <= self.age_s + elapsed_s:
            self._weighed //= _FIRST_DAY
        self.age_s += min(elapsed_s, _DAY_S)
        self._on_level += 1
        pace = min(_FASTEST, min(elapsed_s, _STEP_S) / self._memory_s)
        recent = max(pace, 1 / (self._weighed + 1))
        by_day, by_week = value - of_day, value - of_week
        clip = _CLIP if known else _CLIP_LEARNING
        by_day = _clipped(by_day, clip * self._by_day)
        by_week = _clipped(by_week, clip * self._by_week)
        self._level += max(pace, 1 / (self._on_level + 1)) * (by_week if self._weekly else by_day)
        pace = min(_FASTEST, pace * self._slots)
        _follow(day, self._day_seen, (first_day, second_day), share, by_day, pace)
        _follow(week, self._week_seen, (first, second), share, by_week, pace)
        self._by_day += recent * (abs(by_day) - self._by_day)
        self._by_week += recent * (abs(by_week) - self._by_week)
        self._weekly = self._by_week < _BETTER * self._by_day and self.age_s >= _TRUSTED_S
        return expected

    def shift_level(self, by: float) -> None:
        """Move the level by `by`, and let it adapt quickly again."""
        self._level += by
        self._on_level = 1

    def packed(self) -> bytes:
        """Return the state. Its size depends on `slots` only."""
        counts = self._slots, self._weekly, self.readings, self._on_level, self._weighed
        head = _HEAD.pack(*counts, self.age_s, self._level, self._by_day, self._by_week)
        return head + _slots(self._slots).pack(*self._day, *self._week, *self._day_seen, *self._week_seen)

    @classmethod
    def unpacked(cls, state: bytes, slots: int, memory_s: float) -> "Baseline":
        """Return the baseline with a packed state. Raises `ValueError` if the state has another number of slots."""
        of, *fields = _HEAD.unpack_from(state)
        if of != slots:
            raise ValueError(f"the detector's state has {of} slots a day, not {slots}: start with a new checkpoint")
        baseline = cls(slots, memory_s)
        baseline._weekly, baseline.readings, baseline._on_level, baseline._weighed = fields[:4]
        baseline.age_s, baseline._level, baseline._by_day, baseline._by_week = fields[4:]
        values = _slots(slots).unpack_from(state, _HEAD.size)
        offsets, seen = values[: slots * (1 + _DAYS)], values[slots * (1 + _DAYS) :]
        baseline._day, baseline._week = list(offsets[:slots]), list(offsets[slots:])
        baseline._day_seen, baseline._week_seen = list(seen[:slots]), list(seen[slots:])
        return baseline


def _clipped(residual: float, most: float) -> float:
    if -most <= residual <= most or most <= 0:
        return residual
    return most if residual > 0 else -most


def _follow(
    offsets: list[float], seen: list[int], slots: tuple[int, int], share: float, residual: float, pace: float
) -> None:
    """Move the offsets of two slots by their shares of a residual."""
    for slot, part in zip(slots, (1 - share, share), strict=True):
        count = seen[slot]
        young = _RECENT / (count + _RECENT + 1)
        offsets[slot] += part * residual * (pace if pace > young else young)
        if count < _SEEN:
            seen[slot] = count + 1


def _slots(count: int) -> Struct:
    cells = count * (1 + _DAYS)
    return Struct(f">{cells}d{cells}H")
