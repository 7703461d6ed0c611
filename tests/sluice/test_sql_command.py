"""Checks of `sluice sql` before it starts Spark."""

import argparse
from dataclasses import dataclass, field

import pytest

pytest.importorskip("pyspark")

from cloud_sdk import PartitionBounds
from cloud_sdk.errors import NotAllowed, SluiceError, Unauthenticated
from sluice.commands.analytics import sql
from sluice.node import grpc_client


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sql.add(parser.add_subparsers())
    return parser.parse_args(["sql", "SELECT 1", "--username", "alice", "--port", "1"])


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
