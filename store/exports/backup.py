"""Backups: data folders that open by themselves, made from a store that goes on (`store.exports.stage`) or from a
folder that nobody has open.

A backup is made beside its name, checked, and renamed at the very end: what has the name is whole. Files that never
change again (segments that are full, RocksDB's tables) are linked where that is possible: from a backup beside this
one that has them from the same file already, else from the store. All others are copied.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

from store.data_folder import META, Folder, is_data_folder, read_meta
from store.errors import StoreError
from store.exports.checking import check_log
from store.exports.stage import Staged, lock_folder
from store.file_copy import Copier, sync_files, try_link
from store.log.damaged_ranges import write_damaged
from store.log.disk import Disk, replace_file
from store.log.pinned_segments import PinnedSegments
from store.log.recovery import find_end
from store.log.segments import Segments, segment_name
from store.log.writer import Clock, clock_ms
from store.views.database import Checkpoint, saved_checkpoint

FORMAT: Final = 1
FILE: Final = "backup.json"
UNFINISHED: Final = ".unfinished"
_TABLE: Final = ".sst"
_ROOM: Final = 1 << 20  # bytes that are to be left for names and small files

Tell = Callable[[str, int, int], None]  # what is done ("copying", "checking"), bytes of it done, bytes of it in all


@dataclass(slots=True, frozen=True)
class Origin:
    """What a file that does not change any more was taken from: the same inode, last written at the same time."""

    length: int  # bytes that count: of a segment, up to the end of its last record
    inode: int
    changed_ns: int
    kept_ns: int  # when the file in the backup was written; since then nobody, such as a repair, has made another of it

    def is_of(self, source: os.stat_result, kept: os.stat_result) -> bool:
        """Whether the backup's file `kept` still is what `source` is."""
        taken = (self.inode, self.changed_ns, self.kept_ns)
        return taken == (source.st_ino, source.st_mtime_ns, kept.st_mtime_ns) and source.st_size == kept.st_size


@dataclass(slots=True, frozen=True)
class BackupManifest:
    """What `backup.json` holds."""

    format: int
    begin: int  # of the log
    position: int  # its end
    time_ms: int  # store time of its newest record; 0: there is none
    views: int | None  # position up to which the views are folded; None: there are none
    made_ms: int
    files: dict[str, Origin]  # by path in the folder


@dataclass(slots=True)
class Made:
    """A backup that is whole, and what it took."""

    manifest: BackupManifest
    copied_bytes: int = 0
    linked_bytes: int = 0  # of the store's own files
    reused_bytes: int = 0  # of files of earlier backups


@dataclass(slots=True)
class CopyOptions:
    """How a backup is made."""

    may_link: bool = True  # else everything is copied: it shares no file with anything
    rest: float = 0.0  # see `Copier`
    tell: Tell = lambda _what, _done, _all: None
    clock: Clock = clock_ms
    disk: Disk = field(default_factory=Disk)


@dataclass(slots=True)
class _File:
    name: str  # in the folder
    source: Path
    length: int  # bytes to copy
    size: int  # of the copy
    is_sealed: bool  # it does not change any more


def back_up_staged(data: Path, stage: Path, staged: Staged, target: Path, options: CopyOptions) -> Made:
    """Back up what a running store put into `stage`. Raises `StoreError` and OSError; there is no `target` then."""
    return _Backup(data, stage, staged.position, target, options).make()


def back_up_stopped(data: Path, target: Path, options: CopyOptions) -> Made:
    """Back up a data folder that no process has, which is locked meanwhile. Raises as above."""
    if not is_data_folder(data):
        raise StoreError(f"there is no data folder at {data}")
    folder = Folder(data, options.disk)
    try:
        return _Backup(data, data, None, target, options).make()
    finally:
        folder.close()


def read_manifest(folder: Path) -> BackupManifest:
    """What the backup's manifest says. Raises `StoreError` when it is of another version or damaged, OSError."""
    path = folder / FILE
    text = path.read_bytes()
    try:
        known = orjson.loads(text)
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, this version reads {FORMAT}")
        known["files"] = {name: Origin(**origin) for name, origin in known["files"].items()}
        return BackupManifest(**known)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error


