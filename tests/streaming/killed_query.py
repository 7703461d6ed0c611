"""A streaming query in a process of its own, to be killed at any time: `python -m tests.streaming.killed_query`.

Its sink is one SQLite transaction a batch, which says the batch's number: so a batch that comes again replaces itself.
Writes one line when the query runs, and one for each batch that is about to be written.
"""

import sqlite3
import sys

from pyspark.sql import DataFrame

from streaming.session import spark_session, stop


def main(endpoint: str, folder: str, filtered: str) -> None:
    spark = spark_session("killed", master="local[1]", config={"spark.local.dir": f"{folder}/local"})
    options = {"endpoint": endpoint, "columns": "topic,partition,offset", "maxRecordsPerTrigger": "70"}
    options |= {"filter": filtered, "failOnDataLoss": "true"}
    records = spark.readStream.format("sluice").options(**options).load()

    def write(batch: DataFrame, number: int) -> None:
        rows = [(number, *row) for row in batch.collect()]
        print(f"batch {number}", flush=True)
        with sqlite3.connect(f"{folder}/sink.db") as database:
            database.execute("DELETE FROM rows WHERE batch = ?", (number,))
            database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)
        database.close()

    writer = records.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    print("runs", flush=True)
    query.awaitTermination()
    stop(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
