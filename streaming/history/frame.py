"""Reading history and log as one DataFrame: Parquet files up to the end of the history, then the log.

Spark's Parquet reader reads the files, so unused columns, row groups that a filter excludes and files outside a time
range cost nothing. The node is asked for younger records only. What reads files is imported when there is a history.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from streaming.history.errors import HistoryError
from streaming.source.columns import SCHEMA, checked
from streaming.source.offsets import Offsets, offsets_to_json

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from streaming.history.folder import HistoryFolder
    from streaming.history.table import HistoryFile

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LISTERS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_MOST_LISTERS: Final = 32
# Override the session: a missing or damaged file is an error, and never just fewer records.
_WHOLE: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_records(
    spark: "SparkSession",
    parent: str,
    *,
    history: str | None = None,
    log: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> "DataFrame":
    """Return every record of a parent topic once, with the columns of `format("sluice")`. `since` and `until` (aware
    datetimes) select records stored in [since, until).

    `history` is the folder of a history. `log` has the options of `format("sluice")` that name the node (`endpoint`,
    credentials, TLS …). If one of the two is None, only the other is read. Raises `HistoryError`. Reading raises
    `DataLossError` if records between the history and the log are gone.
    """
    parts: list[DataFrame] = []
    ends: Offsets = {}
    if history is not None:
        from streaming.history.delta_table import DeltaFolder  # noqa: PLC0415 - most queries have no history

        folder = DeltaFolder(history)
        state = folder.table(parent).state()
        if log is None and not state.progress:
            raise HistoryError(f"{history} has no history of {parent!r}; there are: {', '.join(folder.parents())}")
        parts += _exported(spark, folder, parent, state.within(_ms(since), _ms(until)))
        ends = {(parent, number): each.end for number, each in state.progress.items()}
    if log is not None:
        parts.append(_rest(spark, parent, ends, log))
    frame = reduce(lambda left, right: left.unionByName(right), parts or [spark.createDataFrame([], SCHEMA)])
    if since is not None:
        frame = frame.where(F.col("stored_at") >= F.lit(since))
    return frame if until is None else frame.where(F.col("stored_at") < F.lit(until))


def _exported(
    spark: "SparkSession", folder: "HistoryFolder", parent: str, files: "list[HistoryFile]"
) -> "list[DataFrame]":
    from streaming.history.folder import name_of  # noqa: PLC0415

    if not files:
        return []
    if not _is_known(spark, folder.spark_path("")):
        return [_by_tasks(spark, folder, parent, files)]
    # Files that the library compacted have no column `partition`: Spark reads it from their folders' names.
    reader = spark.read.schema(SCHEMA).options(**_WHOLE, basePath=folder.spark_path(name_of(parent)))
    with _listed_by_few(spark):
        return [reader.parquet(*(folder.spark_pattern(each.path) for each in files)).select(*SCHEMA.names)]


@contextmanager
def _listed_by_few(spark: "SparkSession") -> "Iterator[None]":
    """Let Spark list files with few tasks. With its default, a task per file, listing costs 14 ms of CPU per file; with
    few tasks 1 ms (measured with 2,000 files)."""
    before = spark.conf.get(_LISTERS, None)
    spark.conf.set(_LISTERS, str(_MOST_LISTERS))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_LISTERS)
        else:
            spark.conf.set(_LISTERS, before)


def _is_known(spark: "SparkSession", path: str) -> bool:
    """Return whether the JVM of Spark can open files there; for S3 it needs Hadoop's `hadoop-aws`. The JVM of Spark
    Connect is assumed to have it."""
    scheme = path.partition(":")[0]
    jvm = None if scheme == "file" else getattr(spark, "_jvm", None)
    if jvm is None:
        return True
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsc.sc().hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


def _by_tasks(spark: "SparkSession", folder: "HistoryFolder", parent: str, files: "list[HistoryFile]") -> "DataFrame":
    """Read whole files in the Python workers of Spark."""
    from streaming.source.files import file_batches  # noqa: PLC0415
    from streaming.source.planning import FileRange  # noqa: PLC0415

    pieces = [FileRange(folder.uri, each.path, parent, each.partition, each.begin, each.end) for each in files]
    schema = checked(SCHEMA)

    def records(batches: "Iterable[RecordBatch]") -> "Iterator[RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from file_batches(schema, pieces[number])

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(records, SCHEMA)


def _rest(spark: "SparkSession", parent: str, ends: Offsets, log: Mapping[str, str]) -> "DataFrame":
    """Read the log from the ends of the history's partitions, or all of it without any."""
    reader = spark.read.format("sluice").options(**log).option("parent", json.dumps([parent]))
    return (reader.option("startingOffsets", json.dumps(offsets_to_json(ends))) if ends else reader).load()


def _ms(time: datetime | None) -> int | None:
    return None if time is None else -((_EPOCH - time) // _MS)
