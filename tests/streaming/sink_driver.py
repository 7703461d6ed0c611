"""A Spark driver for `test_sink_kills`: from `sensors` to `results`, dying or stopping where it is told to.

    python sink_driver.py ENDPOINT FOLDER WHERE

WHERE: `task` kills the first task's process behind its first messages; `commit` stops between what the tasks have
written and Spark's commit, tells so by a file, and waits to be killed; `never`.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from streaming.session import spark_session, stop
from streaming.sink import writers
from streaming.sink.columns import sink_options
from streaming.sink.options import SinkOptions
from streaming.source import SluiceDataSource

CALL = 16  # messages that a task stores at once


class DyingWriter(writers.StreamWriter):
    def __init__(self, options: SinkOptions, folder: Path, where: str) -> None:
        super().__init__(options)
        self._folder, self._where = folder, where

    def write(self, iterator: Iterator[Any]) -> writers.Written:
        writers._TOGETHER = CALL  # type: ignore[misc]
        return super().write(self._dying(iterator) if self._where == "task" else iterator)

    def _dying(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Rows in pieces; the first task that asks for its second piece dies."""
        for rows in iterator:
            yield rows.slice(0, CALL)
            mark = self._folder / "died"
            if rows.num_rows > CALL and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield rows.slice(CALL)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        if self._where == "commit":
            (self._folder / "written").touch()
            time.sleep(600)


class DyingSource(SluiceDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802
        given = {name: value for name, value in self.options.items() if name not in ("folder", "where")}
        options = sink_options(given, schema, overwrite=overwrite)
        return DyingWriter(options, Path(self.options["folder"]), self.options["where"])


def main(endpoint: str, folder: str, where: str) -> None:
    scratch = {"spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.local.dir": f"{folder}/spark"}
    spark = spark_session("sink", master="local[2,4]", config=scratch)
    spark.dataSource.register(DyingSource)
    records = spark.readStream.format("sluice").options(endpoint=endpoint, parent="sensors").load()
    results = records.select(F.concat(F.lit("results/"), F.col("levels")[1]).alias("topic"), "payload")
    options = {"endpoint": endpoint, "checkpointLocation": f"{folder}/checkpoint", "folder": folder, "where": where}
    query = results.writeStream.format("sluice").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    stop(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
