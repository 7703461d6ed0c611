"""The comparison of detectors, and that ours is the better one on real series."""

import os
from pathlib import Path

import pytest

from benchmarks.anomaly import Score, compare, score, sigma_alarms, table

NAB = Path(os.environ.get("NAB", Path(__file__).parents[2].parent / "shared" / "data" / "nab"))


def test_windows_and_alarms_are_counted() -> None:
    windows = [(10.0, 20.0), (30.0, 40.0), (50.0, 60.0)]
    counted = score([5.0, 10.0, 15.0, 40.0], windows)
    assert counted == Score(found=2, windows=3, right=3, alarms=4)
    assert (counted.recall, counted.precision) == (2 / 3, 3 / 4)
    assert score([], windows).f1 == 0.0


def test_the_rule_says_once_a_day_what_is_far() -> None:
    steady = [(60.0 * n, float(n % 2)) for n in range(100)]
    assert list(sigma_alarms([*steady, (6000.0, 9.0), (6060.0, 9.0), (6000.0 + 86_400, 99.0)])) == [6000.0, 92_400.0]


@pytest.mark.skipif(not (NAB / "windows.json").is_file(), reason="the labelled series are not here (NAB=folder)")
def test_the_detector_beats_the_rule() -> None:
    scores = compare(NAB)
    detector, rule = scores["all"]["detector"], scores["all"]["3 sigma"]
    assert detector.f1 > rule.f1, table(scores)
    assert detector.precision > rule.precision, table(scores)
    assert detector.recall >= 0.8, table(scores)
