"""A structured stream of Spark in a process of its own: `python -m tests.system.chaos.spark_driver`.

It appends the records of parent topics to Parquet files. A query that fails because no node answered, or because a
Python worker of Spark was slow to start, is started again from its checkpoint. Any other failure ends the process.
After SIGTERM it reads what the log holds then, and writes all rows of the table, as Spark reads it, to one file for the
test.
"""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from py4j.protocol import Py4JError
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from streaming.failures import failure_of
from streaming.pipelines.sinks import append_parquet
from streaming.running import describe, run
from streaming.session import quick_start, spark_session, stop


def main(endpoint: str, parents: str, place: str) -> None:
    """endpoint: addresses of nodes, separated by commas. place: a folder of this process alone."""
    folder = Path(place)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    scratch = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
    spark = spark_session("chaos", master="local[1]", config={**quick_start(), **scratch})
    options = {"endpoint": endpoint, "parent": parents, "columns": "position,topic,payload"}

    def start(every: str | None) -> StreamingQuery:
        records = spark.readStream.format("sluice").options(**options).load()
        return append_parquet(records, folder / "table", folder / "checkpoint", name="chaos", every=every)

    _until_ended(lambda: start("2 seconds"), stopping)
    _until_ended(lambda: start(None), threading.Event())
    parquet.write_table(spark.read.parquet(f"{folder}/table").toArrow(), folder / "rows.parquet")
    stop(spark)


def _until_ended(start: Callable[[], StreamingQuery], stopping: threading.Event) -> None:
    """Run a query until it has ended or `stopping` is set. Raises its failure, but for those that pass."""
    while True:
        try:
            run([start()], lambda progress: print(describe(progress), flush=True), stopping)
        except (PySparkException, Py4JError) as error:
            failure = failure_of(str(error))
            if not failure.is_away and not failure.is_late_worker:
                raise
            print(f"the query failed: {failure.reason}", flush=True)
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
