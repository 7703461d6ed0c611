"""Queries over records of 256 bytes, in rows a second: the log through the node's gRPC front, and the same rows as
Parquet files."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

PARENT: Final = "fleet"
DEVICES: Final = 1_000
SCHEMA: Final = "device string, time timestamp, value double"
FIXED: Final = ("partition", "stored_at", "qos", "position")
_QUERY_SECONDS: Final = 1_800


@dataclass(slots=True, frozen=True)
class Site:
    """Where the rows are."""

    spark: SparkSession
    endpoint: str
    parquet: Path  # the same rows: the source's columns
    history: Path  # the same rows, exported
    rows: int

    def log(self, *columns: str) -> DataFrame:
        reader = self.spark.read.format("sluice").options(endpoint=self.endpoint, parent=PARENT)
        return (reader.option("columns", ",".join(columns)) if columns else reader).load()

    def files(self) -> DataFrame:
        return self.spark.read.parquet(str(self.parquet))


@dataclass(slots=True, frozen=True)
class Work:
    """One row of the table: a query and its target."""

    name: str
    body: Callable[[Site], None]
    per_second: float | None = None  # at least
    of: str | None = None  # the work it is compared with,
    ratio: float = 0.0  # and what part of its rate, or how many times its rate, is wanted


def windowed(records: DataFrame) -> DataFrame:
    """Of each partition, per second."""
    keys = F.window("stored_at", "1 second"), F.col("partition")
    return records.groupBy(*keys).agg(F.count("*"), F.max("position"), F.avg("qos"))


def parsed(records: DataFrame) -> DataFrame:
    """Of each device, from the payload."""
    body = F.from_json(F.col("payload").cast("string"), SCHEMA)
    return by_device(records.select(body.alias("body")).select("body.*"))


def by_device(fields: DataFrame) -> DataFrame:
    return fields.groupBy("device").agg(F.count("*"), F.avg("value"), F.max("time"))


def _count_one_column(site: Site) -> None:
    expect(site.log("offset").count(), site.rows)


def _count_all_columns(site: Site) -> None:
    expect(site.log().count(), site.rows)


def _one_topic(site: Site) -> None:
    """Rows of one device of a thousand, all columns."""
    expect(len(site.log().where(f"topic = '{PARENT}/device-7'").collect()), _of_device(site.rows))


def _one_topic_scanned(site: Site) -> None:
    """The rows of one topic, by a condition that Spark does not show to a source."""
    expect(len(site.log().where(f"concat(topic, '') = '{PARENT}/device-7'").collect()), _of_device(site.rows))


def _no_topic(site: Site) -> None:
    """A topic that there is not: what Spark needs for a query that reads nothing."""
    expect(len(site.log().where(f"topic = '{PARENT}/none'").collect()), 0)


def _of_device(rows: int) -> int:
    return len(range(7, rows, DEVICES))


def _windows(site: Site) -> None:
    drain(windowed(site.log(*FIXED)))


def _windows_parquet(site: Site) -> None:
    drain(windowed(site.files()))


def _json(site: Site) -> None:
    drain(parsed(site.log("payload")))


def _json_by_tasks(site: Site) -> None:
    """Aggregate JSON fields that the tasks of the source have parsed into the column `body`."""
    reader = site.spark.read.format("sluice").options(endpoint=site.endpoint, parent=PARENT)
    drain(by_device(reader.schema(f"body struct<{SCHEMA}>").load().select("body.*")))


def _json_parquet(site: Site) -> None:
    drain(parsed(site.files()))


def _catch_up(site: Site) -> None:
    """A new query over everything, in micro-batches of a million records."""
    options = {"endpoint": site.endpoint, "parent": PARENT, "maxRecordsPerTrigger": "1000000"}
    records = site.spark.readStream.format("sluice").options(**options, columns=",".join(FIXED)).load()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as checkpoint:
        rows = windowed(records.withWatermark("stored_at", "1 minute"))
        writer = rows.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(_QUERY_SECONDS)
        expect(sum(progress["numInputRows"] for progress in query.recentProgress), site.rows)


WORKS: Final = (
    Work("count(), one column", _count_one_column, 400_000),
    Work("count(), all columns", _count_all_columns, 400_000),
    Work("one topic of 1,000, scanned", _one_topic_scanned),
    Work("one topic of 1,000, nothing found", _no_topic),
    Work("one topic of 1,000", _one_topic, of="one topic of 1,000, scanned", ratio=20),
    Work("windowed aggregation, fixed columns", _windows, 400_000),
    Work("windowed aggregation, Parquet", _windows_parquet),
    Work("JSON fields, from_json", _json, of="JSON fields, Parquet", ratio=0.5),
    Work("JSON fields, column body", _json_by_tasks, of="JSON fields, Parquet", ratio=0.8),
    Work("JSON fields, Parquet", _json_parquet),
    Work("catch-up, AvailableNow, windowed aggregation", _catch_up, 300_000),
)


def drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} rows were read, and there are {wanted}")
