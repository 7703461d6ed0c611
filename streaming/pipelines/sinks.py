"""Parquet sinks with exactly-once results, for final rows and for rows that later batches update."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

_BATCH = "batch_id"


def append_parquet(rows: DataFrame, path: Path, checkpoint: Path, *, name: str, every: str | None) -> StreamingQuery:
    """Append the final rows of a stream to `path`. Readers that use Spark see each row once, even after restarts.

    `every` ("2 seconds") is the trigger interval. None processes the available records and ends (AvailableNow).
    """
    writer = rows.writeStream.format("parquet").outputMode("append").option("path", str(path))
    return _triggered(writer, checkpoint, name, every).start()


def update_parquet(rows: DataFrame, path: Path, checkpoint: Path, *, name: str, every: str | None) -> StreamingQuery:
    """Write the rows that each batch changed (output mode update) to a folder of its own below `path`.

    A repeated batch replaces its folder. `read_updates` returns the newest rows.
    """

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(path / f"{_BATCH}={number}"))

    writer = rows.writeStream.outputMode("update").foreachBatch(write)
    return _triggered(writer, checkpoint, name, every).start()


def read_updates(spark: SparkSession, path: Path, keys: Sequence[str]) -> DataFrame:
    """Read the newest row of each key from the files of `update_parquet`."""
    newest = Window.partitionBy(*keys).orderBy(F.col(_BATCH).desc())
    ranked = spark.read.parquet(str(path)).withColumn("rank", F.row_number().over(newest))
    return ranked.where("rank = 1").drop("rank", _BATCH)


def _triggered(writer: DataStreamWriter, checkpoint: Path, name: str, every: str | None) -> DataStreamWriter:
    writer = writer.option("checkpointLocation", str(checkpoint)).queryName(name)
    return writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
