"""The sink: which rows are messages, and that each of them is stored once, whatever is done again."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from cloud_sdk import InvalidArgument, Message, OutgoingMessage
from cloud_sdk.blocking import Client
from store.config import StoreConfig
from store.engine import Engine
from streaming.failures import failure_of
from streaming.history.delta_table import DeltaFolder
from streaming.history.export import Exporter, ExportOptions
from streaming.option_values import OptionError
from streaming.sink import writers
from streaming.sink.columns import messages_of, sink_options
from streaming.sink.writers import BatchWriter
from tests.system.conftest import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)  # Spark's start, on a busy machine
NEEDED = {"endpoint": "127.0.0.1:7070", "topic": "results/all"}


@pytest.fixture
def real_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    if node.process is not None:
        node.stop()


def read_all(endpoint: str, parent: str = "results") -> list[Message]:
    found: list[Message] = []
    with Client(endpoint) as client:
        for bounds in client.partitions(parent):
            at = bounds.begin
            while at < bounds.end:
                batch = client.pull(parent, bounds.partition, at)
                found += batch.messages()
                at = batch.next_offset
    return found


def fields(text: str) -> StructType:
    return StructType.fromDDL(text)


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        ("payload binary", {"topic": None}, "neither a column topic nor the option"),
        ("topic string", {}, "payload is missing"),
        ("payload binary, value double", {}, "no column 'value'.*to_json"),
        ("payload int", {}, "payload must be binary or string, not int"),
        ("payload string, properties map<string,int>", {}, "properties must hold strings"),
        ("payload string, key array<int>", {}, "key must hold strings"),
        ("payload string", {"qos": "3"}, "qos must be 0, 1 or 2"),
        ("payload string", {"tpic": "x"}, "did you mean topic"),
        ("payload string", {"endpoint": None}, "'endpoint' is missing"),
        ("payload string", {"batch": "1"}, "must be given together"),
        ("payload string", {"batch": "x", "producer": "p"}, "whole number"),
    ],
)
def test_invalid_rows_are_reported_before_anything_is_written(
    spark: "SparkSession", schema: str, options: dict[str, str | None], problem: str
) -> None:
    given = {name: value for name, value in {**NEEDED, **options}.items() if value is not None}
    with pytest.raises(OptionError, match=problem):
        sink_options(given, fields(schema), overwrite=False)


def test_a_log_is_not_overwritten(spark: "SparkSession") -> None:
    with pytest.raises(OptionError, match="append"):
        sink_options(NEEDED, fields("payload string"), overwrite=True)


def test_columns_come_before_options(spark: "SparkSession") -> None:
    options = sink_options({**NEEDED, "qos": "2", "retain": "true"}, fields("payload string"), overwrite=False)
    batch = pa.record_batch(
        {
            "payload": ["a", None],
            "topic": ["results/one", None],
            "qos": pa.array([0, None], pa.int32()),
            "retain": [False, None],
            "key": [["k1", "k2"], None],
            "tags": ["hot", None],
            "properties": pa.array(
                [[("a", "1"), ("key", "old"), ("n", None)], None], pa.map_(pa.string(), pa.string())
            ),
            "message_expiry": pa.array([60, None], pa.int64()),
        }
    )
    first, second = messages_of(batch, options)
    assert (first.topic, first.payload, first.qos, first.retain) == ("results/one", b"a", 0, False)
    assert (first.keys, first.properties, first.message_expiry) == (["k1", "k2"], [("a", "1"), ("tag", "hot")], 60)
    assert (second.topic, second.payload, second.qos, second.retain) == ("results/all", b"", 2, True)
    without = sink_options({"endpoint": "x:1"}, fields("payload string, topic string"), overwrite=False)
    with pytest.raises(InvalidArgument, match="no topic"):
        list(messages_of(batch, without))


def test_a_task_holds_a_number_of_rows_and_of_bytes(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut alike wherever the batches of Spark end: a batch that is done again is sent in the same calls."""
    monkeypatch.setattr(writers, "_TOGETHER", 5)
    monkeypatch.setattr(writers, "_TOGETHER_BYTES", 100)
    options = sink_options(NEEDED, fields("payload string"), overwrite=False)
    payloads = ["x" * size for size in (60, 60, 300, 1, 1, 1, 1, 1, 1, *[7] * 700)]

    def calls(*borders: int) -> list[int]:
        batch = pa.record_batch({"payload": payloads})
        ranges = zip((0, *borders), (*borders, len(payloads)), strict=True)
        parts = [batch.slice(low, high - low) for low, high in ranges]
        rows = chain.from_iterable(messages_of(part, options) for part in parts)
        return [len(some) for some in iter(lambda: writers._some(rows), [])]

    found = calls()
    assert found[:4] == [2, 1, 5, 5] and sum(found) == len(payloads)
    assert calls(1, 4, 500) == found


