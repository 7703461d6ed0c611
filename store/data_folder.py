"""The data folder: its lock, and the settings that were fixed when it was created."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from store.config import StoreConfig
from store.errors import StoreError
from store.log.disk import Disk, replace_file

FORMAT: Final = 1
META: Final = "store.json"
LOCK: Final = "lock"
SOCKET: Final = "admin.sock"  # commands reach the process that has the folder open through it
RESTORING: Final = "restore.unfinished"  # a folder that exists while a backup is being restored


@dataclass(slots=True, frozen=True)
class Meta:
    """The content of `store.json`."""

    format: int
    epoch: int  # counts how often the folder was opened; frames have it, so it tells which writer sealed them
    partitions: int
    segment_size: int
    generation_segments: int


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

    def begin_epoch(self, config: StoreConfig) -> Meta:
        """Count this opening durably and return the folder's settings, which win over those of `config`.

        Raises `StoreError` when the file is missing or damaged, or an unfinished restore left the folder."""
        path = self.path / META
        if path.exists():
            known = read_meta(self.path)
            meta = Meta(FORMAT, known.epoch + 1, known.partitions, known.segment_size, known.generation_segments)
        elif self.log.exists() and any(self.log.glob("*.log")):
            raise StoreError(f"{path} is missing but there is a log: restore it from a backup")
        elif (self.path / RESTORING).exists():
            raise StoreError(f"restoring a backup into {self.path} did not finish: repeat it, or remove the folder")
        else:
            meta = Meta(FORMAT, 1, config.partitions, config.segment_size, config.generation_segments)
        replace_file(path, orjson.dumps(meta, option=orjson.OPT_INDENT_2), self._disk)
        return meta

    def close(self) -> None:
        os.close(self._lock)

    def discard(self) -> None:
        """Remove the store's files, and the folder unless it existed before or has other files. Then close it."""
        for folder in (self.log, self.views):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (META, LOCK):
            (self.path / name).unlink(missing_ok=True)
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
        known = orjson.loads(path.read_bytes())
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, but this version reads only {FORMAT}")
        meta = Meta(**known)
        if any(type(value) is not int or value < 1 for value in known.values()):
            raise ValueError("its numbers must be integers from 1 on")
        StoreConfig(meta.partitions, meta.segment_size, generation_segments=meta.generation_segments)  # checks them
        return meta
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
