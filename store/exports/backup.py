"""Backups: data folders that can be opened as they are, made from a running store or from a stopped one.

A running store is backed up from a stage (`store.exports.stage`). A backup is made under another name beside its
target, checked, and renamed in the end. So a folder with the target's name is complete.

Full segments and RocksDB's tables never change again. They are hard links where possible: to the same file in an
earlier backup beside the target, or else to the store's. All other files are copied.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from store.data_folder import META, Folder, is_data_folder, read_meta
from store.errors import StoreError
from store.exports.checking import check_log
from store.exports.copying import CopyOptions, Progress, require_room
from store.exports.stage import Staged, lock_folder
from store.file_copy import Copier, sync_files, try_link
from store.log.disk import replace_file
from store.log.pinned_segments import pinned
from store.log.recovery import find_end, missing_at_begin
from store.log.segments import Segments, segment_name
from store.views.database.database import Checkpoint, saved_checkpoint

FORMAT: Final = 1
FILE: Final = "backup.json"
UNFINISHED: Final = ".unfinished"
_TABLE: Final = ".sst"
_SPARE: Final = 1 << 20  # bytes for names and small files


@dataclass(slots=True, frozen=True)
class Origin:
    """Identifies the file of the store that an unchanging file of a backup is a link to or a copy of."""

    length: int  # bytes that count: of a segment, up to the end of its last record
    inode: int
    changed_ns: int
    kept_ns: int  # when the backup's file was last written; a repair of the backup replaces the file

    def is_of(self, source: os.stat_result, kept: os.stat_result) -> bool:
        """Whether the backup's file `kept` still has the content of `source`."""
        identity = (self.inode, self.changed_ns, self.kept_ns)
        return identity == (source.st_ino, source.st_mtime_ns, kept.st_mtime_ns) and source.st_size == kept.st_size


@dataclass(slots=True, frozen=True)
class BackupManifest:
    """The content of `backup.json`."""

    format: int
    begin: int  # of the log
    position: int  # end of the log
    time_ms: int  # store time of its newest record; 0: it has none
    views: int | None  # position up to which the views are folded; None: there are no views
    made_ms: int
    files: dict[str, Origin]  # of unchanging files, by path in the backup


@dataclass(slots=True)
class Made:
    """A complete backup, and how its files were made."""

    manifest: BackupManifest
    copied_bytes: int = 0
    linked_bytes: int = 0  # shared with the store
    reused_bytes: int = 0  # shared with earlier backups


@dataclass(slots=True)
class _File:
    name: str  # path in the backup
    source: Path
    length: int  # bytes to copy
    size: int  # of the copy
    is_sealed: bool  # it never changes again


def back_up_staged(data: Path, stage: Path, staged: Staged, target: Path, options: CopyOptions) -> Made:
    """Back up a running store from its stage. Raises `StoreError` and OSError; `target` does not exist then."""
    return _Backup(data, stage, staged.position, target, options).make()


def back_up_stopped(data: Path, target: Path, options: CopyOptions) -> Made:
    """Back up a data folder that no process has open. It is locked meanwhile.

    Raises `StoreError` and OSError; `target` does not exist then.
    """
    if not is_data_folder(data):
        raise StoreError(f"there is no data folder at {data}")
    folder = Folder(data, options.disk)
    try:
        return _Backup(data, data, None, target, options).make()
    finally:
        folder.close()


def read_manifest(folder: Path) -> BackupManifest:
    """Read a backup's manifest. Raises `StoreError` when it is damaged or of another version, and OSError."""
    path = folder / FILE
    text = path.read_bytes()
    try:
        known = orjson.loads(text)
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, but this version reads only {FORMAT}")
        known["files"] = {name: Origin(**origin) for name, origin in known["files"].items()}
        return BackupManifest(**known)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error


