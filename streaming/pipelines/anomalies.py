"""Anomalies of a numeric field, found per device as readings come: `detector` as a stateful operator of Spark."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from streaming.pipelines.detector import LARGEST, Detector, Settings
from streaming.pipelines.stateful import TIMES, micros, micros_of, seconds_of, with_times

SCHEMA = "device string, time long, value double, expected double, score double, kind string"  # of what Python gives
_LONGEST: Final = 256  # characters of a device's name in a topic


def anomalies(
    readings: DataFrame,
    settings: Settings | None = None,
    *,
    forget_after_s: float | None = None,
    device: str = "device",
    time: str = "time",
    value: str = "value",
    seen: str = "stored_at",
) -> DataFrame:
    """The readings of a stream that are anomalies: `device`, `time`, `value`, what was `expected`, the `score`, and the
    `kind`: `spike`, `shift` or `flat`.

    Each device has a detector of its own (`detector`), about 2 KiB of Spark's state, kept for ever, or until nothing
    came of the device for `forget_after_s` by the records' own clock, `seen`: then it begins to learn anew, and after
    as long again its state is gone. Readings that the stream brings so much later than others are passed over. Within a
    micro-batch the readings of a device are taken in the order of their time; one that is not newer than what was taken
    is passed over, as are nulls, what is no number, and times before 1970 or after 9000. The query needs
    `STATE_CONFIG`. Raises `ValueError`.
    """
    if forget_after_s is not None and not 0 < forget_after_s < math.inf:
        raise ValueError(f"a device is forgotten after some time, not after {forget_after_s} s")
    columns = {
        "device": F.col(device).cast("string"),
        "time": F.col(time).cast("timestamp"),
        "value": F.col(value).cast("double"),
    }
    if forget_after_s is not None:
        columns["seen"] = F.col(seen).cast("timestamp")
    known = readings.select(*(column.alias(name) for name, column in columns.items()))
    known = known.where(f"device IS NOT NULL AND value IS NOT NULL AND {TIMES}")
    known = known.withColumn("time", micros(F.col("time")))
    settings = settings or Settings()
    if forget_after_s is None:
        found = known.groupBy("device").transformWithState(_Detecting(settings), SCHEMA, "Append", "None")
    else:
        # Spark's own way to let state end, a TTL, goes by its machine's clock, and `availableNow` never ends with that.
        known = known.where("seen IS NOT NULL").withWatermark("seen", f"{_ms(forget_after_s)} milliseconds")
        known = known.withColumn("seen_ms", F.unix_millis("seen"))
        found = known.groupBy("device").transformWithState(
            _Forgetting(settings, _ms(forget_after_s)), SCHEMA, "Append", "EventTime", eventTimeColumnName=""
        )
    return with_times(found, "time")


def alerts(found: DataFrame, prefix: str | Column, *, retain: bool = False) -> DataFrame:
    """Anomalies as messages for the sink: JSON on the topic `prefix`/device; `prefix`/_ where there is none."""
    start = F.lit(prefix) if isinstance(prefix, str) else prefix
    return found.select(
        F.concat(start, F.lit("/"), topic_level("device")).alias("topic"),
        F.to_json(F.struct("*")).alias("payload"),
        F.lit(retain).alias("retain"),
        F.lit("application/json").alias("content_type"),
    )


def topic_level(column: str) -> Column:
    """A text as one level of a topic: what a topic's name cannot have becomes an underscore, as does null, and what is
    longer than topics are is cut. Devices say what they like."""
    return F.coalesce(F.substring(F.regexp_replace(F.col(column), r"[/+#\x00]", "_"), 1, _LONGEST), F.lit("_"))


class _Detecting(StatefulProcessor):
    """One detector per device, packed into one value of state."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("detector", "state binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        state = self._state.get()
        settings = self._settings
        detector = Detector(settings) if state is None else Detector.unpacked(bytes(state[0]), settings)
        yield from _found(detector, key[0], rows)
        self._state.update((detector.packed(),))

    def close(self) -> None:
        """Nothing is open."""


class _Forgetting(StatefulProcessor):
    """The same, with when each device was seen last. Who is seen again too late begins anew. What is left of who is not
    is ended by a timer, one for each, when the watermark comes to where any reading would be too late: nobody is
    forgotten early because his partition is read later than others."""

    def __init__(self, settings: Settings, forget_after_ms: int) -> None:
        self._settings = settings
        self._forget_after_ms = forget_after_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("detector", "state binary, seen_ms long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        state = self._state.get()
        settings = self._settings
        last_ms: int | None = None
        detector = Detector(settings)
        if state is not None:
            detector, last_ms = Detector.unpacked(bytes(state[0]), settings), state[1]
        taken: list[Row] = []  # by this detector
        for row in sorted(rows, key=_seen):  # which need not be the order of their times
            if last_ms is not None and row.seen_ms - last_ms > self._forget_after_ms:
                yield from _found(detector, key[0], taken)
                detector, taken = Detector(settings), []
            taken.append(row)
            last_ms = row.seen_ms if last_ms is None else max(last_ms, row.seen_ms)
        yield from _found(detector, key[0], taken)
        assert last_ms is not None
        if state is None:
            self._handle.registerTimer(last_ms + self._forget_after_ms)
        self._state.update((detector.packed(), last_ms))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        state = self._state.get()
        assert state is not None  # a timer is of a device that was seen
        due_ms = state[1] + self._forget_after_ms
        if due_ms > expiredTimerInfo.getExpiryTimeInMs():
            self._handle.registerTimer(due_ms)  # it was seen since
        else:
            self._state.clear()
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


def _order(row: Row) -> tuple[int, float]:
    return row.time, row.value


def _seen(row: Row) -> int:
    return int(row.seen_ms)


def _found(detector: Detector, device: str, rows: Iterable[Row]) -> Iterator[Row]:
    """What the detector says of readings."""
    for row in sorted(rows, key=_order):
        if not abs(row.value) <= LARGEST:  # nor NaN
            continue
        found = detector.observe(seconds_of(row.time), row.value)
        if found is not None:
            yield Row(
                device=device,
                time=micros_of(found.time),
                value=found.value,
                expected=found.expected,
                score=found.score,
                kind=found.kind,
            )


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
