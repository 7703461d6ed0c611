"""The data folder: its lock, and the settings that were fixed when it was created."""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Annotated, Final

import msgspec

from store.config import StoreConfig
from store.errors import StoreError
from store.log.disk import Disk, replace_file

FORMAT: Final = 1
META: Final = "store.json"
LOCK: Final = "lock"
SOCKET: Final = "admin.sock"  # commands reach the process that has the folder open through it
DRAINED: Final = "drained"  # a file that exists while the clients of a clustered node are to use other nodes
RESTORING: Final = "restore.unfinished"  # a folder that exists while a backup is being restored
_MAX_OPENINGS: Final = 1024  # the newest are kept

_Count = Annotated[int, msgspec.Meta(ge=1)]


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """One time that the log was opened. It wrote the log from `begin` to the begin of a later opening."""

    name: str  # random, in hexadecimal
    begin: Annotated[int, msgspec.Meta(ge=0)]  # log position


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of `store.json`."""

    format: int = FORMAT
    log_id: str  # random, in hexadecimal; copies and restored backups of the log have the same
    epoch: Annotated[int, msgspec.Meta(ge=0)]  # counts openings; frames have it, so it tells which writer sealed them
    partitions: _Count
    segment_size: _Count
    generation_segments: _Count
    openings: list[Opening]  # oldest first
    shared: bool = False  # the log is a copy of a shared log, whose slots have the rest: `store.cluster` opens it

    def opened(self, name: str, position: int, epoch: int) -> "Meta":
        """The content with one more opening, which writes the log from `position` on in this epoch."""
        openings = [*self.openings, Opening(name, position)][-_MAX_OPENINGS:]
        return msgspec.structs.replace(self, epoch=epoch, openings=openings)

    def has_log_up_to(self, opening: str, position: int) -> bool:
        """Whether the log still is what a reader knows who read it up to `position` during `opening`.

        It is not if a copy from an earlier time has taken its place: the copy does not know the opening, or a later
        opening wrote before `position`. Followers of Kafka find where logs differ in this way (KIP-101).
        """
        names = [each.name for each in self.openings]
        if opening not in names:
            return False
        return all(each.begin >= position for each in self.openings[names.index(opening) + 1 :])


class _Version(msgspec.Struct):
    format: int


_decode_version: Final = msgspec.json.Decoder(_Version).decode
_decode_meta: Final = msgspec.json.Decoder(Meta).decode


class Folder:
    """A locked data folder."""

    __slots__ = ("_disk", "_existed", "_lock", "path")

    def __init__(self, path: Path, disk: Disk) -> None:
        """Lock the folder. Create it if it does not exist. Raises `StoreError` when another process has it open."""
        if path.exists() and not path.is_dir():
            raise StoreError(f"{path} is not a folder")
        self._existed = path.exists()
        if not (path / META).exists():
            disk.make_folder(path)
        self.path = path
        self._disk = disk
        self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreError(f"{path} is in use by another process") from None

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def views(self) -> Path:
        return self.path / "views"

    def read_or_create_meta(self, config: StoreConfig) -> Meta:
        """Return the folder's settings, which win over those of `config`. Create them durably in a new folder.

        Raises `StoreError` when the file is missing or damaged, or an unfinished restore left the folder."""
        path = self.path / META
        if path.exists():
            return read_meta(self.path)
        if self.log.exists() and any(self.log.glob("*.log")):
            raise StoreError(f"{path} is missing but there is a log: restore it from a backup")
        if (self.path / RESTORING).exists():
            raise StoreError(f"restoring a backup into {self.path} did not finish: repeat it, or remove the folder")
        meta = Meta(
            log_id=uuid.uuid4().hex,
            epoch=0,
            partitions=config.partitions,
            segment_size=config.segment_size,
            generation_segments=config.generation_segments,
            openings=[],
        )
        self.write_meta(meta)
        return meta

    def begin_epoch(self, meta: Meta, position: int) -> Meta:
        """Record durably that the log is opened and will be written from `position` on. Returns the new content."""
        meta = meta.opened(uuid.uuid4().hex, position, meta.epoch + 1)
        self.write_meta(meta)
        return meta

    def write_meta(self, meta: Meta) -> None:
        """Replace `store.json` durably. Raises OSError."""
        replace_file(self.path / META, msgspec.json.format(msgspec.json.encode(meta)), self._disk)

    def again(self) -> "Folder":
        """The same folder for somebody else to close. It stays locked until all are closed."""
        other = copy(self)
        other._lock = os.dup(self._lock)
        return other

    def close(self) -> None:
        os.close(self._lock)

    def clear(self) -> None:
        """Remove the store's files. `store.json` goes last: without it nobody knows what they are. Raises OSError."""
        shutil.rmtree(self.views, ignore_errors=True)
        if self.log.exists():
            for path in self.log.iterdir():
                self._disk.remove(path)
            self._disk.sync_folder(self.log)
            self.log.rmdir()
        self._disk.remove(self.path / META)
        self._disk.sync_folder(self.path)

    def discard(self) -> None:
        """Remove the store's files, and the folder unless it existed before or has other files. Then close it."""
        self.clear()
        (self.path / LOCK).unlink(missing_ok=True)
        if not self._existed:
            with suppress(OSError):  # another process has put a file there
                self.path.rmdir()
        self.close()


@contextmanager
def kept_closed(folder: Path) -> Iterator[None]:
    """Keep other processes from opening the data folder or backup, which may be read-only, inside the context.

    Raises `StoreError` when a process has it open."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a backup that was never opened
        yield
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StoreError(f"{folder} is in use by another process") from None
    try:
        yield
    finally:
        os.close(fd)


def is_data_folder(folder: Path) -> bool:
    """Whether the folder has a store or a backup of one."""
    return (folder / META).exists()


def read_meta(folder: Path) -> Meta:
    """Read `store.json`. Raises `StoreError` when it is damaged or of another version, which may have other fields."""
    path = folder / META
    try:
        content = path.read_bytes()
        version = _decode_version(content).format
        if version != FORMAT:
            raise StoreError(f"{path} has format {version}, but this version reads only {FORMAT}")
        meta = _decode_meta(content)
        StoreConfig(meta.partitions, meta.segment_size, generation_segments=meta.generation_segments)  # checks them
        return meta
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
