"""The comparison of detectors, and that ours is the better one on real series."""

import os
from pathlib import Path

import pytest

from benchmarks.anomaly import Score, compare, labelled, left_out, score, sigma_alarms, table, varied, varied_table

NAB = Path(os.environ.get("NAB", Path(__file__).parents[2].parent / "shared" / "data" / "nab"))


def test_windows_and_alarms_are_counted() -> None:
    windows = [(10.0, 20.0), (30.0, 40.0), (50.0, 60.0)]
    counted = score([5.0, 10.0, 15.0, 40.0], windows)
    assert counted == Score(found=2, windows=3, right=3, alarms=4, delay_s=10.0)
    assert (counted.recall, counted.precision) == (2 / 3, 3 / 4)
    assert score([], windows).f1 == 0.0


def test_the_rule_says_once_a_day_what_is_far() -> None:
    steady = [(60.0 * n, float(n % 2)) for n in range(100)]
    assert list(sigma_alarms([*steady, (6000.0, 9.0), (6060.0, 9.0), (6000.0 + 86_400, 99.0)])) == [6000.0, 92_400.0]


def test_the_settings_of_a_series_are_chosen_by_the_others() -> None:
    good, bad = Score(1, 1, 1, 1), Score(0, 1, 0, 1)
    scores = {
        "as it is": {"a": bad, "b": bad, "c": bad},
        "spike +30%": {"a": bad, "b": good, "c": good},
        "drift +30%": {"a": good, "b": bad, "c": bad},
    }
    assert left_out(scores) == {"a": ("spike +30%", bad), "b": ("spike +30%", good), "c": ("spike +30%", good)}
    rule = {"a": bad, "b": good, "c": bad, "all": bad}
    assert "| as it is | 0 of 3 | 0 of 3 | 0.00 | 0.00 | 0.00 < | 0.00 |" in varied_table(scores, rule)


@pytest.mark.skipif(not (NAB / "windows.json").is_file(), reason="the labelled series are not here (NAB=folder)")
def test_the_detector_beats_the_rule_on_each_series() -> None:
    scores = compare(labelled(NAB))
    for by_method in scores.values():
        assert by_method["detector"].f1 > by_method["3 sigma"].f1, table(scores)
    every = scores["all"]["detector"]
    assert every.f1 >= 0.8, table(scores)
    assert every.recall >= 0.8, table(scores)


@pytest.mark.skipif(not (NAB / "windows.json").is_file(), reason="the labelled series are not here (NAB=folder)")
def test_the_detector_beats_the_rule_with_other_settings_too() -> None:
    data = labelled(NAB)
    rule = compare(data)["all"]["3 sigma"]
    variants = varied(data)
    for variant, by_series in variants.items():
        assert sum(by_series.values(), start=Score(0, 0, 0, 0)).f1 > rule.f1, variant
    assert sum((each for _, each in left_out(variants).values()), start=Score(0, 0, 0, 0)).f1 > rule.f1
