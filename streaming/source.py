"""The Spark data source `sluice`: a parent topic's log as a table, in batch and as a stream.

A Spark partition is a range of offsets of one partition of the parent topic. Each task pulls its range
from the node in pages and hands the frames on as Arrow batches, so its memory is a page or two. The
stream's progress is Spark's own checkpoint; the node keeps no state for a query, and any number of
queries may read the same log.

    spark.readStream.format("sluice").option("endpoint", "127.0.0.1:7070").option("parent", "sensors").load()
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from cloud_sdk.arrow import record_batch
from cloud_sdk.blocking import Client
from cloud_sdk.errors import OffsetOutOfRange
from streaming.offsets import (
    DataLossError,
    OffsetRange,
    Offsets,
    PartitionBounds,
    advance,
    begins,
    ends,
    offsets_from_json,
    offsets_to_json,
    plan,
    skip_lost,
)
from streaming.options import PAGE_BYTES, PAGE_RECORDS, Edge, SourceOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger(__name__)

# The same columns, types and nullability as `cloud_sdk.arrow.SCHEMA`: Spark takes Arrow batches as they are.
SCHEMA: Final = (
    StructType()
    .add("topic", StringType(), nullable=False)
    .add("levels", ArrayType(StringType(), containsNull=False), nullable=False)
    .add("payload", BinaryType(), nullable=False)
    .add("publisher", StringType(), nullable=False)
    .add("qos", ByteType(), nullable=False)
    .add("properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False)
    .add("content_type", StringType())
    .add("partition", IntegerType(), nullable=False)
    .add("offset", LongType(), nullable=False)
    .add("stored_at", TimestampType(), nullable=False)
    .add("position", LongType(), nullable=False)
)


class SluiceDataSource(DataSource):
    """`format("sluice")`. Options: see `docs/streaming.md`."""

    @classmethod
    def name(cls) -> str:
        return "sluice"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> "BatchReader":  # noqa: ARG002
        return BatchReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: ARG002, N802 - Spark's name
        return StreamReader(SourceOptions.parse(self.options))


class RangePartition(InputPartition):
    """One task's range, as Spark pickles it to the worker."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(offsets)


class BatchReader(DataSourceReader):
    """Reads what the partitions hold when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Client(options.endpoint) as client:
            bounds = client.partitions(options.parent)
        start = skip_lost(_starting(options, bounds), bounds, fail=options.fail_on_data_loss)
        end = ends(bounds) if isinstance(options.ending, Edge) else {**ends(bounds), **options.ending}
        return [RangePartition(part) for part in plan(start, end, options.records_per_task)]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return read_range(self._options, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Lives in one process on the driver; `read` runs in the workers' copies of it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Client | None = None  # opened by the first planning call
        self._until: Offsets | None = None  # AvailableNow: where this run of the query ends

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}  # a connection does not travel

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return offsets_to_json(_starting(self._options, self._bounds()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = ends(self._bounds())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        bounds = self._bounds()
        available = ends(bounds)
        if self._until is not None:
            available = {number: min(end, self._until.get(number, 0)) for number, end in available.items()}
        # Lost offsets do not use up the limit; `partitions` is where they are reported or skipped.
        first = skip_lost(offsets_from_json(start), bounds, fail=self._options.fail_on_data_loss)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_to_json(advance(first, available, rows))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return offsets_to_json(ends(self._bounds()))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first = skip_lost(offsets_from_json(start), self._bounds(), fail=self._options.fail_on_data_loss)
        ranges = plan(first, offsets_from_json(end), self._options.records_per_task)
        return [RangePartition(part) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return read_range(self._options, partition.value)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: the checkpoint is Spark's, and retention does not wait for readers."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _bounds(self) -> Sequence[PartitionBounds]:
        if self._client is None:
            self._client = Client(self._options.endpoint)
        return self._client.partitions(self._options.parent)


def read_range(options: SourceOptions, part: OffsetRange | None) -> Iterator["RecordBatch"]:
    """One task's work: the records of a range, a page at a time. None (Spark's "no partitions") is empty.

    Raises `DataLossError` when a part of the range is gone, or goes on behind it, as `failOnDataLoss` says.
    """
    if part is None or part.start >= part.end:
        return
    with Client(options.endpoint) as client:
        offset = part.start
        while offset < part.end:
            try:
                page = client.pull(
                    options.parent,
                    part.partition,
                    offset,
                    max_records=min(PAGE_RECORDS, part.end - offset),
                    max_bytes=PAGE_BYTES,
                )
            except OffsetOutOfRange as error:
                if error.begin <= offset:
                    raise DataLossError(f"partition {part.partition}: {error}") from error
                _tell_gone(options, part.partition, offset, min(error.begin, part.end))
                offset = error.begin
                continue
            if page.offset > offset:  # behind a gap, and perhaps beyond the range: what is left of that is asked for
                _tell_gone(options, part.partition, offset, min(page.offset, part.end))
                offset = page.offset
                continue
            if page.count == 0:
                raise DataLossError(f"partition {part.partition} ends at {page.end}, before {part.end}")
            yield record_batch(page.frames, part.partition, page.offset)
            offset = page.next_offset


def _tell_gone(options: SourceOptions, partition: int, begin: int, end: int) -> None:
    """Offsets [begin, end) are gone from the log: an error or a warning, as `failOnDataLoss` says."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"partition {partition}: offsets [{begin}, {end}) are gone from the log. Set failOnDataLoss to false to go "
            "on without them."
        )
    log.warning("partition %d: offsets [%d, %d) are gone", partition, begin, end)


def _starting(options: SourceOptions, bounds: Sequence[PartitionBounds]) -> Offsets:
    """Where a query begins; partitions that `startingOffsets` does not name begin at their first record."""
    if options.starting is Edge.LATEST:
        return ends(bounds)
    return begins(bounds) if isinstance(options.starting, Edge) else {**begins(bounds), **options.starting}
