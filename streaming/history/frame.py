"""History and log as one DataFrame: Parquet files up to where the history ends, and the log from there on.

Spark's own Parquet reader takes the files, so that columns that nobody reads, row groups that no filter wants and files
outside a time range cost nothing; the node is asked for what is younger only.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest
from streaming.source.columns import SCHEMA, checked
from streaming.source.files import file_batches
from streaming.source.offsets import Offsets, offsets_to_json
from streaming.source.planning import FileRange

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LISTERS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_MOST_LISTERS: Final = 32
# Whatever the session is told: a file that is not there, or not whole, is an error, never fewer records.
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
    """Every record of a parent topic once, with the columns of `format("sluice")`; what was stored in [since, until)
    alone, where they are given (aware datetimes).

    `history` is a history's folder. `log` has the options of `format("sluice")` that say which node has the rest
    (`endpoint`, credentials, TLS …). Without one of them, the other is read alone. Raises `HistoryError`; that the log
    does not go on where the history ends is the reader's `DataLossError`.
    """
    parts: list[DataFrame] = []
    manifest = HistoryManifest(parent)
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
    spark: "SparkSession",
    folder: HistoryFolder,
    manifest: HistoryManifest,
    since: datetime | None,
    until: datetime | None,
) -> "list[DataFrame]":
    files = list(manifest.within(_ms(since), _ms(until)))
    if not files:
        return []
    if not _is_known(spark, folder.spark_path("")):
        return [_by_tasks(spark, folder, manifest.parent, files)]
    reader = spark.read.schema(SCHEMA).options(**_WHOLE)
    with _listed_by_few(spark):
        return [reader.parquet(*(folder.spark_path(each.path) for each in files))]


@contextmanager
def _listed_by_few(spark: "SparkSession") -> "Iterator[None]":
    """Spark looks at each file before it reads: of many, by a task for each of them, which costs 14 ms of CPU a file.
    A few tasks take 1 ms (measured with 2,000 files)."""
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
    """Whether the Java side of Spark can open files there: for S3 it needs Hadoop's `hadoop-aws`. One that is not in
    this process (Spark Connect) is taken to have it."""
    scheme = path.partition(":")[0]
    jvm = None if scheme == "file" else getattr(spark, "_jvm", None)
    if jvm is None:
        return True
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsc.sc().hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


def _by_tasks(spark: "SparkSession", folder: HistoryFolder, parent: str, files: list[HistoryFile]) -> "DataFrame":
    """Files that Python's side of Spark reads, whole, and hands over."""
    pieces = [FileRange(folder.uri, each.path, parent, each.partition, each.begin, each.end) for each in files]
    schema = checked(SCHEMA)

    def records(batches: "Iterable[RecordBatch]") -> "Iterator[RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from file_batches(schema, pieces[number])

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(records, SCHEMA)


def _rest(spark: "SparkSession", manifest: HistoryManifest, log: Mapping[str, str]) -> "DataFrame":
    """What the log has behind the history; all of it, where there is none."""
    ends: Offsets = {(manifest.parent, number): span.end for number, span in manifest.spans().items()}
    reader = spark.read.format("sluice").options(**log).option("parent", json.dumps([manifest.parent]))
    return (reader.option("startingOffsets", json.dumps(offsets_to_json(ends))) if ends else reader).load()


def _ms(time: datetime | None) -> int | None:
    return None if time is None else -((_EPOCH - time) // _MS)
