"""Checks of `sluice sql` before it starts Spark."""

import argparse
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("pyspark")

from cloud_sdk import PartitionBounds
from cloud_sdk.errors import NotAllowed, SluiceError, Unauthenticated
from sluice.commands.analytics import sql
from sluice.commands.analytics.sql_progress import tasks
from sluice.node import grpc_client
from streaming import session
from streaming.sql import QueryError

if TYPE_CHECKING:
    from pyspark import StatusTracker


@dataclass
class FakeClient:
    """Of a node that refuses its list of parent topics, and has one that something was published to."""

    refused: SluiceError
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def parents(self) -> list[str]:
        raise self.refused

    def partitions(self, parent: str) -> list[PartitionBounds]:
        self.asked.append(parent)
        return [PartitionBounds(0, 0, 0), PartitionBounds(1, 0, 3 if parent == "sensors" else 0)]


def arguments(query: str = "SELECT 1") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sql.add(parser.add_subparsers())
    return parser.parse_args(["sql", query, "--username", "alice", "--port", "1"])


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_client, "_secret", lambda _arguments: "wonderland")


def test_without_the_right_to_list_tables_each_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(NotAllowed("# may not be subscribed to"))
    monkeypatch.setattr(grpc_client, "connect", lambda _arguments: client)
    known = sql._catalog(arguments())
    assert known.parents == ()
    assert known.is_there is not None
    assert [known.is_there(name) for name in ("sensors", "alarms")] == [True, False]
    assert client.asked == ["sensors", "alarms"]


def test_a_wrong_password_is_an_error_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(Unauthenticated("wrong user name or password"))
    monkeypatch.setattr(grpc_client, "connect", lambda _arguments: client)
    with pytest.raises(Unauthenticated, match="wrong user name"):
        sql._catalog(arguments())


def test_a_wrong_table_is_an_error_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(NotAllowed("# may not be subscribed to"))
    monkeypatch.setattr(grpc_client, "connect", lambda _arguments: client)

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(session, "spark_session", start)
    with pytest.raises(QueryError, match="there is no table 'alarms'"):
        sql.run(arguments("SELECT * FROM sensors JOIN alarms USING (offset)"))
    with pytest.raises(AssertionError, match="Spark starts"):
        sql.run(arguments("SELECT * FROM sensors"))


def test_progress_counts_the_tasks_of_running_stages() -> None:
    stages = {
        1: SimpleNamespace(numTasks=1000, numCompletedTasks=998),
        2: SimpleNamespace(numTasks=4, numCompletedTasks=3),
    }
    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2, 3], getStageInfo=stages.get)
    assert tasks(cast("StatusTracker", tracker)) == "1,001 of 1,004 tasks"
    idle = SimpleNamespace(getActiveStageIds=list)
    assert tasks(cast("StatusTracker", idle)) == "Spark plans the query"
