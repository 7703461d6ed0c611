"""Compacting: consecutive small files of one partition and date become one file.

The new file is written first. It replaces the old ones when a manifest names it. The old files stay, so that a query
planned with an older manifest can continue. `clean_up` removes them later.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from streaming.history.file_writer import FileWriter
from streaming.history.folder import HistoryFolder
from streaming.history.manifest import HistoryError, HistoryFile, HistoryManifest
from streaming.history.verify import DamagedFile, checked_batches, orphans

_COMMIT_S: Final = 30.0  # a killed compaction repeats at most this much work and the file being written

Run = tuple[HistoryFile, ...]  # files that are merged


@dataclass(slots=True)
class Compacted:
    """The result of a compaction."""

    parent: str
    old_files: int = 0
    new_files: int = 0
    rows: int = 0
    old_size: int = 0  # bytes of Parquet
    new_size: int = 0


@dataclass(slots=True)
class _Work:
    """Merged files that are not committed yet."""

    old: list[HistoryFile] = field(default_factory=list)
    new: list[HistoryFile] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


def runs(manifest: HistoryManifest, file_bytes: int, before: str | None = None) -> Iterator[Run]:
    """Yield runs of two or more consecutive files without a gap, of at most `file_bytes` in total. With `before`
    (2026-01-31), only files of earlier dates are included."""
    run: list[HistoryFile] = []
    size = 0
    for each in sorted(manifest.files, key=lambda file: (file.partition, file.begin)):
        if run and (not _is_next(run[-1], each) or size + each.size > file_bytes):
            if len(run) > 1:
                yield tuple(run)
            run, size = [], 0
        if before is None or each.date < before:
            run.append(each)
            size += each.size
    if len(run) > 1:
        yield tuple(run)


def _is_next(file: HistoryFile, other: HistoryFile) -> bool:
    """Return whether `other` continues `file`, in the same partition and date."""
    return (file.partition, file.date, file.end) == (other.partition, other.date, other.begin)


class Compactor:
    """One compaction of the history of a parent topic."""

    def __init__(self, folder: HistoryFolder, parent: str, file_bytes: int, before: str | None = None) -> None:
        self._folder = folder
        self._parent = parent
        self._file_bytes = file_bytes
        self._before = before
        self._compacted = Compacted(parent)

    def run(self, stopping: threading.Event | None = None) -> Compacted:
        """Merge the files and commit. Setting `stopping` ends it after the current file; finished files are kept.
        Raises `HistoryError` for a damaged file, which is not replaced, and `OSError`."""
        work = _Work()
        for run in runs(self._folder.manifest(self._parent), self._file_bytes, self._before):
            if stopping is not None and stopping.is_set():
                break
            try:
                work.new.append(self._merged(run))
            except (HistoryError, OSError):
                self._commit(work)
                raise
            work.old += run
            if time.monotonic() - work.began > _COMMIT_S:
                self._commit(work)
                work = _Work()
        self._commit(work)
        return self._compacted

    def _merged(self, run: Run) -> HistoryFile:
        """Write one file with all records of a run."""
        first, last = run[0], run[-1]
        writer = FileWriter(self._folder, self._parent, first.partition, first.begin, first.date)
        try:
            for each in run:
                self._copy(each, writer)
        except BaseException:
            writer.abandon()
            raise
        return writer.close(last.end)

    def _copy(self, each: HistoryFile, writer: FileWriter) -> None:
        try:
            for batch in checked_batches(self._folder, each):
                writer.write(batch)
        except (DamagedFile, OSError) as error:
            raise HistoryError(f"{each.path}: {error}: it is not replaced") from error

    def _commit(self, work: _Work) -> None:
        if not work.new:
            return
        self._folder.update(self._parent, partial(_compacted, work.old, work.new))
        done = self._compacted
        done.old_files += len(work.old)
        done.new_files += len(work.new)
        done.rows += sum(each.rows for each in work.new)
        done.old_size += sum(each.size for each in work.old)
        done.new_size += sum(each.size for each in work.new)


def clean_up(folder: HistoryFolder, parent: str, older_than_s: float) -> list[str]:
    """Remove unused files older than `older_than_s`: replaced ones, and those of exporters that died before committing.
    Return their names. Raises `HistoryError` and `OSError`."""
    manifest = folder.manifest(parent)
    before_ms = (time.time() - older_than_s) * 1000
    replaced = [each.path for each in manifest.replaced if each.at_ms <= before_ms]
    removed = [*replaced, *orphans(folder, manifest, older_than_s)]
    for name in removed:
        folder.remove(name)
    folder.update(parent, partial(_cleaned, frozenset(replaced)))
    return removed


def _compacted(old: Sequence[HistoryFile], new: Sequence[HistoryFile], now: HistoryManifest) -> HistoryManifest:
    return now.compacted(old, new, time.time_ns() // 1_000_000)


def _cleaned(paths: frozenset[str], now: HistoryManifest) -> HistoryManifest:
    return now.cleaned(paths)
