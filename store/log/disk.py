"""The disk as the log sees it: every system call that touches a segment. Tests hand in one that fails."""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from store.log.pages import PAGE

UNREADABLE: Final = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # what a device or file system says of damage
_ZEROS: Final = mmap.mmap(-1, 1 << 20, prot=mmap.PROT_READ)  # begins with a page of memory, as O_DIRECT wants it
_SYNC_EVERY: Final = 8  # MiB of zeros: keeps a preallocation from delaying the log's own flushes


class Disk:
    """Linux files. Errors are `OSError`."""

    __slots__ = ()

    def write_past_cache(self, fd: int) -> None:
        """Have what is written to the file from now on go past the page cache, if its file system can do that: in whole
        pages, from memory that begins with a page (decisions/0019)."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.preadv(fd, [mmap.mmap(-1, PAGE)], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)

    def write_durable(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write and have it on disk on return. One call per write, for a thread that must win the GIL back after
        each: RWF_DSYNC is pwrite and fdatasync of it in one."""
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

    def make_folder(self, folder: Path) -> None:
        """Make the folder if need be, for its user and group alone, with those above it, durably: what is in it lives
        no longer than its name."""
        self._make_folder(folder, 0o750)

    def _make_folder(self, folder: Path, mode: int) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent, 0o777)  # less the umask: others may have their things there
            folder.mkdir(mode, exist_ok=True)
        self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        """Make names that were created, renamed or removed in `folder` durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there; its name may come back until the folder is synced."""
        path.unlink(missing_ok=True)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """`length` bytes, fewer only at the end of the file. May wait for the device."""
        data = os.pread(fd, length, offset)
        while len(data) < length:
            more = os.pread(fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
        """Fill `buffer` if the page cache has all of that, else False: never waits for the device."""
        try:
            return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except OSError:  # EAGAIN: not cached; EOPNOTSUPP: this file system cannot tell
            return False

    def create_zeroed(self, path: Path, size: int, is_stopped: Callable[[], bool]) -> bool:
        """Make the file `path`, `size` bytes of zeros, durable with its name. False when stopped on the way.

        Real zeros and not a hole: writing into them later changes no metadata, so a flush is one write. They go past
        the page cache, which would copy and keep them. What could not be finished is removed again: it would take the
        room that others still need.
        """
        unfinished = path.with_suffix(".new")
        fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            self.write_past_cache(fd)
            done = 0
            while done < size:
                if is_stopped():
                    unfinished.unlink()
                    return False
                piece = min(len(_ZEROS), size - done)
                self.write(fd, memoryview(_ZEROS)[:piece], done)
                done += piece
                if done % (_SYNC_EVERY << 20) == 0:
                    self.sync(fd)
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
    """Replace the content of `path`, durably: a crash leaves the old file or the new one. Raises OSError."""
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
