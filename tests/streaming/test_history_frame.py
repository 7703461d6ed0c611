"""History and log as one DataFrame."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cloud_sdk.arrow import SCHEMA as ARROW_SCHEMA
from cloud_sdk.blocking import Client
from sluice.demo.analytics import export_history
from streaming.history.delta_table import DeltaFolder
from streaming.history.errors import HistoryError
from streaming.history.export import Exporter, ExportOptions
from streaming.history.frame import read_records
from streaming.source.columns import SCHEMA
from streaming.source.options import SourceOptions
from streaming.source.stream import StreamReader
from tests.streaming.conftest import STORED_MS, FakeNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

BEGIN = datetime.fromtimestamp(STORED_MS / 1000, UTC)
HOUR_MS = 3_600_000


def export(node: FakeNode, folder: Path, until_ms: int | None = None) -> None:
    with Client(node.endpoint) as client:
        Exporter(client, DeltaFolder(str(folder)).table("sensors"), ExportOptions(until_ms=until_ms)).run()


def offsets(frame: "DataFrame") -> list[tuple[int, int]]:
    """(partition, offset) of every row, in order; each payload is its offset."""
    rows = frame.select("partition", "offset", "payload").collect()
    assert all(int(row.payload) == row.offset for row in rows)
    return sorted((row.partition, row.offset) for row in rows)


def all_of(partition: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(begin, end)]


def test_every_record_comes_once(spark: "SparkSession", node: FakeNode, tmp_path: Path):
    log = {"endpoint": node.endpoint}
    node.publish(0, 30, HOUR_MS)
    node.publish(1, 4)
    tmp_path = tmp_path / "h [1]*2A {x}"  # a name that would be a pattern, or something else unquoted
    export(node, tmp_path)
    node.publish(0, 6, HOUR_MS)  # after the export, to a partition that is in the history, and to one that is not
    node.publish(2, 5)
    both = read_records(spark, "sensors", history=str(tmp_path), log=log)
    assert both.columns == SCHEMA.names
    assert offsets(both) == [*all_of(0, 0, 36), *all_of(1, 0, 4), *all_of(2, 0, 5)]
    assert offsets(read_records(spark, "sensors", history=str(tmp_path))) == [*all_of(0, 0, 30), *all_of(1, 0, 4)]
    assert offsets(read_records(spark, "sensors", log=log)) == offsets(both)
    in_log = read_records(spark, "sensors", log=log).orderBy("partition", "offset").collect()
    assert both.orderBy("partition", "offset").collect() == in_log


def test_history_keeps_messages_that_retention_removed(spark: "SparkSession", node: FakeNode, tmp_path: Path):
    node.publish(0, 20)
    export(node, tmp_path)
    node.publish(0, 5)
    node.begins[0] = 20
    frame = read_records(spark, "sensors", history=str(tmp_path), log={"endpoint": node.endpoint})
    assert offsets(frame) == all_of(0, 0, 25)


def test_a_hole_between_history_and_log_is_an_error(spark: "SparkSession", node: FakeNode, tmp_path: Path):
    node.publish(0, 20)
    export(node, tmp_path, STORED_MS + 10)
    node.begins[0] = 15
    frame = read_records(spark, "sensors", history=str(tmp_path), log={"endpoint": node.endpoint})
    with pytest.raises(Exception, match="failOnDataLoss"):
        frame.count()


def test_a_time_reads_the_files_of_that_time(spark: "SparkSession", node: FakeNode, tmp_path: Path):
    node.publish(0, 100, HOUR_MS)
    export(node, tmp_path, STORED_MS + 90 * HOUR_MS)
    log = {"endpoint": node.endpoint}
    since, until = BEGIN + timedelta(hours=30), BEGIN + timedelta(hours=35)
    frame = read_records(spark, "sensors", history=str(tmp_path), log=log, since=since, until=until)
    assert offsets(frame) == all_of(0, 30, 35)
    assert len(frame.inputFiles()) == 1
    frame = read_records(spark, "sensors", history=str(tmp_path), log=log, since=BEGIN + timedelta(hours=88))
    assert offsets(frame) == all_of(0, 88, 100)
    frame = read_records(spark, "sensors", history=str(tmp_path), log=log, since=BEGIN + timedelta(hours=200))
    assert offsets(frame) == []


SOURCES = ["batch", "stream"]


def read_by_source(spark: "SparkSession", node: FakeNode, history: Path, how: str, **options: str) -> "DataFrame":
    given = {"endpoint": node.endpoint, "parent": "sensors", "history": str(history), "recordsPerTask": "7", **options}
    if how == "batch":
        return spark.read.format("sluice").options(**given).load()
    query = (
        spark.readStream.format("sluice")
        .options(**given)
        .load()
        .writeStream.format("memory")
        .queryName("seen")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("seen")


@pytest.mark.parametrize("how", SOURCES)
def test_the_source_goes_through_history_first(spark: "SparkSession", node: FakeNode, tmp_path: Path, how: str) -> None:
    node.publish(0, 30, HOUR_MS)
    node.publish(1, 4)
    export(node, tmp_path)
    node.publish(0, 6, HOUR_MS)
    node.publish(2, 5)
    node.begins[0] = 31  # retention takes what is in files, and one record that is in none
    with pytest.raises(Exception, match="failOnDataLoss"):
        read_by_source(spark, node, tmp_path, how).count()
    node.begins[0] = 30
    found = read_by_source(spark, node, tmp_path, how)
    assert offsets(found) == [*all_of(0, 0, 36), *all_of(1, 0, 4), *all_of(2, 0, 5)]
    since = BEGIN + timedelta(hours=9, minutes=30)
    later = read_by_source(spark, node, tmp_path, how, startingTimestamp=since.isoformat())
    assert [each for each in offsets(later) if each[0] == 0] == all_of(0, 10, 36)
    some = read_by_source(spark, node, tmp_path, how, startingOffsets='{"0": 28, "1": 3, "2": 4}')
    assert offsets(some) == [*all_of(0, 28, 36), (1, 3), (2, 4)]


def test_a_stream_sees_what_was_exported_while_it_ran(node: FakeNode, tmp_path: Path) -> None:
    node.publish(0, 10)
    export(node, tmp_path)
    given = {"endpoint": node.endpoint, "parent": "sensors", "history": str(tmp_path), "failOnDataLoss": "false"}
    reader = StreamReader(SourceOptions.parse(given), ARROW_SCHEMA)
    start = reader.initialOffset()
    node.publish(0, 20)
    export(node, tmp_path)
    node.publish(0, 5)
    node.begins[0] = 30
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"sensors": {"0": 35, "1": 0, "2": 0}}
    rows = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(35))
    reader.stop()


def test_filters_are_about_files_too(spark: "SparkSession", node: FakeNode, tmp_path: Path) -> None:
    node.publish(0, 10)
    node.publish(1, 10)
    export(node, tmp_path)
    node.publish(1, 5)
    given = {"endpoint": node.endpoint, "filter": "sensors/1/#", "history": str(tmp_path)}
    frame = spark.read.format("sluice").options(**given).load()
    assert offsets(frame.where("offset >= 4 AND offset < 13")) == all_of(1, 4, 13)
    assert frame.where("topic = 'sensors/0'").count() == 0


def test_columns_that_nobody_reads_are_not_read(spark: "SparkSession", node: FakeNode, tmp_path: Path):
    node.publish(0, 10)
    export(node, tmp_path)
    frame = read_records(spark, "sensors", history=str(tmp_path)).select("offset")
    assert "ReadSchema: struct<offset:bigint>" in frame._jdf.queryExecution().toString()


@pytest.mark.parametrize("how", ["frame", "option"])
def test_a_query_planned_before_a_compaction_succeeds(spark: "SparkSession", node: FakeNode, tmp_path: Path, how: str):
    for _ in range(4):
        node.publish(0, 5)
        export(node, tmp_path)
    given = {"endpoint": node.endpoint, "parent": "sensors", "history": str(tmp_path)}
    if how == "frame":
        frame = read_records(spark, "sensors", history=str(tmp_path), log={"endpoint": node.endpoint})
    else:
        frame = spark.read.format("sluice").options(**given).load()
        frame.collect()  # it is planned once
    table = DeltaFolder(str(tmp_path)).table("sensors")
    assert table.compact(1 << 30, None, threading.Event()).new_files == 1
    assert offsets(frame) == all_of(0, 0, 20)
    node.begins[0] = 20
    fresh = read_records(spark, "sensors", history=str(tmp_path), log={"endpoint": node.endpoint})
    assert offsets(fresh) == all_of(0, 0, 20)
    assert len(fresh.inputFiles()) == 1
    assert len(table.vacuum(0)) == 4
    assert offsets(fresh) == all_of(0, 0, 20)
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FileNotFound|does not exist|it was compacted and removed"):
        offsets(frame)


@pytest.mark.parametrize("how", ["frame", "option"])
@pytest.mark.parametrize("damage", ["missing", "short", "rotten"])
def test_damage_is_an_error_even_if_spark_ignores_corrupt_files(
    spark: "SparkSession", node: FakeNode, tmp_path: Path, how: str, damage: str
):
    node.publish(0, 2000, size=100)
    node.publish(1, 20)
    export(node, tmp_path)
    file = next(each for each in DeltaFolder(str(tmp_path)).table("sensors").state().files if each.partition == 0)
    path = tmp_path / file.path
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-200])
    else:
        column = pq.ParquetFile(path).metadata.row_group(0).column(pq_column(path, "payload"))
        data = bytearray(path.read_bytes())
        data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
        path.write_bytes(data)
    ignoring = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in ignoring:
        spark.conf.set(name, "true")
    given = {"endpoint": node.endpoint, "parent": "sensors", "history": str(tmp_path)}
    try:
        with pytest.raises((PySparkException, Py4JJavaError), match=path.name):
            offsets(
                read_records(spark, "sensors", history=str(tmp_path))
                if how == "frame"
                else spark.read.format("sluice").options(**given).load()
            )
    finally:
        for name in ignoring:
            spark.conf.unset(name)


def pq_column(path: Path, name: str) -> int:
    schema = pq.ParquetFile(path).metadata.schema
    return next(n for n in range(len(schema)) if schema.column(n).path == name)


def test_a_store_that_java_does_not_know_is_read_by_tasks(
    spark: "SparkSession", node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    node.publish(0, 30, HOUR_MS)
    node.publish(1, 4)
    export(node, tmp_path)
    node.publish(1, 2)
    monkeypatch.setattr(DeltaFolder, "spark_path", lambda _self, name: f"nobodys://x/{name}")
    both = read_records(spark, "sensors", history=str(tmp_path), log={"endpoint": node.endpoint})
    assert both.columns == SCHEMA.names
    assert offsets(both) == [*all_of(0, 0, 30), *all_of(1, 0, 6)]
    late = read_records(spark, "sensors", history=str(tmp_path), since=BEGIN + timedelta(hours=20))
    assert offsets(late) == all_of(0, 20, 30)


def test_the_demo_reports_the_history(spark: "SparkSession", node: FakeNode, tmp_path: Path):
    node.publish(0, 20)
    node.publish(2, 3)
    assert export_history(spark, node.endpoint, tmp_path) == {"exported": 23, "read_back": 23, "read_once": 23}


def test_a_missing_history_is_an_error(spark: "SparkSession", tmp_path: Path):
    with pytest.raises(HistoryError, match="has no history of 'sensors'"):
        read_records(spark, "sensors", history=str(tmp_path))
