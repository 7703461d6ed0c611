"""Writing the Parquet files of a history."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from cloud_sdk.arrow import SCHEMA
from streaming.history.commit import sync
from streaming.history.folder import HistoryFolder, folder_of
from streaming.history.manifest import HistoryFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUP_BYTES: Final = 32 << 20  # of a row group before compression, which a writer keeps in memory
_GROUP_ROWS: Final = 1 << 17
# Other columns, such as payloads and offsets, rarely repeat, so a dictionary would be useless.
_DICTIONARIES: Final = ["topic", "levels.list.element", "client_id", "content_type", "qos", "partition"]
_DAY_US: Final = 86_400_000_000
_EPOCH_MS: Final = pa.timestamp("ms", tz="UTC")


@dataclass(slots=True)
class _Facts:
    """The facts about a file for the manifest."""

    rows: int = 0
    uncompressed: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    first_position: int = 0
    last_position: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        stored = pc.min_max(batch.column("stored_at").cast(_EPOCH_MS).cast(pa.int64()))
        self.first_ms = min(self.first_ms, stored["min"].as_py())
        self.last_ms = max(self.last_ms, stored["max"].as_py())
        positions = batch.column("position")
        if not self.rows:
            self.first_position = positions[0].as_py()
        self.last_position = positions[-1].as_py()
        self.rows += batch.num_rows
        self.uncompressed += batch.nbytes


class FileWriter:
    """Writes one file, which belongs to the history once a manifest names it. Raises `OSError`."""

    def __init__(self, folder: HistoryFolder, parent: str, partition: int, begin: int, date: str) -> None:
        self.partition = partition
        self.begin = begin
        self.date = date
        self._folder = folder
        # A unique name, so that no file is ever overwritten.
        self._name = f"{folder_of(parent)}/date={date}/{partition}-{begin:020d}-{uuid.uuid4().hex[:12]}.parquet"
        path = folder.path(self._name)
        if isinstance(folder.files, fs.LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._out = folder.files.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._out,
            SCHEMA.with_metadata({"sluice.parent": parent, "sluice.partition": str(partition)}),
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
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_bytes >= _GROUP_BYTES or self._group_rows >= _GROUP_ROWS:
            self._write_group()

    def close(self, end: int) -> HistoryFile:
        """Finish the file, which covers [begin, end), and flush it to the disk if it is local."""
        self._write_group()
        self._writer.close()
        size = int(self._out.tell())
        self._out.close()
        path = self._folder.path(self._name)
        if isinstance(self._folder.files, fs.LocalFileSystem):
            _sync(Path(path))
        facts = self._facts
        return HistoryFile(
            self._name,
            self.partition,
            self.begin,
            end,
            facts.rows,
            size,
            facts.uncompressed,
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


def _sync(path: Path) -> None:
    for each in (path, *path.parents[:3]):
        sync(each)
