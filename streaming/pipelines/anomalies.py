"""Anomalies of a numeric field, found per device as readings come: `detector` as a stateful operator of Spark."""

from collections.abc import Iterator
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
) -> DataFrame:
    """The readings of a stream that are anomalies: `device`, `time`, `value`, what was `expected`, the `score`, and the
    `kind`: `spike`, `shift` or `flat`.

    Each device has a detector of its own (`detector`), about 2 KiB of Spark's state, kept for ever, or until
    nothing came of the device for `forget_after_s` of the query's own time: then it begins to learn anew. Within a
    micro-batch the readings of a device are taken in the order of their time; one that is not newer than what was
    taken is passed over, as are nulls, what is no number, and times before 1970 or after 9000. The query needs
    `STATE_CONFIG`.
    """
    known = readings.select(
        F.col(device).cast("string").alias("device"),
        F.col(time).cast("timestamp").alias("time"),
        F.col(value).cast("double").alias("value"),
    ).where(f"device IS NOT NULL AND value IS NOT NULL AND {TIMES}")
    known = known.withColumn("time", micros(F.col("time")))
    processor = _Detecting(settings or Settings(), forget_after_s)
    clock = "None" if forget_after_s is None else "ProcessingTime"
    return with_times(known.groupBy("device").transformWithState(processor, SCHEMA, "Append", clock), "time")


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

    def __init__(self, settings: Settings, forget_after_s: float | None) -> None:
        self._settings = settings
        self._forget_after_ms = None if forget_after_s is None else max(round(forget_after_s * 1000), 1)

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("detector", "state binary", self._forget_after_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        state = self._state.get()
        settings = self._settings
        detector = Detector(settings) if state is None else Detector.unpacked(bytes(state[0]), settings)
        taken = sorted((seconds_of(row.time), row.value) for row in rows)
        for time, value in taken:
            found = detector.observe(time, value) if abs(value) <= LARGEST else None  # so no NaN
            if found is not None:
                yield Row(
                    device=key[0],
                    time=micros_of(found.time),
                    value=found.value,
                    expected=found.expected,
                    score=found.score,
                    kind=found.kind,
                )
        self._state.update((detector.packed(),))

    def close(self) -> None:
        """Nothing is open."""
