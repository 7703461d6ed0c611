"""The log's files: which there are, their names, and the next one made ready before it is needed.

A segment holds positions [base, base + size) and base is a multiple of size, so that a position alone says
which file and which byte of it.
"""

import logging
import os
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final

from store.errors import LogCorrupt, StoreClosed, StoreError
from store.log.damaged_ranges import DamagedRanges, read_damaged
from store.log.disk import Disk

logger = logging.getLogger(__name__)

_OPEN_FILES: Final = 64  # descriptors kept for reading and writing


def segment_name(base: int) -> str:
    """File name of the segment that begins at position `base`."""
    return f"{base:020d}.log"


class Segments:
    """The segments of one folder. `bases` is sorted; used by the loop thread except where a method says else."""

    __slots__ = (
        "_descriptors",
        "_forgotten",
        "_lock",
        "_preparing",
        "_stopped",
        "_unprepared",
        "bases",
        "damaged",
        "disk",
        "folder",
        "size",
    )

    def __init__(self, folder: Path, size: int, disk: Disk) -> None:
        self.folder = folder
        self.size = size
        self.disk = disk
        self.bases: list[int] = []
        self.damaged = DamagedRanges()  # places that are not read
        self._descriptors: dict[int, int] = {}  # base → descriptor, least recently used first; the loop's own
        self._forgotten: list[int] = []  # segments before the log's begin whose files are there, the oldest first
        self._preparing: threading.Thread | None = None
        self._unprepared = -1  # the segment that could not be prepared: it is tried again when it is needed
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # of `bases` and `_preparing`: the flush thread takes segments

    def load(self) -> None:
        """Make the folder ready to be written to, and find the segments (see there)."""
        if not any(self.folder.glob("*.log")):
            self.disk.make_folder(self.folder)
        for unfinished in self.folder.glob("*.new"):
            unfinished.unlink()
        self.find()
        self.disk.sync_folder(self.folder)  # a process that was killed behind a segment's rename has not

    def find(self) -> None:
        """Find the segments, and what is known of damage. Raises `LogCorrupt` when one is missing or is no segment of
        this log, `StoreError` for another file under a segment's suffix."""
        self.damaged = read_damaged(self.folder)
        paths = list(self.folder.glob("*.log"))
        for path in paths:
            if not path.stem.isdecimal() or path.name != segment_name(int(path.stem)):
                raise StoreError(f"{path} is not a segment of the log: move it away")
        self.bases = sorted(int(path.stem) for path in paths)
        for number, base in enumerate(self.bases):
            if base % self.size or (self.folder / segment_name(base)).stat().st_size != self.size:
                raise LogCorrupt(segment_name(base), base, "not a segment of this log (name or size)")
            if base != self.bases[0] + number * self.size:
                raise LogCorrupt(segment_name(base), base, "the segment before it is missing")

    def base_of(self, position: int) -> int:
        return position - position % self.size

    def has(self, base: int) -> bool:
        with self._lock:
            at = bisect_right(self.bases, base)
            return at > 0 and self.bases[at - 1] == base

    def open(self, base: int) -> int:
        """A descriptor of the segment that the caller closes. From any thread."""
        return os.open(self.folder / segment_name(base), os.O_RDWR | os.O_CLOEXEC)

    def descriptor(self, base: int) -> int:
        """A descriptor to use before the loop's next turn: it is kept, and closed when many newer ones are used."""
        fd = self._descriptors.pop(base, None)
        if fd is None:
            fd = self.open(base)
            if len(self._descriptors) >= _OPEN_FILES:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
        self._descriptors[base] = fd
        return fd

    def prepare(self, base: int) -> None:
        """Begin to make the segment in the background, unless it is there or on its way."""
        with self._lock:
            at = bisect_right(self.bases, base)
            if self._preparing is not None or base == self._unprepared or self._stopped.is_set():
                return
            if at > 0 and self.bases[at - 1] == base:
                return
            self._preparing = threading.Thread(target=self._make_quietly, args=(base,), name="sluice-segment")
            self._preparing.start()

    def take(self, base: int) -> int:
        """A descriptor of the segment, which is made now if nobody prepared it. For the flush thread.

        Raises OSError when it cannot be made.
        """
        with self._lock:
            preparing = self._preparing
        if preparing is not None:
            preparing.join()
        if not self.has(base):
            self._make(base)
        return self.open(base)

    def forget(self, begin: int) -> None:
        """The log begins at the segment `begin` from here on: the files before it wait for `remove`."""
        with self._lock:
            count = bisect_left(self.bases, begin)
            gone, self.bases[:count] = self.bases[:count], []
        for base in gone:
            fd = self._descriptors.pop(base, None)
            if fd is not None:
                os.close(fd)
        self._forgotten += gone

    def remove(self) -> None:
        """Remove the files of forgotten segments, the oldest first and each durably before the next: no failure or
        crash leaves a hole. What could not be removed waits for the next call. From any thread."""
        while self._forgotten:
            self.disk.remove(self.folder / segment_name(self._forgotten[0]))
            self.disk.sync_folder(self.folder)
            del self._forgotten[0]

    def close(self) -> None:
        self._stopped.set()
        with self._lock:
            preparing = self._preparing
        if preparing is not None:
            preparing.join()
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()

    def _make_quietly(self, base: int) -> None:
        # A disk that is full now may not be when the segment is needed: `take` tries again and tells.
        try:
            self._make(base)
        except StoreClosed:
            pass
        except OSError as error:
            self._unprepared = base
            logger.warning("segment %s cannot be prepared: %s", segment_name(base), error)
        finally:
            with self._lock:
                self._preparing = None

    def _make(self, base: int) -> None:
        if not self.disk.create_zeroed(self.folder / segment_name(base), self.size, self._stopped.is_set):
            raise StoreClosed("closing")
        with self._lock:
            self.bases.insert(bisect_right(self.bases, base), base)
