"""Exported history beside the same rows in plain Parquet files, and beside the log from which it was exported."""

import threading
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from benchmarks.stream.works import FIXED, PARENT, Site, Work, drain, expect, windowed
from cloud_sdk.blocking import Client
from streaming.history.delta_table import DeltaFolder
from streaming.history.export import Exporter, ExportOptions
from streaming.history.frame import read_records

_FILE_BYTES: Final = 256 << 20  # as `sluice history` makes them


def export(endpoint: str, folder: Path) -> None:
    """The rows, compacted as they are after a day."""
    history = DeltaFolder(str(folder))
    with Client(endpoint) as client:
        Exporter(client, history.table(PARENT), ExportOptions(file_bytes=_FILE_BYTES)).run()
    history.table(PARENT).compact(_FILE_BYTES, None, threading.Event())


def _alone(site: Site) -> DataFrame:
    return read_records(site.spark, PARENT, history=str(site.history))


def _with_log(site: Site) -> DataFrame:
    return read_records(site.spark, PARENT, history=str(site.history), log={"endpoint": site.endpoint})


def _by_option(site: Site) -> DataFrame:
    options = {"endpoint": site.endpoint, "parent": PARENT, "history": str(site.history), "columns": ",".join(FIXED)}
    return site.spark.read.format("sluice").options(**options).load()


def _count_parquet(site: Site) -> None:
    expect(site.files().count(), site.rows)


def _count(site: Site) -> None:
    expect(_alone(site).count(), site.rows)


def _count_with_log(site: Site) -> None:
    expect(_with_log(site).count(), site.rows)


def _windows(site: Site) -> None:
    drain(windowed(_alone(site)))


def _windows_with_log(site: Site) -> None:
    drain(windowed(_with_log(site)))


def _windows_by_option(site: Site) -> None:
    drain(windowed(_by_option(site)))


HISTORY_WORKS: Final = (
    Work("count(), Parquet", _count_parquet),
    Work("count(), history", _count, of="count(), Parquet", ratio=0.9),
    Work("count(), history and log", _count_with_log),
    Work("windowed aggregation, history", _windows, of="windowed aggregation, Parquet", ratio=0.9),
    Work("windowed aggregation, history and log", _windows_with_log),
    Work("windowed aggregation, history by the option", _windows_by_option),
)
