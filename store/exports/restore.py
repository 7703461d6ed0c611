"""Restoring: a backup, or a data folder that nobody has open, into a new data folder, whole or up to a moment.

What is restored is put together in `restore.unfinished/` of the new folder, and gets its names when it is checked;
`store.json` comes last. Until then no store opens there.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from store.data_folder import LOCK, META, RESTORING, Folder, is_data_folder, kept_closed, read_meta
from store.errors import StoreError
from store.exports.backup import CopyOptions
from store.exports.base import Base
from store.exports.checking import check_log
from store.exports.until import Until, cut
from store.file_copy import Copier, sync_files
from store.log.damaged_ranges import write_damaged
from store.log.disk import Disk, replace_file
from store.log.pinned_segments import PinnedSegments
from store.log.segments import Segments, segment_name


@dataclass(slots=True, frozen=True)
class Restored:
    """What is in the new data folder."""

    begin: int  # of the log
    position: int  # its end
    time_ms: int  # store time of its newest record
    views: int  # position from which the next start folds on; 0: it folds the whole log
    dropped_bytes: int  # of the backup's log, behind `position`


def restore(backup: Path, data: Path, until: Until, others: Sequence[Path], options: CopyOptions) -> Restored:
    """Restore `backup` into `data`, which must not exist or be empty, up to `until`. Views to fold on from may be those
    of older backups of the same log, `others`.

    Raises `LogCorrupt`, `StoreError` and OSError; `data` is as it was then.
    """
    if not is_data_folder(backup):
        raise StoreError(f"there is no backup at {backup}")
    with kept_closed(backup), _target(data, options.disk) as unfinished:
        return _Restore(backup, data, unfinished, options).run(until, others)


@contextmanager
def _target(data: Path, disk: Disk) -> Iterator[Path]:
    """Where the restored is put together: in `data`, which is locked and as it was when this fails."""
    there = {path.name for path in data.iterdir()} if data.exists() else set()
    foreign = there - {LOCK, RESTORING, "lost+found"}
    if foreign:
        raise StoreError(f"{data} is not empty, it has {min(foreign)}: a restore never overwrites")
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
    """One restore on its way."""

    def __init__(self, backup: Path, data: Path, unfinished: Path, options: CopyOptions) -> None:
        self._backup = backup
        self._data = data
        self._unfinished = unfinished
        self._options = options
        self._disk = options.disk
        self._size = read_meta(backup).segment_size
        self._done = 0
        self._all = 0
        self._copier = Copier(self._disk, options.rest, self._on_copied)

    def run(self, until: Until, others: Sequence[Path]) -> Restored:
        source = PinnedSegments(self._backup / "log", self._size, self._disk)
        try:
            source.find()
            whole = cut(source, Until())
            end = min(cut(source, until), whole)
            if end == (source.bases[0] if source.bases else 0) < whole:
                raise StoreError(f"nothing of the log is as old as that: it begins at {end}")
            views = self._choose_views(source, end, others)
            self._copy_log(source, end)
        finally:
            source.close()
        copy = Segments(self._unfinished / "log", self._size, self._disk)
        copy.find()
        self._done, self._all = 0, end - (copy.bases[0] if copy.bases else 0)
        checked = check_log(copy, end, {}, self._on_checked)
        self._finish()
        return Restored(copy.bases[0] if copy.bases else 0, end, checked.time_ms, views, whole - end)

    def _choose_views(self, source: Segments, end: int, others: Sequence[Path]) -> int:
        base = Base(self._unfinished / "views", self._copier, may_link=False)
        own = base.copy_from(self._backup, base.into, end)
        return base.choose(source, end, own, others)

    def _copy_log(self, source: Segments, end: int) -> None:
        folder = self._unfinished / "log"
        folder.mkdir(mode=0o750)
        write_damaged(folder, source.damaged.up_to(end), self._disk)
        bases = [base for base in source.bases if base < end]
        self._done, self._all = 0, self._size * len(bases)
        room = os.statvfs(folder)
        if self._all > room.f_bavail * room.f_frsize:
            free = room.f_bavail * room.f_frsize
            raise StoreError(f"{self._all} bytes of log are to be copied to {self._data}, which has room for {free}")
        for base in bases:
            fd = source.open(base)
            try:
                # The last one is written to: it has its room on the disk beforehand, as every segment.
                is_last = base == bases[-1]
                length = end - base if is_last else self._size
                self._copier.copy(fd, folder / segment_name(base), length, self._size, is_full=is_last)
            finally:
                os.close(fd)

    def _finish(self) -> None:
        data, disk = self._data, self._disk
        for name in ("log", "views"):
            folder = self._unfinished / name
            if folder.exists():
                sync_files(folder)
                folder.rename(data / name)
        disk.sync_folder(data)
        replace_file(data / META, (self._backup / META).read_bytes(), disk)
        self._unfinished.rmdir()
        disk.sync_folder(data)

    def _on_copied(self, count: int) -> None:
        self._done += count
        self._options.tell("copying", self._done, self._all)

    def _on_checked(self, count: int) -> None:
        self._done += count
        self._options.tell("checking", self._done, self._all)
