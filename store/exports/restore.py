"""Restores a backup, or a data folder that no process has open, into a new data folder: whole, or up to a moment.

The data is put together in `restore.unfinished/` of the new folder, checked, and then moved to its place.
`store.json` comes last. No store opens the folder before it is there.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from store.data_folder import LOCK, META, RESTORING, Folder, is_data_folder, kept_closed, read_meta
from store.errors import StoreError
from store.exports.base import Base
from store.exports.checking import check_log
from store.exports.copying import CopyOptions, Progress, require_room
from store.exports.until import Until, cut
from store.file_copy import Copier, sync_files
from store.log.disk import Disk, replace_file
from store.log.pinned_segments import pinned
from store.log.recovery import missing_at_begin
from store.log.segments import Segments, segment_name
from store.views.database.database import seen_checkpoint


@dataclass(slots=True, frozen=True)
class Restored:
    """The content of the new data folder."""

    begin: int  # of the log
    position: int  # end of the log
    time_ms: int  # store time of its newest record
    views: int  # position from which the next start folds the log
    dropped_bytes: int  # of the backup's log behind `position`


def restore(backup: Path, data: Path, until: Until, others: Sequence[Path], options: CopyOptions) -> Restored:
    """Restore `backup` up to `until` into `data`, which must be empty or not exist.

    `others` are older backups of the same log: folding may begin from their views. Raises `LogCorrupt`, `StoreError`
    and OSError, and leaves `data` as it was then.
    """
    if not is_data_folder(backup):
        raise StoreError(f"there is no backup at {backup}")
    with kept_closed(backup), _target(data, options.disk) as unfinished:
        return _Restore(backup, data, unfinished, options).run(until, others)


@contextmanager
def _target(data: Path, disk: Disk) -> Iterator[Path]:
    """Lock `data`, and create the folder for unfinished data in it. A failure leaves `data` as it was."""
    there = {path.name for path in data.iterdir()} if data.exists() else set()
    foreign = there - {LOCK, RESTORING, "lost+found"}
    if foreign:
        raise StoreError(f"{data} is not empty, it contains {min(foreign)}: a restore never overwrites")
    is_new = not data.exists()
    folder = Folder(data, disk)
    unfinished = data / RESTORING
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o750)
        yield unfinished
    except BaseException:
        for path in data.iterdir():
            if path.name not in there or path.name == RESTORING:
                path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        if is_new:
            data.rmdir()
        raise
    finally:
        folder.close()


class _Restore:
    """One restore in the making."""

    def __init__(self, backup: Path, data: Path, unfinished: Path, options: CopyOptions) -> None:
        self._backup = backup
        self._data = data
        self._unfinished = unfinished
        self._options = options
        self._disk = options.disk
        self._size = read_meta(backup).segment_size
        self._progress = Progress(options.on_progress)
        self._copier = Copier(self._disk, options.rest, self._progress.add)

    def run(self, until: Until, others: Sequence[Path]) -> Restored:
        with pinned(self._backup / "log", self._size, self._disk) as source:
            saved = seen_checkpoint(self._backup / "views")
            missing = None if saved is None else missing_at_begin(source, saved.log_begin)
            if missing is not None:
                raise missing
            whole = cut(source, Until())
            end = min(cut(source, until), whole)
            if end == source.begin < whole:
                raise StoreError(f"nothing of the log is as old as that: it begins at {end}")
            base = Base(self._unfinished / "views", self._copier, may_link=False)
            views = base.choose(source, end, base.copy_from(self._backup, base.into, end), others)
            self._copy_log(source, end)
        copy = Segments(self._unfinished / "log", self._size, self._disk)
        copy.find()
        self._progress.begin("checking", end - copy.begin)
        checked = check_log(copy, end, {}, self._progress.add)
        self._finish()
        return Restored(copy.begin, end, checked.time_ms, views, whole - end)

    def _copy_log(self, source: Segments, end: int) -> None:
        folder = self._unfinished / "log"
        folder.mkdir(mode=0o750)
        source.write_gone(folder, end)
        bases = [base for base in source.bases if base < end]
        size = self._size * len(bases)
        require_room(self._data, source.disk_bytes())
        self._progress.begin("copying", size)
        for base in bases:
            fd = source.open(base)
            try:
                is_last = base == bases[-1]  # the store will write to it, and expects that its disk space is allocated
                length = end - base if is_last else self._size
                self._copier.copy(fd, folder / segment_name(base), length, self._size, is_full=is_last)
            finally:
                os.close(fd)

    def _finish(self) -> None:
        data, disk = self._data, self._disk
        (self._unfinished / "views").mkdir(0o750, exist_ok=True)  # a copy of a log without it is unfinished
        for name in ("log", "views"):
            folder = self._unfinished / name
            sync_files(folder)
            folder.rename(data / name)
        disk.sync_folder(data)
        replace_file(data / META, (self._backup / META).read_bytes(), disk)
        self._unfinished.rmdir()
        disk.sync_folder(data)
