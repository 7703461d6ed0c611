"""Writing the Parquet files of a history."""

import os
import uuid
from dataclasses import dataclass
from datetime import date as Date  # noqa: N812 - `date` is a parameter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from streaming.history.table import SCHEMA, HistoryFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streaming.history.table import HistoryTable

_GROUP_BYTES: Final = 32 << 20  # of a row group before compression, which a writer keeps in memory
_GROUP_ROWS: Final = 1 << 17
# Other columns, such as payloads and offsets, rarely repeat, so a dictionary would be useless.
_DICTIONARIES: Final = ["topic", "levels.list.element", "client_id", "content_type", "qos", "partition"]
_DAY_US: Final = 86_400_000_000
_EPOCH_MS: Final = pa.timestamp("ms", tz="UTC")


@dataclass(slots=True)
class _Facts:
    """The facts about a file for the table."""

    rows: int = 0
    begin: int = 0
    end: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    first_position: int = 1 << 62
    last_position: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        stored = pc.min_max(batch.column("stored_at").cast(_EPOCH_MS).cast(pa.int64()))
        self.first_ms = min(self.first_ms, stored["min"].as_py())
        self.last_ms = max(self.last_ms, stored["max"].as_py())
        positions, offsets = pc.min_max(batch.column("position")), batch.column("offset")
        self.first_position = min(self.first_position, positions["min"].as_py())
        self.last_position = max(self.last_position, positions["max"].as_py())
        if not self.rows:
            self.begin = offsets[0].as_py()
        self.end = offsets[-1].as_py() + 1
        self.rows += batch.num_rows


class FileWriter:
    """Writes one file, which belongs to the history once a transaction adds it. Raises `OSError`."""

    def __init__(self, table: "HistoryTable", partition: int, begin: int, date: str) -> None:
        self.partition = partition
        self.date = date
        self._folder = folder = table.folder
        self._date = pa.scalar(Date.fromisoformat(date))
        # A unique name, so that no file is ever overwritten.
        name = f"{begin:020d}-{uuid.uuid4().hex[:12]}.parquet"
        self._name = f"{table.data}/date={date}/partition={partition}/{name}"
        path = folder.path(self._name)
        if isinstance(folder.files, fs.LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._out = folder.files.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._out,
            SCHEMA,
            compression="zstd",
            use_dictionary=_DICTIONARIES,
            write_page_checksum=True,
        )
        self._facts = _Facts()
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0

    @property
    def size(self) -> int:
        """The size in bytes, including records that are not compressed and written yet."""
        return int(self._out.tell()) + self._group_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records of the date of the file, in order."""
        self._facts.add(batch)
        self._group.append(
            pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(self._date, len(batch))], schema=SCHEMA)
        )
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_bytes >= _GROUP_BYTES or self._group_rows >= _GROUP_ROWS:
            self._write_group()

    def close(self) -> HistoryFile:
        """Finish the file, and flush it to the disk if it is local."""
        self._write_group()
        self._writer.close()
        size = int(self._out.tell())
        self._out.close()
        path = self._folder.path(self._name)
        if isinstance(self._folder.files, fs.LocalFileSystem):
            sync([Path(path)])
        facts = self._facts
        return HistoryFile(
            self._name,
            self.partition,
            facts.begin,
            facts.end,
            facts.rows,
            size,
            facts.first_ms,
            facts.last_ms,
            facts.first_position,
            facts.last_position,
        )

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._writer.close()
        self._out.close()
        self._folder.files.delete_file(self._folder.path(self._name))

    def _write_group(self) -> None:
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group), row_group_size=self._group_rows)
        self._group = []
        self._group_rows = self._group_bytes = 0


def by_date(batch: pa.RecordBatch, date: str | None) -> "Iterator[tuple[str, pa.RecordBatch]]":
    """Cut a batch where a new date (UTC) begins. Yield (date, batch) in order, with dates as 2026-01-31.

    `date` is that of the previous record. A message that was held (delayed or half) comes after younger ones and gets
    their date.
    """
    stored = batch.column("stored_at").cast(pa.int64()).to_numpy()
    days = np.maximum.accumulate(stored // _DAY_US)
    if date is not None:
        days = np.maximum(days, np.datetime64(date).astype(np.int64))
    begin = 0
    for row in [*(np.flatnonzero(days[1:] != days[:-1]) + 1).tolist(), batch.num_rows]:
        yield str(np.datetime64(int(days[begin]), "D")), batch.slice(begin, row - begin)
        begin = row


def sync(files: "Iterable[Path]") -> None:
    """Flush local files, and the folders that name them, to the disk."""
    for path in dict.fromkeys(path for file in files for path in (file, *file.parents[:4])):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
