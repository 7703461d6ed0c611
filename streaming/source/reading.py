"""The work of a task: read the records of a piece page by page, as Arrow batches."""

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from cloud_sdk.arrow import PAYLOAD, parts_without, record_batch, schema_of
from cloud_sdk.blocking import Client
from cloud_sdk.errors import OffsetOutOfRange
from cloud_sdk.message import Batch
from streaming.source.body import BODY, BodyParser
from streaming.source.files import file_batches
from streaming.source.offsets import DataLossError
from streaming.source.options import SourceOptions
from streaming.source.planning import FileRange, JoinedRanges, LogRange, Piece
from streaming.source.topics import TopicSelection, pattern_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyarrow import RecordBatch, Schema

# Bytes of the log in one pull. Without payloads, little of them is sent, so a page is as large as a node allows.
# Replies with payloads are kept small enough for the heap to reuse; larger ones cost both sides twice as much, in page
# faults.
_PAGE_OF_HEADERS: Final = 4 << 20
_PAGE: Final = 768 << 10
_MOST_NAMES: Final = 8  # topics that are read one after the other

log = logging.getLogger(__name__)


def read_piece(options: SourceOptions, schema: "Schema", piece: Piece | None) -> Iterator["RecordBatch"]:
    """Yield the records of one task with the columns of `schema`. None (Spark's "no partitions") is empty.

    When records are gone, it raises `DataLossError` or skips them, as `failOnDataLoss` says.
    """
    if TaskContext.get() is not None:
        _spare_imports()
    if BODY in schema.names:
        yield from _with_bodies(options, schema, piece)
    elif piece is not None:
        with options.connection.client() as client:
            for part in piece.parts if isinstance(piece, JoinedRanges) else (piece,):
                if isinstance(part, FileRange):
                    yield from file_batches(schema, part)
                elif part.start < part.end:
                    for each in _by_topic(part):
                        yield from _Range(client, options, schema, each).batches()


@cache
def _spare_imports() -> None:
    """Leave all that is there now, nearly all of it imported modules, out of garbage collections. Spark runs one in the
    worker behind each task, and looking through the modules would take it 30 ms."""
    gc.freeze()


def _with_bodies(options: SourceOptions, schema: "Schema", piece: Piece | None) -> Iterator["RecordBatch"]:
    """Yield the records with the column `body`, which is parsed from their payloads."""
    parser = BodyParser(schema.field(BODY).type)
    stored = schema.remove(schema.get_field_index(BODY))
    if "payload" not in stored.names:
        stored = stored.append(schema_of(["payload"]).field(0))
    for batch in read_piece(options, stored, piece):
        columns = (parser.parsed(batch.column("payload")) if n == BODY else batch.column(n) for n in schema.names)
        yield pa.RecordBatch.from_arrays(list(columns), schema=schema)


def _by_topic(piece: LogRange) -> list[LogRange]:
    """Return a range for each of a few topics, which the node then finds by its index, or the range as it is."""
    selection = piece.selection
    if not 0 < len(selection.names) <= _MOST_NAMES:
        return [piece]
    pattern = selection.pattern or (pattern_of([selection.filter]) if selection.filter else "")
    return [replace(piece, selection=TopicSelection(name, pattern, selection.keys)) for name in selection.names]


class _Range:
    """Pulls a range of the log. The next page is requested while a page is converted to columns."""

    def __init__(self, client: Client, options: SourceOptions, schema: "Schema", piece: LogRange) -> None:
        self._client = client
        self._options = options
        self._schema = schema
        self._piece = piece
        self._gone = 0  # records of the range that were removed
        # A pattern needs the topics, even if the column is not selected.
        self._names = schema.names
        if piece.selection.pattern and "topic" not in self._names:
            self._names = [*self._names, "topic"]
        self._without = parts_without(self._names)
        self._page_bytes = options.page_bytes or (_PAGE_OF_HEADERS if self._without & PAYLOAD else _PAGE)

    def batches(self) -> Iterator["RecordBatch"]:
        offset, end = self._piece.start, self._piece.end
        coming: Future[Batch] | None = self._pull(offset)
        while coming is not None:
            page = self._page(coming, offset)
            if page is None:
                offset = self._resume_at
                coming = self._pull(offset) if offset < end else None
                continue
            if page.next_offset <= offset:
                raise DataLossError(f"{self._where()} ends at {page.end}, before {end}")
            offset = page.next_offset
            coming = self._pull(offset) if offset < end else None
            if page.count:
                yield self._columns(page)
        if self._gone:
            log.warning("%s: %d records were gone from the log and are skipped", self._where(), self._gone)

    def _pull(self, offset: int) -> "Future[Batch]":
        piece = self._piece
        return self._client.pull_ahead(
            piece.parent,
            piece.partition,
            offset,
            max_bytes=self._page_bytes,
            until=piece.end,
            without=self._without,
            topic_filter=piece.selection.filter,
            keys=piece.selection.keys,
        )

    def _page(self, coming: "Future[Batch]", offset: int) -> Batch | None:
        """Return the page, or None if the partition now begins after `offset`, at `_resume_at`."""
        try:
            page = coming.result()
        except OffsetOutOfRange as error:
            if error.begin <= offset:
                raise DataLossError(f"{self._where()}: {error}") from error
            self._resume_at = min(error.begin, self._piece.end)
            self._missed(offset, self._resume_at, self._resume_at - offset)
            return None
        if page.gone:
            self._missed(offset, page.next_offset, page.gone)
        return page

    def _columns(self, page: Batch) -> "RecordBatch":
        schema, pattern = self._schema, self._piece.selection.pattern
        if pattern and len(self._names) > len(schema.names):
            schema = schema.append(schema_of(["topic"]).field(0))
        batch = record_batch(page.frames, self._piece.partition, page.offset, schema=schema, offsets=page.offsets)
        if pattern:
            batch = batch.filter(pc.match_substring_regex(batch.column("topic"), pattern))
        return batch if schema is self._schema else batch.select(self._schema.names)

    def _missed(self, begin: int, end: int, count: int) -> None:
        """Raise `DataLossError` for records of [begin, end) that are gone, or count them, as `failOnDataLoss` says."""
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{self._where()}: of the offsets [{begin}, {end}) {count} are gone from the log. Set failOnDataLoss "
                "to false to continue without them."
            )
        self._gone += count

    def _where(self) -> str:
        return f"partition {self._piece.partition} of {self._piece.parent!r}"
