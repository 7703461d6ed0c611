"""The reader of `spark.readStream.format("sluice")`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cloud_sdk.blocking import Client
from streaming.history.index import HistoryIndex
from streaming.source.lag import lags, lags_to_json
from streaming.source.offsets import LAG, Holding, Offsets, StreamProgress, advance, ends, skip_lost
from streaming.source.options import SourceOptions
from streaming.source.planning import holdings_of, pieces, starts
from streaming.source.reading import read_piece
from streaming.source.sizing import within_bytes
from streaming.source.topics import unknown_parents

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver. Copies of it read in the tasks."""

    def __init__(self, options: SourceOptions, schema: "Schema") -> None:
        self._options = options
        self._schema = schema
        self._client: Client | None = None  # opened by the first planning call
        self._index: HistoryIndex | None = None  # likewise
        self._until: Offsets | None = None  # AvailableNow: the end of this run
        self._reached: Offsets | None = None  # the end of the newest micro-batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_index": None}  # connections cannot be pickled

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        client, holdings = self._opened(), self._holdings()
        if not any(each.end for each in holdings):
            for line in unknown_parents(client, self._options.topics):
                log.warning(line)
        return StreamProgress(starts(client, self._opened_index(), self._options.starting, holdings)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of records. Spark has no limit of bytes, so `latestOffset` applies that one."""
        limit = self._options.max_records_per_trigger
        if limit is None and self._options.max_bytes_per_trigger is not None:
            limit = self._options.max_bytes_per_trigger  # a record has at least one byte
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = ends(self._holdings())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
        holdings = self._holdings()
        available = ends(holdings)
        if self._until is not None:
            available = {each: min(end, self._until.get(each, 0)) for each, end in available.items()}
        # Lost offsets do not count towards the limit.
        progress = self._progress(start)
        first, skipped = skip_lost(progress.offsets, holdings, fail=self._options.fail_on_data_loss)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = advance(first, available, rows)
        if rows is not None and self._options.max_bytes_per_trigger is not None:
            reached = within_bytes(
                self._opened(), self._opened_index(), first, reached, self._options.max_bytes_per_trigger
            )
        self._reached = reached
        return StreamProgress(reached, progress.skipped + skipped).to_json()

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802
        """Return the ends of the log and the lag of each partition behind the newest micro-batch, for
        `streaming.progress`. Spark has no other place for metrics of a Python source."""
        available = ends(self._holdings())
        report = StreamProgress(available).to_json()
        behind = {} if self._reached is None else lags(self._opened(), self._reached, available)
        return {LAG: lags_to_json(behind), **report} if behind else report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options, first = self._options, self._progress(start).offsets
        holdings = self._holdings()
        if options.fail_on_data_loss:
            skip_lost(first, holdings, fail=True)
        # Otherwise the tasks report losses: a repeated batch must be cut as before, whatever is gone now.
        cut = pieces(first, self._progress(end).offsets, options.records_per_task, options.topics, self._opened_index())
        return [InputPartition(piece) for piece in cut]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return read_piece(self._options, self._schema, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark keeps the checkpoint, and retention does not wait for readers."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _progress(self, value: Mapping[str, object]) -> StreamProgress:
        return StreamProgress.from_json(value, self._options.topics.parents)

    def _opened(self) -> Client:
        if self._client is None:
            self._client = self._options.connection.client()
        return self._client

    def _opened_index(self) -> HistoryIndex:
        if self._index is None:
            self._index = HistoryIndex(self._options.history)
        return self._index

    def _holdings(self) -> list[Holding]:
        return holdings_of(self._opened(), self._opened_index(), self._options.topics)
