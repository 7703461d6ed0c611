"""The Spark side of `sluice stream`: start a pipeline as a query and run it until it is stopped."""

import logging
import socketserver
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cloud_sdk import SluiceError, Unavailable, Untrusted
from sluice.console.command import Arguments
from sluice.node import grpc_client
from streaming.failures import failure_of
from streaming.java import JavaNotFound
from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.archive import Archive, downsampled
from streaming.pipelines.detector import SENSITIVITIES, Settings
from streaming.pipelines.enrichment import Registry, enriched
from streaming.pipelines.liveness import liveness, require_spans
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.running import run as run_query
from streaming.session import spark_session, stop
from streaming.source.options import SourceOptions
from streaming.source.topics import Topics

_AGAIN_S: Final = 5.0  # between attempts while the node is unreachable
_START_S: Final = 60.0  # until a query that has begun its first batch has an id
_FIELDS: Final = ("topic", "levels", "payload", "stored_at")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Failed(Exception):
    """The query failed for a reason that a retry does not cure."""


# Errors that are printed as one line, without a stack.
_EXPECTED: Final = (_Failed, PySparkException, Py4JError, SluiceError, JavaNotFound, ValueError, OSError)


def run(arguments: Arguments, connection: dict[str, str], stopping: threading.Event) -> int:
    """Run the pipeline until `stopping` is set. `connection` has the options of `format("sluice")` that name the node.
    Return the exit code: 0 when it was stopped or `--once` is done, 1 when it failed, 2 for a wrong option."""
    try:
        source = SourceOptions.parse(_source(arguments, connection))
        if arguments.pipeline == "anomalies":
            _settings(arguments)
        elif arguments.pipeline == "liveness":
            require_spans(arguments.silent_after, arguments.forget_after)
    except ValueError as error:
        _say(f"sluice stream: {error}")
        return 2
    _quiet_pyspark()
    try:
        _wait_for_node(arguments, source.topics, stopping)
        if not stopping.is_set():
            _run_on_spark(arguments, connection, stopping)
    except Exception as error:
        if stopping.is_set():  # Ctrl-C may have stopped Spark's processes as well
            _say("stopped within a batch, which the next start repeats")
            return 0
        if not isinstance(error, _EXPECTED):
            raise
        _say(f"sluice stream: {failure_of(str(error)).reason}")
        return 1
    _say("stopped" if stopping.is_set() else "done")
    return 0


