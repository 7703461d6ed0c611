"""`sluice stream`: run a ready-made Spark pipeline over the log."""

import argparse
from pathlib import Path
from typing import Final

from sluice.console.command import (
    Arguments,
    Subparsers,
    declare,
    port_number,
    positive,
    seconds,
    spark_master,
    topic_filter,
)
from sluice.console.signals import stopped_by_signals
from sluice.node import grpc_client

EXAMPLE: Final = "sluice stream anomalies --parent sensors --to alerts"
_SCHEMA: Final = "device string, time timestamp, value double"


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "stream", "run a ready-made Spark pipeline over the log", EXAMPLE)
    names = parser.add_subparsers(dest="pipeline", required=True, metavar="PIPELINE")
    windows = _pipeline(names, "windows", "statistics per device and window of event time")
    windows.add_argument("--window", default="1 minute", help="the length of a window (default: %(default)s)")
    windows.add_argument("--late", default="1 minute", help="how late a reading may come (default: %(default)s)")
    liveness = _pipeline(names, "liveness", "devices that fell silent, and devices that are back")
    text = "seconds after which a device counts as silent (default: 60)"
    liveness.add_argument("--silent-after", type=_span, default=60.0, metavar="S", help=text)
    text = "forget a device after S silent seconds (default: never)"
    liveness.add_argument("--forget-after", type=_span, metavar="S", help=text)
    anomalies = _pipeline(names, "anomalies", "readings that are unusual for their device")
    text = "how much is reported (default: normal)"
    anomalies.add_argument("--sensitivity", choices=("low", "normal", "high"), default="normal", help=text)
    text = "the sum that a shift must reach (default: by the sensitivity)"
    anomalies.add_argument("--threshold", type=float, metavar="X", help=text)
    text = "the deviation that makes one reading a spike (default: 5)"
    anomalies.add_argument("--spike", type=float, metavar="SIGMA", help=text)
    text = "the smallest deviation that counts (default: 0)"
    anomalies.add_argument("--min-scale", type=float, metavar="V", help=text)
    text = "readings that are never anomalies, at the start of a device (default: 300)"
    anomalies.add_argument("--warm-up", type=positive, metavar="N", help=text)
    text = "seconds without anomalies, at the start of a device (default: 86400)"
    anomalies.add_argument("--warm-up-time", dest="warm_up_s", type=seconds, metavar="S", help=text)
    text = "seconds between two anomalies of a device (default: 86400)"
    anomalies.add_argument("--rest", dest="rest_s", type=seconds, metavar="S", help=text)
    text = "forget a device after S seconds without readings (default: never)"
    anomalies.add_argument("--forget-after", type=_span, metavar="S", help=text)
    enrich = _pipeline(names, "enrich", "readings joined with a registry of devices")
    enrich.add_argument("--registry", required=True, help="a CSV, JSON or Parquet file or folder, or a JDBC table")
    text = "the format (default: by the suffix)"
    enrich.add_argument("--registry-format", choices=("csv", "json", "parquet", "jdbc"), help=text)
    enrich.add_argument("--registry-key", default="device", help="the column with the device (default: device)")
    text = "an option of Spark's reader, such as url=…; may be repeated"
    _add_assignments(enrich, "--registry-option", text)
    text = "a file with more options, one per line, such as the password of a table"
    enrich.add_argument("--registry-option-file", type=Path, metavar="FILE", help=text)
    archive = _pipeline(names, "archive", "down-sampled readings in hourly Parquet files", publishes=False)
    archive.add_argument("--window", default="1 minute", help="the window of one row (default: %(default)s)")
    archive.add_argument("--late", default="10 minutes", help="how late a reading may come (default: %(default)s)")
    archive.add_argument("--folder", required=True, help="where to write: a path or a URI such as s3://bucket/folder")
    _pipeline(names, "last-values", "the newest value of each field of a device, as a retained message or a table")


