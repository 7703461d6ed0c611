"""Which devices fell silent, and which are back."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from streaming.pipelines.stateful import TIMES, micros, micros_of, seconds_of, with_times

SCHEMA = "device string, event string, time long, last_seen long, silent_s double"  # of what Python gives


def liveness(
    records: DataFrame,
    *,
    silent_after_s: float,
    forget_after_s: float | None = None,
    late: str = "10 seconds",
    device: str = "device",
    time: str = "time",
) -> DataFrame:
    """Events of a stream: `silent` when nothing came of a device for `silent_after_s` seconds, `back` with the first
    message after that. `time` is when it was so, `last_seen` when the device was heard before, `silent_s` how long it
    was, or is, silent.

    The clock is the records' own (`time`, best the source's `stored_at`), less `late`: a query that was away, or works
    off a backlog, calls nobody silent who was not. It goes on as long as anybody says something: where the whole fleet
    may fall silent, let a service publish now and then. The query needs `STATE_CONFIG`.

    A device is state for ever, or until it was silent for `forget_after_s`: then its next message is its first one, and
    no event. Raises `ValueError`.
    """
    require_spans(silent_after_s, forget_after_s)
    seen = (
        records.select(F.col(device).cast("string").alias("device"), F.col(time).cast("timestamp").alias("time"))
        .where(f"device IS NOT NULL AND {TIMES}")
        .withWatermark("time", late)
        .withColumn("at", micros(F.col("time")))
    )
    processor = _Listening(silent_after_s, forget_after_s)
    events = seen.groupBy("device").transformWithState(processor, SCHEMA, "Append", "EventTime", eventTimeColumnName="")
    return with_times(events, "time", "last_seen")


def require_spans(silent_after_s: float, forget_after_s: float | None) -> None:
    """Raises `ValueError` for times that `liveness` cannot mean."""
    if silent_after_s <= 0:
        raise ValueError(f"a device is silent after some time, not after {silent_after_s} s")
    if forget_after_s is not None and forget_after_s <= silent_after_s:
        raise ValueError(f"a device falls silent, after {silent_after_s} s, before it is forgotten: {forget_after_s} s")


class _Listening(StatefulProcessor):
    """Of each device when it was heard last, whether it was called silent, and a timer for when it will be, or for when
    it is forgotten."""

    def __init__(self, silent_after_s: float, forget_after_s: float | None) -> None:
        self._silent_after_s = silent_after_s
        self._forget_after_s = forget_after_s

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("seen", "last double, silent boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        times = sorted(seconds_of(row.at) for row in rows)
        last, is_silent = self._state.get() or (None, False)
        for time in times:
            if last is not None and time <= last:
                continue
            if last is not None and self._forget_after_s is not None and time - last > self._forget_after_s:
                if not is_silent:
                    yield _event(key[0], "silent", last + self._silent_after_s, last, self._silent_after_s)
                last, is_silent = None, False  # and back before the timer that forgets it
            if last is not None and (is_silent or time - last > self._silent_after_s):
                if not is_silent:  # and back within one batch, before its timer
                    yield _event(key[0], "silent", last + self._silent_after_s, last, self._silent_after_s)
                yield _event(key[0], "back", time, last, time - last)
            last, is_silent = time, False
        assert last is not None
        self._state.update((last, is_silent))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._set_timer(last, is_silent=is_silent)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        state = self._state.get()
        assert state is not None  # a timer is of a device that was heard
        last, is_silent = state
        if is_silent:
            self._state.clear()
            return
        self._state.update((last, True))
        self._set_timer(last, is_silent=True)
        yield _event(key[0], "silent", last + self._silent_after_s, last, self._silent_after_s)

    def _set_timer(self, last: float, *, is_silent: bool) -> None:
        """For what becomes next of a device that was heard `last`."""
        after_s = self._forget_after_s if is_silent else self._silent_after_s
        if after_s is not None:
            self._handle.registerTimer(round((last + after_s) * 1000))

    def close(self) -> None:
        """Nothing is open."""


def _event(device: str, event: str, time: float, last: float, silent_s: float) -> Row:
    return Row(device=device, event=event, time=micros_of(time), last_seen=micros_of(last), silent_s=float(silent_s))
