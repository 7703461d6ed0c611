"""The detector of anomalies by itself: what it finds, what it passes over, and its state."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.pipelines.detector import Anomaly, Detector, Settings

EVERY_S = 600.0
BEGIN = 1_767_225_600.0
READINGS = 144  # a day


def usual(number: int, dice: random.Random) -> float:
    """Warmer by day than by night."""
    return 20 + 5 * math.sin(2 * math.pi * number / READINGS) + dice.gauss(0, 0.3)


def found(values: list[float], settings: Settings | None = None) -> list[Anomaly]:
    detector = Detector(settings or Settings())
    anomalies = (detector.observe(BEGIN + EVERY_S * number, value) for number, value in enumerate(values))
    return [each for each in anomalies if each is not None]


def days(count: int, seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [usual(number, dice) for number in range(count * READINGS)]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_as_ever_is_no_anomaly(seed: int) -> None:
    assert found(days(30, seed)) == []


@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_a_shift_that_is_less_than_the_day_moves_is_found_and_told_of_once(shift: float) -> None:
    """Three degrees, where day and night differ by ten: beside the season it is much."""
    values = days(20)
    start = 15 * READINGS
    values[start : start + 36] = [value + shift for value in values[start : start + 36]]
    (anomaly,) = found(values)
    number = round((anomaly.time - BEGIN) / EVERY_S)
    assert start <= number < start + 36
    assert math.copysign(1, anomaly.score) == math.copysign(1, shift)
    assert abs(anomaly.score) >= Settings().threshold
    assert abs(anomaly.expected - (values[number] - shift)) < 2


def test_one_reading_is_no_evidence_and_two_are() -> None:
    values = days(20)
    values[2000] = 900.0
    assert found(values) == []
    values[2001] = 900.0
    assert [anomaly.value for anomaly in found(values)] == [900.0]


def test_an_outlier_does_not_move_the_baseline() -> None:
    with_one, without = Detector(Settings()), Detector(Settings())
    for number, value in enumerate(days(20)):
        time = BEGIN + EVERY_S * number
        without.observe(time, value)
        with_one.observe(time, 1e9 if number == 2500 else value)
    ahead = BEGIN + EVERY_S * 20 * READINGS
    expected = [detector._level + detector._season[0] for detector in (without, with_one)]
    assert abs(expected[0] - expected[1]) < 0.1
    assert with_one.observe(ahead, usual(0, random.Random(2))) is None


def test_a_sensor_that_stands_still_may_be_told_to_move_a_little() -> None:
    values = [20.0] * 1000 + [21.0] * 9
    assert len(found(values)) == 1
    assert found(values, Settings(min_scale=1.0)) == []


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e12, 1e12)), max_size=60), st.integers(1, 48))
def test_the_state_travels_anywhere(readings: list[tuple[float, float]], slots: int) -> None:
    """Packed after every reading or never, in any order, with readings sent twice: the same is found."""
    settings = Settings(slots=slots, warm_up=5, threshold=4.0, rest_s=0.0)
    whole, carried, twice = Detector(settings), Detector(settings), Detector(settings)
    for time, value in readings:
        expected = whole.observe(time, value)
        carried = Detector.unpacked(carried.packed(), settings)
        assert carried.observe(time, value) == expected
        assert twice.observe(time, value) == expected
        assert twice.observe(time, value) is None
    assert carried.packed() == whole.packed() == twice.packed()
    assert len(whole.packed()) == len(Detector(settings).packed())


def test_a_state_of_other_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="24 slots"):
        Detector.unpacked(Detector(Settings()).packed(), Settings(slots=48))
