"""The Spark side of `sluice stream`: start a pipeline as a query and run it until it is stopped."""

import json
import logging
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from cloud_sdk import SluiceError, Unavailable, Untrusted
from sluice.commands.analytics.stream_metrics import MetricsServer, StreamMetrics
from sluice.console.command import Arguments
from sluice.node import grpc_client
from streaming.failures import failure_of
from streaming.java import JavaNotFound
from streaming.pipelines.anomalies import alerts, anomalies
from streaming.pipelines.archive import Archive, downsampled
from streaming.pipelines.detector import LARGEST, SENSITIVITIES, Settings
from streaming.pipelines.enrichment import Registry, enriched
from streaming.pipelines.last_values import ORDER, last_values
from streaming.pipelines.liveness import liveness, require_spans
from streaming.pipelines.readings import ReadingFormat, body_type, parsed
from streaming.pipelines.rejects import SCHEMA as REJECTS
from streaming.pipelines.rejects import SOURCE_COLUMNS, counted, reject_messages, reject_rows, replayed, usable
from streaming.pipelines.stateful import STATE_CONFIG
from streaming.pipelines.windows import window_statistics
from streaming.running import describe
from streaming.running import run as run_queries
from streaming.session import spark_session, stop
from streaming.source.body import BODY
from streaming.source.columns import schema_of
from streaming.source.options import SourceOptions
from streaming.source.topics import Topics, unknown_parents

_AGAIN_S: Final = 5.0  # between attempts while the node is unreachable
_START_S: Final = 60.0  # until a query that has begun its first batch has an id
_FIELDS: Final = ("topic", "levels", "payload", "stored_at")
_NEEDS: Final = {  # what a reading must have
    "windows": frozenset({"time", "value"}),
    "liveness": frozenset({"device"}),
    "anomalies": frozenset({"device", "time", "value"}),
    "enrich": frozenset[str](),
    "archive": frozenset({"device", "time", "value"}),
    "last-values": frozenset({"device", "time"}),
}
_WHOLE: Final = ("enrich", "last-values")  # pipelines that use other columns than these three
_MOST_RESTARTS: Final = 5  # in a row, of a query whose Python worker did not connect


class _Failed(Exception):
    """The query failed for a reason that a retry does not cure."""


# Errors that are printed as one line, without a stack.
_EXPECTED: Final = (_Failed, PySparkException, Py4JError, SluiceError, JavaNotFound, ValueError, OSError)


def run(arguments: Arguments, connection: dict[str, str], stopping: threading.Event) -> int:
    """Run the pipeline until `stopping` is set. `connection` has the options of `format("sluice")` that name the node.
    Return the exit code: 0 when it was stopped or `--once` is done, 1 when it failed, 2 for a wrong option."""
    try:
        topics = _topics(arguments, connection)
        if arguments.pipeline == "anomalies":
            _settings(arguments)
        elif arguments.pipeline == "liveness":
            require_spans(arguments.silent_after, arguments.forget_after)
    except ValueError as error:
        _say(f"sluice stream: {error}")
        return 2
    _quiet_pyspark()
    metrics = StreamMetrics(arguments.pipeline)
    try:
        with _serving(arguments, metrics):
            if topics is not None:
                _wait_for_node(arguments, topics, stopping)
            if not stopping.is_set():
                _run_on_spark(arguments, connection, stopping, metrics)
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


def _topics(arguments: Arguments, connection: dict[str, str]) -> Topics | None:
    """Return what is read of the log, None if files are read. Raises `OptionError`."""
    if arguments.replay_parquet is not None:
        return None
    return SourceOptions.parse(_source(arguments, connection)).topics


@contextmanager
def _serving(arguments: Arguments, metrics: StreamMetrics) -> Iterator[None]:
    """Serve the figures while the pipeline runs, if it is to. Raises `OSError`."""
    if arguments.metrics_port is None:
        yield
        return
    server = MetricsServer(metrics, arguments.metrics_host, arguments.metrics_port)
    _say(f"figures are at port {server.port}")
    try:
        yield
    finally:
        server.close()


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
                for line in unknown_parents(client, topics):
                    _say(f"warning: {line}")
        except Unavailable as error:
            if arguments.once or isinstance(error, Untrusted):
                raise
            _say(f"waiting for the node {grpc_client.endpoint(arguments)}: {error}")
            stopping.wait(_AGAIN_S)
        else:
            return


