"""What making a backup and restoring one have in common: the options, the progress, and the check for room."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import StoreError
from store.log.disk import Disk
from store.log.writer import Clock, clock_ms

OnProgress = Callable[[str, int, int], None]  # the step ("copying", "checking"), its bytes done, its bytes in all


@dataclass(slots=True)
class CopyOptions:
    """How a backup is made or restored."""

    may_link: bool = True  # False: copy every file, and share none with the source or an earlier backup
    rest: float = 0.0  # see `Copier`
    on_progress: OnProgress = lambda _step, _done, _total: None
    clock: Clock = clock_ms
    disk: Disk = field(default_factory=Disk)


class Progress:
    """Counts the bytes of one step after the other, and reports them."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._step = ""
        self._done = 0
        self._total = 0

    def begin(self, step: str, total: int) -> None:
        self._step, self._done, self._total = step, 0, total

    def add(self, count: int) -> None:
        self._done += count
        self._on_progress(self._step, self._done, self._total)


def require_room(folder: Path, size: int) -> None:
    """Raise `StoreError` unless the file system of `folder` has room for `size` bytes."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if size > free:
        raise StoreError(f"{size} bytes are to be copied to {folder}, which has room for {free}")
