"""`sluice stream`: ready-made pipelines of Spark over the log, on any Spark master."""

import argparse
import sys
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare, positive, seconds, spark_master, topic_filter
from sluice.console.signals import stopped_by_signals
from sluice.node import grpc_client

EXAMPLE: Final = "sluice stream anomalies --parent sensors --to alerts"
_SCHEMA: Final = "device string, time timestamp, value double"


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "stream", "run a pipeline of Spark over the log", EXAMPLE, run)
    names = parser.add_subparsers(dest="pipeline", required=True, metavar="PIPELINE")
    windows = _pipeline(names, "windows", "statistics per device and window of event time")
    windows.add_argument("--window", default="1 minute", help="its length (default: %(default)s)")
    windows.add_argument("--late", default="1 minute", help="how late a reading may be (default: %(default)s)")
    liveness = _pipeline(names, "liveness", "who fell silent, and who is back")
    liveness.add_argument("--silent-after", type=_span, default=60.0, metavar="S", help="seconds (default: 60)")
    liveness.add_argument(
        "--forget-after", type=_span, metavar="S", help="forget a device that is silent for so long (default: never)"
    )
    anomalies = _pipeline(names, "anomalies", "readings that a device should not have")
    anomalies.add_argument("--threshold", type=float, help="how much a shift must sum up to (default: 2.5)")
    anomalies.add_argument("--spike", type=float, metavar="SIGMA", help="one reading, so far away (default: 5)")
    anomalies.add_argument("--min-scale", type=float, metavar="V", help="a deviation that is nothing (default: 0)")
    anomalies.add_argument("--warm-up", type=positive, metavar="N", help="readings before the first one (default: 300)")
    anomalies.add_argument(
        "--warm-up-time", dest="warm_up_s", type=seconds, metavar="S", help="and seconds of readings (default: a day)"
    )
    anomalies.add_argument(
        "--rest", dest="rest_s", type=seconds, metavar="S", help="seconds between two of a device (default: a day)"
    )
    anomalies.add_argument(
        "--forget-after",
        type=_span,
        metavar="S",
        help="forget a device of which nothing comes for so long (default: never)",
    )
    enrich = _pipeline(names, "enrich", "readings with what a registry knows of their device")
    enrich.add_argument("--registry", required=True, help="a CSV, JSON or Parquet file or folder, or a JDBC table")
    enrich.add_argument("--registry-format", choices=("csv", "json", "parquet", "jdbc"), help="default: its suffix")
    enrich.add_argument("--registry-key", default="device", help="its column of devices (default: device)")
    enrich.add_argument(
        "--registry-option", action="append", type=_assignment, default=[], metavar="NAME=VALUE",
        help="for Spark's reader, such as url=",
    )  # fmt: skip
    enrich.add_argument(
        "--registry-option-file",
        type=Path,
        metavar="FILE",
        help="more of these, one a line: for the password of a table",
    )
    archive = _pipeline(names, "archive", "down-sampled readings as hourly Parquet files", publishes=False)
    archive.add_argument("--window", default="1 minute", help="one row each (default: %(default)s)")
    archive.add_argument("--late", default="10 minutes", help="how late a reading may be (default: %(default)s)")
    archive.add_argument("--folder", required=True, help="where: a path or a URI such as s3://bucket/folder")


def _pipeline(
    names: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str, *, publishes: bool = True
) -> argparse.ArgumentParser:
    """A pipeline with the arguments that all have."""
    example = f"sluice stream {name} --parent sensors"
    example += " --to results" if publishes else " --folder archive"
    example += " --registry devices.csv" if name == "enrich" else ""
    parser = declare(names, name, summary, example, run)
    source = parser.add_argument_group("source")
    what = source.add_mutually_exclusive_group(required=True)
    what.add_argument("--parent", help="parent topics, comma between them")
    what.add_argument("--filter", type=topic_filter, help="an MQTT filter, such as sensors/+/temperature")
    source.add_argument("--from", dest="begin", choices=("earliest", "latest"), default="earliest", help="at first")
    source.add_argument("--max-records", type=positive, metavar="N", help="of a micro-batch")
    source.add_argument(
        "--skip-lost", action="store_true", help="go on where retention was faster, and count what is gone"
    )
    source.add_argument("--schema", default=_SCHEMA, help="of the JSON payload (default: %(default)s)")
    source.add_argument(
        "--device", type=_field_or_level, default="device", help="the field that is the device, or level:N of the topic"
    )
    source.add_argument("--time", default="time", help="the field with the time; stored_at: when it was stored")
    source.add_argument(
        "--ahead", default="1 hour", help="leave out readings of a time so far behind their storing (default: 1 hour)"
    )
    source.add_argument("--value", default="value", help="the field with the value")
    spark = parser.add_argument_group("Spark")
    spark.add_argument("--master", type=spark_master, default="local[2]", help="default: local[2]")
    spark.add_argument(
        "--checkpoint", type=str, help="where the query remembers how far it is (default: checkpoints/…)"
    )
    spark.add_argument("--every", default="5 seconds", help="a micro-batch begins (default: %(default)s)")
    spark.add_argument("--once", action="store_true", help="end when what is there now is worked off")
    spark.add_argument(
        "--conf", action="append", type=_assignment, default=[], metavar="NAME=VALUE", help="a setting of Spark"
    )
    if publishes:
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--to", metavar="TOPIC", help="publish results as JSON on TOPIC/device")
        output.add_argument("--parquet", type=Path, metavar="FOLDER", help="append results to Parquet files")
    grpc_client.add_arguments(parser)
    return parser


def run(arguments: Arguments) -> int:
    from cloud_sdk import InvalidArgument  # noqa: PLC0415

    try:
        connection = grpc_client.source_options(arguments)
    except InvalidArgument as error:
        print(f"sluice stream: {error}", file=sys.stderr)
        return 2
    with stopped_by_signals() as stopping:  # from here on: to import Spark takes seconds
        from sluice.commands import stream_job  # noqa: PLC0415

        return stream_job.run(arguments, connection, stopping)


def _field_or_level(text: str) -> str:
    """`level:N`, a level of the topic; or a name, of a field."""
    if text.startswith("level:") and not text[6:].isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no level of a topic: level:0 is the first one")
    return text


def _span(text: str) -> float:
    """A time span in seconds, which is none where it is 0."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 seconds are no time span")
    return value


def _assignment(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return text
