"""A moment of a store that stands still: hard links of its files, in a folder of the data folder's own file system.

Linking takes milliseconds. Whoever copies from it afterwards takes as long as it likes: what retention and
compactions remove lives on under the links, and what is written to the last segment lies behind the position.

A stage lives in `staging/` of the data folder and is locked by the process that works with it; one that nobody has
locked is what a killed process left, and goes.
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

from store.log.damaged_ranges import write_damaged
from store.log.segments import Segments, segment_name

STAGING: Final = "staging"


@dataclass(slots=True, frozen=True)
class Staged:
    """What is in a stage: the log from `begin` to `position`, whose newest record was stored at `time_ms`."""

    begin: int
    position: int
    time_ms: int


@contextmanager
def stage(data: Path) -> Iterator[Path]:
    """A new, empty folder for a stage, removed afterwards. Raises OSError."""
    above = data / STAGING
    _make(above, data)
    remove_left(data)
    lock: int | None = None
    while lock is None:  # else another process took it for one that was left
        folder = above / secrets.token_hex(8)
        _make(folder, data)
        lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left(data: Path) -> None:
    """Remove stages that nobody works with."""
    for folder in (data / STAGING).glob("*"):
        lock = lock_folder(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def lock_folder(folder: Path) -> int | None:
    """Lock the folder: a descriptor that holds the lock, None when another process has it or it is gone."""
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
    """Link what the log has before `position` into a new `folder`, with what is known of damage. Nothing may remove
    segments meanwhile."""
    folder.mkdir()
    for base in [base for base in segments.bases if base < position]:
        os.link(segments.folder / segment_name(base), folder / segment_name(base))
    write_damaged(folder, segments.damaged.up_to(position), segments.disk)


def _make(folder: Path, data: Path) -> None:
    """Make a folder that the owner of the data folder may write to, whoever we are."""
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = data.stat()
    if owner.st_uid != os.geteuid():
        os.chown(folder, owner.st_uid, owner.st_gid)
