"""Verifying a history: every file of the table is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.history.folder import HistoryFolder
from streaming.history.table import HistoryFile

_ROWS: Final = 1 << 16  # read at a time


@dataclass(slots=True, frozen=True)
class FileFault:
    """A file and the problem with it."""

    path: str
    problem: str


def faults(folder: HistoryFolder, files: Sequence[HistoryFile]) -> Iterator[FileFault]:
    """Yield each file that is missing, cannot be read or has another number of records than the table says."""
    for each in files:
        try:
            with folder.files.open_input_file(folder.path(each.path)) as source:
                size = source.size()
                if size != each.size:
                    yield FileFault(each.path, f"{size} bytes, not {each.size}")
                    continue
                file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
                rows = sum(batch.num_rows for batch in file.iter_batches(_ROWS))
                if rows != each.rows:
                    yield FileFault(each.path, f"{rows} records, not {each.rows}")
        except (pa.ArrowException, OSError) as error:
            yield FileFault(each.path, str(error))
