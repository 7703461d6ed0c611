"""Reading records from a file of a history, in a task."""

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.history.errors import HistoryError
from streaming.history.folder import HistoryFolder
from streaming.source.planning import FileRange
from streaming.source.topics import pattern_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

_ROWS: Final = 8192  # of a batch


def file_batches(schema: "Schema", piece: FileRange) -> Iterator["RecordBatch"]:
    """Yield the records of a piece with the columns of `schema`. Raises `HistoryError` for a missing or damaged file,
    and `OSError`."""
    folder = HistoryFolder(piece.history)
    try:
        with folder.files.open_input_file(folder.path(piece.path)) as source:
            yield from _batches(
                pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True), schema, piece
            )
    except FileNotFoundError as error:
        raise HistoryError(
            f"{piece.path} is not in {piece.history}: it was compacted and removed since this query was planned (start "
            "the query again), or it is lost (see `sluice history verify`)"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{piece.path} in {piece.history}: {error} (see `sluice history verify`)") from error


def _batches(file: pq.ParquetFile, schema: "Schema", piece: FileRange) -> Iterator["RecordBatch"]:
    patterns = [piece.selection.pattern] if piece.selection.pattern else []
    if piece.selection.filter:
        patterns.append(pattern_of([piece.selection.filter]))
    for group, is_whole in _groups(file, piece):
        names = [name for name in schema.names if name != "partition"] or ["offset"]
        needed = [*names, *([] if is_whole else ["offset"]), *(["topic"] if patterns else [])]
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=list(dict.fromkeys(needed))):
            kept = [] if is_whole else [_within(batch.column("offset"), piece)]
            kept += (pc.match_substring_regex(batch.column("topic"), pattern) for pattern in patterns)
            found = batch.filter(reduce(pc.and_, kept)) if kept else batch
            if found.num_rows:
                yield pa.RecordBatch.from_arrays([_column(found, field, piece) for field in schema], schema=schema)


def _within(offsets: pa.Array, piece: FileRange) -> pa.Array:
    return pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.end))


def _groups(file: pq.ParquetFile, piece: FileRange) -> Iterator[tuple[int, bool]]:
    """Yield the row groups that may have offsets of the piece, and whether they have only such offsets."""
    column = next(n for n in range(file.metadata.num_columns) if file.metadata.schema.column(n).path == "offset")
    for number in range(file.num_row_groups):
        bounds = file.metadata.row_group(number).column(column).statistics
        if bounds is None or (bounds.min < piece.end and bounds.max >= piece.start):
            yield number, bounds is not None and piece.start <= bounds.min and bounds.max < piece.end


def _column(batch: "RecordBatch", field: pa.Field, piece: FileRange) -> pa.Array:
    """Return a column with the type in a user's schema, whose list elements and map values may be nullable."""
    if field.name == "partition":  # missing in compacted files: a table format has it in the path
        return pa.repeat(pa.scalar(piece.partition, field.type), len(batch))
    column = batch.column(field.name)
    return column if column.type.equals(field.type) else column.cast(field.type)
