"""Read-only segments of a log that another process may write to and remove. All of them are kept open."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from store.errors import LogCorrupt
from store.log.disk import Disk
from store.log.segments import Segments, segment_name

_TRIES: Final = 5
_SPARE: Final = 256  # descriptors beside those of the segments


class PinnedSegments(Segments):
    """The segments that exist when `find` is called. They can be read even after retention removes them.

    Each segment needs a descriptor; the process's own limit is raised if necessary.
    """

    __slots__ = ("_pinned",)

    def __init__(self, folder: Path, size: int, disk: Disk) -> None:
        super().__init__(folder, size, disk)
        self._pinned: dict[int, int] = {}

    def find(self) -> None:
        """Find and open the segments. Raises what `Segments.find` does.

        It makes several attempts, because retention may remove segments meanwhile.
        """
        for attempt in range(_TRIES):
            self._unpin()
            try:
                super().find()
                _make_room(len(self.bases))
                for base in self.bases:
                    self._pinned[base] = self._open(base)
                self.find_gone()  # again: what was removed since has no bytes in these files
                return
            except (FileNotFoundError, LogCorrupt):
                if attempt == _TRIES - 1:
                    raise

    def open(self, base: int) -> int:
        pinned = self._pinned.get(base)
        return self._open(base) if pinned is None else os.dup(pinned)

    def descriptor(self, base: int) -> int:
        return self._pinned[base]

    def close(self) -> None:
        super().close()
        self._unpin()

    def _open(self, base: int) -> int:
        return os.open(self.folder / segment_name(base), os.O_RDONLY | os.O_CLOEXEC)

    def _unpin(self) -> None:
        for fd in self._pinned.values():
            os.close(fd)
        self._pinned.clear()


@contextmanager
def pinned(folder: Path, size: int, disk: Disk) -> Iterator[PinnedSegments]:
    """Find and open the segments of a log, and close them in the end. Raises what `PinnedSegments.find` does."""
    segments = PinnedSegments(folder, size, disk)
    try:
        segments.find()
        yield segments
    finally:
        segments.close()


def _make_room(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count + _SPARE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
