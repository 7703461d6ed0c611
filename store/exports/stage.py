"""A stage: hard links to the files of a store at a moment, in a folder of the data folder's file system.

Linking takes milliseconds, and copying from the stage may then take any time. Files that retention and compactions
remove live on under the links, and later writes to the last segment are behind the stage's position.

A stage is in `staging/` of the data folder. The process that uses it has it locked. One without a lock was left by a
killed process and is removed.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.log.segments import Segments, segment_name

STAGING: Final = "staging"


@dataclass(slots=True, frozen=True)
class Staged:
    """The content of a stage: the log from `begin` to `position`. Its newest record was stored at `time_ms`."""

    begin: int
    position: int
    time_ms: int


@contextmanager
def stage(data: Path) -> Iterator[Path]:
    """Create an empty folder for a stage, and remove it afterwards. Raises OSError."""
    above = data / STAGING
    _make(above, data)
    remove_left(data)
    lock: int | None = None
    while lock is None:  # another process may remove the folder before it is locked
        folder = above / secrets.token_hex(8)
        _make(folder, data)
        lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left(data: Path) -> None:
    """Remove stages that no process has locked."""
    for folder in (data / STAGING).glob("*"):
        lock = lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def lock_folder(folder: Path) -> int | None:
    """Lock the folder and return the descriptor of the lock; None if another process has it or the folder is gone."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = folder.stat().st_ino == os.fstat(fd).st_ino
    except OSError:
        is_there = False
    if not is_there:
        os.close(fd)
        return None
    return fd


def link_segments(segments: Segments, position: int, folder: Path) -> None:
    """Link the segments before `position` into a new `folder`, and write there which ranges are gone.

    No segment may be removed meanwhile.
    """
    folder.mkdir()
    for base in [base for base in segments.bases if base < position]:
        os.link(segments.folder / segment_name(base), folder / segment_name(base))
    segments.write_gone(folder, position)


def _make(folder: Path, data: Path) -> None:
    """Create a folder that belongs to the owner of the data folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = data.stat()
    if owner.st_uid != os.geteuid():
        os.chown(folder, owner.st_uid, owner.st_gid)
