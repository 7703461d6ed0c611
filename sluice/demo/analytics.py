"""The Spark job of the demo, a process of its own: three streaming queries over the log, then an export and a chart.

The first query appends every reading to Parquet. The second computes statistics and anomalies per device and window.
The third finds anomalies as they arrive and publishes them to the MQTT topics `alerts/DEVICE`.

The process writes JSON lines: `{"ready": true}`, then `{"rows": …}` every second. When it reads `finish` or the end of
its input, it processes the rest of the log, exports it, draws the chart and writes
`{"windows": …, "anomalies": …, "alerts": …, …}`.
"""

import argparse
import select
import sys
from pathlib import Path
from typing import Final

import orjson
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cloud_sdk.blocking import Client
from sluice.demo.readings import PARENT, PAYLOAD_SCHEMA
from streaming.history.delta_table import DeltaFolder
from streaming.history.export import Exporter
from streaming.history.frame import read_records
from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.chart import WindowRow, draw_statistics
from streaming.pipelines.detector import Settings
from streaming.pipelines.payload import with_json
from streaming.pipelines.sinks import append_parquet, read_updates, update_parquet
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.session import spark_session, stop

ALERTS: Final = "alerts"  # the parent topic of the alerts
WINDOW: Final = "6 hours"
_LATE: Final = "2 days"  # of replay time, which is some seconds of the demo
_EVERY: Final = "2 seconds"
_K: Final = 6.0
_MIN_SPREAD: Final = 0.3  # the resolution of the sensors; smaller deviations are no anomalies
_HOURS_S: Final = 6 * 3600.0
_DETECTING: Final = Settings(  # a device sends days of readings, not months
    warm_up=40, warm_up_s=_HOURS_S, spike=4.0, min_scale=_MIN_SPREAD, rest_s=_HOURS_S
)
_KEYS: Final = ("device", "window_start")
_RESTARTS: Final = 5  # of failed queries in one run
_FINISH_POLL: Final = 1.0  # seconds between progress lines


def readings_of(spark: SparkSession, endpoint: str) -> DataFrame:
    """Return the stream of readings: the fields of the payload, and the offset of each record."""
    options = {"endpoint": endpoint, "parent": PARENT, "maxRecordsPerTrigger": "20000"}
    records = spark.readStream.format("sluice").options(**options).load()
    return with_json(records, PAYLOAD_SCHEMA).select("body.*", "topic", "partition", "offset", "stored_at")


class StreamingQueries:
    """The three queries. A failed query is restarted: Spark waits ten seconds for its Python processes, which is too
    short on a busy machine. Checkpoints and sinks make each row count once."""

    def __init__(self, spark: SparkSession, endpoint: str, folder: Path) -> None:
        self._spark = spark
        self._endpoint = endpoint
        self._folder = folder
        self._starts = (self._readings, self._windows, self._alerts)
        self._running: list[StreamingQuery] = []
        self._restarts = 0
        self._rows: dict[int, int] = {}  # by batch

    def start(self) -> None:
        """Start the queries one after the other, so that their processes do not slow each other down."""
        for start in self._starts:
            self._running.append(start())
            if len(self._running) < len(self._starts):  # nothing depends on the alerts
                self._work_off(len(self._running) - 1)

    def rows(self) -> int:
        """Return the number of readings in Parquet so far, and restart failed queries.

        Spark remembers a hundred batches only, so older counts are kept here. Raises the failure of a query that fails
        too often.
        """
        for number in range(len(self._running)):
            self._revive(number)
        progress = self._running[0].recentProgress
        self._rows.update((each["batchId"], each["numInputRows"]) for each in progress)
        return sum(self._rows.values())

    def finish(self) -> int:
        """Process what the log holds, then stop the queries. Return the number of readings."""
        for number in range(len(self._running)):
            self._work_off(number)
        rows = self.rows()
        for query in self._running:
            query.stop()
        return rows

    def _work_off(self, number: int) -> None:
        while True:
            try:
                self._running[number].processAllAvailable()
            except StreamingQueryException:
                self._revive(number)
            else:
                return

    def _revive(self, number: int) -> None:
        failure = self._running[number].exception()
        if failure is None:
            return
        self._restarts += 1
        if self._restarts > _RESTARTS:
            raise failure
        self._running[number] = self._starts[number]()

    def _readings(self) -> StreamingQuery:
        rows = readings_of(self._spark, self._endpoint)
        return append_parquet(
            rows, self._folder / "readings", self._checkpoint("readings"), name="readings", every=_EVERY
        )

    def _windows(self) -> StreamingQuery:
        readings = readings_of(self._spark, self._endpoint)
        statistics = window_statistics(readings, window=WINDOW, late=_LATE, k=_K, min_spread=_MIN_SPREAD)
        return update_parquet(
            statistics, self._folder / "updates", self._checkpoint("windows"), name="windows", every=_EVERY
        )

    def _alerts(self) -> StreamingQuery:
        found = alerts(anomalies(readings_of(self._spark, self._endpoint), _DETECTING), ALERTS)
        writer = found.writeStream.format("sluice").options(endpoint=self._endpoint, publisher="spark")
        writer = writer.queryName("alerts").option("checkpointLocation", str(self._checkpoint("alerts")))
        return writer.trigger(processingTime=_EVERY).start()

    def _checkpoint(self, name: str) -> Path:
        return self._folder / "checkpoints" / name


def draw(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Write the newest statistics of each window to Parquet and draw them. Return figures for the summary."""
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


def export_history(spark: SparkSession, endpoint: str, folder: Path) -> dict[str, int]:
    """Export the readings as history and read them back. Return figures for the summary."""
    history = str(folder / "history")
    with Client(endpoint) as client:
        done = Exporter(client, DeltaFolder(history).table(PARENT)).run()
    read = read_records(spark, PARENT, history=history).select("partition", "offset")
    return {"exported": done.rows, "read_back": read.count(), "read_once": read.distinct().count()}


def run(endpoint: str, folder: Path) -> None:
    """Run the whole job. Raises the failure of a query."""
    scratch = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "spark")}
    spark = spark_session("sluice-demo", config={**scratch, **STATE_CONFIG})
    try:
        queries = StreamingQueries(spark, endpoint, folder)
        queries.start()
        _say(ready=True)
        while not select.select([sys.stdin], [], [], _FINISH_POLL)[0]:
            _say(rows=queries.rows())
        rows = queries.finish()
        _say(rows=rows, alerts=_published(endpoint), **export_history(spark, endpoint, folder), **draw(spark, folder))
    finally:
        stop(spark)


def _published(endpoint: str) -> int:
    """Count the alerts in the log."""
    with Client(endpoint) as client:
        return sum(bounds.end - bounds.begin for bounds in client.partitions(ALERTS))


def _say(**line: object) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sluice.demo.analytics", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="host:port of the gRPC listener of the node")
    parser.add_argument("--folder", type=Path, required=True, help="the folder for the results")
    options = parser.parse_args()
    run(options.endpoint, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