def test_spark_writes_a_batch(spark: "SparkSession", real_node: NodeProcess) -> None:
    rows = spark.range(20_000, numPartitions=2).select(
        F.concat(F.lit("results/d"), F.col("id") % 3).alias("topic"),
        F.to_json(F.struct("id")).alias("payload"),
        F.map_from_arrays(F.array(F.lit("unit")), F.array(F.lit("K"))).alias("properties"),
    )
    rows.write.format("sluice").mode("append").option("endpoint", real_node.endpoint).option("publisher", "job").save()
    found = read_all(real_node.endpoint)
    assert Counter(json.loads(each.payload)["id"] for each in found) == Counter(range(20_000))
    assert {(each.publisher, each.qos, each.retain) for each in found} == {("job", 1, False)}
    assert {tuple(each.user_properties) for each in found} == {(("unit", "K"),)}


@pytest.mark.parametrize("is_named", [False, True])
def test_a_job_that_failed_leaves_no_producer_behind(
    real_node: NodeProcess, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """Of a task that failed, and had written, there is no message. A job with a name may come again."""
    given = {**NEEDED, "endpoint": real_node.endpoint, **({"producer": "p", "batch": "1"} if is_named else {})}
    options = sink_options(given, StructType([StructField("payload", BinaryType())]), overwrite=False)
    writer = BatchWriter(options)
    messages: list[WriterCommitMessage | None] = []
    for partition in range(3):
        monkeypatch.setattr(writers, "_task", lambda own=partition: SimpleNamespace(partitionId=lambda: own))
        rows = pa.record_batch({"payload": [b"%d" % partition] * (partition % 2)})
        messages.append(writer.write(iter([rows])))
    messages[1] = None
    writer.abort(messages)
    real_node.stop()
    assert len(asyncio.run(producers_of(real_node.data_dir))) == is_named


async def producers_of(folder: Path) -> list[bytes]:
    engine = await Engine.open(folder, StoreConfig())
    found = [row.producer for row in await engine.producers(None, 9)]
    await engine.close()
    return found


def test_a_batch_with_a_number_is_written_once(spark: "SparkSession", real_node: NodeProcess) -> None:
    rows = spark.range(100, numPartitions=2).select(F.lit("results/x").alias("topic"), F.col("id").cast("string"))
    sink = rows.withColumnRenamed("id", "payload").write.format("sluice").mode("append")
    for number in (7, 7, 8):
        sink.options(endpoint=real_node.endpoint, producer="q1", batch=str(number)).save()
    assert Counter(int(each.payload) for each in read_all(real_node.endpoint)) == Counter([*range(100), *range(100)])
    with pytest.raises(Exception, match="done before this one") as failed:  # a checkpoint that was restored
        sink.options(batch="7").save()
    assert failure_of(str(failed.value)).reason.replace("q1/1", "q1/0") == (  # either task may be first
        "batch 7 of the producer q1/0: unit 8 of the work was done before this one, number 7: "
        "nothing of this one is stored now, because numbers only rise"
    )
    assert len(read_all(real_node.endpoint)) == 200


def test_a_task_that_is_tried_again_has_its_rows_in_the_same_order(
    spark: "SparkSession", real_node: NodeProcess
) -> None:
    """The first attempt dies in the middle. One with shuffled rows is refused, and stores nothing; one with the same
    rows goes on."""
    count = 20_000

    def attempt(rows: "DataFrame", dies_at: int = -1) -> None:
        topic = F.when(F.col("id") == dies_at, "results/#").otherwise("results/x")
        messages = rows.select(topic.alias("topic"), F.col("id").cast("string").alias("payload"))
        sink = messages.write.format("sluice").mode("append")
        sink.options(endpoint=real_node.endpoint, producer="q", batch="3").save()

    same = spark.range(count, numPartitions=1)
    with pytest.raises(Exception, match="is not a topic name"):
        attempt(same, dies_at=count - 1)
    there = [int(each.payload) for each in read_all(real_node.endpoint)]
    assert there == list(range(2 * 8_192))
    shuffled = same.orderBy(F.hash("id")).coalesce(1)
    with pytest.raises(Exception, match="in another order") as failed:
        attempt(shuffled)
    failure = failure_of(str(failed.value))
    assert failure.kind == "cloud_sdk.errors.InvalidArgument"
    assert failure.reason.startswith("batch 3 of the producer q/0: other messages than these")
    assert [int(each.payload) for each in read_all(real_node.endpoint)] == there
    attempt(shuffled.sortWithinPartitions("id"))
    assert Counter(int(each.payload) for each in read_all(real_node.endpoint)) == Counter(range(count))


def test_a_batch_is_written_once_also_when_an_exporter_continued(
    spark: "SparkSession", real_node: NodeProcess, tmp_path: Path
) -> None:
    """A repeated batch writes nothing twice, though an export moved records into files since it was planned."""
    with Client(real_node.endpoint) as client:
        client.send_many([OutgoingMessage("sensors/a", b"%d" % number) for number in range(30)])
        stored_ms = max(each.store_time for each in read_all(real_node.endpoint, "sensors"))
        between_ms = stored_ms + 1
        while time.time_ns() // 1_000_000 <= between_ms:
            pass
        client.send_many([OutgoingMessage("sensors/a", b"%d" % number) for number in range(30, 50)])
    history, checkpoint = tmp_path / "history", tmp_path / "checkpoint"
    given = {"endpoint": real_node.endpoint, "parent": "sensors", "history": str(history)}

    def run() -> Counter[bytes]:
        records = spark.readStream.format("sluice").options(**given).load()
        sink = records.select(F.lit("results/x").alias("topic"), "payload").writeStream.format("sluice")
        sink = sink.option("endpoint", real_node.endpoint).option("checkpointLocation", str(checkpoint))
        assert sink.trigger(availableNow=True).start().awaitTermination(200)
        return Counter(each.payload for each in read_all(real_node.endpoint))

    expected = Counter(b"%d" % number for number in range(50))
    assert run() == expected
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    with Client(real_node.endpoint) as client:
        done = Exporter(client, DeltaFolder(str(history)).table("sensors"), ExportOptions(until_ms=between_ms)).run()
    assert done.rows == 30
    assert run() == expected


def test_spark_streams_from_the_log_to_the_log(spark: "SparkSession", real_node: NodeProcess, tmp_path: Path) -> None:
    """And a batch whose end the checkpoint does not have is done again, and not written again."""
    with Client(real_node.endpoint) as client:
        for number in range(50):
            client.send(f"sensors/{number % 5}", b"%d" % number)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        records = spark.readStream.format("sluice").options(endpoint=real_node.endpoint, parent="sensors")
        results = records.load().select(F.lit("results/x").alias("topic"), "payload")
        sink = results.writeStream.format("sluice").option("endpoint", real_node.endpoint)
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(200)

    run()
    expected = Counter(b"%d" % number for number in range(50))
    assert Counter(each.payload for each in read_all(real_node.endpoint)) == expected
    for commit in (checkpoint / "commits").glob("*"):
        commit.unlink()
    for commit in (checkpoint / "commits").glob(".*.crc"):
        commit.unlink()
    run()
    assert Counter(each.payload for each in read_all(real_node.endpoint)) == expected
