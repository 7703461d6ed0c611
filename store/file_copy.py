"""Copies files in pieces, so that whoever else uses the disk hardly notices: synced as they go, with rests between
them, and without pushing other files out of memory."""

import errno
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from store.errors import StoreError
from store.log.disk import Disk

_PIECE: Final = 1 << 20
_ZEROS: Final = bytes(_PIECE)
_SYNC_EVERY: Final = 8  # pieces
# Other file system; not ours, or no links there; too many; no such thing there; not ours; gone meanwhile.
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOENT)


class Copier:
    """Copies and counts. `rest` is how long it rests after each piece, as a multiple of the time that the piece took;
    `tell` hears of bytes as they are done."""

    __slots__ = ("_disk", "_rest", "_tell")

    def __init__(self, disk: Disk, rest: float = 0.0, tell: Callable[[int], None] = lambda _: None) -> None:
        self._disk = disk
        self._rest = rest
        self._tell = tell

    def copy(self, source: int, target: Path, length: int, size: int | None = None, is_full: bool = False) -> None:
        """Copy the first `length` bytes of a descriptor into a new file of `size` bytes, zeros behind them, durably.

        Zeros become holes, unless `is_full`. Raises `StoreError` when there are not as many, OSError.
        """
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            self._fill(fd, source, target, length, length if size is None else size, is_full)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from None
        finally:
            os.close(fd)

    def _fill(self, fd: int, source: int, target: Path, length: int, size: int, is_full: bool) -> None:
        for number, at in enumerate(range(0, length, _PIECE)):
            began = time.monotonic()
            piece = self._disk.read(source, min(_PIECE, length - at), at)
            if len(piece) < min(_PIECE, length - at):
                raise StoreError(f"what is copied to {target} ends at {at + len(piece)} instead of {length}")
            if is_full or not _is_zero(piece):
                self._disk.write(fd, piece, at)
            self._after_piece(fd, number, began, len(piece))
        if is_full:
            for number, at in enumerate(range(length, size, _PIECE)):
                began = time.monotonic()
                self._disk.write(fd, _ZEROS[: min(_PIECE, size - at)], at)
                self._after_piece(fd, number, began, 0)
        os.ftruncate(fd, size)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # what checks the copy reads it from the device

    def copy_file(self, source: Path, target: Path) -> None:
        """Copy a whole file that does not change, and read the copy back. Raises `StoreError`, OSError."""
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = os.fstat(fd).st_size
            self.copy(fd, target, length)
            wanted = self._checksum(fd, length)
        finally:
            os.close(fd)
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._checksum(fd, length) != wanted:
                raise StoreError(f"{target} is not what was written to it: look at the disk")
        finally:
            os.close(fd)

    def _checksum(self, fd: int, length: int) -> int:
        checksum = 0
        for at in range(0, length, _PIECE):
            began = time.monotonic()
            checksum = zlib.crc32(self._disk.read(fd, min(_PIECE, length - at), at), checksum)
            self._pause(began)
        return checksum

    def _after_piece(self, fd: int, number: int, began: float, count: int) -> None:
        if number % _SYNC_EVERY == _SYNC_EVERY - 1:
            self._disk.sync(fd)
        self._tell(count)
        self._pause(began)

    def _pause(self, began: float) -> None:
        if self._rest:
            time.sleep((time.monotonic() - began) * self._rest)


def _is_zero(piece: bytes) -> bool:
    return piece == _ZEROS[: len(piece)]


def try_link(source: Path, target: Path) -> bool:
    """Have `target` be a second name of `source`. False where that cannot be: copy it. Raises OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def sync_files(folder: Path) -> None:
    """Make the files in the folder durable, with their names."""
    for path in (*folder.iterdir(), folder):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
