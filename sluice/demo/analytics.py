"""The Spark job: three streaming queries over the log, then a chart. A process of its own.

One query appends every reading to Parquet, the second keeps statistics and anomalies per device and window, the third
finds anomalies as they come and publishes them to MQTT, on `alerts/` and the device. JSON lines: out `{"ready": true}`,
then `{"rows": …}` every second; in `finish` (or end of file), after which it works off what the log holds, exports it,
draws and says `{"windows": …, "anomalies": …, "alerts": …, …}`.
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
from streaming.history.export import Exporter
from streaming.history.folder import HistoryFolder
from streaming.history.frame import read_records
from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.chart import WindowRow, draw_statistics
from streaming.pipelines.detector import Settings
from streaming.pipelines.payload import with_json
from streaming.pipelines.sinks import append_parquet, read_updates, update_parquet
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.session import spark_session, stop

ALERTS: Final = "alerts"  # the parent topic of what is found
WINDOW: Final = "6 hours"
_LATE: Final = "2 days"  # of replay time: some seconds of the demo's
_EVERY: Final = "2 seconds"
_K: Final = 6.0
_MIN_SPREAD: Final = 0.3  # the sensors' resolution: below it nothing is an anomaly
_HOURS_S: Final = 6 * 3600.0
_DETECTING: Final = Settings(  # the stretches are days, not months
    warm_up=40, warm_up_s=_HOURS_S, spike=4.0, min_scale=_MIN_SPREAD, rest_s=_HOURS_S
)
_KEYS: Final = ("device", "window_start")
_RESTARTS: Final = 5  # of queries that failed, in a run
_FINISH_POLL: Final = 1.0  # seconds between progress lines


def readings_of(spark: SparkSession, endpoint: str) -> DataFrame:
    """The stream of readings: the payload's fields, and where in the log each one lies."""
    options = {"endpoint": endpoint, "parent": PARENT, "maxRecordsPerTrigger": "20000"}
    records = spark.readStream.format("sluice").options(**options).load()
    return with_json(records, PAYLOAD_SCHEMA).select("body.*", "topic", "partition", "offset", "stored_at")


class Queries:
    """The queries, which are started again when they fail: Spark waits for its Python processes for ten seconds, which
    on a busy machine is too short, and whatever it was, checkpoints and sinks make each row count once."""

    def __init__(self, spark: SparkSession, endpoint: str, folder: Path) -> None:
        self._spark = spark
        self._endpoint = endpoint
        self._folder = folder
        self._starts = (self._readings, self._windows, self._alerts)
        self._running: list[StreamingQuery] = []
        self._restarts = 0
        self._rows: dict[int, int] = {}  # by batch

    def start(self) -> None:
        """Start one after the other: the processes of all at once would slow each other down."""
        for start in self._starts:
            self._running.append(start())
            if len(self._running) < len(self._starts):  # nobody waits for alerts
                self._work_off(len(self._running) - 1)

    def rows(self) -> int:
        """Readings that are in Parquet so far. Spark remembers the last hundred batches; we keep the others' counts.
        Starts again what has failed; raises why when that happens too often."""
        for number in range(len(self._running)):
            self._revive(number)
        progress = self._running[0].recentProgress
        self._rows.update((each["batchId"], each["numInputRows"]) for each in progress)
        return sum(self._rows.values())

    def finish(self) -> int:
        """Work off what the log holds, then stop. Returns the rows."""
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


def keep(spark: SparkSession, endpoint: str, folder: Path) -> dict[str, int]:
    """Export the readings as history, which outlives the log, and read it back. Returns figures for the summary."""
    history = str(folder / "history")
    with Client(endpoint) as client:
        done = Exporter(client, HistoryFolder(history), PARENT).run()
    read = read_records(spark, PARENT, history=history).select("partition", "offset")
    return {"exported": done.rows, "read_back": read.count(), "read_once": read.distinct().count()}


def run(endpoint: str, folder: Path) -> None:
    """The whole job. Raises what a query failed with."""
    scratch = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "spark")}
    spark = spark_session("sluice-demo", config={**scratch, **STATE_CONFIG})
    try:
        queries = Queries(spark, endpoint, folder)
        queries.start()
        _say(ready=True)
        while not select.select([sys.stdin], [], [], _FINISH_POLL)[0]:
            _say(rows=queries.rows())
        rows = queries.finish()
        _say(rows=rows, alerts=_published(endpoint), **keep(spark, endpoint, folder), **draw(spark, folder))
    finally:
        stop(spark)


def _published(endpoint: str) -> int:
    """Alerts that are in the log."""
    with Client(endpoint) as client:
        return sum(bounds.end - bounds.begin for bounds in client.partitions(ALERTS))


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
