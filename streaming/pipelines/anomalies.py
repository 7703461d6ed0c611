"""Anomalies of a numeric field, found per device as readings arrive: `detector` as a stateful Spark operator."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from streaming.pipelines.detector import LARGEST, Detector, Settings
from streaming.pipelines.stateful import TIMES, micros, micros_of, seconds_of, with_times

SCHEMA = "device string, time long, value double, expected double, score double, kind string"  # of Python rows
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
    """Return the readings of a stream that are anomalies, with the columns `device`, `time`, `value`, `expected`,
    `score` and `kind` (`spike`, `shift` or `flat`).

    Each device has a detector (`detector`), which is about 2 KiB of Spark's state. It is kept for ever, unless
    `forget_after_s` is given: a device without readings for that time, by the clock of the column `seen`, begins to
    learn again, and its state is removed after as long again. Readings that arrive that much later than others are
    dropped.

    Within a micro-batch, the readings of a device are processed in the order of their time. A reading that is not newer
    than the last one is dropped, and so are nulls, values that are not numbers, and times before 1970 or after 9000.
    The query needs `STATE_CONFIG`. Raises `ValueError`.
    """
    if forget_after_s is not None and not 0 < forget_after_s < math.inf:
        raise ValueError(f"forget_after_s must be finite and above 0, not {forget_after_s}")
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
        # Spark's own TTL of state follows the clock of the machine, and a query with `availableNow` never ends with it.
        known = known.where("seen IS NOT NULL").withWatermark("seen", f"{_ms(forget_after_s)} milliseconds")
        known = known.withColumn("seen_ms", F.unix_millis("seen"))
        found = known.groupBy("device").transformWithState(
            _Forgetting(settings, _ms(forget_after_s)), SCHEMA, "Append", "EventTime", eventTimeColumnName=""
        )
    return with_times(found, "time")


def alerts(found: DataFrame, prefix: str | Column, *, retain: bool = False) -> DataFrame:
    """Convert rows to messages for the sink: JSON on the topic `prefix`/device, or `prefix`/_ without a device."""
    start = F.lit(prefix) if isinstance(prefix, str) else prefix
    return found.select(
        F.concat(start, F.lit("/"), topic_level("device")).alias("topic"),
        F.to_json(F.struct("*")).alias("payload"),
        F.lit(retain).alias("retain"),
        F.lit("application/json").alias("content_type"),
    )


def topic_level(column: str) -> Column:
    """Convert a text to one topic level. Null and characters that a topic name cannot have become an underscore, and a
    long text is cut, because devices may send anything."""
    return F.coalesce(F.substring(F.regexp_replace(F.col(column), r"[/+#\x00]", "_"), 1, _LONGEST), F.lit("_"))


class _Detecting(StatefulProcessor):
    """Runs one detector per device, which is packed into one value of state."""

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
        """Nothing to close."""


class _Forgetting(StatefulProcessor):
    """Runs one detector per device, and forgets devices without readings.

    The state has the time of the last reading. A device that returns after `forget_after_ms` begins with a new
    detector. The state of a device that does not return is removed by a timer, when the watermark has passed the time
    at which any reading would be too late. So a device is not forgotten because its partition is read later than
    others.
    """

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
        pending: list[Row] = []  # for this detector
        for row in sorted(rows, key=_seen):  # the order of `time` may differ
            if last_ms is not None and row.seen_ms - last_ms > self._forget_after_ms:
                yield from _found(detector, key[0], pending)
                detector, pending = Detector(settings), []
            pending.append(row)
            last_ms = row.seen_ms if last_ms is None else max(last_ms, row.seen_ms)
        yield from _found(detector, key[0], pending)
        assert last_ms is not None
        if state is None:
            self._handle.registerTimer(last_ms + self._forget_after_ms)
        self._state.update((detector.packed(), last_ms))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        state = self._state.get()
        assert state is not None  # only a device with state has a timer
        due_ms = state[1] + self._forget_after_ms
        if due_ms > expiredTimerInfo.getExpiryTimeInMs():
            self._handle.registerTimer(due_ms)  # it has had readings since
        else:
            self._state.clear()
        return iter(())

    def close(self) -> None:
        """Nothing to close."""


def _order(row: Row) -> tuple[int, float]:
    return row.time, row.value


def _seen(row: Row) -> int:
    return int(row.seen_ms)


def _found(detector: Detector, device: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the anomalies among readings."""
    for row in sorted(rows, key=_order):
        if not abs(row.value) <= LARGEST:  # also excludes NaN
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
