"""The comparison of detectors: how alarms are counted, and how settings are chosen."""

import os
from pathlib import Path

import pytest

from benchmarks.anomaly.__main__ import cross_validated, judged, tuned
from benchmarks.anomaly.rivals import Rival, alarms, ewma, mad, sigma
from benchmarks.anomaly.series import Labelled, Score, chosen_on, detector_alarms, held_out, labelled, score, total
from streaming.pipelines.detector import Settings

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
NAB = Path(os.environ.get("NAB", SHARED / "nab"))
NAB_MORE = Path(os.environ.get("NAB_MORE", SHARED / "nab-more"))
STEADY = [(60.0 * n, float(n % 3)) for n in range(3000)]


def test_windows_and_alarms_are_counted() -> None:
    windows = [(10.0, 20.0), (30.0, 40.0), (50.0, 60.0)]
    counted = score([5.0, 10.0, 15.0, 40.0], windows)
    assert counted == Score(found=2, windows=3, right=3, alarms=4, delay_s=10.0)
    assert (counted.recall, counted.precision) == (2 / 3, 3 / 4)
    assert score([], windows).f1 == 0.0
    days = Labelled([(0.0, 1.0), (15 * 86_400.0, 1.0)], windows).score([5.0, 10.0])
    assert days.false_alarms == 2.0


def test_an_alarm_comes_once_a_day_and_not_on_the_first() -> None:
    series = [(3600.0 * n, 0.0) for n in range(100)]
    scores = [9.0 if n in (5, 30, 31, 60) else 0.0 for n in range(100)]
    assert list(alarms(series, scores, 3.0)) == [30 * 3600.0, 60 * 3600.0]


@pytest.mark.parametrize(("rule", "given"), [(sigma, {}), (mad, {"hours": 6}), (ewma, {"weight": 0.03})])
def test_a_rule_sees_what_is_far(rule: object, given: dict[str, float]) -> None:
    assert callable(rule)
    scores = rule([*STEADY, (180_000.0, 99.0)], **given)
    assert len(scores) == 3001
    assert scores[-1] > 20 > max(scores[:-1])


def test_settings_are_chosen_by_other_series() -> None:
    data = {"a": Labelled([*STEADY, (180_000.0, 99.0)], [(170_000.0, 190_000.0)])}
    method, settings = tuned(Rival("rule", sigma, ({},), (3.0, 1e9)), data)
    assert settings == "limit 3"
    assert list(method(data["a"].series)) == [180_000.0]
    never, always = Settings(spike=1e9, threshold=1e9, flat=1e9), Settings()
    both = data | {"b": Labelled(STEADY, [])}
    assert cross_validated(both, (never, always)).found == 0  # the other series has nothing to find


def test_the_division_of_the_series_is_fixed() -> None:
    empty = Labelled([], [])
    more = dict.fromkeys("dbca", empty)
    assert set(chosen_on({"x": empty}, more)) == {"x", "a", "c"}
    assert set(held_out(more)) == {"b", "d"}


@pytest.mark.skipif(
    not all((folder / "windows.json").is_file() for folder in (NAB, NAB_MORE)),
    reason="the labelled series are not here (NAB=folder NAB_MORE=folder)",
)
def test_the_detector_stays_as_good_as_it_was() -> None:
    """On the series that its settings were chosen on. The others are not looked at while the detector is changed."""
    found = total(judged(detector_alarms, chosen_on(labelled(NAB), labelled(NAB_MORE))).values())
    assert found.f1 >= 0.65
    assert found.false_alarms <= 1.0
