"""The data source: its readers by themselves, then through Spark."""

import pickle
import tracemalloc
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import GreaterThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from cloud_sdk.arrow import SCHEMA
from record.layout import PART_PAYLOAD, PART_PROPERTIES, PART_PUBLISHER
from streaming.option_values import OptionError
from streaming.progress import lag
from streaming.source.batch import BatchReader
from streaming.source.columns import checked, schema_of
from streaming.source.offsets import DataLossError
from streaming.source.options import SourceOptions
from streaming.source.planning import LogRange
from streaming.source.reading import read_piece
from streaming.source.stream import StreamReader
from streaming.source.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def options(node: Any, **extra: str) -> SourceOptions:
    return SourceOptions.parse({"endpoint": node.endpoint, "parent": "sensors", **extra})


def part_of(partition: int, start: int, end: int) -> LogRange:
    return LogRange("sensors", partition, start, end)


def offsets_read(given: SourceOptions, part: LogRange | None) -> list[int]:
    return [offset for batch in read_piece(given, SCHEMA, part) for offset in batch.column("offset").to_pylist()]


def test_a_range_is_read_in_pages(node: Any) -> None:
    node.publish(1, 20)
    assert offsets_read(options(node), part_of(1, 2, 13)) == list(range(2, 13))
    assert node.pulls == 4
    assert offsets_read(options(node), None) == []


def test_a_batch_plans_what_there_is(node: Any) -> None:
    node.publish(0, 5)
    node.publish(2, 4)
    node.begins[0] = 1
    given = options(node, recordsPerTask="3", endingOffsets='{"2": 2}')
    assert [part.value for part in BatchReader(given, SCHEMA).partitions()] == [
        part_of(0, 1, 3),
        part_of(0, 3, 5),
        part_of(2, 0, 2),
    ]
    long_first = options(node, recordsPerTask="4", startingOffsets='{"0": 3}')
    assert [part.value for part in BatchReader(long_first, SCHEMA).partitions()] == [part_of(2, 0, 4), part_of(0, 3, 5)]
    named = options(node, startingOffsets='{"0": 3, "2": 4}')
    assert [part.value for part in BatchReader(named, SCHEMA).partitions()] == [part_of(0, 3, 5)]
    assert BatchReader(options(node, startingOffsets="latest"), SCHEMA).partitions() == []


def test_a_stream_starts_at_its_starting_offsets(node: Any) -> None:
    node.publish(0, 5)
    node.begins[0] = 2
    starts = ("earliest", "latest", '{"0": 4}')
    readers = [StreamReader(options(node, startingOffsets=start), SCHEMA) for start in starts]
    assert [reader.initialOffset() for reader in readers] == [
        {"sensors": {"0": 2, "1": 0, "2": 0}},
        {"sensors": {"0": 5, "1": 0, "2": 0}},
        {"sensors": {"0": 4, "1": 0, "2": 0}},
    ]
    for reader in readers:
        reader.stop()


def test_a_stream_keeps_to_its_limit_and_to_the_end_it_prepared(node: Any) -> None:
    node.publish(0, 10)
    node.publish(1, 2)
    reader = StreamReader(options(node, maxRecordsPerTrigger="6"), SCHEMA)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    assert reader.latestOffset({"0": 0, "1": 0, "2": 0}, limit) == {"sensors": {"0": 5, "1": 1, "2": 0}}
    assert reader.latestOffset({"0": 5, "1": 1, "2": 0}, ReadAllAvailable()) == {"sensors": {"0": 10, "1": 2, "2": 0}}
    reader.prepareForTriggerAvailableNow()
    node.publish(0, 10)
    assert reader.latestOffset({"0": 4, "1": 2, "2": 0}, ReadAllAvailable()) == {"sensors": {"0": 10, "1": 2, "2": 0}}
    report = reader.reportLatestOffset()
    assert (report["sensors"], lag({"sources": [{"latestOffset": report, "endOffset": {}}]})) == (
        {"0": 20, "1": 2, "2": 0},
        22,
    )
    assert [part.value for part in reader.partitions({"0": 4, "1": 2}, {"sensors": {"0": 10, "1": 2}})] == [
        part_of(0, 4, 10)
    ]
    pickle.loads(pickle.dumps(reader)).stop()
    reader.stop()


def test_a_stream_continues_with_partitions_that_its_parent_topic_gets(node: Any) -> None:
    node.publish(0, 5)
    reader = StreamReader(options(node, startingOffsets="latest"), SCHEMA)
    start = reader.initialOffset()
    node.frames.append([])
    node.begins.append(0)
    node.publish(3, 4)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"sensors": {"0": 5, "1": 0, "2": 0, "3": 4}}
    assert [part.value for part in reader.partitions(start, end)] == [part_of(3, 0, 4)]
    reader.stop()


