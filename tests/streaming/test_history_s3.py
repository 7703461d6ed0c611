"""A history in an object store that speaks S3, on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flask_cors", reason="moto's server needs it")
pytest.importorskip("moto.server")

from moto.server import ThreadedMotoServer
from pyarrow import fs

from cloud_sdk.blocking import Client
from sluice.cli import main
from sluice.demo.engine_servers import SeaweedServers, ServerMissing
from streaming.history import delta_table
from streaming.history.delta_table import DeltaFolder
from streaming.history.errors import HistoryChanged
from streaming.history.export import Exporter
from streaming.history.frame import read_records
from streaming.history.table import Progress
from tests.streaming.conftest import S3_ENVIRONMENT, FakeNode

if TYPE_CHECKING:
    from deltalake import DeltaTable
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
def history(
    request: pytest.FixtureRequest, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URI of an empty history in a bucket of its own, in moto or in SeaweedFS."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if getattr(request, "param", "moto") == "seaweedfs":
        try:
            servers = SeaweedServers(tmp_path / "seaweedfs")
        except ServerMissing as error:
            pytest.skip(str(error))
        with servers:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(servers.options["access_key_id"]))
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(servers.options["secret_access_key"]))
            yield f"{servers.url('history')}?endpoint_override=127.0.0.1:{servers.port}&scheme=http&region=us-east-1"
            for server in servers.servers:
                server.kill()
        return
    bucket = tmp_path.name.replace("_", "-").strip("-").lower()
    where = f"endpoint_override={endpoint}&scheme=http&allow_bucket_creation=true"
    files, path = fs.FileSystem.from_uri(f"s3://{bucket}?{where}")
    files.create_dir(path)
    yield f"s3://{bucket}/a/history?endpoint_override={endpoint}&scheme=http"


@pytest.fixture(params=["delta", "iceberg"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The arguments of `sluice history` for a table format."""
    return ["--iceberg", f"sqlite:///{tmp_path}/catalog.db"] if request.param == "iceberg" else []


def export(node: FakeNode, history: str) -> None:
    with Client(node.endpoint) as client:
        Exporter(client, DeltaFolder(history).table("sensors")).run()


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


def test_the_whole_life_of_a_history(
    node: FakeNode, history: str, catalog: list[str], capsys: pytest.CaptureFixture[str]
):
    host, port = node.endpoint.split(":")
    for _ in range(3):
        node.publish(0, 4)
        exported = told(capsys, "export", history, "sensors", "--host", host, "--port", port, *catalog)
    assert (exported["rows"], exported["ends"]) == (4, {"0": 12})
    assert told(capsys, "show", history, *catalog)["files"] == 3
    assert told(capsys, "compact", history, *catalog)["new_files"] == 1
    shown = told(capsys, "show", history, *catalog)
    assert (shown["records"], shown["files"], shown["lost"]) == (12, 1, 0)
    removed = told(capsys, "vacuum", history, "--keep-hours", "0", *catalog)["removed"]
    assert isinstance(removed, list)
    assert len([name for name in removed if name.endswith(".parquet")]) == 3
    assert told(capsys, "verify", history, *catalog)["faults"] == []


@pytest.mark.parametrize("history", ["moto", pytest.param("seaweedfs", marks=pytest.mark.slow)], indirect=True)
def test_of_two_exporters_at_once_one_succeeds(node: FakeNode, history: str, monkeypatch: pytest.MonkeyPatch):
    """Both read the table before either commits: an object store must not let the later commit replace the other."""
    node.publish(0, 4)
    export(node, history)
    node.publish(0, 4)
    table, other = DeltaFolder(history).table("sensors"), DeltaFolder(history).table("sensors")
    read = delta_table._progress
    entered: list[bool] = []

    def late(opened: "DeltaTable") -> dict[int, Progress]:
        found = read(opened)
        if not entered:
            entered.append(True)
            with Client(node.endpoint) as client:
                Exporter(client, other).run()
        return found

    with Client(node.endpoint) as client:
        slow = Exporter(client, table)
        monkeypatch.setattr(delta_table, "_progress", late)
        with pytest.raises(HistoryChanged):
            slow.run()
    assert sum(each.rows for each in table.state().files) == 8
    assert table.progress()[0].end == 8


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
