"""Events for devices that fall silent and for devices that are back."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from streaming.pipelines.stateful import TIMES, micros, micros_of, seconds_of, with_times

SCHEMA = "device string, event string, time long, last_seen long, silent_s double"  # of the rows that Python returns


def liveness(
    records: DataFrame,
    *,
    silent_after_s: float,
    forget_after_s: float | None = None,
    late: str = "10 seconds",
    device: str = "device",
    time: str = "time",
) -> DataFrame:
    """Return the events of a stream: `silent` when a device has sent nothing for `silent_after_s` seconds, and `back`
    with its next message. `time` is the time of the event, `last_seen` that of the message before it, and `silent_s`
    the length of the silence.

    The clock is the column `time` of the records (preferably `stored_at` of the source), minus `late`. So a query that
    was stopped or has a backlog reports no device as silent that was not. The clock advances only with messages: if all
    devices may fall silent at once, let a service publish from time to time. The query needs `STATE_CONFIG`.

    The state of a device is kept for ever, or until it has been silent for `forget_after_s`. After that, its next
    message is its first one and gives no event. Raises `ValueError`.
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
    """Raise `ValueError` for times that `liveness` does not accept."""
    if silent_after_s <= 0:
        raise ValueError(f"silent_after_s must be above 0, not {silent_after_s}")
    if forget_after_s is not None and forget_after_s <= silent_after_s:
        raise ValueError(f"forget_after_s ({forget_after_s}) must be above silent_after_s ({silent_after_s})")


class _Listening(StatefulProcessor):
    """Keeps for each device the time of its last message, whether it was reported silent, and a timer for the next of
    these: falling silent or being forgotten."""

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
                last, is_silent = None, False  # it is back before the timer that forgets it
            if last is not None and (is_silent or time - last > self._silent_after_s):
                if not is_silent:  # it is back within one batch, before its timer
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
        assert state is not None  # only a device with state has a timer
        last, is_silent = state
        if is_silent:
            self._state.clear()
            return
        self._state.update((last, True))
        self._set_timer(last, is_silent=True)
        yield _event(key[0], "silent", last + self._silent_after_s, last, self._silent_after_s)

    def _set_timer(self, last: float, *, is_silent: bool) -> None:
        """Set the timer for the next change of a device whose last message came at `last`."""
        after_s = self._forget_after_s if is_silent else self._silent_after_s
        if after_s is not None:
            self._handle.registerTimer(round((last + after_s) * 1000))

    def close(self) -> None:
        """Nothing to close."""


def _event(device: str, event: str, time: float, last: float, silent_s: float) -> Row:
    return Row(device=device, event=event, time=micros_of(time), last_seen=micros_of(last), silent_s=float(silent_s))
