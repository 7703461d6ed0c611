"""Reports of a running query, and how it is stopped."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from sluice.console.signals import stopped_by_signals
from streaming.running import describe, run
from streaming.source.offsets import StreamProgress

PROGRESS: dict[str, Any] = {
    "batchId": 3,
    "numInputRows": 1200,
    "processedRowsPerSecond": 599.6,
    "sources": [{"endOffset": '{"a": {"0": 7, "1": 3}}', "latestOffset": '{"a": {"0": 9, "1": 13}}'}],
    "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    "stateOperators": [{"numRowsDroppedByWatermark": 2, "numRowsTotal": 40}],
    "sink": {"numOutputRows": -1},
}


def test_a_batch_in_a_line() -> None:
    assert describe(PROGRESS) == (
        "batch 3: 1,200 rows in, 600 rows/s, lag 12, watermark 2026-01-01T00:00:00.000Z, late 2, state 40 rows"
    )
    assert describe({"batchId": 0, "numInputRows": 0}) == "batch 0: 0 rows in, 0 rows/s, lag 0"
    bare = {**PROGRESS, "sources": [{"endOffset": {"a": {"0": 4}}, "latestOffset": None}], "stateOperators": []}
    assert "lag 0" in describe(bare) and "state" not in describe(bare)
    rejects = {**PROGRESS, "observedMetrics": {"readings": {"usable": 7, "empty": 1200, "null": 3, "missing": 0}}}
    assert "lag 12, rejected 1,203 (1,200 empty, 3 null), watermark" in describe(rejects)
    gap = {**PROGRESS, "sources": [{"endOffset": StreamProgress({("a", 0): 7}, skipped=5).to_json()}]}
    assert ", 5 lost before they were read, watermark" in describe(gap)


class FakeQuery:
    """A query that ends its batch only when somebody has looked a few times; that has no other one to do, or is behind
    and begins with the next one at once."""

    def __init__(self, *, fails: bool = False, is_behind: bool = False) -> None:
        self.isActive = True
        self.recentProgress = [PROGRESS]
        self.failure = RuntimeError("it broke") if fails else None
        self.is_behind = is_behind
        self.looks = 0
        self.stopped_in_batch: bool | None = None

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802
        self.isActive = self.failure is None
        return not self.isActive

    @property
    def status(self) -> dict[str, bool]:
        self.looks += 1
        return {"isTriggerActive": self.is_behind or self.looks < 3}

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802
        return {**PROGRESS, "batchId": PROGRESS["batchId"] + self.looks // 3}

    def stop(self) -> None:
        self.stopped_in_batch = self.looks < 3
        self.isActive = False

    def exception(self) -> Exception | None:
        return self.failure


@pytest.mark.parametrize("is_behind", [False, True])
def test_sigterm_lets_the_batch_end_and_no_other_begin(monkeypatch: pytest.MonkeyPatch, is_behind: bool) -> None:
    monkeypatch.setattr("streaming.running._LAST_POLL_S", 0.001)
    query, told = FakeQuery(is_behind=is_behind), list[str]()
    before = signal.getsignal(signal.SIGTERM)

    def tell(progress: Mapping[str, Any]) -> None:
        told.append(describe(progress))
        os.kill(os.getpid(), signal.SIGTERM)

    with stopped_by_signals() as stopping:
        run([cast("StreamingQuery", query)], tell, stopping)
    assert query.stopped_in_batch is False
    assert query.looks == 3
    assert told == [describe(PROGRESS)]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [0, 1])
def test_the_error_of_a_failed_query_is_raised_and_the_others_are_stopped(number: int) -> None:
    queries = [FakeQuery(fails=each == number) for each in range(2)]
    with pytest.raises(RuntimeError, match="it broke"):
        run(cast("list[StreamingQuery]", queries), lambda _progress: None, threading.Event())
    assert not any(query.isActive for query in queries)
