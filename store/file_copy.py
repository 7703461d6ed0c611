"""Copies files with little effect on other users of the disk: in small pieces that are synced as they are written,
with pauses between them, and without displacing other files from the page cache."""

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
_BLOCK: Final = 64 << 10  # of zeros that become a hole
_ZEROS: Final = bytes(_PIECE)
_SYNC_EVERY: Final = 8  # pieces
_NO_LINK: Final = (
    errno.EXDEV,  # another file system
    errno.EPERM,  # another user's file, or a file system without links
    errno.EMLINK,  # too many links
    errno.EOPNOTSUPP,  # a file system without links
    errno.EACCES,  # another user's file
    errno.ENOENT,  # removed meanwhile
)


class Copier:
    """Copies files and reports progress.

    After each piece it pauses for `rest` times the time that the piece took, and calls `on_copied` with its bytes.
    """

    __slots__ = ("_disk", "_on_copied", "_rest")

    def __init__(self, disk: Disk, rest: float = 0.0, on_copied: Callable[[int], None] = lambda _: None) -> None:
        self._disk = disk
        self._rest = rest
        self._on_copied = on_copied

    def copy(self, source: int, target: Path, length: int, size: int | None = None, is_full: bool = False) -> None:
        """Copy the first `length` bytes of a descriptor durably into a new file of `size` bytes, padded with zeros.

        Zeros become holes unless `is_full`. Raises `StoreError` when the source is shorter, and OSError.
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
                raise StoreError(f"the source of {target} ends at {at + len(piece)} instead of {length}")
            if is_full:
                self._disk.write(fd, piece, at)
            else:
                for first in range(0, len(piece), _BLOCK):
                    block = piece[first : first + _BLOCK]
                    if not _is_zero(block):
                        self._disk.write(fd, block, at + first)
            self._after_piece(fd, number, began, len(piece))
        if is_full:
            for number, at in enumerate(range(length, size, _PIECE)):
                began = time.monotonic()
                self._disk.write(fd, _ZEROS[: min(_PIECE, size - at)], at)
                self._after_piece(fd, number, began, 0)
        os.ftruncate(fd, size)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # a check of the copy then reads the device

    def copy_file(self, source: Path, target: Path) -> None:
        """Copy a whole file that does not change and verify the copy. Raises `StoreError` and OSError."""
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
                raise StoreError(f"{target} differs from what was written to it: check the disk")
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
        self._on_copied(count)
        self._pause(began)

    def _pause(self, began: float) -> None:
        if self._rest:
            time.sleep((time.monotonic() - began) * self._rest)


def _is_zero(piece: bytes) -> bool:
    return piece == _ZEROS[: len(piece)]


def try_link(source: Path, target: Path) -> bool:
    """Hard-link `target` to `source`. Return False where the file has to be copied instead. Raises OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def sync_files(folder: Path) -> None:
    """Make the files in the folder and their names durable."""
    for path in (*folder.iterdir(), folder):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
