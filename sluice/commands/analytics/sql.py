"""`sluice sql`: run an SQL query over the log and its history."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.commands.analytics.sql_progress import Progress
from sluice.console.command import Arguments, Subparsers, UsageError, add_limit, declare, spark_master
from sluice.console.times import parse_time
from sluice.node import grpc_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from streaming.class_archive import NewArchive
    from streaming.sql import Catalog

EXAMPLE: Final = 'sluice sql "SELECT levels[1] AS room, count(*) FROM sensors GROUP BY 1" --history /mnt/history'

_ARCHIVE_S: Final = 300.0  # for Java to write an archive on a busy machine


def add(subparsers: Subparsers) -> None:
    summary = "run an SQL query; a table is a parent topic with its exported and its stored records"
    parser = declare(subparsers, "sql", summary, EXAMPLE, run)
    parser.add_argument("query", metavar="QUERY", help="a query in Spark SQL; - reads it from standard input")
    text = "a history (see `sluice history`): a path or a URI such as s3://bucket/folder"
    parser.add_argument("--history", metavar="FOLDER", help=text)
    parser.add_argument("--history-only", action="store_true", help="read the history only, and ask no node")
    text = "read only records stored at or after this time"
    parser.add_argument("--since", type=parse_time, metavar="TIME", help=text)
    parser.add_argument("--until", type=parse_time, metavar="TIME", help="read only records stored before this time")
    text = "the form of the result (default: table)"
    parser.add_argument("--output", choices=("table", "json", "csv"), default="table", help=text)
    text = "draw a PNG instead: a line per column of numbers over the first column"
    parser.add_argument("--chart", type=Path, metavar="FILE", help=text)
    add_limit(parser, "rows", 1000)
    text = "keep the classes that Spark loads in the cache folder (170 MB), so that later queries start faster"
    parser.add_argument("--archive-classes", action="store_true", help=text)
    text = "the Spark master (default: local[*])"
    parser.add_argument("--master", type=spark_master, default="local[*]", metavar="URL", help=text)
    grpc_client.add_arguments(parser)


def run(arguments: Arguments) -> int:
    from streaming.class_archive import NewArchive, archive_path, reading_option  # noqa: PLC0415
    from streaming.java import java_home  # noqa: PLC0415
    from streaming.output import Form, lines  # noqa: PLC0415
    from streaming.session import quick_start, spark_session  # noqa: PLC0415
    from streaming.sql import require_tables  # noqa: PLC0415
    from streaming.sql import run as answer  # noqa: PLC0415

    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    catalog = _catalog(arguments)
    require_tables(catalog, query)
    archive = archive_path(java_home())
    made = NewArchive.unless_there(archive) if arguments.archive_classes else None
    with Progress() as progress:
        config = {"spark.log.level": "OFF", **quick_start(made.option if made else reading_option(archive))}
        spark = spark_session("sluice sql", master=arguments.master, config=config, quiet=True)
        try:
            progress.watch(spark.sparkContext.statusTracker())
            frame = answer(spark, catalog, query)
            names, rows = frame.columns, _rows(frame, arguments.limit)
        finally:
            progress.end()
            _end(spark, made)
    if len(rows) > arguments.limit:
        print(f"sluice sql: there are more than {arguments.limit} rows: raise --limit", file=sys.stderr)
        rows = rows[: arguments.limit]
    if arguments.chart is None:
        for line in lines(names, rows, Form(arguments.output)):
            print(line)
        return 0
    from streaming.plot import NothingToDraw, draw  # noqa: PLC0415
    from streaming.sql import QueryError  # noqa: PLC0415

    try:
        draw(names, rows, arguments.chart, title=query.strip())
    except NothingToDraw as error:
        raise QueryError(str(error)) from error
    print(f"{arguments.chart}: {len(rows)} rows")
    return 0


def _end(spark: "SparkSession", made: "NewArchive | None") -> None:
    """Stop Spark, and keep the archive of its classes if it was to write one."""
    from streaming.session import stop  # noqa: PLC0415

    if made is None:
        stop(spark)
        return
    try:
        stop(spark, patience_s=_ARCHIVE_S)
        kept = made.keep()
    finally:
        made.discard()
    if not kept:
        print("sluice sql: Java wrote no archive of classes", file=sys.stderr)


def _rows(frame: "DataFrame", limit: int) -> "list[Row]":
    """Run the query and return at most `limit` + 1 rows, to tell whether there are more. Raises `QueryError`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from streaming.sql import QueryError, message_of  # noqa: PLC0415

    try:
        return frame.limit(limit + 1).collect()
    except PySparkException as error:
        raise QueryError(message_of(error)) from error


def _catalog(arguments: Arguments) -> "Catalog":
    """Return the tables, those of the node included. A user who may not list all parent topics gets a catalog that asks
    the node about each name in the query. Raises `SluiceError`."""
    from cloud_sdk.errors import NotAllowed, Unauthenticated  # noqa: PLC0415
    from streaming.sql import Catalog  # noqa: PLC0415

    if arguments.history_only and arguments.history is None:
        raise UsageError("--history-only needs --history")
    parents: set[str] = set()
    if arguments.history is not None:
        from streaming.history.delta_table import DeltaFolder  # noqa: PLC0415 - most queries have no history

        parents.update(DeltaFolder(arguments.history).parents())
    log = is_there = None
    if not arguments.history_only:
        log = grpc_client.source_options(arguments)
        try:
            with grpc_client.connect(arguments) as client:
                parents.update(client.parents())
        except Unauthenticated:
            raise
        except NotAllowed:
            is_there = partial(_is_there, arguments)
    return Catalog(arguments.history, log, tuple(sorted(parents)), arguments.since, arguments.until, is_there)


def _is_there(arguments: Arguments, parent: str) -> bool:
    """Return whether a parent topic has had messages. Raises `SluiceError`."""
    with grpc_client.connect(arguments) as client:
        return any(each.end for each in client.partitions(parent))
