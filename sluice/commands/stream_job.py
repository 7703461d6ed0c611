"""The Spark side of `sluice stream`: the pipeline as a query, run until it is told to stop."""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.commands.command import Arguments
from streaming.java import JavaNotFound
from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.archive import Archive, downsampled
from streaming.pipelines.detector import Settings
from streaming.pipelines.enrichment import Registry, enriched
from streaming.pipelines.liveness import liveness
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.running import run as run_query
from streaming.running import stopped_by_signals
from streaming.session import spark_session, stop

_LONGEST: Final = 4_000  # characters of an error: Spark's may have every stack there is
_START_S: Final = 60.0  # until a query that has begun its first batch says its name
_FIELDS: Final = ("topic", "levels", "payload", "stored_at")


def run(arguments: Arguments, connection: dict[str, str]) -> int:
    """Run the pipeline over the node that `connection` says, in options of `format("sluice")`. Exit code 0: it was told
    to stop, or `--once` is done; 1: it failed."""
    try:
        config = {**STATE_CONFIG, **dict(_pair(each) for each in arguments.conf)}
        with stopped_by_signals() as stopping:
            spark = spark_session(f"sluice stream {arguments.pipeline}", master=arguments.master, config=config)
            try:
                query = _start(spark, arguments, connection)
                _say(f"{arguments.pipeline} runs on {arguments.master}")
                run_query(query, _say, stopping)
            except PySparkException as error:
                _say(str(error).strip()[:_LONGEST])  # which asks the JVM
                return 1
            finally:
                stop(spark)
    except (JavaNotFound, ValueError, OSError) as error:
        _say(str(error)[:_LONGEST])
        return 1
    _say("stopped" if stopping.is_set() else "done")
    return 0


def _start(spark: SparkSession, arguments: Arguments, connection: dict[str, str]) -> StreamingQuery:
    readings = _readings(spark, arguments, connection)
    name = arguments.pipeline
    if name == "archive":
        rows = downsampled(readings, window=arguments.window, late=arguments.late)
        return _query(arguments, rows, "append", Archive(arguments.folder).write)
    if name == "enrich":
        options = dict(_pair(each) for each in arguments.registry_option)
        registry = Registry(spark, arguments.registry, kind=arguments.registry_format, options=options)
        registry.frame()  # that it cannot be read is said now

        def write(batch: DataFrame, number: int) -> None:
            rows = enriched(batch, registry.frame(), registry_key=arguments.registry_key)
            _write_batch(rows, arguments, connection, started.result(_START_S), number)

        started: Future[str] = Future()
        query = _query(arguments, readings, "append", write)
        started.set_result(str(query.id))
        return query
    if name == "windows":
        rows, mode = window_statistics(readings, window=arguments.window, late=arguments.late), "append"
    elif name == "liveness":
        rows, mode = liveness(readings, silent_after_s=arguments.silent_after), "append"
    else:
        rows, mode = anomalies(readings, _settings(arguments)), "append"
    return _sink(arguments, rows, mode, connection)


def _settings(arguments: Arguments) -> Settings:
    names = ("threshold", "spike", "min_scale", "warm_up", "warm_up_s", "rest_s")
    given = {name: getattr(arguments, name) for name in names}
    return replace(Settings(), **{name: value for name, value in given.items() if value is not None})


def _readings(spark: SparkSession, arguments: Arguments, connection: dict[str, str]) -> DataFrame:
    """The stream as `device`, `time`, `value` and the payload's other fields."""
    options = {**connection, "startingOffsets": arguments.begin, "columns": ",".join(_FIELDS)}
    options.update({"parent": arguments.parent} if arguments.parent else {"filter": arguments.filter})
    if arguments.max_records:
        options["maxRecordsPerTrigger"] = str(arguments.max_records)
    records = spark.readStream.format("sluice").options(**options).load()
    body = records.withColumn("body", F.from_json(F.col("payload").cast("string"), arguments.schema))
    device = arguments.device
    named = F.col("levels")[int(device[6:])] if device.startswith("level:") else F.col(f"body.{device}")
    time = F.col("stored_at") if arguments.time == "stored_at" else F.col(f"body.{arguments.time}")
    if arguments.pipeline == "liveness":
        return body.select(named.cast("string").alias("device"), F.col("stored_at").alias("time"))
    chosen = {"device": named.cast("string"), "time": time, "value": F.col(f"body.{arguments.value}")}
    others = [name for name in body.select("body.*").columns if name not in chosen]
    return body.select(
        *(column.alias(name) for name, column in chosen.items()),
        *(F.col(f"body.{name}").alias(name) for name in others),
    )


def _sink(arguments: Arguments, rows: DataFrame, mode: str, connection: dict[str, str]) -> StreamingQuery:
    if arguments.to:
        writer = (
            alerts(rows, arguments.to).writeStream.format("sluice").options(**connection, publisher="sluice-stream")
        )
    elif arguments.parquet:
        writer = rows.writeStream.format("parquet").option("path", str(arguments.parquet))
    else:
        return _query(arguments, rows, mode, _print)
    return _triggered(writer.outputMode(mode), arguments).start()


def _query(arguments: Arguments, rows: DataFrame, mode: str, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    return _triggered(rows.writeStream.outputMode(mode).foreachBatch(write), arguments).start()


def _triggered(writer: DataStreamWriter, arguments: Arguments) -> DataStreamWriter:
    checkpoint = arguments.checkpoint or str(Path("checkpoints") / arguments.pipeline)
    writer = writer.queryName(arguments.pipeline).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True) if arguments.once else writer.trigger(processingTime=arguments.every)


def _write_batch(rows: DataFrame, arguments: Arguments, connection: dict[str, str], query: str, number: int) -> None:
    """One batch of a pipeline that Spark does not write by itself; done again, it replaces what it wrote."""
    if arguments.to:
        sink = alerts(rows, arguments.to).write.format("sluice").mode("append").options(**connection)
        sink.options(publisher="sluice-stream", producer=query, batch=str(number)).save()
    elif arguments.parquet:
        rows.write.mode("overwrite").parquet(str(arguments.parquet / f"batch_id={number}"))
    else:
        _print(rows, number)


def _print(rows: DataFrame, _number: int) -> None:
    for line in rows.toJSON().toLocalIterator():
        print(line, flush=True)


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