def _run_on_spark(
    arguments: Arguments, connection: dict[str, str], stopping: threading.Event, metrics: StreamMetrics
) -> None:
    restarts = 0

    def report(progress: Mapping[str, Any]) -> None:
        nonlocal restarts
        restarts = 0
        _say(describe(progress))
        metrics.add(progress, time.time())

    config = {**STATE_CONFIG, "spark.log.level": "OFF", **dict(_pair(each) for each in arguments.conf)}
    spark = spark_session(f"sluice stream {arguments.pipeline}", master=arguments.master, config=config)
    try:
        while not stopping.is_set():
            try:
                queries = [_start(spark, arguments, connection)]
                if (rejects := _start_rejects(spark, arguments, connection)) is not None:
                    queries.append(rejects)
                _say(f"{arguments.pipeline} runs on {arguments.master}")
                run_queries(queries, report, stopping)
            except (PySparkException, Py4JError) as error:
                if stopping.is_set():
                    raise
                failure = failure_of(str(error))  # this asks the JVM, which must still run
                for query in spark.streams.active:
                    query.stop()
                if failure.is_late_worker and restarts < _MOST_RESTARTS:
                    restarts += 1
                    _say("a Python worker of Spark was too slow to connect: the query goes on from its checkpoint")
                elif arguments.once or not failure.is_away:
                    raise _Failed(failure.reason) from error
                else:
                    _say(f"waiting for the node: {failure.reason}")
                stopping.wait(_AGAIN_S)
            else:
                return
    finally:
        stop(spark)


def _start(spark: SparkSession, arguments: Arguments, connection: dict[str, str]) -> StreamingQuery:
    """Start the query of the pipeline."""
    name = arguments.pipeline
    rows = counted(parsed(_records(spark, arguments, connection), _format(arguments)))
    readings = usable(rows, *(("stored_at",) if name == "anomalies" else ()))
    if name == "archive":
        rows = downsampled(readings, window=arguments.window, late=arguments.late)
        return _query(arguments, rows, "append", Archive(arguments.folder).write)
    if name == "enrich":
        return _start_enrich(spark, arguments, connection, readings)
    if name == "last-values":
        # Behind a shuffle the order of rows is chance, and the sink takes a repeated batch in the same order only.
        newest = last_values(usable(rows, *ORDER))
        return _by_batch(arguments, connection, newest, "update", lambda batch: batch.sortWithinPartitions("device"))
    if name == "windows":
        rows = window_statistics(readings, window=arguments.window, late=arguments.late)
    elif name == "liveness":
        rows = liveness(readings, silent_after_s=arguments.silent_after, forget_after_s=arguments.forget_after)
    else:
        rows = anomalies(readings, _settings(arguments), forget_after_s=arguments.forget_after)
    return _sink(arguments, rows, connection)


def _start_enrich(
    spark: SparkSession, arguments: Arguments, connection: dict[str, str], readings: DataFrame
) -> StreamingQuery:
    registry = Registry(
        spark,
        arguments.registry,
        kind=arguments.registry_format,
        options=_registry_options(arguments),
        key=arguments.registry_key,
    )
    registry.frame()  # fails now if the registry cannot be read

    def with_registry(batch: DataFrame) -> DataFrame:
        return enriched(batch, registry.frame(), registry_key=arguments.registry_key)

    return _by_batch(arguments, connection, readings, "append", with_registry)


def _start_rejects(spark: SparkSession, arguments: Arguments, connection: dict[str, str]) -> StreamingQuery | None:
    """Start the query that keeps the rejects. It is a query of its own, with its own checkpoint, because a query with
    state has no second output."""
    if arguments.rejects is None and arguments.rejects_parquet is None:
        return None
    records = _records(spark, arguments, connection, columns=SOURCE_COLUMNS)
    rejects = reject_rows(counted(parsed(records, _format(arguments))), arguments.pipeline)
    if arguments.rejects is not None:
        writer = reject_messages(rejects, arguments.rejects).writeStream.format("sluice")
        writer = writer.options(**connection, publisher="sluice-stream")
    else:
        writer = rejects.writeStream.format("parquet").option("path", str(arguments.rejects_parquet))
    return _triggered(writer.outputMode("append"), arguments, part="rejects").start()


def _settings(arguments: Arguments) -> Settings:
    names = ("threshold", "spike", "min_scale", "warm_up", "warm_up_s", "rest_s")
    given = {name: getattr(arguments, name) for name in names}
    usual = SENSITIVITIES[arguments.sensitivity]
    return replace(usual, **{name: value for name, value in given.items() if value is not None})


