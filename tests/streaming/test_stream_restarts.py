"""What `sluice stream` does when its query fails: go on from the checkpoint, wait, or give up. Spark is left out."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from cloud_sdk.errors import NotAllowed
from sluice.cli import parser
from sluice.commands.analytics import stream_job
from sluice.commands.analytics.stream_metrics import StreamMetrics
from sluice.node import grpc_client
from streaming.source.topics import Topics, unknown_parents

LATE = "Job aborted: org.apache.spark.SparkException: Python worker failed to connect back."
AWAY = "Traceback (most recent call last):\ncloud_sdk.errors.Unavailable: the node does not answer\n"
PROGRESS = {"batchId": 1, "numInputRows": 3}


class Waits(threading.Event):
    """Counts the waits, which take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return False


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Waits]:
    """Run a pipeline whose queries end as told: a text is a failure, None the end of the query."""
    spark = SimpleNamespace(streams=SimpleNamespace(active=[]))
    monkeypatch.setattr(stream_job, "spark_session", lambda *_, **__: spark)
    monkeypatch.setattr(stream_job, "stop", lambda _: None)
    monkeypatch.setattr(stream_job, "_start", lambda *_: None)

    def started(ends: Iterator[str | None], *words: str, reports: bool = False) -> Waits:
        def queries(_queries: Any, report: Callable[[Any], None], _stopping: threading.Event) -> None:
            if reports:
                report(PROGRESS)
            if (failure := next(ends)) is not None:
                raise PySparkException(failure)

        monkeypatch.setattr(stream_job, "run_queries", queries)
        arguments = parser().parse_args(["stream", "windows", "--parent", "sensors", *words])
        waits = Waits()
        stream_job._run_on_spark(arguments, {}, waits, StreamMetrics("windows"))
        return waits

    return started


def test_a_query_whose_worker_was_late_goes_on(run: Callable[..., Waits], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(iter([LATE] * stream_job._MOST_RESTARTS + [None]), "--once").count == stream_job._MOST_RESTARTS
    told = capsys.readouterr().err
    assert told.count("too slow to connect: the query goes on from its checkpoint") == stream_job._MOST_RESTARTS


def test_restarts_in_a_row_are_bounded(run: Callable[..., Waits]) -> None:
    with pytest.raises(stream_job._Failed, match="failed to connect back"):
        run(iter([LATE] * (stream_job._MOST_RESTARTS + 1)))


def test_a_batch_that_ends_begins_the_count_again(run: Callable[..., Waits]) -> None:
    many = 3 * stream_job._MOST_RESTARTS
    assert run(iter([LATE] * many + [None]), reports=True).count == many


def test_a_node_that_is_away_is_waited_for_unless_the_job_runs_once(run: Callable[..., Waits]) -> None:
    many = 2 * stream_job._MOST_RESTARTS
    assert run(iter([AWAY] * many + [None])).count == many
    with pytest.raises(stream_job._Failed, match="does not answer"):
        run(iter([AWAY]), "--once")


def test_other_failures_end_the_pipeline(run: Callable[..., Waits]) -> None:
    with pytest.raises(stream_job._Failed, match="division by zero"):
        run(iter(["Traceback (most recent call last):\nZeroDivisionError: division by zero\n"]))


class Parents:
    """A client of a node with messages below `sensors` and `plants`."""

    def __init__(self, *, may_list: bool = True) -> None:
        self._may_list = may_list

    def parents(self) -> list[str]:
        if not self._may_list:
            raise NotAllowed("not allowed")
        return ["plants", "sensors"]

    def partitions(self, parent: str) -> list[Any]:
        return [SimpleNamespace(end=int(parent in ("plants", "sensors")))]


def test_a_misspelled_parent_is_a_warning() -> None:
    client: Any = Parents()
    assert unknown_parents(client, Topics.of_parents("sensors,plants")) == []
    assert unknown_parents(client, Topics.of_parents("sensor,xyz")) == [
        "the parent topic 'sensor' has no messages yet: did you mean 'sensors'?",
        "the parent topic 'xyz' has no messages yet",
    ]
    assert unknown_parents(client, Topics.of_filters("+/t")) == []
    stranger: Any = Parents(may_list=False)
    assert unknown_parents(stranger, Topics.of_parents("sensor")) == ["the parent topic 'sensor' has no messages yet"]


def test_the_warning_is_written_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Connected(Parents):
        def __enter__(self) -> "Connected":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(grpc_client, "connect", lambda _: Connected())
    arguments = parser().parse_args(["stream", "windows", "--parent", "sensor"])
    stream_job._wait_for_node(arguments, Topics.of_parents("sensor"), threading.Event())
    assert capsys.readouterr().err == (
        "warning: the parent topic 'sensor' has no messages yet: did you mean 'sensors'?\n"
    )