class _Backup:
    """One backup in the making."""

    def __init__(self, data: Path, source: Path, position: int | None, target: Path, options: CopyOptions) -> None:
        self._data = data
        self._source = source
        self._position = position  # where to end the log; None: at its last record
        self._target = target
        self._options = options
        self._disk = options.disk
        self._unfinished = target.with_name(target.name + UNFINISHED)
        self._size = read_meta(data).segment_size
        self._earlier: dict[str, tuple[Path, Origin]] = {}
        self._files: dict[str, Origin] = {}
        self._reused: dict[int, int] = {}  # segments of earlier backups: base → end of the last record
        self._whole_from = 0  # the log has every record from here on
        self._made = Made(BackupManifest(FORMAT, 0, 0, 0, None, 0, {}))
        self._progress = Progress(options.on_progress)
        self._copier = Copier(self._disk, options.rest, self._progress.add)

    def make(self) -> Made:
        self._check_target()
        with self._working():
            if self._options.may_link:
                self._earlier = _earlier_files(self._target)
            for name in ("log", "views"):
                (self._unfinished / name).mkdir(mode=0o750)
            saved = self._copy_views()
            begin, position = self._copy_log(saved)
            time_ms = self._check_log(position)
            views = self._check_views(saved, begin, position)
            now = self._options.clock()
            self._made.manifest = BackupManifest(FORMAT, begin, position, time_ms, views, now, self._files)
            self._finish()
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
        """Create and lock the unfinished folder. Remove it if the backup fails."""
        unfinished = self._unfinished
        if unfinished.exists():  # a killed process left it, or a running one is using it
            lock = self._lock()
            shutil.rmtree(unfinished)
            os.close(lock)
        unfinished.mkdir(mode=0o750)
        lock = self._lock()
        try:
            yield
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        finally:
            os.close(lock)

    def _lock(self) -> int:
        lock = lock_folder(self._unfinished)
        if lock is None:
            raise StoreError(f"another process is making {self._target}")
        return lock

    def _copy_views(self) -> Checkpoint | None:
        files = []
        for path in sorted((self._source / "views").glob("*")):
            if path.name != "LOCK" and not path.name.startswith("LOG"):
                size = path.stat().st_size
                files.append(_File(f"views/{path.name}", path, size, size, path.suffix == _TABLE))
        self._place(files)
        return saved_checkpoint(self._unfinished / "views")

    def _copy_log(self, saved: Checkpoint | None) -> tuple[int, int]:
        """Returns where the log begins and ends."""
        with pinned(self._source / "log", self._size, self._disk) as segments:
            missing = None if saved is None else missing_at_begin(segments, saved.log_begin)
            if missing is not None:
                raise missing
            position = self._position
            if position is None:
                position = find_end(segments, saved.position if saved else 0, saved.durable if saved else 0)[1]
            bases = [base for base in segments.bases if base < position]
            self._whole_from = segments.whole_from
            segments.write_gone(self._unfinished / "log", position)
        files = []
        for base in bases:
            name = segment_name(base)
            is_sealed = base != bases[-1]
            length = self._size if is_sealed else position - base
            files.append(_File(f"log/{name}", segments.folder / name, length, self._size, is_sealed))
        self._place(files)
        return bases[0] if bases else position, position

    def _place(self, files: list[_File]) -> None:
        """Link the files that can be linked, and copy the others if there is room for them."""
        to_copy = [file for file in files if not (file.is_sealed and self._options.may_link and self._link(file))]
        size = sum(file.length for file in to_copy)
        holes = sum(self._disk.holes(file.source) for file in to_copy if file.is_sealed)
        require_room(self._target.parent, size - holes + _SPARE)
        self._progress.begin("copying", size)
        for file in to_copy:
            self._copy(file)
            if file.is_sealed:
                self._remember(file)
        self._made.copied_bytes += size

    def _copy(self, file: _File) -> None:
        target = self._unfinished / file.name
        if file.name.startswith("views/"):
            self._copier.copy_file(file.source, target)
            return
        fd = os.open(file.source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._copier.copy(fd, target, file.length, file.size)  # `_check_log` verifies the copy
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
        """Link the file of an earlier backup, if one has it."""
        if file.name not in self._earlier:
            return False
        path, origin = self._earlier[file.name]
        try:
            is_same = origin.is_of(file.source.stat(), path.stat())
        except FileNotFoundError:  # the backup was opened, and retention or a compaction removed the file
            return False
        if not is_same or not try_link(path, self._unfinished / file.name):
            return False
        self._files[file.name] = origin
        if file.name.startswith("log/"):
            base = int(path.stem)
            self._reused[base] = base + origin.length
        return True

    def _remember(self, file: _File) -> None:
        """Note the origin of an unchanging file that is in place."""
        source, kept = file.source.stat(), (self._unfinished / file.name).stat()
        self._files[file.name] = Origin(file.length, source.st_ino, source.st_mtime_ns, kept.st_mtime_ns)

    def _check_log(self, position: int) -> int:
        """Read the backup's log, except segments that earlier backups have checked.

        Returns the store time of its newest record. Raises `LogCorrupt`.
        """
        segments = Segments(self._unfinished / "log", self._size, self._disk)
        segments.find()
        self._progress.begin("checking", sum(self._size for base in segments.bases if base not in self._reused))
        checked = check_log(segments, position, self._reused, self._progress.add)
        for base, end in checked.ends.items():
            name = f"log/{segment_name(base)}"
            if name in self._files:
                self._files[name] = replace(self._files[name], length=end - base)
        return checked.time_ms

    def _check_views(self, saved: Checkpoint | None, begin: int, position: int) -> int | None:
        """Returns the position of the views. Views outside of the log are removed if it can be folded without them."""
        begin = max(begin, self._whole_from)
        if saved is not None and begin <= saved.position <= position:
            return saved.position
        if begin:
            state = "there are no views" if saved is None else f"the views are at {saved.position}"
            raise StoreError(f"the log is [{begin}, {position}), and {state}: it cannot be used without views")
        shutil.rmtree(self._unfinished / "views")
        return None

    def _finish(self) -> None:
        unfinished, disk = self._unfinished, self._disk
        for folder in (unfinished / "log", unfinished / "views"):
            if folder.exists():
                sync_files(folder)
        replace_file(unfinished / META, (self._data / META).read_bytes(), disk)
        replace_file(unfinished / FILE, orjson.dumps(asdict(self._made.manifest), option=orjson.OPT_INDENT_2), disk)
        unfinished.rename(self._target)
        disk.sync_folder(self._target.parent)


def _earlier_files(target: Path) -> dict[str, tuple[Path, Origin]]:
    """The unchanging files of the backups beside `target`. If several have a file, that of the newest backup."""
    found: list[tuple[int, Path, BackupManifest]] = []
    for path in target.parent.glob(f"*/{FILE}"):
        try:
            manifest = read_manifest(path.parent)
        except (StoreError, OSError):
            continue  # this backup cannot be shared with
        if path.parent.suffix != UNFINISHED:
            found.append((manifest.made_ms, path.parent, manifest))
    files: dict[str, tuple[Path, Origin]] = {}
    for _, folder, manifest in sorted(found, key=lambda each: each[0]):
        files |= {name: (folder / name, origin) for name, origin in manifest.files.items()}
    return files
