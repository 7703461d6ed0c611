"""Queries as an operator runs them: they say how far they are, and end with their batch when they are told to."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from streaming.progress import lag, skipped

_POLL_S: Final = 0.25
_LAST_POLL_S: Final = 0.02  # as little of another batch as can be
_LAST_BATCH_S: Final = 120.0  # that the running batch is given when the query is to end


def describe(progress: Mapping[str, Any]) -> str:
    """One line about a micro-batch: rows and rate in, how far behind, what was lost, the watermark, rows too late."""
    states = progress.get("stateOperators") or []
    line = (
        f"batch {progress['batchId']}: {progress['numInputRows']:,} rows in, "
        f"{progress.get('processedRowsPerSecond') or 0:,.0f} rows/s, lag {lag(progress):,}"
    )
    watermark = progress.get("eventTime", {}).get("watermark")
    if lost := skipped(progress):
        line += f", {lost:,} lost before they were read"
    if watermark:
        line += f", watermark {watermark}"
    if states:
        line += f", late {sum(state.get('numRowsDroppedByWatermark', 0) for state in states):,}"
        line += f", state {sum(state.get('numRowsTotal', 0) for state in states):,} rows"
    return line


def run(query: StreamingQuery, tell: Callable[[str], None], stopping: threading.Event) -> None:
    """Tell of each micro-batch until the query ends, or `stopping` is set: then the batch that runs is let end first.
    Raises what the query failed with."""
    told = -1
    while query.isActive and not stopping.is_set():
        query.awaitTermination(_POLL_S)  # type: ignore[arg-type]
        told = _tell(query, told, tell)
    _end(query)
    _tell(query, told, tell)
    failure = query.exception()
    if failure is not None:
        raise failure


def _end(query: StreamingQuery) -> None:
    """Stop a query when its batch has ended. One that is behind is at the next one then, which is done again."""
    deadline = time.monotonic() + _LAST_BATCH_S
    ended = _last_batch(query)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if _last_batch(query) != ended:
            break
        time.sleep(_LAST_POLL_S)
    query.stop()


def _last_batch(query: StreamingQuery) -> int | None:
    """The number of the last batch that has ended."""
    progress = query.lastProgress
    return None if progress is None else progress["batchId"]


def _tell(query: StreamingQuery, told: int, tell: Callable[[str], None]) -> int:
    """Tell of the batches behind `told`. Returns the last one."""
    for progress in query.recentProgress:
        number = progress["batchId"]
        if number > told and (progress["numInputRows"] or progress.get("sink", {}).get("numOutputRows", 0) > 0):
            tell(describe(progress))
            told = number
    return told
