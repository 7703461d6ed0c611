"""A stream that keeps the newest reading of each device in a Delta table, by MERGE in `foreachBatch`.

    .venv/bin/python examples/delta_merge.py 127.0.0.1:7070 sensors /mnt/latest /mnt/checkpoint

`deltalake` merges on the driver, so Spark needs no jars of Delta Lake. Spark may repeat a micro-batch after a failure.
The transaction that merges a batch has its number, so a repeated batch is recognised (`is_done`). Here a repeated merge
would change nothing. It would if rows were appended, or sums added up.
"""

import sys

from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from streaming.session import spark_session

SCHEMA = "device string, time timestamp, value double"
QUERY = "latest"  # the identifier of the query in the table's transactions


def latest(records: DataFrame) -> DataFrame:
    """Return the newest reading of each device in a micro-batch."""
    body = F.from_json(F.col("payload").cast("string"), SCHEMA)
    readings = records.select(body.alias("body")).select("body.*").where("device IS NOT NULL AND time IS NOT NULL")
    newest = F.max_by(F.struct("time", "value"), "time").alias("newest")
    return readings.groupBy("device").agg(newest).select("device", "newest.*")


def is_done(table: DeltaTable, batch_id: int) -> bool:
    """Return whether the table has a micro-batch already."""
    last = table.transaction_version(QUERY)
    return last is not None and last >= batch_id


def merge(folder: str, records: DataFrame, batch_id: int) -> None:
    """Merge a micro-batch into the table, in one transaction that also has the batch's number."""
    rows = latest(records).toArrow()  # at most a row for each device
    table = DeltaTable.create(folder, rows.schema, mode="ignore")
    if is_done(table, batch_id):
        return
    done = CommitProperties(app_transactions=[Transaction(QUERY, batch_id)])
    merging = table.merge(
        rows, "old.device = new.device", source_alias="new", target_alias="old", commit_properties=done
    )
    merging.when_matched_update_all("new.time >= old.time").when_not_matched_insert_all().execute()


def main() -> int:
    endpoint, parent, folder, checkpoint = sys.argv[1:]
    spark: SparkSession = spark_session("delta-merge")
    records = spark.readStream.format("sluice").option("endpoint", endpoint).option("parent", parent).load()
    query = records.writeStream.foreachBatch(lambda rows, batch_id: merge(folder, rows, batch_id))
    query.option("checkpointLocation", checkpoint).start().awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
