"""Records that a task takes from a file of a history."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.history.folder import HistoryFolder
from streaming.source.planning import FileRange
from streaming.source.topics import pattern_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

_ROWS: Final = 8192  # of a batch


def file_batches(schema: "Schema", piece: FileRange) -> Iterator["RecordBatch"]:
    """The records of a piece, in the columns of `schema`. Raises `HistoryError` and `OSError`."""
    folder = HistoryFolder(piece.history)
    patterns = [piece.wanted.pattern] if piece.wanted.pattern else []
    if piece.wanted.filter:
        patterns.append(pattern_of([piece.wanted.filter]))
    columns = list(dict.fromkeys([*schema.names, "offset", *(["topic"] if patterns else [])]))
    with folder.files.open_input_file(folder.path(piece.path)) as source:
        file = pq.ParquetFile(source, pre_buffer=False)
        for batch in file.iter_batches(_ROWS, row_groups=_groups(file, piece), columns=columns):
            offsets = batch.column("offset")
            kept = pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.end))
            for pattern in patterns:
                kept = pc.and_(kept, pc.match_substring_regex(batch.column("topic"), pattern))
            found = batch.filter(kept)
            if found.num_rows:
                yield pa.RecordBatch.from_arrays([_cast(found, field) for field in schema], schema=schema)


def _groups(file: pq.ParquetFile, piece: FileRange) -> list[int]:
    """Row groups that may have offsets of the piece."""
    column = next(n for n in range(file.metadata.num_columns) if file.metadata.schema.column(n).path == "offset")
    found: list[int] = []
    for number in range(file.num_row_groups):
        bounds = file.metadata.row_group(number).column(column).statistics
        if bounds is None or (bounds.min < piece.end and bounds.max >= piece.start):
            found.append(number)
    return found


def _cast(batch: "RecordBatch", field: pa.Field) -> pa.Array:
    """As a schema that a user wrote has it: of list elements and map values it may say that they may be null."""
    column = batch.column(field.name)
    return column if column.type.equals(field.type) else column.cast(field.type)
