"""`sluice stream`: every pipeline from the command line's words to its results, over a real node."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from pyarrow import dataset

pytest.importorskip("pyspark")

from cloud_sdk import OutgoingMessage
from cloud_sdk.blocking import Client
from sluice.cli import main, parser
from sluice.commands.analytics import stream_job
from sluice.node import grpc_client
from streaming.pipelines.stateful import STATE_CONFIG
from tests.streaming.test_sink import read_all
from tests.system.conftest import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 300  # for what Spark does on a busy machine
BEGIN_S = 1_767_225_600
COUNT = 130  # readings of a device, one a minute

pytestmark = pytest.mark.timeout(2 * SECONDS)


@pytest.fixture
def readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """A node with readings of two devices."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    node = NodeProcess(tmp_path / "data")
    node.start()
    with Client(node.endpoint) as client:
        for number in range(COUNT):
            client.send_many([message(device, number) for device in ("a", "b")])
    yield node
    node.stop()


def message(device: str, number: int) -> OutgoingMessage:
    body = {"device": device, "time": BEGIN_S + 60 * number, "value": number}
    return OutgoingMessage(f"sensors/{device}/t", orjson.dumps(body))


def run(spark: "SparkSession", node: NodeProcess, folder: Path, *words: str) -> None:
    """Run `sluice stream … --once` in the existing session."""
    source = (
        "--parent",
        "sensors",
        "--port",
        str(node.grpc_port),
        "--once",
        "--checkpoint",
        str(folder / "checkpoint"),
    )
    arguments = parser().parse_args(["stream", *words, *source])
    for name, value in STATE_CONFIG.items():
        spark.conf.set(name, value)
    query = stream_job._start(spark, arguments, grpc_client.source_options(arguments))
    assert query.awaitTermination(SECONDS)
    for name in STATE_CONFIG:
        spark.conf.unset(name)


def test_windows_are_printed(
    spark: "SparkSession", readings: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(spark, readings, tmp_path, "windows", "--window", "1 hour", "--late", "5 minutes", "--device", "level:1")
    rows = [orjson.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert sorted((row["device"], row["readings"], row["median"]) for row in rows) == [
        ("a", 60, 29.5),
        ("a", 60, 89.5),
        ("b", 60, 29.5),
        ("b", 60, 89.5),
    ]


def test_readings_are_enriched_and_published_once(spark: "SparkSession", readings: NodeProcess, tmp_path: Path) -> None:
    registry = tmp_path / "devices.csv"
    registry.write_text("name,room\na,bath\n")
    words = ("enrich", "--registry", str(registry), "--registry-key", "name", "--to", "rooms")
    run(spark, readings, tmp_path, *words)
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()  # as if the driver had died before: the batch is done again
    run(spark, readings, tmp_path, *words)
    found = [orjson.loads(each.payload) for each in read_all(readings.endpoint, "rooms")]
    assert len(found) == 2 * COUNT
    rooms = {(body["device"], (body.get("registry") or {}).get("room")) for body in found}
    assert rooms == {("a", "bath"), ("b", None)}


HOSTILE = [
    ("sensors", b""),  # fewer levels than are asked for
    ("sensors/a/t", b"\xff no JSON"),
    ("sensors/a/t", b"{}"),
    *(
        ("sensors/z/t", orjson.dumps({"device": device, "time": time, "value": 1}))
        for device, time in [
            ("x" * 70_000, BEGIN_S),
            ("z", 4_102_444_800),  # 2100: all others would be late
            ("z", "+294247-01-10T04:00:54Z"),
            ("z", "-0100-01-01T00:00:00Z"),
        ]
    ),
]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("windows", "--window", "1 hour", "--late", "5 minutes", "--device", "level:1"), 4),
        (("liveness", "--device", "level:1"), 0),
        (("anomalies",), 0),
        (("enrich", "--registry", "REGISTRY"), 2 * COUNT + len(HOSTILE)),
    ],
)
def test_clients_cannot_stop_or_block_a_pipeline(
    spark: "SparkSession", readings: NodeProcess, tmp_path: Path, words: tuple[str, ...], count: int
) -> None:
    (tmp_path / "devices.csv").write_text("device,room\na,bath\n")
    with Client(readings.endpoint) as client:
        client.send_many([OutgoingMessage(topic, payload) for topic, payload in HOSTILE])
    words = tuple(str(tmp_path / "devices.csv") if word == "REGISTRY" else word for word in words)
    for _ in range(2):
        run(spark, readings, tmp_path, *words, "--to", "results")
    assert len(read_all(readings.endpoint, "results")) >= count


def test_readings_are_archived_by_the_hour(spark: "SparkSession", readings: NodeProcess, tmp_path: Path) -> None:
    run(spark, readings, tmp_path, "archive", "--folder", str(tmp_path / "archive"), "--window", "10 minutes")
    rows = dataset.dataset(tmp_path / "archive", partitioning="hive").to_table().to_pylist()
    assert [(row["window_start"].hour, row["readings"]) for row in rows] == [(0, 10)] * 12


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["stream"], "PIPELINE"),
        (["stream", "windows"], "--parent"),
        (["stream", "windows", "--filter", "a#"], "not a topic filter"),
        (["stream", "archive", "--parent", "a"], "--folder"),
        (["stream", "enrich", "--parent", "a"], "--registry"),
    ],
)
def test_wrong_arguments_are_named(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err
