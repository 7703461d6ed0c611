"""The export of one partition: pull records page by page and write them to one file after the other."""

from dataclasses import dataclass, field

from cloud_sdk.arrow import record_batch
from cloud_sdk.blocking import Client
from cloud_sdk.errors import OffsetOutOfRange
from cloud_sdk.message import Batch
from streaming.history.errors import HistoryError
from streaming.history.file_writer import FileWriter, by_date
from streaming.history.table import HistoryFile, HistoryTable, Progress

_PAGE_BYTES = 4 << 20


@dataclass(slots=True)
class PartitionExport:
    """The state of an export. Every offset before `offset` is in `files`, in the open file, or lost."""

    client: Client
    table: HistoryTable
    partition: int
    offset: int
    end: int  # the offset to stop before
    file_bytes: int  # start a new file at this size
    allow_losses: bool
    progress: Progress | None = None  # with the complete files; None: not further than before
    files: list[HistoryFile] = field(default_factory=list)  # complete
    lost: int = 0  # offsets that were gone from the log
    _writer: FileWriter | None = None
    last: tuple[int, int] = (-1, -1)  # offset and position of the last exported record
    _date: str | None = None  # of the last record

    def page(self) -> int:
        """Export the next page. Return the number of bytes of the log that were read. Raises `HistoryError`,
        `SluiceError` and `OSError`."""
        try:
            page = self.client.pull(
                self.table.parent, self.partition, self.offset, max_bytes=_PAGE_BYTES, until=self.end
            )
        except OffsetOutOfRange as error:
            if error.begin <= self.offset:
                raise HistoryError(f"{self._where()}: {error}") from error
            begin = min(error.begin, self.end)
            self._count_losses(self.offset, begin, begin - self.offset)
            self._skip(begin)
            return 0
        if page.next_offset <= self.offset:
            raise HistoryError(f"{self._where()} ends at {page.end}, before {self.end}")
        self._write(page)
        return len(page.frames)

    def end_file(self) -> None:
        """Close the open file, if there is one."""
        if self._writer is not None:
            self.files.append(self._writer.close())
            self._writer = None
            self.progress = Progress(self.offset, *self.last)

    def abandon(self) -> None:
        """Remove the open file, if there is one."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _write(self, page: Batch) -> None:
        if page.gone:
            self._count_losses(self.offset, page.next_offset, page.gone)
        if page.count:
            batch = record_batch(page.frames, self.partition, page.offset, offsets=page.offsets)
            offsets = batch.column("offset")
            row = 0
            for date, part in by_date(batch, self._date):
                self._date = date
                writer = self._writer_of(date)
                writer.write(part)
                row += part.num_rows
                self.last = offsets[row - 1].as_py(), batch.column("position")[row - 1].as_py()
                self.offset = self.last[0] + 1
                if writer.size >= self.file_bytes:
                    self.end_file()
        if self._writer is not None:
            self.offset = page.next_offset  # the file also covers offsets that are gone after its last record
        elif self.offset < page.next_offset:
            self._skip(page.next_offset)

    def _writer_of(self, date: str) -> FileWriter:
        if self._writer is not None and self._writer.date != date:
            self.end_file()
        if self._writer is None:
            self._writer = FileWriter(self.table, self.partition, self.offset, date)
        return self._writer

    def _skip(self, end: int) -> None:
        """Continue at `end`: the offsets before it are gone from the log."""
        self.end_file()
        self.offset = end
        self.progress = Progress(end, *self.last)

    def _count_losses(self, begin: int, end: int, count: int) -> None:
        """Count records that are gone. Raises `HistoryError` if there must be none."""
        if not self.allow_losses:
            raise HistoryError(
                f"{self._where()}: of the offsets [{begin}, {end}) {count} are gone from the log, and in no history. "
                "Export with --allow-losses to count them and continue."
            )
        self.lost += count

    def _where(self) -> str:
        return f"partition {self.partition} of {self.table.parent!r}"