def test_lost_records_stop_a_stream_or_are_skipped(node: Any) -> None:
    node.publish(0, 10)
    node.begins[0] = 6
    strict, lenient = (StreamReader(options(node, failOnDataLoss=choice), SCHEMA) for choice in ("true", "false"))
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        strict.latestOffset({"0": 2}, ReadAllAvailable())
    assert lenient.latestOffset({"0": 2}, ReadMaxRows(3)) == {
        "#skipped": 4,
        "sensors": {"0": 9, "1": 0, "2": 0},
    }
    node.begins[0] = 8
    assert lenient.latestOffset({"#skipped": 4, "sensors": {"0": 7, "1": 0, "2": 0}}, ReadMaxRows(1)) == {
        "#skipped": 5,
        "sensors": {"0": 9, "1": 0, "2": 0},
    }
    node.begins[0] = 6
    # Cut as it was when it was planned: a task has the same rows again, but for those that are gone.
    assert [part.value for part in lenient.partitions({"0": 2}, {"sensors": {"0": 9}})] == [part_of(0, 2, 9)]
    with pytest.raises(DataLossError, match="partition 0"):
        offsets_read(options(node), part_of(0, 2, 9))
    assert offsets_read(options(node, failOnDataLoss="false"), part_of(0, 2, 9)) == [6, 7, 8]
    with pytest.raises(DataLossError, match="ends at 10, before 12"):
        offsets_read(options(node), part_of(0, 8, 12))
    strict.stop()
    lenient.stop()


def test_holes_in_a_range_are_an_error_or_skipped_and_never_read_twice(node: Any) -> None:
    node.publish(0, 12)
    node.gone = {(0, offset) for offset in (2, 3, 7, 8, 9)}
    lenient = options(node, failOnDataLoss="false")
    assert offsets_read(lenient, part_of(0, 0, 12)) == [0, 1, 4, 5, 6, 10, 11]
    assert offsets_read(lenient, part_of(0, 0, 3)) == [0, 1]
    assert offsets_read(lenient, part_of(0, 3, 8)) == [4, 5, 6]
    assert offsets_read(lenient, part_of(0, 8, 9)) == []
    node.gone |= {(0, 10), (0, 11)}
    assert offsets_read(lenient, part_of(0, 4, 12)) == [4, 5, 6]
    for part in (part_of(0, 0, 12), part_of(0, 3, 5), part_of(0, 8, 9)):
        with pytest.raises(DataLossError, match="failOnDataLoss"):
            offsets_read(options(node), part)
    assert offsets_read(options(node), part_of(0, 4, 7)) == [4, 5, 6]


def test_a_task_holds_a_few_pages_however_long_its_range(node: Any) -> None:
    """Of what Python allocates, to which all pages belong; the node's own share, in this process too, is a page."""
    size, page = 100_000, 300_000  # PAGE records
    node.publish(0, 20, size=size)
    node.publish(1, 200, size=size)

    def peak(part: LogRange) -> int:
        tracemalloc.start()
        try:
            assert sum(batch.num_rows for batch in read_piece(options(node), SCHEMA, part)) == part.end
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(part_of(0, 0, 6))  # what is imported and connected at first
    short, long = peak(part_of(0, 0, 20)), peak(part_of(1, 0, 200))
    assert long < 12 * page
    assert long < 1.7 * short


def test_a_micro_batch_keeps_to_its_bytes(node: Any) -> None:
    node.publish(0, 50, size=1_000)
    node.publish(1, 50, size=9_000)
    node.publish(2, 1, size=100)
    reader = StreamReader(options(node, maxBytesPerTrigger="40000"), SCHEMA)
    limit = reader.getDefaultReadLimit()
    at: dict[str, Any] = {"sensors": {"0": 0, "1": 0, "2": 0}}
    rounds = 0
    while True:
        reached = reader.latestOffset(at, limit)
        if reached == at:
            break
        ranges = [part.value for part in reader.partitions(at, reached)]
        frames = [frame for part in ranges for frame in node.frames[part.partition][part.start : part.end]]
        assert 0 < sum(map(len, frames)) <= 40_000
        at, rounds = reached, rounds + 1
    assert at == {"sensors": {"0": 50, "1": 50, "2": 1}}
    assert rounds < 30
    assert reader.latestOffset({"sensors": {"0": 0}}, ReadAllAvailable()) == at  # Trigger.Once asks for all
    reader.stop()
    tiny = StreamReader(options(node, maxBytesPerTrigger="10"), SCHEMA)
    reached = tiny.latestOffset({"sensors": {"0": 50, "1": 7, "2": 1}}, tiny.getDefaultReadLimit())
    assert reached == {"sensors": {"0": 50, "1": 8, "2": 1}}  # one record, whatever its size
    tiny.stop()


def test_records_larger_than_their_share_of_bytes_do_not_wait_for_ever(node: Any) -> None:
    node.publish(0, 5, size=9_000)
    reader = StreamReader(options(node, maxBytesPerTrigger="4000"), SCHEMA)
    at: dict[str, Any] = {"sensors": {"0": 0, "1": 0, "2": 0}}
    rounds = 0
    while at["sensors"]["0"] < 5:
        node.publish(1, 3)  # there is always something small
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
        rounds += 1
        assert rounds < 200
    reader.stop()


