"""Detectors that are forgotten, by a state of a few calls in the place of Spark's."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import Row

from streaming.pipelines.anomalies import _Forgetting
from streaming.pipelines.detector import Detector, Settings

SETTINGS = Settings(warm_up=20, warm_up_s=0.0, slots=1, rest_s=0.0, tail=0.0)  # a spike at once
FORGET_MS = 3_600_000
MINUTE = 60_000
Reading = tuple[int, float, int]  # minute of its time, value, minute at which it was seen


class Spark:
    """One device's state, timers and watermark; itself the handle, the value, and what tells of a timer."""

    def __init__(self) -> None:
        self.value: tuple[Any, ...] | None = None
        self.timers: list[int] = []
        self.newest = 0
        self.found: list[tuple[float, str]] = []
        self._expired = 0
        self._processor = _Forgetting(SETTINGS, FORGET_MS)
        self._processor.init(self)  # type: ignore[arg-type]

    def getValueState(self, *_: object) -> "Spark":  # noqa: N802
        return self

    def get(self) -> tuple[Any, ...] | None:
        return self.value

    def update(self, value: tuple[Any, ...]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        self.timers.append(at_ms)

    def getExpiryTimeInMs(self) -> int:  # noqa: N802
        return self._expired

    def batch(self, readings: Iterable[Reading], *, others: int = 0) -> None:
        """A micro-batch, in which the newest reading of `others` was seen at that minute."""
        watermark = self.newest - FORGET_MS
        rows = [Row(time=at * 60_000_000, value=value, seen_ms=seen * MINUTE) for at, value, seen in readings]
        assert all(row.seen_ms > watermark for row in rows)
        if rows:
            found = self._processor.handleInputRows(("a",), iter(rows), None)
            self.found += [(row.time / 60_000_000, row.kind) for row in found]
        for timer in [each for each in self.timers if each <= watermark]:
            self.timers.remove(timer)
            self._expired = timer
            assert list(self._processor.handleExpiredTimer(("a",), None, self)) == []
        assert len(self.timers) == (self.value is not None)
        self.newest = max([self.newest, others * MINUTE, *(row.seen_ms for row in rows)])


def usual(begin: int, end: int) -> list[Reading]:
    return [(minute, 20.0 + minute % 3, minute) for minute in range(begin, end)]


def test_a_late_reading_does_not_reset_a_device() -> None:
    """Its time is older than that of one that was seen before it: between the two the device was heard of."""
    spark = Spark()
    spark.batch(usual(0, 60))
    spark.batch([(100, 20.0, 100), (70, 21.0, 130), (131, 90.0, 131)])
    assert spark.found == [(131.0, "spike")]


def test_a_long_silence_starts_a_new_detector() -> None:
    spark = Spark()
    late = [(30, 90.0, 200)]  # of before the silence, and seen after it: of the new detector
    spark.batch([*late, *usual(200, 210), *usual(0, 60), (60, 90.0, 60)])
    assert spark.found == [(60.0, "spike")]


def test_devices_of_partitions_read_later_are_not_forgotten() -> None:
    spark = Spark()
    spark.batch(usual(0, 60), others=60)
    spark.batch([], others=120)  # the watermark comes to when the device was seen last
    spark.batch([], others=150)
    spark.batch([(110, 90.0, 110)])
    assert spark.found == [(110.0, "spike")]


def test_state_is_gone_when_any_reading_would_be_too_late() -> None:
    spark = Spark()
    spark.batch(usual(0, 60))
    spark.batch([], others=178)
    spark.batch([], others=179)
    assert spark.value is not None
    spark.batch([], others=179)
    assert spark.value is None
    spark.batch(usual(200, 201))
    assert spark.timers == [200 * MINUTE + FORGET_MS]


@given(
    st.lists(st.tuples(st.sampled_from((1, 1, 1, 1, 30, 60, 61, 130)), st.sampled_from((0.0, 0.0, 70.0))), min_size=60),
    st.sets(st.integers(0, 100)),
)
def test_anomalies_do_not_depend_on_the_batches(steps: list[tuple[int, float]], cuts: set[int]) -> None:
    readings: list[Reading] = []
    minute, lives = 0, [Detector(SETTINGS)]
    expected = []
    for gap, more in steps:
        minute += gap
        if gap > 60:
            lives.append(Detector(SETTINGS))
        readings.append((minute, 20.0 + minute % 3 + more, minute))
        found = lives[-1].observe(minute * 60.0, readings[-1][1])
        expected += [] if found is None else [(float(minute), found.kind)]
    spark, begin = Spark(), 0
    for end in [*sorted(cut for cut in cuts if cut < len(readings)), len(readings)]:
        spark.batch(readings[begin:end], others=readings[end][2] if end < len(readings) else 0)
        begin = end
    assert spark.found == expected
