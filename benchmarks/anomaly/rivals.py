"""Other detectors for the comparison: rules of one line, and detectors of `river` and `pyod`.

A rival gives each reading of a series a score. `alarms` makes alarms of the scores, in the same way for all: an alarm
is a score above a limit, not on the first day, and not within a day of another alarm. The scores of the rules are
deviations in units of the usual deviation, and the limit is a number. The scores of the libraries have no unit, so
they are measured in standard deviations above the mean of all earlier scores.

Every rival sees one reading after the other. Those of `pyod` keep the last readings of a device.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np

from benchmarks.anomaly.series import DAY_S, Series

Scores = Sequence[float]  # one for each reading
_LEARNED: Final = 30  # readings until a rule gives scores
_PAST: Final = 2000  # readings that pyod's detectors learn from
_RIVER: Final = ("anomaly", "compose", "preprocessing")  # packages of river, which is an extra
_TREND: Final = 8  # readings that pyod's detectors look at together


@dataclass(slots=True, frozen=True)
class Rival:
    """A way to give scores, with the parameters and limits that are tried."""

    name: str
    scores: Callable[..., Scores]
    parameters: Sequence[dict[str, Any]]
    limits: Sequence[float]


def alarms(series: Series, scores: Scores, limit: float) -> Iterator[float]:
    """Yield the times of the alarms: scores above the limit."""
    quiet = series[0][0] + DAY_S if series else 0.0
    for (time, _), score in zip(series, scores, strict=True):
        if score > limit and time >= quiet:
            quiet = time + DAY_S
            yield time


def sigma(series: Series) -> Scores:
    """Distance from the mean of all earlier readings, in their standard deviations (Welford)."""
    return _standardised([value for _, value in series], absolute=True)


def mad(series: Series, hours: float) -> Scores:
    """Distance from the median of the last hours, in median absolute deviations, scaled to standard deviations."""
    values = np.array([value for _, value in series])
    times = np.array([time for time, _ in series])
    scores = np.zeros(len(values))
    begins = np.searchsorted(times, times - hours * 3600)
    for row in range(_LEARNED, len(values)):
        window = values[min(begins[row], row - _LEARNED) : row]
        middle = np.median(window)
        spread = 1.4826 * np.median(np.abs(window - middle))
        scores[row] = abs(values[row] - middle) / spread if spread else 0.0
    return scores.tolist()


def ewma(series: Series, weight: float) -> Scores:
    """Distance from an exponentially weighted mean, in exponentially weighted standard deviations."""
    scores, mean, variance = [], series[0][1] if series else 0.0, 0.0
    for row, (_, value) in enumerate(series):
        step = value - mean
        scores.append(abs(step) / math.sqrt(variance) if row >= _LEARNED and variance else 0.0)
        mean += weight * step
        variance = (1 - weight) * (variance + weight * step * step)
    return scores


def half_space_trees(series: Series, window: int) -> Scores:
    """`river.anomaly.HalfSpaceTrees` over the value, its change and the hour of the day, scaled to 0 … 1."""
    anomaly, compose, preprocessing = (import_module(f"river.{name}") for name in _RIVER)

    model = compose.Pipeline(
        preprocessing.MinMaxScaler(), anomaly.HalfSpaceTrees(n_trees=25, height=8, window_size=window, seed=1)
    )
    scores, before = [], series[0][1] if series else 0.0
    for time, value in series:
        reading = {"value": value, "change": value - before, "hour": time % DAY_S / 3600}
        model.learn_one(reading)
        scores.append(float(model.score_one(reading)))
        before = value
    return _standardised(scores)


def holt_winters(series: Series, alpha: float) -> Scores:
    """`river.time_series.HoltWinters`: the distance from its forecast of the next reading."""
    model = import_module("river.time_series").HoltWinters(alpha=alpha, beta=0.01)
    scores = []
    for row, (_, value) in enumerate(series):
        scores.append(abs(value - model.forecast(1)[0]) if row >= _LEARNED else 0.0)
        model.learn_one(value)
    return _standardised(scores)


def by_pyod(series: Series, model: str) -> Scores:
    """A detector of `pyod` over the last readings, learned again each day from the earlier ones."""
    made: dict[str, Callable[[], Any]] = {
        "ecod": lambda: import_module("pyod.models.ecod").ECOD(),
        "iforest": lambda: import_module("pyod.models.iforest").IForest(random_state=1),
        "knn": lambda: import_module("pyod.models.knn").KNN(method="largest", n_neighbors=5),
    }
    values = np.array([value for _, value in series])
    times = np.array([time for time, _ in series])
    rows = np.lib.stride_tricks.sliding_window_view(values, _TREND)
    rows = np.vstack([np.repeat(rows[:1], _TREND - 1, axis=0), rows])
    days = np.arange(times[0], times[-1] + DAY_S, DAY_S)
    scores = np.zeros(len(values))
    for begin, end in pairwise(np.searchsorted(times, days)):
        if begin > _LEARNED and end > begin:
            past = rows[max(0, begin - _PAST) : begin]
            scale = past.std() or 1.0
            detector = made[model]().fit((past - past.mean()) / scale)
            scores[begin:end] = detector.decision_function((rows[begin:end] - past.mean()) / scale)
    return _standardised(scores.tolist())


def _standardised(values: Sequence[float], *, absolute: bool = False) -> Scores:
    """Measure each value from the mean of all earlier ones, in their standard deviations."""
    scores, mean, squares = [], 0.0, 0.0
    for row, value in enumerate(values):
        deviation = math.sqrt(squares / row) if row >= _LEARNED else 0.0
        far = (value - mean) / deviation if deviation else 0.0
        scores.append(abs(far) if absolute else far)
        step = value - mean
        mean += step / (row + 1)
        squares += step * (value - mean)
    return scores


RULE_LIMITS: Final = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0)
SCORE_LIMITS: Final = (0.5, 1.0, 1.5, 2.0, 2.5, *RULE_LIMITS)
RIVALS: Final = (
    Rival("3 sigma", sigma, ({},), (3.0,)),
    Rival("sigma, tuned", sigma, ({},), RULE_LIMITS),
    Rival("MAD", mad, tuple({"hours": hours} for hours in (6, 24, 72)), RULE_LIMITS),
    Rival("EWMA", ewma, tuple({"weight": weight} for weight in (0.003, 0.01, 0.03, 0.1)), RULE_LIMITS),
    Rival("river HalfSpaceTrees", half_space_trees, tuple({"window": window} for window in (100, 250)), SCORE_LIMITS),
    Rival("river HoltWinters", holt_winters, tuple({"alpha": alpha} for alpha in (0.1, 0.3)), RULE_LIMITS),
    Rival("pyod ECOD", by_pyod, ({"model": "ecod"},), SCORE_LIMITS),
    Rival("pyod IForest", by_pyod, ({"model": "iforest"},), SCORE_LIMITS),
    Rival("pyod KNN", by_pyod, ({"model": "knn"},), SCORE_LIMITS),
)
