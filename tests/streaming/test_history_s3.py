"""A history in an object store that speaks S3, on loopback."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flask_cors", reason="moto's server needs it")
pytest.importorskip("moto.server")

from moto.server import ThreadedMotoServer
from pyarrow import fs

from cloud_sdk.blocking import Client
from sluice.cli import main
from streaming.history.export import Exporter
from streaming.history.folder import HistoryFolder
from streaming.history.frame import read_records
from streaming.history.manifest import HistoryError, Loss
from tests.streaming.conftest import S3_ENVIRONMENT, FakeNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"{host}:{port}"
    running.stop()


@pytest.fixture
def history(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty history in a bucket of its own."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    bucket = tmp_path.name.replace("_", "-").strip("-").lower()
    where = f"endpoint_override={endpoint}&scheme=http&allow_bucket_creation=true"
    files, path = fs.FileSystem.from_uri(f"s3://{bucket}?{where}")
    files.create_dir(path)
    return f"s3://{bucket}/a/history?endpoint_override={endpoint}&scheme=http"


def export(node: FakeNode, history: str) -> None:
    with Client(node.endpoint) as client:
        Exporter(client, HistoryFolder(history), "sensors").run()


def offsets(frame: "DataFrame") -> list[tuple[int, int]]:
    rows = frame.select("partition", "offset", "payload").collect()
    assert all(int(row.payload) == row.offset for row in rows)
    return sorted((row.partition, row.offset) for row in rows)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """The output of a command."""
    capsys.readouterr()
    assert main(["history", *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_whole_life_of_a_history(node: FakeNode, history: str, capsys: pytest.CaptureFixture[str]):
    host, port = node.endpoint.split(":")
    for _ in range(3):
        node.publish(0, 4)
        exported = told(capsys, "export", history, "sensors", "--host", host, "--port", port)
    assert (exported["rows"], exported["spans"]) == (4, {"0": [0, 12]})
    assert told(capsys, "show", history)["files"] == 3
    assert told(capsys, "compact", history)["new_files"] == 1
    shown = told(capsys, "show", history)
    assert (shown["records"], shown["files"], shown["replaced"]) == (12, 1, 3)
    verified = told(capsys, "verify", history)
    assert (verified["faults"], verified["orphans"]) == ([], [])
    removed = told(capsys, "clean", history, "--older-than", "0")["removed"]
    assert isinstance(removed, list)
    assert len(removed) == 3
    assert told(capsys, "verify", history)["faults"] == []
    folder = HistoryFolder(history)
    assert [name for name, _ in folder.loose_files("sensors")] == [folder.manifest("sensors").files[0].path]


def test_no_commit_replaces_another(history: str):
    one, other = HistoryFolder(history), HistoryFolder(history)
    numbers = one._numbers("sensors")
    other.update("sensors", lambda now: now.grown([], [Loss(0, 0, 1)]))
    late = other.manifest("sensors")
    one._numbers = lambda _parent: numbers  # type: ignore[method-assign] - it looked before
    with pytest.raises(HistoryError, match="another exporter wrote"):
        one.commit(late)
    assert other.manifest("sensors") == late
    assert list(other.loose_files("sensors")) == []


def test_two_at_once_lose_nothing(history: str):
    """A reported commit is in the store, whoever else commits at that moment."""

    def write(partition: int) -> None:
        folder = HistoryFolder(history)
        for number in range(3):
            lost = Loss(partition, number, number + 1)
            folder.update("sensors", lambda now, lost=lost: now.grown([], [lost]))  # type: ignore[misc]

    with ThreadPoolExecutor(2) as writers:
        for done in [writers.submit(write, partition) for partition in range(2)]:
            done.result()
    folder = HistoryFolder(history)
    assert folder.manifest("sensors").number == 6
    assert {number: span.end for number, span in folder.manifest("sensors").spans().items()} == {0: 3, 1: 3}
    assert list(folder.loose_files("sensors")) == []


def test_spark_reads_history_from_s3(spark: "SparkSession", node: FakeNode, history: str):
    node.publish(0, 9)
    node.publish(1, 2)
    export(node, history)
    node.publish(0, 3)
    node.begins[0] = 9
    whole = [*((0, n) for n in range(12)), (1, 0), (1, 1)]
    assert offsets(read_records(spark, "sensors", history=history, log={"endpoint": node.endpoint})) == whole
    given = {"endpoint": node.endpoint, "parent": "sensors", "history": history}
    assert offsets(spark.read.format("sluice").options(**given).load()) == whole
