"""The files of the log. The next one is created in the background before it is needed.

A segment has the positions [base, base + size), and base is a multiple of size. So a position alone tells the file
and the byte in it.
"""

import logging
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from store.errors import LogCorrupt, StoreClosed, StoreError
from store.log.damaged_ranges import read_damaged, write_damaged
from store.log.disk import Disk
from store.log.ranges import NO_RANGES, Ranges
from store.log.removed_ranges import NOTHING_REMOVED, Removed, read_removed, write_removed
from store.log.tiered import NOTHING_TIERED, Tiered, TieredSegment, read_tiered, write_tiered

logger = logging.getLogger(__name__)

_OPEN_FILES: Final = 64  # descriptors that are kept open


def segment_name(base: int) -> str:
    """File name of the segment that begins at position `base`."""
    return f"{base:020d}.log"


class Segments:
    """The segments of one folder. `bases` is sorted. Use it on the loop except where a method says otherwise."""

    __slots__ = (
        "_descriptors",
        "_forgotten",
        "_holes",
        "_is_copy",
        "_lock",
        "_preparing",
        "_stopped",
        "_unprepared",
        "bases",
        "damaged",
        "disk",
        "folder",
        "gone",
        "removed",
        "size",
        "tiered",
    )

    def __init__(self, folder: Path, size: int, disk: Disk, is_copy: bool = False) -> None:
        """`is_copy`: others have the log too, so it is synced seldom, and new segments are not filled with zeros."""
        self.folder = folder
        self.size = size
        self.disk = disk
        self._is_copy = is_copy
        self.bases: list[int] = []
        self.damaged = NO_RANGES
        self.removed = NOTHING_REMOVED
        self.gone = NO_RANGES  # both: ranges that are not read
        self.tiered = NOTHING_TIERED  # segments that an object store has, whether they have files here or not
        self._holes: dict[int, int] = {}  # base → bytes of a segment that take no place on disk
        self._descriptors: dict[int, int] = {}  # base → descriptor, least recently used first; the loop's own
        self._forgotten: list[int] = []  # segments before the log's begin that still have files, the oldest first
        self._preparing: threading.Thread | None = None
        self._unprepared = -1  # the segment that could not be prepared; it is created when it is needed
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # of `bases` and `_preparing`, which the flush thread uses too

    def load(self) -> None:
        """Prepare the folder for writing, and find the segments. Raises what `find` does."""
        if not any(self.folder.glob("*.log")):
            self.disk.make_folder(self.folder)
        for unfinished in self.folder.glob("*.new"):
            unfinished.unlink()
        self.find()
        self.disk.sync_folder(self.folder)  # the last process may have been killed right after it renamed a segment

    def find(self) -> None:
        """Find the segments, and read the lists of known damage and of what is in the tier.

        Raises `LogCorrupt` when a segment is missing or does not belong to this log, and `StoreError` for another file
        with the suffix of segments.
        """
        self.find_gone()
        self.tiered = read_tiered(self.folder)
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

        for base in self.bases:
            if self.removed.ranges.touches(base, base + self.size - 1):
                self._holes[base] = self.disk.holes(self.folder / segment_name(base))

    def find_gone(self) -> None:
        """Read the lists of damaged and of removed ranges. Raises `StoreError` when one of them is damaged."""
        self.set_gone(read_damaged(self.folder), read_removed(self.folder))

    def set_gone(self, damaged: Ranges, removed: Removed) -> None:
        """Set the ranges that are not read."""
        self.damaged, self.removed = damaged, removed
        self.gone = Ranges([*damaged, *removed.ranges]) if removed.ranges else damaged

    def set_tiered(self, tiered: Tiered) -> None:
        """Set what is in the tier. For any thread."""
        self.tiered = tiered

    def add_tiered(self, segment: TieredSegment) -> None:
        """Note that a segment is in the tier, or in another object."""
        self.tiered = self.tiered.with_segment(segment)

    def trim_tiered(self, begin: int) -> None:
        """Forget what is in the tier before `begin`."""
        self.tiered = self.tiered.since(begin)

    def write_gone(self, folder: Path, end: int) -> None:
        """Write the ranges that are not read, and what is in the tier, into the folder of a copy of this log that ends
        at `end`. Raises OSError."""
        write_damaged(folder, self.damaged.up_to(end), self.disk)
        write_removed(folder, self.removed.up_to(end), self.disk)
        write_tiered(folder, self.tiered.up_to(end, self.size), self.disk)

    @property
    def whole_from(self) -> int:
        """From here on the log has every record. Views can only be folded on from here or behind."""
        return max(self.begin, self.removed.ranges.end)

    def disk_bytes(self) -> int:
        """Bytes that all segments take on disk."""
        return len(self.bases) * self.size - self.hole_bytes()

    def hole_bytes(self) -> int:
        """Bytes of all segments that take no place on disk."""
        return sum(self._holes.values())

    def size_on_disk(self, base: int) -> int:
        """Bytes that a segment takes on disk."""
        return self.size - self._holes.get(base, 0)

    @property
    def begin(self) -> int:
        """Where the files begin; 0 without a segment."""
        return self.bases[0] if self.bases else 0

    def base_of(self, position: int) -> int:
        return position - position % self.size

    def has(self, base: int) -> bool:
        with self._lock:
            at = bisect_right(self.bases, base)
            return at > 0 and self.bases[at - 1] == base

    def open(self, base: int) -> int:
        """Open the segment and return a descriptor that the caller has to close. For any thread."""
        return os.open(self.folder / segment_name(base), os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def reading(self, base: int) -> Iterator[Callable[[int, int], bytes]]:
        """Open a segment to read it: so many bytes, from an offset on. For any thread. Raises OSError."""
        fd = self.open(base)
        try:
            yield partial(self.disk.read, fd)
        finally:
            os.close(fd)

    def descriptor(self, base: int) -> int:
        """A cached descriptor of the segment. It is valid until the loop's next turn."""
        fd = self._descriptors.pop(base, None)
        if fd is None:
            fd = self.open(base)
            if len(self._descriptors) >= _OPEN_FILES:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
        self._descriptors[base] = fd
        return fd

    def prepare(self, base: int) -> None:
        """Create the segment in the background unless it exists or is being created."""
        with self._lock:
            at = bisect_right(self.bases, base)
            if self._preparing is not None or base == self._unprepared or self._stopped.is_set():
                return
            if at > 0 and self.bases[at - 1] == base:
                return
            self._preparing = threading.Thread(target=self._make_quietly, args=(base,), name="sluice-segment")
            self._preparing.start()

    def open_for_writing(self, base: int) -> int:
        """Open the segment, and create it first if `prepare` has not. For the flush thread.

        Raises OSError when it cannot be created.
        """
        with self._lock:
            preparing = self._preparing
        if preparing is not None:
            preparing.join()
        if not self.has(base):
            self._make(base)
        return self.open(base)

    def free_bytes(self) -> int:
        """Bytes that the file system has free. For any thread."""
        return self.disk.free_bytes(self.folder)

    def cut_for_room(self, wanted: int, end: int, kept: int) -> int:
        """Where the log has to begin so that `wanted` bytes are free, and room for the next segment if that has no file
        yet. For any thread.

        At least `kept` bytes stay of the log, which has its end at `end`, and so does its last segment. 0 if nothing
        has to be removed, or if that would free nothing. Raises OSError.
        """
        last = self.base_of(max(end - 1, 0))
        with self._lock:
            bases = self.bases[: bisect_left(self.bases, last)]
            left = end - self.begin - self.hole_bytes()
        cut = 0
        is_prepared = (self.folder / segment_name(last + self.size)).exists()
        lacking = wanted + (0 if is_prepared else self.size) - self.disk.free_bytes(self.folder)
        for base in bases:
            left -= self.size_on_disk(base)
            if lacking <= 0 or left < kept:
                break
            freed = self.disk.freed_by_removal(self.folder / segment_name(base))
            if freed:
                lacking -= freed
                cut = base + self.size
        return cut

    def replace(self, base: int) -> None:
        """Replace the file of a segment by the one beside it with the suffix `.new`, durably. For any thread. Raises
        OSError."""
        path = self.folder / segment_name(base)
        self.disk.rename(path.with_suffix(".new"), path)
        self.disk.sync_folder(self.folder)

    def replaced(self, base: int) -> None:
        """Go on with the new file of a segment."""
        fd = self._descriptors.pop(base, None)
        if fd is not None:
            os.close(fd)
        self._holes[base] = self.disk.holes(self.folder / segment_name(base))

    def forget(self, begin: int) -> None:
        """Let the log begin at the segment `begin`. The files of the earlier segments stay until `remove_oldest`."""
        with self._lock:
            count = bisect_left(self.bases, begin)
            gone, self.bases[:count] = self.bases[:count], []
        for base in gone:
            self._holes.pop(base, None)
            fd = self._descriptors.pop(base, None)
            if fd is not None:
                os.close(fd)
        self._forgotten += gone

    def remove_oldest(self) -> bool:
        """Remove the file of the oldest forgotten segment. Returns False if there is none. For any thread.

        The removal is durable before the next, so that no failure or crash leaves a gap. Raises OSError; the next call
        tries again then.
        """
        if not self._forgotten:
            return False
        self.disk.remove(self.folder / segment_name(self._forgotten[0]))
        self.disk.sync_folder(self.folder)
        del self._forgotten[0]
        return True

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
        # A full disk may have room again when the segment is needed: then `open_for_writing` tries again and raises.
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
        path = self.folder / segment_name(base)
        if self._is_copy:
            self.disk.create_reserved(path, self.size)
        elif not self.disk.create_zeroed(path, self.size, self._stopped.is_set):
            raise StoreClosed("closing")
        with self._lock:
            self.bases.insert(bisect_right(self.bases, base), base)
