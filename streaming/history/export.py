"""Exporting the records of a parent topic that its history does not have yet to Parquet files.

Files are written first and belong to the history when a manifest names them. An exporter that is killed leaves the
previous state and files that no manifest names (`verify.orphans`). The next export writes the same records to files
with other names.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cloud_sdk.blocking import Client
from cloud_sdk.message import PartitionBounds
from streaming.history.commit import HistoryChanged
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest, Loss, Span
from streaming.history.partition_export import PartitionExport

_COMMIT_S: Final = 30.0  # a killed export repeats at most this much work and the files being written


@dataclass(slots=True, frozen=True)
class ExportOptions:
    """The options of one export."""

    until_ms: int | None = None  # export records stored before; None: all that exist at the start
    file_bytes: int = 256 << 20  # start a new file at this size
    bytes_per_second: int | None = None  # of the log, read from the node; None: no limit
    allow_losses: bool = False  # whether records gone from the log are noted instead of an error


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    parent: str
    files: int = 0
    rows: int = 0
    size: int = 0  # bytes of Parquet
    lost: int = 0  # offsets that were gone from the log
    spans: dict[int, Span] = field(default_factory=dict)  # the offsets that the history covers now, by partition


class Exporter:
    """One export of a parent topic."""

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
        self._exported.spans = self._manifest.spans()
        return self._exported

    def _work(self, bounds: Sequence[PartitionBounds]) -> list[PartitionExport]:
        """Return the offsets to export, as one export per partition."""
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
        """Raise `HistoryError` if the history belongs to another log: the last exported record must be in this log at
        the same position, unless it was removed."""
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
        """Commit finished files regularly. `clean_up` takes old files that no manifest names for abandoned ones."""
        if time.monotonic() - self._committed_at > _COMMIT_S:
            self._commit_made(work)

    def _commit_made(self, work: Sequence[PartitionExport]) -> None:
        self._commit([made for each in work for made in each.files], [lost for each in work for lost in each.losses])
        for each in work:
            each.files, each.losses = [], []

    def _commit(self, files: Sequence[HistoryFile], losses: Sequence[Loss]) -> None:
        """Add files and losses to the manifest."""
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
        """Return the next manifest. `now` may have been compacted meanwhile. Raises `HistoryChanged` if another
        exporter has added records."""
        if now.spans() != self._manifest.spans():
            raise self._folder.changed(self._parent)
        return now.grown(files, losses)
