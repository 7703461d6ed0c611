"""The Spark job: two streaming queries over the log, then a chart. A process of its own.

One query appends every reading to Parquet, the other keeps statistics and anomalies per device and
window. JSON lines: out `{"ready": true}`, then `{"rows": …}` every second; in `finish` (or end of file),
after which it works off what the log holds, draws and says `{"windows": …, "anomalies": …, …}`.
"""

import argparse
import select
import sys
from pathlib import Path
from typing import Final

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.demo.readings import PARENT, PAYLOAD_SCHEMA
from streaming.pipelines.chart import WindowRow, draw_statistics
from streaming.pipelines.payload import with_json
from streaming.pipelines.sinks import append_parquet, read_updates, update_parquet
from streaming.pipelines.windows import window_statistics
from streaming.session import spark_session, stop

WINDOW: Final = "6 hours"
_LATE: Final = "2 days"  # of replay time: some seconds of the demo's
_EVERY: Final = "2 seconds"
_K: Final = 6.0
_MIN_SPREAD: Final = 0.3  # the sensors' resolution: below it nothing is an anomaly
_KEYS: Final = ("device", "window_start")
_FINISH_POLL: Final = 1.0  # seconds between progress lines


def readings_of(spark: SparkSession, endpoint: str) -> DataFrame:
    """The stream of readings: the payload's fields, and where in the log each one lies."""
    options = {"endpoint": endpoint, "parent": PARENT, "maxRecordsPerTrigger": "20000"}
    records = spark.readStream.format("sluice").options(**options).load()
    return with_json(records, PAYLOAD_SCHEMA).select("body.*", "topic", "partition", "offset", "stored_at")


def start(spark: SparkSession, endpoint: str, folder: Path) -> list[StreamingQuery]:
    """Start both queries."""
    statistics = window_statistics(
        readings_of(spark, endpoint), window=WINDOW, late=_LATE, k=_K, min_spread=_MIN_SPREAD
    )
    checkpoints = folder / "checkpoints"
    return [
        append_parquet(
            readings_of(spark, endpoint), folder / "readings", checkpoints / "readings", name="readings", every=_EVERY
        ),
        update_parquet(statistics, folder / "updates", checkpoints / "windows", name="windows", every=_EVERY),
    ]


def draw(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Write each window's newest statistics to Parquet and draw them. Returns figures for the summary."""
    newest = read_updates(spark, folder / "updates", _KEYS).coalesce(1)
    newest.write.mode("overwrite").parquet(str(folder / "windows"))
    rows = [
        WindowRow(
            row.device,
            row.window_start,
            row.minimum,
            row["median"],
            row.maximum,
            [(anomaly.time, anomaly.value) for anomaly in row.anomalies],
        )
        for row in spark.read.parquet(str(folder / "windows")).collect()
    ]
    title = f"Median, range and anomalies per {WINDOW}: the devices with the most anomalies"
    draw_statistics(rows, folder / "chart.png", title=title)
    flagged = sum(len(row.anomalies) for row in rows)
    return {"windows": len(rows), "anomalies": flagged, "devices": len({row.device for row in rows})}


def run(endpoint: str, folder: Path) -> None:
    """The whole job. Raises what a query failed with."""
    scratch = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "spark")}
    spark = spark_session("sluice-demo", config=scratch)
    try:
        queries = start(spark, endpoint, folder)
        for query in queries:
            query.processAllAvailable()  # the first batch, empty or not: from here on it keeps up
        _say(ready=True)
        seen: dict[int, int] = {}
        while not select.select([sys.stdin], [], [], _FINISH_POLL)[0]:
            _say(rows=_rows(queries[0], seen))
        for query in queries:
            query.processAllAvailable()
        rows = _rows(queries[0], seen)
        for query in queries:
            query.stop()
        _say(rows=rows, **draw(spark, folder))
    finally:
        stop(spark)


def _rows(query: StreamingQuery, seen: dict[int, int]) -> int:
    """Rows read so far. Spark remembers the last hundred batches; `seen` keeps the others' counts."""
    failure = query.exception()
    if failure is not None:
        raise failure
    seen.update((progress["batchId"], progress["numInputRows"]) for progress in query.recentProgress)
    return sum(seen.values())


def _say(**line: object) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sluice.demo.analytics", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="host:port of the node's gRPC front")
    parser.add_argument("--folder", type=Path, required=True, help="where the results go")
    options = parser.parse_args()
    run(options.endpoint, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