def _format(arguments: Arguments) -> ReadingFormat:
    """Return what the pipeline needs of a payload. Raises `ValueError` for a wrong schema."""
    name = arguments.pipeline
    schema = StructType.fromDDL(arguments.schema)
    if not isinstance(schema, StructType):
        raise ValueError(f"{arguments.schema!r} names no fields")
    return ReadingFormat(
        schema,
        arguments.device,
        "stored_at" if name == "liveness" else arguments.time,
        arguments.value,
        _NEEDS[name],
        None if name == "enrich" else arguments.ahead,
        LARGEST if name == "anomalies" else None,
        others=name in _WHOLE,
        strict=arguments.strict,
    )


def _records(
    spark: SparkSession, arguments: Arguments, connection: dict[str, str], columns: Sequence[str] = _FIELDS
) -> DataFrame:
    """Return the stream of records: of the log, or rejects of an earlier run as they were in the log."""
    if arguments.pipeline == "last-values" and columns is _FIELDS:
        columns = (*_FIELDS, *ORDER)
    if arguments.replay_parquet is not None:
        kept = spark.readStream.schema(REJECTS).parquet(str(arguments.replay_parquet))
        return replayed(kept, arguments.pipeline)
    if arguments.replay is not None:
        columns = ("payload", "properties")
    schema = schema_of(columns)
    if arguments.replay is None and (kind := body_type(_format(arguments))) is not None:
        schema = schema.add(BODY, kind)
    records = spark.readStream.format("sluice").options(**_source(arguments, connection)).schema(schema).load()
    if arguments.replay is not None:
        return replayed(records, arguments.pipeline)
    if arguments.rejects is not None:  # a filter such as # also finds what is kept there
        records = records.where(~F.col("topic").startswith(f"{arguments.rejects}/"))
    return records


def _source(arguments: Arguments, connection: dict[str, str]) -> dict[str, str]:
    """Return the options of `format("sluice")` that select what is read."""
    options = {**connection, "startingOffsets": arguments.begin}
    if arguments.parent is not None:
        options["parent"] = arguments.parent
    else:
        options["filter"] = arguments.filter or json.dumps([f"{arguments.replay}/#"])
    if arguments.max_records:
        options["maxRecordsPerTrigger"] = str(arguments.max_records)
    if arguments.skip_lost:
        options["failOnDataLoss"] = "false"
    return options


def _sink(arguments: Arguments, rows: DataFrame, connection: dict[str, str]) -> StreamingQuery:
    if arguments.to:
        writer = (
            alerts(rows, arguments.to).writeStream.format("sluice").options(**connection, publisher="sluice-stream")
        )
    elif arguments.parquet:
        writer = rows.writeStream.format("parquet").option("path", str(arguments.parquet))
    else:
        return _query(arguments, rows, "append", _print)
    return _triggered(writer.outputMode("append"), arguments).start()


def _by_batch(
    arguments: Arguments,
    connection: dict[str, str],
    rows: DataFrame,
    mode: str,
    change: Callable[[DataFrame], DataFrame],
) -> StreamingQuery:
    """Start a query that changes and writes each of its batches."""
    started: Future[str] = Future()

    def write(batch: DataFrame, number: int) -> None:
        _write_batch(change(batch), arguments, connection, started.result(_START_S), number)

    query = _query(arguments, rows, mode, write)
    started.set_result(str(query.id))
    return query


def _query(arguments: Arguments, rows: DataFrame, mode: str, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    return _triggered(rows.writeStream.outputMode(mode).foreachBatch(write), arguments).start()


def _triggered(writer: DataStreamWriter, arguments: Arguments, part: str = "") -> DataStreamWriter:
    """Name a query, and say where its checkpoint is and when it runs. `part` is a second query of the pipeline."""
    name = arguments.pipeline
    if arguments.replay is not None or arguments.replay_parquet is not None:
        name += "-replay"  # reads something else
    checkpoint = arguments.checkpoint or str(Path("checkpoints") / name)
    if part:
        checkpoint = f"{checkpoint.rstrip('/')}/{part}"
    writer = writer.queryName(f"{name}-{part}" if part else name).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True) if arguments.once else writer.trigger(processingTime=arguments.every)


def _write_batch(rows: DataFrame, arguments: Arguments, connection: dict[str, str], query: str, number: int) -> None:
    """Write one batch in `foreachBatch`. A repeated batch replaces what the first attempt wrote."""
    if arguments.to:
        messages = alerts(rows, arguments.to, retain=arguments.pipeline == "last-values")
        sink = messages.write.format("sluice").mode("append").options(**connection)
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
