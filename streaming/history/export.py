"""Exporting: what the log holds of a parent topic and its history does not have yet becomes Parquet files.

Files are written first and count when a manifest names them: an exporter that ends anywhere leaves the state before,
and files that no manifest names (`HistoryFolder.orphans`). What it had not committed is exported again, to files with
other names.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cloud_sdk.blocking import Client
from cloud_sdk.message import PartitionBounds
from streaming.history.commit import HistoryChanged
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest, Loss, Span
from streaming.history.partition_export import PartitionExport

_COMMIT_S: Final = 30.0  # so much of the work is done again at the most, beside the file that was being written

Report = Callable[[int, int], None]


@dataclass(slots=True, frozen=True)
class ExportOptions:
    """What one export does."""

    until_ms: int | None = None  # only what was stored before; None: all that there is when it begins
    file_bytes: int = 256 << 20  # a file is ended when it has so many
    bytes_per_second: int | None = None  # of the log, read from the node; None: as fast as it goes
    allow_losses: bool = False  # whether records that are gone from the log are noted, or an error


@dataclass(slots=True)
class Exported:
    """What an export did."""

    parent: str
    files: int = 0
    rows: int = 0
    size: int = 0  # bytes of Parquet
    lost: int = 0  # offsets that were gone from the log
    spans: dict[int, Span] = field(default_factory=dict)  # by partition, what the history covers now


class Exporter:
    """Brings the history of one parent topic up to date, once."""

    def __init__(
        self, client: Client, folder: HistoryFolder, parent: str, options: ExportOptions | None = None
    ) -> None:
        self._client = client
        self._folder = folder
        self._parent = parent
        self._options = options or ExportOptions()
        self._manifest = folder.manifest(parent)
        self._exported = Exported(parent)
        self._committed_at = time.monotonic()

    def run(self, stopping: threading.Event | None = None, report: Report = lambda _done, _of: None) -> Exported:
        """Export what the history does not have yet. `report` gets the number of offsets done and of offsets to do.

        Setting `stopping` ends the export after the current page; its results are kept. Raises `SluiceError`, `OSError`
        and `HistoryError`. An error of one partition is raised after the other partitions are done.
        """
        stopping = stopping or threading.Event()
        bounds = self._client.partitions(self._parent)
        self._check_log(bounds)
        work = self._work(bounds)
        done, total = 0, sum(each.end - each.offset for each in work)
        refusals: list[HistoryError] = []
        for each in work:
            try:
                while each.offset < each.end and not stopping.is_set():
                    before, began = each.offset, time.monotonic()
                    size = each.page()
                    done += each.offset - before
                    report(done, total)
                    self._commit_now_and_then(work)
                    if self._options.bytes_per_second is not None:
                        spent = time.monotonic() - began
                        stopping.wait(max(0.0, size / self._options.bytes_per_second - spent))
                each.end_file()
            except HistoryChanged:
                each.abandon()
                raise
            except HistoryError as refusal:  # what is wrong with one partition: the others do not wait for it
                each.end_file()
                refusals.append(refusal)
            except BaseException:
                each.abandon()
                raise
        self._commit_made(work)
        if refusals:
            raise refusals[0]
        self._exported.spans = self._manifest.spans()
        return self._exported

    def _work(self, bounds: Sequence[PartitionBounds]) -> list[PartitionExport]:
        """What is to be done, by partition."""
        options, known = self._options, self._manifest.spans()
        work: list[PartitionExport] = []
        for each in bounds:
            begin = known[each.partition].end if each.partition in known else each.begin
            end = each.end
            if options.until_ms is not None:
                end = min(end, self._client.offset_at(self._parent, each.partition, options.until_ms))
            if begin < end:
                work.append(
                    PartitionExport(
                        self._client,
                        self._folder,
                        self._parent,
                        each.partition,
                        begin,
                        end,
                        options.file_bytes,
                        options.allow_losses,
                    )
                )
        return work

    def _check_log(self, bounds: Sequence[PartitionBounds]) -> None:
        """That this log is the one the history is of: the last records of both are the same, where both are there."""
        held = {each.partition: each for each in bounds}
        for number, span in self._manifest.spans().items():
            now, last = held.get(number), self._manifest.last_file(number)
            if now is None or now.end < span.end:
                raise self._other_log(f"partition {number} ends at {now.end if now else 0} there", f"at {span.end}")
            if last is None or last.end - 1 < now.begin:
                continue
            page = self._client.pull(self._parent, number, last.end - 1, max_records=1)
            for message in page:
                if message.offset == last.end - 1 and message.position != last.last_position:
                    raise self._other_log(
                        f"offset {message.offset} of partition {number} is the position {message.position} there",
                        f"the position {last.last_position}",
                    )

    def _other_log(self, there: str, here: str) -> HistoryError:
        return HistoryError(f"the history of {self._parent!r} is of another log: {there}, and {here} in the history")

    def _commit_now_and_then(self, work: Sequence[PartitionExport]) -> None:
        """Files of partitions that are done do not wait for the others: who cleans up takes old ones for abandoned."""
        if time.monotonic() - self._committed_at > _COMMIT_S:
            self._commit_made(work)

    def _commit_made(self, work: Sequence[PartitionExport]) -> None:
        self._commit([made for each in work for made in each.files], [lost for each in work for lost in each.losses])
        for each in work:
            each.files, each.losses = [], []

    def _commit(self, files: Sequence[HistoryFile], losses: Sequence[Loss]) -> None:
        """These count from here on."""
        self._committed_at = time.monotonic()
        if not files and not losses:
            return
        self._manifest = self._folder.update(self._parent, partial(self._grown, files, losses))
        done = self._exported
        done.files += len(files)
        done.rows += sum(each.rows for each in files)
        done.size += sum(each.size for each in files)
        done.lost += sum(each.end - each.begin - each.rows for each in files)
        done.lost += sum(each.end - each.begin for each in losses)

    def _grown(self, files: Sequence[HistoryFile], losses: Sequence[Loss], now: HistoryManifest) -> HistoryManifest:
        """`now` may have been compacted since; that it goes further is another exporter's work. Raises
        `HistoryChanged`."""
        if now.spans() != self._manifest.spans():
            raise self._folder.changed(self._parent)
        return now.grown(files, losses)