def _quiet_pyspark() -> None:
    """Silence PySpark's stack traces of errors that are printed as one line here, and of threads that end with Spark's
    processes."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    logging.getLogger().addFilter(lambda _: False)  # messages of the root logger, such as some of Py4J
    socketserver.BaseServer.handle_error = _nothing  # type: ignore[assignment]


def _nothing(*_: object) -> None:
    """Replace a handler that would print a stack trace."""


def _wait_for_node(arguments: Arguments, topics: Topics, stopping: threading.Event) -> None:
    """Wait for the node before Spark starts, which takes seconds. With `--once`, fail when the node is unreachable.
    Raises `SluiceError`."""
    while not stopping.is_set():
        try:
            with grpc_client.connect(arguments) as client:
                for parent in client.parents()[:1] if topics.parents is None else topics.parents:
                    client.partitions(parent)  # this also checks that the user may read it
        except Unavailable as error:
            if arguments.once or isinstance(error, Untrusted):
                raise
            _say(f"waiting for the node {grpc_client.endpoint(arguments)}: {error}")
            stopping.wait(_AGAIN_S)
        else:
            return


def _run_on_spark(arguments: Arguments, connection: dict[str, str], stopping: threading.Event) -> None:
    config = {**STATE_CONFIG, "spark.log.level": "OFF", **dict(_pair(each) for each in arguments.conf)}
    spark = spark_session(f"sluice stream {arguments.pipeline}", master=arguments.master, config=config)
    try:
        while not stopping.is_set():
            try:
                query = _start(spark, arguments, connection)
                _say(f"{arguments.pipeline} runs on {arguments.master}")
                run_query(query, _say, stopping)
            except (PySparkException, Py4JError) as error:
                if stopping.is_set():
                    raise
                failure = failure_of(str(error))  # this asks the JVM, which must still run
                if arguments.once or not failure.is_away:
                    raise _Failed(failure.reason) from error
                _say(f"waiting for the node: {failure.reason}")
                stopping.wait(_AGAIN_S)
            else:
                return
    finally:
        stop(spark)


def _start(spark: SparkSession, arguments: Arguments, connection: dict[str, str]) -> StreamingQuery:
    readings = _readings(spark, arguments, connection)
    name = arguments.pipeline
    if name == "archive":
        rows = downsampled(readings, window=arguments.window, late=arguments.late)
        return _query(arguments, rows, "append", Archive(arguments.folder).write)
    if name == "enrich":
        registry = Registry(
            spark,
            arguments.registry,
            kind=arguments.registry_format,
            options=_registry_options(arguments),
            key=arguments.registry_key,
        )
        registry.frame()  # fails now if the registry cannot be read

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
        rows = liveness(readings, silent_after_s=arguments.silent_after, forget_after_s=arguments.forget_after)
        mode = "append"
    else:
        rows, mode = anomalies(readings, _settings(arguments), forget_after_s=arguments.forget_after), "append"
    return _sink(arguments, rows, mode, connection)


def _settings(arguments: Arguments) -> Settings:
    names = ("threshold", "spike", "min_scale", "warm_up", "warm_up_s", "rest_s")
    given = {name: getattr(arguments, name) for name in names}
    usual = SENSITIVITIES[arguments.sensitivity]
    return replace(usual, **{name: value for name, value in given.items() if value is not None})


def _readings(spark: SparkSession, arguments: Arguments, connection: dict[str, str]) -> DataFrame:
    """Return the stream as `device`, `time`, `value` and the other fields of the payload."""
    records = spark.readStream.format("sluice").options(**_source(arguments, connection)).load()
    body = records.withColumn("body", F.from_json(F.col("payload").cast("string"), arguments.schema))
    device = arguments.device
    # Null for a topic with fewer levels.
    named = F.get("levels", F.lit(int(device[6:]))) if device.startswith("level:") else F.col(f"body.{device}")
    time = F.col("stored_at") if arguments.time == "stored_at" else F.col(f"body.{arguments.time}")
    if arguments.pipeline == "liveness":
        return body.select(named.cast("string").alias("device"), F.col("stored_at").alias("time"))
    if arguments.pipeline != "enrich":
        # A device clock far ahead would advance the watermark, and all other devices would be late.
        time = F.when(time.between(_EPOCH, F.col("stored_at") + F.expr(f"INTERVAL {arguments.ahead}")), time)
    chosen = {"device": named.cast("string"), "time": time, "value": F.col(f"body.{arguments.value}")}
    if arguments.pipeline == "anomalies":
        return body.select(*(column.alias(name) for name, column in chosen.items()), "stored_at")
    others = [name for name in body.select("body.*").columns if name not in chosen]
    return body.select(
        *(column.alias(name) for name, column in chosen.items()),
        *(F.col(f"body.{name}").alias(name) for name in others),
    )


def _source(arguments: Arguments, connection: dict[str, str]) -> dict[str, str]:
    """Return the options of `format("sluice")` that select what is read."""
    options = {**connection, "startingOffsets": arguments.begin, "columns": ",".join(_FIELDS)}
    options.update({"parent": arguments.parent} if arguments.parent else {"filter": arguments.filter})
    if arguments.max_records:
        options["maxRecordsPerTrigger"] = str(arguments.max_records)
    if arguments.skip_lost:
        options["failOnDataLoss"] = "false"
    return options


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
    """Write one batch in `foreachBatch`. A repeated batch replaces what the first attempt wrote."""
    if arguments.to:
        sink = alerts(rows, arguments.to).write.format("sluice").mode("append").options(**connection)
        sink.options(publisher="sluice-stream", producer=query, batch=str(number)).save()
    elif arguments.parquet:
        rows.write.mode("overwrite").parquet(str(arguments.parquet / f"batch_id={number}"))
    else:
        _print(rows, number)


def _print(rows: DataFrame, _number: int) -> None:
    for (line,) in rows.select(F.to_json(F.struct("*"))).toLocalIterator():
        print(line, flush=True)


def _registry_options(arguments: Arguments) -> dict[str, str]:
    """Return the options of the registry's reader. Raises `OSError`, and `ValueError` for a malformed line."""
    path: Path | None = arguments.registry_option_file
    given: list[str] = list(arguments.registry_option)
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        given += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for each in given:
        if "=" not in each[1:]:
            raise ValueError(f"{path}: {each!r} is not NAME=VALUE")
    return dict(_pair(each) for each in given)


def _pair(assignment: str) -> tuple[str, str]:
    name, _, value = assignment.partition("=")
    return name, value


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
