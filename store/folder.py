"""The data folder: who may use it, and what was fixed when it was made."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from store.config import StoreConfig
from store.disk import Disk
from store.errors import StoreError

FORMAT: Final = 1
_META: Final = "store.json"
_LOCK: Final = "lock"


@dataclass(slots=True, frozen=True)
class Meta:
    """What `store.json` holds."""

    format: int
    epoch: int  # counts openings: which writer sealed a frame
    partitions: int
    segment_size: int
    generation_segments: int


class Folder:
    """A locked data folder."""

    __slots__ = ("_disk", "_lock", "path")

    def __init__(self, path: Path, disk: Disk) -> None:
        """Make the folder if need be and lock it. Raises `StoreError` when another process has it."""
        if not (path / _META).exists():
            disk.make_folder(path)
        self.path = path
        self._disk = disk
        self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
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
        """Count this opening, durably. The folder's own values win over those of `config`."""
        path = self.path / _META
        if path.exists():
            known = read_meta(self.path)
            meta = Meta(FORMAT, known.epoch + 1, known.partitions, known.segment_size, known.generation_segments)
        elif self.log.exists() and any(self.log.glob("*.log")):
            raise StoreError(f"{path} is missing but there is a log: restore it from a backup")
        else:
            meta = Meta(FORMAT, 1, config.partitions, config.segment_size, config.generation_segments)
        self._replace(path, orjson.dumps(meta, option=orjson.OPT_INDENT_2))
        return meta

    def close(self) -> None:
        os.close(self._lock)

    def _replace(self, path: Path, data: bytes) -> None:
        unfinished = path.with_suffix(".new")
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            self._disk.write_durable(fd, data, 0)
        finally:
            os.close(fd)
        unfinished.rename(path)
        self._disk.sync_folder(self.path)


def read_meta(folder: Path) -> Meta:
    """What the meta file says. Raises `StoreError` when it is of another version (which may have other fields) or
    damaged."""
    path = folder / _META
    try:
        known = orjson.loads(path.read_bytes())
        if known["format"] != FORMAT:
            raise StoreError(f"{path} has format {known['format']}, this version reads {FORMAT}")
        return Meta(**known)
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({error}): restore it from a backup") from error
