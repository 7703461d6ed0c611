"""Finds every damaged place of a log and writes it down, so that the store serves around it: for a log that does not
open, when there is no backup to go back to.

No record goes that could be read. A segment that is missing between others, or is shorter than it was, is completed
with zeros, which are damage like any other. Where records at the end are gone that the views know of, the log goes on
in the next segment: their positions are not given to others.
"""

import os
from pathlib import Path
from typing import Final

from store.errors import LogCorrupt
from store.file_copy import Copier
from store.log.damaged_ranges import DamagedRanges, write_damaged
from store.log.disk import UNREADABLE, Disk
from store.log.segments import Segments, segment_name
from store.repair.verify import Damage, pieces
from store.views.database import Checkpoint

_PAGE: Final = 4096


class _Indulgent(Disk):
    """Reads something else where the device does not give what was written: random bytes, which no record has."""

    __slots__ = ("_disk",)

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, fd: int, length: int, offset: int) -> bytes:
        try:
            return self._disk.read(fd, length, offset)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        pieces: list[bytes] = []
        at, end = offset, min(offset + length, os.fstat(fd).st_size)
        while at < end:
            size = min(_PAGE - at % _PAGE, end - at)
            try:
                pieces.append(self._disk.read(fd, size, at))
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                pieces.append(os.urandom(size))
            at += size
        return b"".join(pieces)


def salvage(log: Path, size: int, saved: Checkpoint | None, disk: Disk) -> list[Damage]:
    """Read the whole log in the folder, whose segments have `size`, and write down where it is damaged. `saved` is what
    the views know. Needs the folder's lock. Returns what is new. After a crash in here, do it again.

    Raises `LogCorrupt` for a segment that is none of this log, OSError.
    """
    if not _complete(log, size, 0, disk):
        return []
    segments = Segments(log, size, _Indulgent(disk))
    segments.find()
    found: list[Damage] = []
    end = segments.bases[0]
    durable = 0 if saved is None else saved.durable
    for piece in pieces(segments, end, durable):
        if isinstance(piece, Damage):
            found.append(piece)
        else:
            end = piece.position + len(piece.data)
    end = segments.damaged.behind(end)
    if saved is not None and end < durable:
        resumes = -(-max(saved.position, durable) // size) * size
        what = f"records up to {durable} are lost"
        found.append(Damage(segment_name(segments.base_of(end)), end, what, resumes))
        _complete(log, size, resumes, disk)
    if found:
        ranges = [(damage.position, damage.resumes or 0) for damage in found]
        write_damaged(log, DamagedRanges([*segments.damaged, *ranges]), disk)
    return found


def forget_reclaimed(segments: Segments) -> None:
    """Strike out what retention has taken with its segments."""
    begin = segments.bases[0] if segments.bases else 0
    kept = DamagedRanges((first, end) for first, end in segments.damaged if end > begin)
    if kept.size() != segments.damaged.size():
        write_damaged(segments.folder, kept, segments.disk)
        segments.damaged = kept


def _complete(log: Path, size: int, end: int, disk: Disk) -> bool:
    """Have every segment of the log up to position `end` there, as long as it was. False: there is none at all."""
    for unfinished in log.glob("*.new"):
        unfinished.unlink()
    bases = sorted(int(path.stem) for path in log.glob("*.log") if path.stem.isdecimal())
    for base in range(bases[0], max(bases[-1] + size, end), size) if bases else ():
        path = log / segment_name(base)
        length = path.stat().st_size if path.exists() else 0
        if length > size:
            raise LogCorrupt(path.name, base, "not a segment of this log (name or size)")
        if length < size:
            _replace(path, length, size, disk)
    return bool(bases)


def _replace(path: Path, length: int, size: int, disk: Disk) -> None:
    """Have zeros behind `length` of a segment, in a file of its own: a backup may share the old one."""
    unfinished = path.with_suffix(".new")
    source = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        Copier(_Indulgent(disk)).copy(source, unfinished, length, size)
    finally:
        os.close(source)
    unfinished.rename(path)
    disk.sync_folder(path.parent)