def test_times_before_1970_are_before_everything(node: Any) -> None:
    node.publish(0, 5)
    given = options(node, startingTimestamp="1960-01-01T00:00:00Z")
    assert [part.value for part in BatchReader(given, SCHEMA).partitions()] == [part_of(0, 0, 5)]
    reader = BatchReader(options(node), SCHEMA)
    reader.pushFilters([GreaterThan(("stored_at",), datetime(1960, 1, 1, tzinfo=UTC))])
    assert [part.value for part in reader.partitions()] == [part_of(0, 0, 5)]


def test_columns_that_are_read_and_those_that_are_not(node: Any) -> None:
    node.publish(0, 2, size=50)
    lax = checked(StructType([StructField("offset", LongType()), StructField("levels", ArrayType(StringType()))]))
    (batch,) = read_piece(options(node), lax, part_of(0, 0, 2))
    assert batch.to_pylist() == [{"offset": 0, "levels": ["sensors", "0"]}, {"offset": 1, "levels": ["sensors", "0"]}]
    with pytest.raises(OptionError, match="no column 'publisher'"):
        checked(StructType([StructField("publisher", StringType())]))
    with pytest.raises(OptionError, match="is of type bigint, not int"):
        checked(StructType([StructField("offset", IntegerType())]))


@pytest.mark.parametrize(
    ("columns", "given", "asked"),
    [("payload,topic", {}, 768 << 10), ("topic", {}, 4 << 20), ("payload", {"pageBytes": "9999"}, 9999)],
)
def test_pages_of_payloads_are_small(node: Any, columns: str, given: dict[str, str], asked: int) -> None:
    node.publish(0, 1)
    schema = checked(schema_of(columns.split(",")))
    assert [batch.num_rows for batch in read_piece(options(node, **given), schema, part_of(0, 0, 1))] == [1]
    assert node.sizes == {asked}


def test_a_pattern_is_the_tasks_work(node: Any) -> None:
    node.publish(0, 4)
    node.publish(1, 2)
    selection = Topics.of_filters("sensors/1,sensors/2/#").selection("sensors")
    parts = (LogRange("sensors", 0, 0, 4, selection), LogRange("sensors", 1, 0, 2, selection))
    found = [
        row
        for part in parts
        for batch in read_piece(options(node), checked(schema_of(["offset"])), part)
        for row in batch.to_pylist()
    ]
    assert found == [{"offset": 0}, {"offset": 1}]


def counts(frame: "DataFrame") -> Counter[tuple[int, int]]:
    return Counter((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def load(spark: "SparkSession", node: Any, **extra: str) -> "DataFrame":
    return spark.read.format("sluice").options(endpoint=node.endpoint, parent="sensors", **extra).load()


def test_spark_reads_a_batch(spark: "SparkSession", node: Any) -> None:
    node.publish(0, 30)
    node.publish(1, 7)
    frame = load(spark, node, recordsPerTask="8")
    assert counts(frame) == Counter({(0, offset): 1 for offset in range(30)} | {(1, offset): 1 for offset in range(7)})
    row = frame.where("partition = 1 AND offset = 6").selectExpr("*", "unix_millis(stored_at) AS ms").first()
    assert row is not None
    assert (row.topic, row.levels, row.payload, row.client_id) == ("sensors/1", ["sensors", "1"], b"6", "client")
    assert (row.qos, row.properties, row.content_type, row.ms) == (1, {}, None, 1_767_225_600_006)
    assert counts(load(spark, node, startingOffsets="latest")) == Counter()


def test_spark_reads_some_columns_and_shows_what_it_filters_by(spark: "SparkSession", node: Any) -> None:
    node.publish(0, 30)
    node.publish(1, 7)
    chosen = load(spark, node).where("partition = 0 AND offset >= 26 AND offset < 29 AND topic LIKE 'sensors/%'")
    assert [row.offset for row in chosen.sort("offset").select("offset").collect()] == [26, 27, 28]
    assert node.asked == {(0, 26)}
    reader = spark.read.format("sluice").options(endpoint=node.endpoint, parent="sensors")
    node.without.clear()
    rows = reader.schema("offset bigint, levels array<string>").load().collect()
    assert {row.offset for row in rows} == set(range(30))
    assert node.without == {PART_PUBLISHER | PART_PROPERTIES | PART_PAYLOAD}


def test_spark_streams_and_continues_from_its_checkpoint(spark: "SparkSession", node: Any, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run() -> list[int]:
        """One AvailableNow run; how many rows each of its batches had."""
        stream = spark.readStream.format("sluice").options(
            endpoint=node.endpoint, parent="sensors", maxRecordsPerTrigger="20"
        )
        writer = stream.load().writeStream.format("parquet").option("path", str(out))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(90)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    node.publish(0, 25)
    node.publish(1, 10)
    assert run() == [20, 15]
    node.publish(1, 5)
    node.publish(2, 1)
    assert run() == [6]
    expected = {0: 25, 1: 15, 2: 1}
    assert counts(spark.read.parquet(str(out))) == Counter(
        {(partition, offset): 1 for partition, count in expected.items() for offset in range(count)}
    )
