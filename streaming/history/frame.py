"""History and log as one DataFrame: Parquet files up to where the history ends, and the log from there on.

Spark's own Parquet reader takes the files, so that columns that nobody reads, row groups that no filter wants and files
outside a time range cost nothing; the node is asked for what is younger only.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, Manifest
from streaming.source.columns import SCHEMA
from streaming.source.offsets import Offsets, offsets_to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def read_records(
    spark: "SparkSession",
    parent: str,
    *,
    history: str | None = None,
    log: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> "DataFrame":
    """Every record of a parent topic once, with the columns of `format("sluice")`; what was stored in [since, until)
    alone, where they are given (aware datetimes).

    `history` is a history's folder. `log` has the options of `format("sluice")` that say which node has the rest
    (`endpoint`, credentials, TLS …). Without one of them, the other is read alone. Raises `HistoryError`; that the log
    does not go on where the history ends is the reader's `DataLossError`.
    """
    parts: list[DataFrame] = []
    manifest = Manifest(parent)
    if history is not None:
        folder = HistoryFolder(history)
        manifest = folder.manifest(parent)
        if log is None and manifest.number == 0:
            raise HistoryError(f"{history} has no history of {parent!r}; there are: {', '.join(folder.parents())}")
        parts += _exported(spark, folder, manifest, since, until)
    if log is not None:
        parts.append(_rest(spark, manifest, log))
    frame = reduce(lambda left, right: left.unionByName(right), parts or [spark.createDataFrame([], SCHEMA)])
    if since is not None:
        frame = frame.where(F.col("stored_at") >= F.lit(since))
    return frame if until is None else frame.where(F.col("stored_at") < F.lit(until))


def _exported(
    spark: "SparkSession", folder: HistoryFolder, manifest: Manifest, since: datetime | None, until: datetime | None
) -> "list[DataFrame]":
    files = list(manifest.within(_ms(since), _ms(until)))
    if not files:
        return []
    return [spark.read.schema(SCHEMA).parquet(*(folder.spark_path(each.path) for each in files))]


def _rest(spark: "SparkSession", manifest: Manifest, log: Mapping[str, str]) -> "DataFrame":
    """What the log has behind the history; all of it, where there is none."""
    ends: Offsets = {(manifest.parent, number): span.end for number, span in manifest.spans().items()}
    reader = spark.read.format("sluice").options(**log).option("parent", json.dumps([manifest.parent]))
    return (reader.option("startingOffsets", json.dumps(offsets_to_json(ends))) if ends else reader).load()


def _ms(time: datetime | None) -> int | None:
    return None if time is None else -((_EPOCH - time) // _MS)
