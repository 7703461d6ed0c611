"""`sluice stream`: every pipeline from the command line's words to its results, over a real node."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from pyarrow import dataset

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from cloud_sdk import OutgoingMessage
from cloud_sdk.blocking import Client
from sluice.cli import main, parser
from sluice.commands.analytics import stream_job
from sluice.node import grpc_client
from streaming.failures import failure_of
from streaming.pipelines.rejects import rejected
from streaming.pipelines.stateful import STATE_CONFIG
from tests.streaming.test_sink import read_all
from tests.system.conftest import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ATTEMPTS = 5
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


def run(
    spark: "SparkSession",
    node: NodeProcess,
    folder: Path,
    *words: str,
    source: tuple[str, ...] = ("--parent", "sensors"),
) -> "StreamingQuery":
    """Run `sluice stream … --once` in the existing session. Return the query of the pipeline."""
    fixed = ("--port", str(node.grpc_port), "--once", "--checkpoint", str(folder / "checkpoint"))
    arguments = parser().parse_args(["stream", *words, *source, *fixed])
    for name, value in STATE_CONFIG.items():
        spark.conf.set(name, value)
    connection = grpc_client.source_options(arguments)
    query = completed(lambda: stream_job._start(spark, arguments, connection))
    completed(lambda: stream_job._start_rejects(spark, arguments, connection))
    for name in STATE_CONFIG:
        spark.conf.unset(name)
    assert query is not None
    return query


def completed(start: "Callable[[], StreamingQuery | None]") -> "StreamingQuery | None":
    """Start a query and wait for its end, again if a Python process of Spark was too slow on a busy machine."""
    failure = None
    for _ in range(ATTEMPTS):
        query = start()
        try:
            assert query is None or query.awaitTermination(SECONDS)
        except StreamingQueryException as error:
            if not failure_of(str(error)).is_late_worker:
                raise
            failure = error
        else:
            return query
    raise AssertionError(f"the query failed {ATTEMPTS} times") from failure


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
    ("words", "count", "reasons"),
    [
        (
            ("windows", "--window", "1 hour", "--late", "5 minutes", "--device", "level:1"),
            4,
            {"empty": 1, "binary": 1, "missing": 1, "bad_time": 2, "future_time": 1},
        ),
        (("liveness", "--device", "level:1"), 0, {"missing": 1}),
        (("anomalies",), 0, {"empty": 1, "binary": 1, "missing": 1, "bad_time": 2, "future_time": 1}),
        (("enrich", "--registry", "REGISTRY"), 2 * COUNT + len(HOSTILE) - 3, {"empty": 1, "binary": 1, "bad_time": 1}),
    ],
)
def test_clients_cannot_stop_or_block_a_pipeline(
    spark: "SparkSession",
    readings: NodeProcess,
    tmp_path: Path,
    words: tuple[str, ...],
    count: int,
    reasons: dict[str, int],
) -> None:
    (tmp_path / "devices.csv").write_text("device,room\na,bath\n")
    with Client(readings.endpoint) as client:
        client.send_many([OutgoingMessage(topic, payload) for topic, payload in HOSTILE])
    words = tuple(str(tmp_path / "devices.csv") if word == "REGISTRY" else word for word in words)
    query = run(spark, readings, tmp_path, *words, "--to", "results")
    assert [rejected(progress) for progress in query.recentProgress if progress["numInputRows"]] == [reasons]
    run(spark, readings, tmp_path, *words, "--to", "results")
    assert len(read_all(readings.endpoint, "results")) >= count


def test_readings_are_archived_by_the_hour(spark: "SparkSession", readings: NodeProcess, tmp_path: Path) -> None:
    run(spark, readings, tmp_path, "archive", "--folder", str(tmp_path / "archive"), "--window", "10 minutes")
    rows = dataset.dataset(tmp_path / "archive", partitioning="hive").to_table().to_pylist()
    assert [(row["window_start"].hour, row["readings"]) for row in rows] == [(0, 10)] * 12


FIRMWARE = [  # of a new version, and why `enrich` cannot use it
    (b'{"device":"c","value":"5 C"}', "wrong_type"),
    (b'[{"device":"c","value":1},{"device":"c","value":"7 C"}]', "wrong_type"),
    (b"\xff\xfe", "binary"),
]
KEPT = [FIRMWARE[0], (b'{"device":"c","value":"7 C"}', "wrong_type"), FIRMWARE[2]]


def forget_commits(folder: Path) -> None:
    """As if the driver had died before: its last batches are done again."""
    for part in ("checkpoint", "checkpoint/rejects"):
        for commit in (folder / part / "commits").iterdir():
            commit.unlink()


@pytest.mark.parametrize("place", ["topic", "folder"])
def test_rejects_are_kept_once_and_read_after_the_mend(
    spark: "SparkSession", readings: NodeProcess, tmp_path: Path, place: str
) -> None:
    (tmp_path / "devices.csv").write_text("device,room\nc,bath\n")
    with Client(readings.endpoint) as client:
        client.send_many([OutgoingMessage("sensors/c/t", payload) for payload, _ in FIRMWARE])
    folder = tmp_path / "rejects"
    keep, replay = ("--rejects-parquet", str(folder)), ("--replay-parquet", str(folder))
    if place == "topic":
        keep, replay = ("--rejects", "rejects/e"), ("--replay", "rejects/e")
    words = ("enrich", "--registry", str(tmp_path / "devices.csv"))
    for _ in range(2):  # `#` finds what is kept as well, which is not rejected once more
        run(spark, readings, tmp_path, *words, "--to", "results", *keep, source=("--filter", "#", "--from", "earliest"))
        forget_commits(tmp_path)
    if place == "topic":
        kept = [
            (each.payload, each.topic.removeprefix("rejects/e/")) for each in read_all(readings.endpoint, "rejects")
        ]
    else:
        kept = [(bytes(row.payload), row.reason) for row in spark.read.parquet(str(folder)).collect()]
    assert sorted(kept) == sorted(KEPT)
    mended = (*words, "--schema", "device string, value string", "--to", "mended")
    for _ in range(2):
        query = run(spark, readings, tmp_path / "replay", *mended, source=replay)
    assert query.lastProgress is None or query.lastProgress["numInputRows"] in (0, 3)
    assert sorted(orjson.loads(each.payload)["value"] for each in read_all(readings.endpoint, "mended")) == [
        "5 C",
        "7 C",
    ]


def test_the_last_values_of_a_device_are_retained(spark: "SparkSession", readings: NodeProcess, tmp_path: Path) -> None:
    words = ("last-values", "--schema", "device string, time timestamp, value double, on boolean", "--to", "shadows")
    run(spark, readings, tmp_path, *words)
    with Client(readings.endpoint) as client:
        old = orjson.dumps({"device": "a", "time": BEGIN_S, "value": -1, "on": True})
        client.send_many([OutgoingMessage("sensors/a/t", old)])
    run(spark, readings, tmp_path, *words)
    messages = read_all(readings.endpoint, "shadows")
    assert sorted(each.topic for each in messages) == ["shadows/a", "shadows/a", "shadows/b"]
    assert all(each.retain for each in messages)
    newest = max((each for each in messages if each.topic == "shadows/a"), key=lambda each: each.position)
    assert orjson.loads(newest.payload) == {
        "device": "a",
        "time": "2026-01-01T02:09:00.000Z",
        "value": COUNT - 1.0,
        "on": True,
    }


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
