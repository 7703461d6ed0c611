"""Running a query: report each micro-batch, and let the current batch finish before stopping."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from streaming.progress import lag, skipped

_POLL_S: Final = 0.25
_LAST_POLL_S: Final = 0.02  # stop soon after the batch, before the next one does much
_LAST_BATCH_S: Final = 120.0  # for the running batch to finish when the query is stopped


def describe(progress: Mapping[str, Any]) -> str:
    """Format a micro-batch as one line: rows, rate, lag, losses, watermark and late rows."""
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


def run(query: StreamingQuery, report: Callable[[str], None], stopping: threading.Event) -> None:
    """Report each micro-batch until the query ends or `stopping` is set. The current batch may finish first. Raises the
    failure of the query."""
    reported = -1
    while query.isActive and not stopping.is_set():
        query.awaitTermination(_POLL_S)  # type: ignore[arg-type]
        reported = _report(query, reported, report)
    _end(query)
    _report(query, reported, report)
    failure = query.exception()
    if failure is not None:
        raise failure


def _end(query: StreamingQuery) -> None:
    """Stop a query after its current batch. A query with a backlog has begun the next batch, and will repeat it."""
    deadline = time.monotonic() + _LAST_BATCH_S
    ended = _last_batch(query)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if _last_batch(query) != ended:
            break
        time.sleep(_LAST_POLL_S)
    query.stop()


def _last_batch(query: StreamingQuery) -> int | None:
    """Return the number of the last completed batch."""
    progress = query.lastProgress
    return None if progress is None else progress["batchId"]


def _report(query: StreamingQuery, reported: int, report: Callable[[str], None]) -> int:
    """Report the batches after number `reported`. Return the number of the last one."""
    for progress in query.recentProgress:
        number = progress["batchId"]
        if number > reported and (progress["numInputRows"] or progress.get("sink", {}).get("numOutputRows", 0) > 0):
            report(describe(progress))
            reported = number
    return reported
