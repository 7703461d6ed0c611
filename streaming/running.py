"""Running a query: report each micro-batch, and let the current batch finish before stopping."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from streaming.pipelines.rejects import rejected
from streaming.progress import lag, late, skipped

_POLL_S: Final = 0.25
_LAST_POLL_S: Final = 0.02  # stop soon after the batch, before the next one does much
_LAST_BATCH_S: Final = 120.0  # for the running batch to finish when the query is stopped


def describe(progress: Mapping[str, Any]) -> str:
    """Format a micro-batch as one line: rows, rate, lag, losses, rejects, watermark and late rows."""
    states = progress.get("stateOperators") or []
    line = (
        f"batch {progress['batchId']}: {progress['numInputRows']:,} rows in, "
        f"{progress.get('processedRowsPerSecond') or 0:,.0f} rows/s, lag {lag(progress):,}"
    )
    watermark = progress.get("eventTime", {}).get("watermark")
    if lost := skipped(progress):
        line += f", {lost:,} lost before they were read"
    if rejects := rejected(progress):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejects.items())
        line += f", rejected {sum(rejects.values()):,} ({reasons})"
    if watermark:
        line += f", watermark {watermark}"
    if states:
        line += f", late {late(progress):,}"
        line += f", state {sum(state.get('numRowsTotal', 0) for state in states):,} rows"
    return line


def run(
    queries: Sequence[StreamingQuery], report: Callable[[Mapping[str, Any]], None], stopping: threading.Event
) -> None:
    """Report the progress of each micro-batch of the first query until all queries end, one fails, or `stopping` is
    set. The current batches may finish first. Raises the failure of a query."""
    reported = -1
    while not stopping.is_set() and any(query.isActive for query in queries):
        if any(query.exception() is not None for query in queries):
            break
        next((each for each in queries if each.isActive), queries[0]).awaitTermination(_POLL_S)  # type: ignore[arg-type]
        reported = _report(queries[0], reported, report)
    for query in queries:
        _end(query)
    _report(queries[0], reported, report)
    for query in queries:
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


def _report(query: StreamingQuery, reported: int, report: Callable[[Mapping[str, Any]], None]) -> int:
    """Report the batches after number `reported`. Return the number of the last one."""
    for progress in query.recentProgress:
        number = progress["batchId"]
        if number > reported and (progress["numInputRows"] or progress.get("sink", {}).get("numOutputRows", 0) > 0):
            report(progress)
            reported = number
    return reported
