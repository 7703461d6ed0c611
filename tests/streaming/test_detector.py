"""The detector of anomalies by itself: what it finds, what it passes over, and its state."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.pipelines.detector import KINDS, LARGEST, SENSITIVITIES, Anomaly, Detector, Settings

EVERY_S = 600.0
BEGIN = 1_767_225_600.0  # a Thursday
READINGS = 144  # a day

Noise = Callable[[random.Random], float]


def usual(number: int, dice: random.Random) -> float:
    """Warmer by day than by night."""
    return 20 + 5 * math.sin(2 * math.pi * number / READINGS) + dice.gauss(0, 0.3)


def days(count: int, seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [usual(number, dice) for number in range(count * READINGS)]


def found(values: list[float], settings: Settings | None = None) -> list[Anomaly]:
    detector = Detector(settings or Settings())
    anomalies = (detector.observe(BEGIN + EVERY_S * number, value) for number, value in enumerate(values))
    return [each for each in anomalies if each is not None]


def number_of(anomaly: Anomaly) -> int:
    return round((anomaly.time - BEGIN) / EVERY_S)


@pytest.mark.parametrize("seed", range(5))
def test_steady_readings_are_no_anomaly(seed: int) -> None:
    assert found(days(30, seed)) == []


@pytest.mark.parametrize("minutes", [2, 60])
def test_steady_readings_at_any_interval_are_no_anomaly(minutes: int) -> None:
    dice = random.Random(minutes)
    detector = Detector(Settings())
    for number in range(20 * 1440 // minutes):
        value = 5 * math.sin(2 * math.pi * number * minutes / 1440) + dice.gauss(0, 0.3)
        assert detector.observe(BEGIN + 60 * minutes * number, value) is None


@pytest.mark.parametrize("inertia", [0.9, 0.99])
def test_nor_is_noise_that_lasts(inertia: float) -> None:
    """A reading that is high is followed by high ones, for an hour or half a day: less than once a month."""
    alarms = 0
    for seed in range(4):
        dice, now, values = random.Random(seed), 0.0, []
        for _ in range(40 * READINGS):
            now = inertia * now + dice.gauss(0, math.sqrt(1 - inertia**2))
            values.append(now)
        alarms += len(found(values))
    assert alarms < 4 * 40 / 30


@pytest.mark.parametrize(
    "noise",
    [
        lambda dice: dice.expovariate(1) * dice.choice((-1, 1)),  # Laplace
        lambda dice: dice.gauss(0, 1) / math.sqrt(dice.gammavariate(1.5, 1 / 1.5)),  # Student's t with three degrees
        lambda dice: math.exp(dice.gauss(0, 1)),  # log-normal
    ],
    ids=["laplace", "t", "lognormal"],
)
def test_noise_with_long_tails_is_reported_at_most_once_a_month(noise: Noise) -> None:
    """Five sigma are far too little for it: what is needed is more than its usual outliers have."""
    dice = random.Random(7)
    values = [noise(dice) for _ in range(120 * READINGS)]
    alarms = found(values)
    assert len(alarms) <= 4
    assert len(alarms) < len(found(values, Settings(tail=0.0, louder=1.0)))


@pytest.mark.parametrize("by", [4.0, -4.0])
def test_a_spike_is_found_with_its_first_reading(by: float) -> None:
    values = days(20)
    values[2000] += by
    (anomaly,) = found(values)
    assert (number_of(anomaly), anomaly.kind, anomaly.value) == (2000, "spike", values[2000])
    assert math.copysign(1, anomaly.score) == math.copysign(1, by)
    assert abs(anomaly.score) >= 1
    assert abs(anomaly.expected - (values[2000] - by)) < 1.5


@pytest.mark.parametrize("shift", [1.2, -1.2])
def test_a_shift_smaller_than_the_daily_range_is_one_anomaly(shift: float) -> None:
    """Where day and night differ by ten degrees: no reading of it is strange by itself."""
    values = days(30)
    start = 25 * READINGS
    values[start : start + READINGS] = [value + shift for value in values[start : start + READINGS]]
    (anomaly,) = found(values)
    assert anomaly.kind == "shift"
    assert start + 3 <= number_of(anomaly) < start + READINGS // 2
    assert math.copysign(1, anomaly.score) == math.copysign(1, shift)
    assert abs(anomaly.expected - (values[number_of(anomaly)] - shift)) < 1.5


def test_rounding_errors_are_no_anomaly() -> None:
    values = days(30)
    start, end = 25 * READINGS, 26 * READINGS
    values[start:end] = [value + 1.5 for value in values[start:end]]
    numbers = [number_of(anomaly) for anomaly in found(values, Settings(rest_s=0.0, louder=1.0))]
    assert numbers
    assert all(start <= number < end for number in numbers)


def test_more_noise_is_found() -> None:
    values = days(25)
    start, dice = 20 * READINGS, random.Random(3)
    values[start:] = [value + dice.gauss(0, 1.5) for value in values[start:]]
    first, *_ = found(values)
    assert start <= number_of(first) < start + READINGS


def test_the_day_upside_down_is_found() -> None:
    values = days(25)
    start = 20 * READINGS
    values[start:] = [40 - value for value in values[start:]]
    first, *_ = found(values)
    assert start <= number_of(first) < start + READINGS // 4


def test_a_value_that_stands_still_is_found() -> None:
    dice = random.Random(1)
    values = [20 + dice.gauss(0, 0.3) for _ in range(20 * READINGS)]
    start = 15 * READINGS
    values[start : start + READINGS] = [20.1] * READINGS
    (anomaly,) = found(values)
    assert (anomaly.kind, anomaly.value) == ("flat", 20.1)
    assert abs(number_of(anomaly) - (start + READINGS // 4)) <= 2


def test_a_value_that_often_stands_still_may() -> None:
    """Each second day it is the same all day."""
    dice = random.Random(1)
    values = [20.0 if number // READINGS % 2 else 20 + dice.gauss(0, 0.3) for number in range(40 * READINGS)]
    assert [each for each in found(values) if each.kind == "flat"] == []
    assert found([5.0] * 3000) == []


def test_a_shift_that_stays_is_the_new_level() -> None:
    values = days(60)
    start = 20 * READINGS
    values[start:] = [value + 30 for value in values[start:]]
    alarms = found(values)
    assert number_of(alarms[0]) == start
    assert 1 <= len(alarms) <= 5
    assert number_of(alarms[-1]) < start + 4 * READINGS


def test_the_week_is_learnt_too() -> None:
    """At the end of the week it is ten degrees warmer: what is usual on Sunday is far too warm on Monday."""
    dice = random.Random(1)
    values = [
        usual(number, dice) + (10 if (number // READINGS + 3) % 7 >= 5 else 0) for number in range(13 * 7 * READINGS)
    ]
    usually = [number_of(anomaly) for anomaly in found(values)]
    assert len(usually) <= 2
    monday = 11 * 7 * READINGS + 4 * READINGS
    values[monday : monday + READINGS] = [value + 10 for value in values[monday : monday + READINGS]]
    late = [number_of(anomaly) for anomaly in found(values)]
    assert any(monday <= number < monday + READINGS // 2 for number in late)


def test_an_outlier_does_not_move_the_baseline() -> None:
    with_one, without = Detector(Settings()), Detector(Settings())
    for number, value in enumerate(days(20)):
        time = BEGIN + EVERY_S * number
        without.observe(time, value)
        with_one.observe(time, 1e9 if number == 2500 else value)
    time = BEGIN + EVERY_S * 20 * READINGS
    found = [detector.observe(time, 1e6) for detector in (without, with_one)]
    assert found[0] is not None
    assert found[1] is not None
    assert abs(found[0].expected - found[1].expected) < 0.1


def test_the_greatest_values_do_no_harm() -> None:
    detector = Detector(Settings())
    for number in range(1000):
        detector.observe(BEGIN + EVERY_S * number, LARGEST if number % 2 else -LARGEST)
    anomaly = detector.observe(BEGIN + EVERY_S * 1000, 0.0)
    assert anomaly is None
    state = Detector.unpacked(detector.packed(), Settings())
    assert state.packed() == detector.packed()
    assert b"\x7f\xf8" not in detector.packed()  # no NaN


def test_a_new_device_teaches_for_a_day_and_some_readings() -> None:
    values = days(3)
    values[READINGS - 2] = 900.0
    values[250] = 900.0
    assert found(values) == []
    assert [number_of(each) for each in found(values, Settings(warm_up=10))] == [250]
    assert [number_of(each) for each in found(values, Settings(warm_up_s=0.0))] == []
    assert number_of(found(values, Settings(warm_up=10, warm_up_s=0.0))[-1]) == READINGS - 2  # it rests at the other


def test_min_scale_keeps_a_still_sensor_from_raising_anomalies() -> None:
    values = [20.0, 20.1] * 500 + [21.0] * 9
    assert len(found(values)) == 1
    assert found(values, Settings(min_scale=1.0)) == []


def test_readings_count_again_after_a_clock_is_corrected() -> None:
    """They came from next year, for a while; then one that is old, sent again, is still passed over."""
    detector = Detector(Settings())
    values = days(20)
    for number, value in enumerate(values):
        ahead = 365 * 86_400.0 if 1000 <= number < 1010 else 0.0
        detector.observe(BEGIN + EVERY_S * number + ahead, value)
    assert len(values) - 110 <= detector.readings < len(values)
    assert detector.observe(BEGIN, 900.0) is None
    anomaly = detector.observe(BEGIN + EVERY_S * len(values), 900.0)
    assert anomaly is not None
    assert anomaly.kind == "spike"


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e12, 1e12)), max_size=60), st.integers(1, 48))
def test_the_state_travels_anywhere(readings: list[tuple[float, float]], slots: int) -> None:
    """Packed after every reading or never, in any order, with readings sent twice: the same is found."""
    settings = Settings(slots=slots, warm_up=5, warm_up_s=0.0, threshold=1.0, spike=2.0, rest_s=0.0)
    whole, carried, twice = Detector(settings), Detector(settings), Detector(settings)
    for time, value in readings:
        expected = whole.observe(time, value)
        carried = Detector.unpacked(carried.packed(), settings)
        assert carried.observe(time, value) == expected
        assert twice.observe(time, value) == expected
        assert twice.observe(time, value) is None
        assert expected is None or (abs(expected.score) >= 1 and expected.kind in KINDS)
    assert carried.packed() == whole.packed()
    assert carried.readings == twice.readings
    assert len(whole.packed()) == len(Detector(settings).packed())


def test_a_higher_sensitivity_reports_more() -> None:
    dice = random.Random(5)
    values = [dice.gauss(0, 1) * (3 if dice.random() < 0.01 else 1) for _ in range(120 * READINGS)]
    for number in range(20 * READINGS, len(values), 10 * READINGS):
        values[number] += 4 + number / READINGS / 8
    counts = [len(found(values, SENSITIVITIES[name])) for name in ("low", "normal", "high")]
    assert counts == sorted(counts)
    assert counts[0] < counts[2]


def test_the_state_is_small() -> None:
    assert len(Detector(Settings()).packed()) < 2200


def test_a_state_of_other_slots_or_another_version_is_refused() -> None:
    state = Detector(Settings()).packed()
    with pytest.raises(ValueError, match="24 slots"):
        Detector.unpacked(state, Settings(slots=48))
    with pytest.raises(ValueError, match="version 1"):
        Detector.unpacked(b"\x01" + state[1:], Settings())


@pytest.mark.parametrize(
    "wrong",
    [{"spike": 0.0}, {"threshold": math.nan}, {"slots": 0}, {"min_scale": -1.0}, {"louder": 0.5}, {"tail": -1.0}],
)
def test_settings_that_judge_nothing_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Settings(**wrong)


def test_a_short_memory_forgets_and_no_more() -> None:
    detector = Detector(Settings(memory_s=600.0, slots=48))
    for number, value in enumerate(days(20)):
        detector.observe(BEGIN + EVERY_S * number, value)
    found = detector.observe(BEGIN + EVERY_S * 20 * READINGS, 900.0)
    assert found is not None
    assert abs(found.expected - 20) < 5