def _pipeline(names: Subparsers, name: str, summary: str, *, publishes: bool = True) -> argparse.ArgumentParser:
    """Add a pipeline with the arguments that all pipelines share."""
    example = f"sluice stream {name} --parent sensors"
    example += " --to results" if publishes else " --folder archive"
    example += " --registry devices.csv" if name == "enrich" else ""
    parser = declare(names, name, summary, example, run)
    source = parser.add_argument_group("source")
    what = source.add_mutually_exclusive_group(required=True)
    what.add_argument("--parent", help="parent topics, separated by commas")
    what.add_argument("--filter", type=topic_filter, help="an MQTT filter, such as sensors/+/temperature")
    text = "read what this pipeline rejected and kept on TOPIC (--rejects)"
    what.add_argument("--replay", type=_topic, metavar="TOPIC", help=text)
    text = "read what this pipeline rejected and kept in FOLDER (--rejects-parquet)"
    what.add_argument("--replay-parquet", type=Path, metavar="FOLDER", help=text)
    text = "where a query without a checkpoint begins (default: earliest)"
    source.add_argument("--from", dest="begin", choices=("earliest", "latest"), default="earliest", help=text)
    source.add_argument("--max-records", type=positive, metavar="N", help="the most records in a micro-batch")
    text = "skip and count records that retention removed before they were read"
    source.add_argument("--skip-lost", action="store_true", help=text)
    source.add_argument("--schema", default=_SCHEMA, help="the schema of the JSON payload (default: %(default)s)")
    text = "the field with the device, or level:N of the topic (default: device)"
    source.add_argument("--device", type=_field_or_level, default="device", help=text)
    text = "the field with the time, or stored_at for the time of storing (default: time)"
    source.add_argument("--time", default="time", help=text)
    text = "drop readings whose time is this far after the time of storing (default: 1 hour)"
    source.add_argument("--ahead", default="1 hour", help=text)
    source.add_argument("--value", default="value", help="the field with the value (default: value)")
    text = (
        "take no numbers in texts, times in milliseconds, names in another case, arrays of readings or byte order marks"
    )
    source.add_argument("--strict", action="store_true", help=text)
    rejects = parser.add_argument_group("rejects", "payloads without a reading that the pipeline can use")
    kept = rejects.add_mutually_exclusive_group()
    kept.add_argument("--rejects", type=_topic, metavar="TOPIC", help="publish each to TOPIC/reason")
    kept.add_argument("--rejects-parquet", type=Path, metavar="FOLDER", help="append each to Parquet files")
    spark = parser.add_argument_group("Spark")
    text = "the Spark master (default: local[2])"
    spark.add_argument("--master", type=spark_master, default="local[2]", metavar="URL", help=text)
    text = "where Spark keeps the query's progress (default: checkpoints/PIPELINE)"
    spark.add_argument("--checkpoint", metavar="FOLDER", help=text)
    spark.add_argument("--every", default="5 seconds", help="the interval between micro-batches (default: %(default)s)")
    spark.add_argument("--once", action="store_true", help="process what the log holds now, then exit")
    _add_assignments(spark, "--conf", "a setting of Spark; may be repeated")
    metrics = parser.add_argument_group("metrics")
    text = "serve figures for Prometheus at http://HOST:PORT/metrics (default: do not)"
    metrics.add_argument("--metrics-port", type=port_number, metavar="PORT", help=text)
    text = "the address to serve them at (default: 127.0.0.1)"
    metrics.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help=text)
    if publishes:
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--to", metavar="TOPIC", help="publish results as JSON to TOPIC/device")
        output.add_argument("--parquet", type=Path, metavar="FOLDER", help="append results to Parquet files")
    grpc_client.add_arguments(parser)
    return parser


def _add_assignments(parser: "argparse._ActionsContainer", option: str, text: str) -> None:
    parser.add_argument(option, action="append", type=_assignment, default=[], metavar="NAME=VALUE", help=text)


def run(arguments: Arguments) -> int:
    connection = grpc_client.source_options(arguments)
    with stopped_by_signals() as stopping:  # before the import of Spark, which takes seconds
        from sluice.commands.analytics import stream_job  # noqa: PLC0415

        return stream_job.run(arguments, connection, stopping)


def _field_or_level(text: str) -> str:
    """Check the name of a field, or `level:N` for a level of the topic."""
    if text.startswith("level:") and not text[6:].isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a level of the topic: level:0 is the first one")
    return text


def _topic(text: str) -> str:
    """Check a topic name to which levels are added."""
    if not text or text.startswith("$") or set(text) & set("+#\0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a topic")
    return text


def _span(text: str) -> float:
    """Parse a time span in seconds above 0."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError("the time must be above 0 seconds")
    return value


def _assignment(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return text