class _Backup:
    """One backup on its way."""

    def __init__(self, data: Path, source: Path, position: int | None, target: Path, options: CopyOptions) -> None:
        self._data = data
        self._source = source
        self._position = position
        self._target = target
        self._options = options
        self._disk = options.disk
        self._unfinished = target.with_name(target.name + UNFINISHED)
        self._size = read_meta(data).segment_size
        self._earlier: dict[str, tuple[Path, Origin]] = {}
        self._files: dict[str, Origin] = {}
        self._reused: dict[int, int] = {}  # base of a segment that an earlier backup has → its records' end
        self._made = Made(BackupManifest(FORMAT, 0, 0, 0, None, 0, {}))
        self._done = 0
        self._all = 0
        self._copier = Copier(self._disk, options.rest, self._on_copied)

    def make(self) -> Made:
        self._check_target()
        with self._working():
            if self._options.may_link:
                self._earlier = _earlier(self._target)
            for name in ("log", "views"):
                (self._unfinished / name).mkdir(mode=0o750)
            saved = self._copy_views()
            begin, position = self._copy_log(saved)
            time_ms = self._check_log(position)
            views = self._checked_views(saved, begin, position)
            now = self._options.clock()
            manifest = BackupManifest(FORMAT, begin, position, time_ms, views, now, self._files)
            self._finish(manifest)
            self._made.manifest = manifest
        return self._made

    def _check_target(self) -> None:
        target = self._target
        if target.exists() or target.is_symlink():
            raise StoreError(f"{target} exists already: a backup never overwrites")
        if not target.parent.is_dir():
            raise StoreError(f"the folder {target.parent} does not exist")
        if target.resolve().is_relative_to(self._data.resolve()):
            raise StoreError(f"{target} is inside the data folder: choose a place outside")

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The unfinished folder, ours alone; gone when the backup fails."""
        unfinished = self._unfinished
        if unfinished.exists():  # what a killed process left, unless it lives
            lock = lock_folder(unfinished)
            if lock is None:
                raise StoreError(f"another process is making {self._target}")
            shutil.rmtree(unfinished)
            os.close(lock)
        unfinished.mkdir(mode=0o750)
        lock = lock_folder(unfinished)
        if lock is None:
            raise StoreError(f"another process is making {self._target}")
        try:
            yield
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        finally:
            os.close(lock)

    def _copy_views(self) -> Checkpoint | None:
        folder = self._source / "views"
        files = []
        for path in sorted(folder.glob("*")):
            if path.name != "LOCK" and not path.name.startswith("LOG"):
                size = path.stat().st_size
                files.append(_File(f"views/{path.name}", path, size, size, path.suffix == _TABLE))
        self._place(files)
        return saved_checkpoint(self._unfinished / "views")

    def _copy_log(self, saved: Checkpoint | None) -> tuple[int, int]:
        """Returns where the log begins and ends."""
        segments = PinnedSegments(self._source / "log", self._size, self._disk)
        try:
            segments.find()
            position = self._position
            if position is None:
                position = find_end(segments, saved.position if saved else 0, saved.durable if saved else 0)[1]
            bases = [base for base in segments.bases if base < position]
            write_damaged(self._unfinished / "log", segments.damaged.up_to(position), self._disk)
        finally:
            segments.close()
        files = []
        for base in bases:
            name = segment_name(base)
            is_sealed = base != bases[-1]
            length = self._size if is_sealed else position - base
            files.append(_File(f"log/{name}", segments.folder / name, length, self._size, is_sealed))
        self._place(files)
        return bases[0] if bases else position, position

    def _place(self, files: list[_File]) -> None:
        """Link what can be linked, then copy the rest if there is room for it."""
        to_copy = [file for file in files if not (file.is_sealed and self._options.may_link and self._link(file))]
        self._done, self._all = 0, sum(file.length for file in to_copy)
        room = os.statvfs(self._unfinished)
        free = room.f_bavail * room.f_frsize
        if self._all + _ROOM > free:
            raise StoreError(f"{self._all} bytes are to be copied to {self._target.parent}, which has room for {free}")
        for file in to_copy:
            self._copy(file)
            if file.is_sealed:
                self._remember(file)
            self._made.copied_bytes += file.length

    def _copy(self, file: _File) -> None:
        target = self._unfinished / file.name
        if file.name.startswith("views/"):  # the log is checked as a log
            self._copier.copy_file(file.source, target)
            return
        fd = os.open(file.source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._copier.copy(fd, target, file.length, file.size)
        finally:
            os.close(fd)

    def _link(self, file: _File) -> bool:
        if self._link_earlier(file):
            self._made.reused_bytes += file.size
            return True
        if not try_link(file.source, self._unfinished / file.name):
            return False
        self._made.linked_bytes += file.size
        self._remember(file)
        return True

    def _link_earlier(self, file: _File) -> bool:
        if file.name not in self._earlier:
            return False
        path, origin = self._earlier[file.name]
        try:
            is_same = origin.is_of(file.source.stat(), path.stat())
        except FileNotFoundError:  # retention, or a compaction, in a backup that was opened
            return False
        if not is_same or not try_link(path, self._unfinished / file.name):
            return False
        self._files[file.name] = origin
        if file.name.startswith("log/"):
            base = int(path.stem)
            self._reused[base] = base + origin.length
        return True

    def _remember(self, file: _File) -> None:
        """What the file was taken from, which is there by now."""
        about, kept = file.source.stat(), (self._unfinished / file.name).stat()
        self._files[file.name] = Origin(file.length, about.st_ino, about.st_mtime_ns, kept.st_mtime_ns)

    def _check_log(self, position: int) -> int:
        """Read the log as it is in the backup, but for what earlier backups have checked. Returns the store time of
        its newest record. Raises `LogCorrupt`."""
        segments = Segments(self._unfinished / "log", self._size, self._disk)
        segments.find()
        self._done, self._all = 0, sum(self._size for base in segments.bases if base not in self._reused)
        checked = check_log(segments, position, self._reused, self._on_checked)
        for base, end in checked.ends.items():
            name = f"log/{segment_name(base)}"
            if name in self._files:
                self._files[name] = replace(self._files[name], length=end - base)
        return checked.time_ms

    def _checked_views(self, saved: Checkpoint | None, begin: int, position: int) -> int | None:
        """Up to where the views are folded. Views that the log does not go with are left out."""
        if saved is not None and begin <= saved.position <= position:
            return saved.position
        if begin:
            state = "there are no views" if saved is None else f"the views are at {saved.position}"
            raise StoreError(f"the log has [{begin}, {position}) and {state}: it cannot be used without")
        shutil.rmtree(self._unfinished / "views")
        return None

    def _finish(self, manifest: BackupManifest) -> None:
        unfinished, disk = self._unfinished, self._disk
        for folder in (unfinished / "log", unfinished / "views"):
            if folder.exists():
                sync_files(folder)
        replace_file(unfinished / META, (self._data / META).read_bytes(), disk)
        replace_file(unfinished / FILE, orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2), disk)
        unfinished.rename(self._target)
        disk.sync_folder(self._target.parent)

    def _on_copied(self, count: int) -> None:
        self._tell("copying", count)

    def _on_checked(self, count: int) -> None:
        self._tell("checking", count)

    def _tell(self, what: str, count: int) -> None:
        self._done += count
        self._options.tell(what, self._done, self._all)


def _earlier(target: Path) -> dict[str, tuple[Path, Origin]]:
    """Files of the backups beside `target` that do not change, the newest backup's where several have one."""
    found: list[tuple[int, Path, BackupManifest]] = []
    for path in target.parent.glob(f"*/{FILE}"):
        try:
            manifest = read_manifest(path.parent)
        except (StoreError, OSError):
            continue  # of no use here, and not ours to judge
        if path.parent.suffix != UNFINISHED:
            found.append((manifest.made_ms, path.parent, manifest))
    files: dict[str, tuple[Path, Origin]] = {}
    for _, folder, manifest in sorted(found, key=lambda each: each[0]):
        files |= {name: (folder / name, origin) for name, origin in manifest.files.items()}
    return files
