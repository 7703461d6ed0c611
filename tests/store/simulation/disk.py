"""A disk that behaves as badly as disks may, over real files in a folder.

What the store wrote and did not sync is known here, so that `cut_power` can lose it: each unsynced write survives
whole, in part, in any subset of its pages, or not at all, and so does each name whose folder was not synced.
`fault` is what happens at one of the operations to come. All randomness is from the generator that is handed in,
and the store runs one disk operation at a time under the simulator, so a seed replays exactly.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from store.log.disk import Disk

PAGE = 512  # what a disk writes whole or not at all is smaller than that; bytes are torn too
FAULTS = ("cut", "cut after", "error", "full", "views")


class PowerCut(OSError):
    """The machine is gone: whoever sees this would not have."""


@dataclass(slots=True)
class Fault:
    """What happens at the operation after `wait` more: the machine stops in it (`cut`) or right behind it
    (`cut after`), it fails (`error`), there is no room from then on (`full`), or RocksDB refuses a write (`views`)."""

    kind: str
    wait: int


@dataclass(slots=True)
class Unsynced:
    """A write that is in the page cache. `lost`: a failed sync made its pages clean, no later sync writes them."""

    offset: int
    data: bytes
    lost: bool = False


@dataclass(slots=True)
class File:
    """The bytes that survive a power cut for sure, and those that may."""

    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Unsynced] = field(default_factory=list)

    def persist(self, offset: int, data: bytes) -> None:
        _put(self.durable, offset, data)

    def forget(self, offset: int, end: int) -> None:
        """Forget earlier writes to [offset, end): they cannot come back any more."""
        kept: list[Unsynced] = []
        for write in self.unsynced:
            before = write.data[: max(offset - write.offset, 0)]
            after = write.data[max(end - write.offset, 0) :]
            if len(before) == len(write.data):
                kept.append(write)
                continue
            if before:
                kept.append(Unsynced(write.offset, before, write.lost))
            if after:
                kept.append(Unsynced(write.offset + len(write.data) - len(after), after, write.lost))
        self.unsynced = kept

    def sync(self) -> None:
        waiting, self.unsynced = self.unsynced, []
        for write in waiting:
            if write.lost:
                self.unsynced.append(write)
            else:
                self.persist(write.offset, write.data)
                self.forget(write.offset, write.offset + len(write.data))


class SimulatedDisk(Disk):
    """A disk for everything in `root` but the views. Made once a history: it outlives the store's restarts."""

    def __init__(self, root: Path, rng: Random, on_remove: Callable[[Path], None] | None = None) -> None:
        self.root = root
        self._rng = rng
        self._on_remove = on_remove  # is called before a file is removed
        self._files: dict[int, File] = {}  # by inode
        self._names: dict[Path, dict[str, int]] = {}  # by folder: durable name → inode
        self._removed: dict[Path, File] = {}  # what had a name that comes back when its removal is lost
        self._reads = 0
        self.fault: Fault | None = None
        self.dead = False  # after a cut: nothing reaches the files until `restart`
        self.full = False
        self.capacity = 0  # bytes of segments that it has room for

    def write_past_cache(self, fd: int) -> None:
        """Not here, where writes end anywhere."""

    def write_durable(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        data = bytes(data)
        kind = self._operate()
        size = os.fstat(fd).st_size
        if not size:  # it may have the inode of a file that another one has replaced
            self._files[os.fstat(fd).st_ino] = File()
        file = self._file(fd)
        if self.full and offset + len(data) > size:
            raise _no_space()
        if kind in {"cut", "error"}:
            self._write_badly(fd, data, offset, kind)
        super().write(fd, data, offset)
        file.persist(offset, data)
        file.forget(offset, offset + len(data))
        self._after(kind)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        data = bytes(data)
        kind = self._operate()
        if kind in {"cut", "error"}:
            self._write_badly(fd, data, offset, kind)
        super().write(fd, data, offset)
        self._file(fd).unsynced.append(Unsynced(offset, data))
        self._after(kind)

    def sync(self, fd: int) -> None:
        kind = self._operate()
        file = self._file(fd)
        if kind == "cut":
            self.dead = True
            raise PowerCut
        if kind == "error":
            for write in file.unsynced:
                write.lost = True
            raise _failed()
        file.sync()
        size = os.fstat(fd).st_size
        file.durable += bytes(size - len(file.durable))
        self._after(kind)

    def sync_folder(self, folder: Path) -> None:
        kind = self._operate()
        if kind == "cut":
            self.dead = True
            raise PowerCut
        if kind == "error":
            raise _failed()
        self._names[folder] = self._present(folder)
        for path in [path for path in self._removed if path.parent == folder]:
            del self._removed[path]
        self._after(kind)

    def remove(self, path: Path) -> None:
        kind = self._operate()
        if kind == "cut":
            self.dead = True
            raise PowerCut
        if kind == "error":
            raise _failed()
        if not path.exists():
            return
        if self._on_remove is not None:
            self._on_remove(path)
        file = self._files.pop(path.stat().st_ino)
        if self._names.get(path.parent, {}).pop(path.name, None) is not None:
            self._removed[path] = file
        super().remove(path)
        self.full = False
        self._after(kind)

    def flush_views(self) -> bool:
        """RocksDB is about to put on disk what it has in memory. Whether the machine stops right behind that."""
        kind = self._operate()
        if kind == "cut":
            self.dead = True
            raise PowerCut
        if kind == "error":
            raise _failed()
        if self.full:
            raise _no_space()
        return kind == "cut after"

    def write_views(self) -> None:
        """RocksDB is about to write into its memory, which it refuses when something failed before."""
        if self.fault is not None and self.fault.kind == "views":
            self.fault.wait -= 1
            if self.fault.wait < 0:
                self.fault = None
                raise _failed()

    def rename(self, path: Path, target: Path) -> None:
        kind = self._operate()
        if kind == "cut":
            self.dead = True
            raise PowerCut
        if kind == "error":
            raise _failed()
        super().rename(path, target)
        self._after(kind)

    def free_bytes(self, folder: Path) -> int:
        return self.capacity - sum(path.stat().st_size for path in folder.glob("*.log"))

    def freed_by_removal(self, path: Path) -> int:
        """As if no backup shared the file."""
        return path.stat().st_size

    def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
        self._reads += 1
        data = self.read(fd, len(buffer), offset)
        buffer[: len(data)] = data
        return bool(self._reads % 3) and len(data) == len(buffer)

    def create_zeroed(self, path: Path, size: int, is_stopped: Callable[[], bool]) -> bool:
        if is_stopped():
            return False
        kind = self._operate()
        unfinished = path.with_suffix(".new")
        if kind in {"cut", "error"} or self.full:
            if kind == "cut":
                unfinished.write_bytes(bytes(self._rng.randrange(size)))
                self.dead = True
                raise PowerCut
            raise _no_space() if self.full else _failed()
        unfinished.write_bytes(bytes(size))
        self._files[unfinished.stat().st_ino] = File(bytearray(size))
        unfinished.rename(path)
        self._after(kind)
        self.sync_folder(path.parent)
        return True

    def create_reserved(self, path: Path, size: int) -> None:
        self.create_zeroed(path, size, lambda: False)

    def flip(self, path: Path, offset: int, bit: int) -> None:
        """Turn one bit of a file around, for good. The same again mends it."""
        with path.open("r+b") as file:
            file.seek(offset)
            byte = bytes([file.read(1)[0] ^ 1 << bit])
            file.seek(offset)
            file.write(byte)
            own = self._files[os.fstat(file.fileno()).st_ino]
        own.durable[offset : offset + 1] = byte

    def kill(self) -> None:
        """The process is gone and the machine is not: what was written can be read, synced or not."""
        self.dead = False
        self.fault = None

    def cut_power(self) -> None:
        """The machine is gone and starts again: the files become what the disk has."""
        self.kill()
        style = self._rng.choice(("nothing", "everything", "prefix", "pages", "pages"))
        self._lose_names(self.root)
        self._lose_removals()
        for folder in (self.root, *(path for path in self.root.rglob("*") if path.is_dir() and path.name != "views")):
            for name, inode in self._present(folder).items():
                file = self._files.get(inode)
                if file is None or (folder / name).is_dir():  # that has the inode of a file that is gone
                    continue
                for write in file.unsynced:
                    self._settle(file, write, style)
                file.unsynced = []
                (folder / name).write_bytes(file.durable)
            self._names[folder] = self._present(folder)

    def _operate(self) -> str:
        """Count an operation. Returns the kind of the fault that hits it, or nothing."""
        if self.dead:
            raise PowerCut
        if self.fault is None or self.fault.kind == "views":
            return ""
        if self.fault.wait:
            self.fault.wait -= 1
            return ""
        kind = self.fault.kind
        self.fault = None
        if kind == "full":
            self.full = True
        return kind

    def _after(self, kind: str) -> None:
        if kind == "cut after":
            self.dead = True
            raise PowerCut

    def _write_badly(self, fd: int, data: bytes, offset: int, kind: str) -> None:
        """Leave some of a write in the page cache, to reach the disk or not."""
        done = data[: self._rng.randint(0, len(data))]
        super().write(fd, done, offset)
        self._file(fd).unsynced.append(Unsynced(offset, done, lost=kind == "error"))
        if kind == "cut":
            self.dead = True
            raise PowerCut
        raise _failed()

    def _settle(self, file: File, write: Unsynced, style: str) -> None:
        """Decide what of an unsynced write reached the disk."""
        if style == "everything":
            file.persist(write.offset, write.data)
        elif style == "prefix":
            file.persist(write.offset, write.data[: self._rng.randint(0, len(write.data))])
        elif style == "pages":
            at = 0
            while at < len(write.data):
                end = min(at + PAGE - (write.offset + at) % PAGE, len(write.data))
                if self._rng.random() < 0.6:
                    torn = end if self._rng.random() < 0.8 else self._rng.randint(at, end)
                    file.persist(write.offset + at, write.data[at:torn])
                at = end

    def _lose_names(self, folder: Path) -> None:
        """Let names go that no sync of their folder has made sure of, or bring back what they were."""
        durable = self._names.get(folder, {})
        for name, inode in self._present(folder).items():
            path = folder / name
            if durable.get(name) != inode and self._rng.random() < 0.5:
                if name in durable:
                    old = self._files[durable[name]]
                    path.unlink()
                    path.write_bytes(old.durable)
                    self._files[path.stat().st_ino] = old
                elif path.is_dir():
                    _remove(path)
                    continue
                else:
                    path.unlink()
            if path.is_dir():
                self._lose_names(path)

    def _lose_removals(self) -> None:
        """Bring back files whose removal no sync of their folder has made sure of."""
        removed, self._removed = self._removed, {}
        for path, file in removed.items():
            if self._rng.random() < 0.5:
                path.write_bytes(file.durable)
                self._files[path.stat().st_ino] = file

    def _present(self, folder: Path) -> dict[str, int]:
        return {
            path.name: path.lstat().st_ino for path in sorted(folder.iterdir()) if path.name not in {"views", "lock"}
        }

    def _file(self, fd: int) -> File:
        return self._files.setdefault(os.fstat(fd).st_ino, File())


def _put(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target += bytes(offset - len(target))
    target[offset : offset + len(data)] = data


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            _remove(path)
        else:
            path.unlink()
    folder.rmdir()


def _failed() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
