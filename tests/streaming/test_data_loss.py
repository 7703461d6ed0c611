"""Queries that retention overtook: they fail and name what is gone, or go on and count it."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from cloud_sdk.arrow import SCHEMA
from streaming.failures import failure_of
from streaming.progress import skipped
from streaming.running import describe
from streaming.source.batch import BatchReader
from streaming.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 300  # for what Spark does on a busy machine

pytestmark = pytest.mark.timeout(2 * SECONDS)


class Query:
    """One that reads what there is, and goes on there when it is run again."""

    def __init__(self, spark: "SparkSession", node: Any, folder: Path) -> None:
        self._spark, self._node, self._folder = spark, node, folder
        self.read: list[tuple[int, int]] = []  # (partition, offset)

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Returns the progress of its batches."""

        def collect(batch: "DataFrame", _number: int) -> None:
            self.read += [tuple(row) for row in batch.select("partition", "offset").collect()]

        stream = self._spark.readStream.format("sluice").options(endpoint=self._node.endpoint, parent="sensors")
        sink = stream.options(**options).load().writeStream.foreachBatch(collect)
        query = sink.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)
        return [dict(progress) for progress in query.recentProgress]


def test_a_stream_fails_and_says_what_is_gone_or_counts_it(spark: "SparkSession", node: Any, tmp_path: Path) -> None:
    for partition in range(3):
        node.publish(partition, 5)
    query = Query(spark, node, tmp_path)
    query.run()
    node.publish(1, 5)
    node.begins[1] = 8
    with pytest.raises(Exception, match="failOnDataLoss") as failed:
        query.run()
    failure = failure_of(str(failed.value))
    assert failure.kind == "streaming.source.offsets.DataLossError" and not failure.is_away
    assert failure.reason.startswith(
        "partition 1 of 'sensors': offsets [5, 8) were deleted by retention before they were read. Set failOnDataLoss"
    )
    last = query.run(failOnDataLoss="false")[-1]
    assert query.read[15:] == [(1, 8), (1, 9)]
    assert skipped(last) == 3
    assert ", 3 lost before they were read" in describe(last)
    node.publish(1, 1)
    assert skipped(query.run()[-1]) == 3  # from the checkpoint
    assert query.read[17:] == [(1, 10)]


def test_a_batch_fails_and_says_what_is_gone_or_counts_it(
    spark: "SparkSession", node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(3):
        node.publish(partition, 5)
    node.begins[2] = 4
    given = {"endpoint": node.endpoint, "parent": "sensors", "startingOffsets": '{"2": 1}'}
    with pytest.raises(Exception, match="failOnDataLoss") as failed:
        spark.read.format("sluice").options(**given).load().count()
    assert failure_of(str(failed.value)).reason.startswith("partition 2 of 'sensors': offsets [1, 4) were deleted")
    given["failOnDataLoss"] = "false"
    assert spark.read.format("sluice").options(**given).load().where("partition = 2").count() == 1
    with caplog.at_level(logging.WARNING):
        BatchReader(SourceOptions.parse(given), SCHEMA).partitions()
    assert "3 records were gone from the log before this query" in caplog.text
