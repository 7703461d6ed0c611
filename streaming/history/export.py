"""Exporting the records of a parent topic that its history does not have yet to Parquet files.

Files are written first and belong to the history when a transaction adds them to the table. An exporter that is killed
leaves the previous version of the table, and files that the table does not have. The next export writes the same
records to files with other names, and `vacuum` removes the others.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cloud_sdk.blocking import Client
from cloud_sdk.message import PartitionBounds
from streaming.history.errors import HistoryChanged, HistoryError
from streaming.history.partition_export import PartitionExport
from streaming.history.table import HistoryTable, Progress

_COMMIT_S: Final = 30.0  # a killed export repeats at most this much work and the files being written


@dataclass(slots=True, frozen=True)
class ExportOptions:
    """The options of one export."""

    until_ms: int | None = None  # export records stored before; None: all that exist at the start
    file_bytes: int = 256 << 20  # start a new file at this size
    bytes_per_second: int | None = None  # of the log, read from the node; None: no limit
    allow_losses: bool = False  # whether records gone from the log are counted instead of an error


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    parent: str
    files: int = 0
    rows: int = 0
    size: int = 0  # bytes of Parquet
    lost: int = 0  # offsets that were gone from the log
    ends: dict[int, int] = field(default_factory=dict)  # the offsets that the history reaches to now, by partition


class Exporter:
    """One export of a parent topic."""

    def __init__(self, client: Client, table: HistoryTable, options: ExportOptions | None = None) -> None:
        self._client = client
        self._table = table
        self._parent = table.parent
        self._options = options or ExportOptions()
        self._progress = table.progress()
        self._exported = Exported(table.parent)
        self._committed_at = time.monotonic()

    def run(self, stopping: threading.Event | None = None) -> Exported:
        """Export what the history does not have yet.

        Setting `stopping` ends the export after the current page; its results are kept. Raises `SluiceError`, `OSError`
        and `HistoryError`. An error of one partition is raised after the other partitions are done.
        """
        stopping = stopping or threading.Event()
        bounds = self._client.partitions(self._parent)
        self._check_log(bounds)
        work = self._work(bounds)
        refusals: list[HistoryError] = []
        for each in work:
            try:
                while each.offset < each.end and not stopping.is_set():
                    began = time.monotonic()
                    size = each.page()
                    self._commit_now_and_then(work)
                    if self._options.bytes_per_second is not None:
                        spent = time.monotonic() - began
                        stopping.wait(max(0.0, size / self._options.bytes_per_second - spent))
                each.end_file()
            except HistoryChanged:
                each.abandon()
                raise
            except HistoryError as refusal:  # an error of one partition does not stop the others
                each.end_file()
                refusals.append(refusal)
            except BaseException:
                each.abandon()
                raise
        self._commit_made(work)
        if refusals:
            raise refusals[0]
        self._exported.ends = {number: each.end for number, each in sorted(self._progress.items())}
        return self._exported

    def _work(self, bounds: Sequence[PartitionBounds]) -> list[PartitionExport]:
        """Return the offsets to export, as one export per partition."""
        options = self._options
        work: list[PartitionExport] = []
        for each in bounds:
            known = self._progress.get(each.partition, Progress(each.begin))
            end = each.end
            if options.until_ms is not None:
                end = min(end, self._client.offset_at(self._parent, each.partition, options.until_ms))
            if known.end < end:
                work.append(
                    PartitionExport(
                        self._client,
                        self._table,
                        each.partition,
                        known.end,
                        end,
                        options.file_bytes,
                        options.allow_losses,
                        last=(known.last_offset, known.last_position),
                    )
                )
        return work

    def _check_log(self, bounds: Sequence[PartitionBounds]) -> None:
        """Raise `HistoryError` if the history belongs to another log: the last exported record must be in this log at
        the same position, unless it was removed."""
        held = {each.partition: each for each in bounds}
        for number, known in self._progress.items():
            now = held.get(number)
            if now is None or now.end < known.end:
                raise self._other_log(f"partition {number} ends at {now.end if now else 0} there", f"at {known.end}")
            if known.last_offset < now.begin:
                continue
            page = self._client.pull(self._parent, number, known.last_offset, max_records=1)
            for message in page:
                if message.offset == known.last_offset and message.position != known.last_position:
                    raise self._other_log(
                        f"offset {message.offset} of partition {number} is the position {message.position} there",
                        f"the position {known.last_position}",
                    )

    def _other_log(self, there: str, here: str) -> HistoryError:
        return HistoryError(f"the history of {self._parent!r} is of another log: {there}, and {here} in the history")

    def _commit_now_and_then(self, work: Sequence[PartitionExport]) -> None:
        """Commit finished files regularly. `vacuum` takes old files that the table does not have for abandoned ones."""
        if time.monotonic() - self._committed_at > _COMMIT_S:
            self._commit_made(work)

    def _commit_made(self, work: Sequence[PartitionExport]) -> None:
        """Add the finished files to the table, with the progress."""
        self._committed_at = time.monotonic()
        after = self._progress | {each.partition: each.progress for each in work if each.progress is not None}
        if after == self._progress:
            return
        made = [file for each in work for file in each.files]
        self._table.append(made, self._progress, after)
        self._progress = after
        done = self._exported
        done.files += len(made)
        done.rows += sum(each.rows for each in made)
        done.size += sum(each.size for each in made)
        for part in work:
            done.lost += part.lost
            part.files, part.lost = [], 0
