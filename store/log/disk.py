"""All system calls that touch a segment. Tests pass a disk that fails."""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from store.log.pages import PAGE

UNREADABLE: Final = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # errors of damaged media
_ZEROS: Final = mmap.mmap(-1, 1 << 20, prot=mmap.PROT_READ)  # aligned to pages, as O_DIRECT demands
_SYNC_EVERY: Final = 8  # MiB of zeros: a preallocation must not delay the log's flushes


class Disk:
    """Linux files. Errors are `OSError`."""

    __slots__ = ()

    def write_past_cache(self, fd: int) -> None:
        """Make writes to the file bypass the page cache if its file system can do that (decisions/0019).

        All writes have to be whole pages then, from memory that is aligned to pages.
        """
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.preadv(fd, [mmap.mmap(-1, PAGE)], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)

    def write_durable(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write bytes that are on disk on return.

        RWF_DSYNC does pwrite and fdatasync in one call, and the thread has to wait for the GIL after each call.
        """
        view = memoryview(data)
        while view:
            written = os.pwritev(fd, [view], offset, os.RWF_DSYNC)
            view = view[written:]
            offset += written

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, offset)
            view = view[written:]
            offset += written

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def written_ranges(self, fd: int, offset: int) -> list[tuple[int, int]]:
        """Where from `offset` on a file may have bytes that were written: (begin, end) of each range. Room that is only
        reserved is in none of them, unless it was read lately or the file system does not know."""
        end = os.fstat(fd).st_size
        ranges: list[tuple[int, int]] = []
        try:
            while offset < end:
                begin = os.lseek(fd, offset, os.SEEK_DATA)
                offset = os.lseek(fd, begin, os.SEEK_HOLE)
                ranges.append((begin, offset))
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOTSUP}:
                return [(offset, end)]
            if error.errno != errno.ENXIO:  # which means that there are no more
                raise
        return ranges

    def make_folder(self, folder: Path) -> None:
        """Create the folder and its parents durably if they do not exist. Only its user and group can read it."""
        self._make_folder(folder, 0o750)

    def _make_folder(self, folder: Path, mode: int) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent, 0o777)  # minus the umask: parents may be shared with others
            folder.mkdir(mode, exist_ok=True)
        self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        """Make created, renamed and removed names in `folder` durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists. A crash before the folder is synced may bring it back."""
        path.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file, in place of another one. A crash before the folder is synced may bring both back."""
        path.rename(target)

    def holes(self, path: Path) -> int:
        """Bytes of the file that take no place on disk."""
        found = path.stat()
        return max(0, found.st_size - found.st_blocks * 512)

    def free_bytes(self, folder: Path) -> int:
        """Bytes that the file system of a folder has free for this process."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def freed_by_removal(self, path: Path) -> int:
        """Bytes that are free when the file is removed: none while it has other names, as in a backup beside it."""
        found = path.stat()
        return found.st_blocks * 512 if found.st_nlink == 1 else 0

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Read `length` bytes, fewer only at the end of the file. May wait for the device."""
        data = os.pread(fd, length, offset)
        while len(data) < length:
            more = os.pread(fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
        """Fill `buffer` from the page cache. False if bytes are missing there. Never waits for the device."""
        try:
            return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except OSError:  # EAGAIN: not cached; EOPNOTSUPP: this file system cannot tell
            return False

    def create_zeroed(self, path: Path, size: int, is_stopped: Callable[[], bool]) -> bool:
        """Create the file `path` durably with `size` bytes of zeros. Returns False if it was stopped before the end.

        The zeros are written and not a hole: overwriting them later changes no metadata, so a flush is one write. They
        bypass the page cache. An unfinished file is removed, because others may need its space.
        """
        return self._create(path, lambda fd: self._write_zeros(fd, size, is_stopped))

    def create_reserved(self, path: Path, size: int) -> None:
        """Create the file `path` durably with room for `size` bytes, which are read as zeros. Nothing is written where
        the file system can reserve room.

        Writing it later changes metadata, so it is for files that are synced seldom.
        """

        def fill(fd: int) -> bool:
            self.reserve(fd, size)
            return True

        self._create(path, fill)

    def reserve(self, fd: int, size: int) -> None:
        """Have a file take `size` bytes on disk. What it does not have yet is read as zeros, and is seldom written."""
        os.posix_fallocate(fd, 0, size)

    def _write_zeros(self, fd: int, size: int, is_stopped: Callable[[], bool]) -> bool:
        self.write_past_cache(fd)
        done = 0
        while done < size:
            if is_stopped():
                return False
            piece = min(len(_ZEROS), size - done)
            self.write(fd, memoryview(_ZEROS)[:piece], done)
            done += piece
            if done % (_SYNC_EVERY << 20) == 0:
                self.sync(fd)
        return True

    def _create(self, path: Path, fill: Callable[[int], bool]) -> bool:
        """Create a file durably. Removes it, and returns False, if `fill` does."""
        unfinished = path.with_suffix(".new")
        fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            if not fill(fd):
                unfinished.unlink()
                return False
            os.fsync(fd)
        except OSError as error:
            unfinished.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(fd)
        unfinished.rename(path)
        self.sync_folder(path.parent)
        return True


def replace_file(path: Path, data: bytes, disk: Disk) -> None:
    """Replace a file durably. A crash leaves the old content or the new one. Raises OSError."""
    unfinished = path.with_suffix(".new")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        disk.write_durable(fd, data, 0)
    except OSError as error:
        unfinished.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(fd)
    unfinished.rename(path)
    disk.sync_folder(path.parent)
