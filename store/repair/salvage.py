"""Finds and records all damage of a log that cannot be opened and has no backup, so that reads skip the damage.

No readable record is lost. A missing or shortened segment is completed with zeros, which count as damage. If records
at the end are lost that the views have, the log continues in the next segment, so that no position is used twice.
"""

import os
from pathlib import Path
from typing import Final

from store.errors import LogCorrupt
from store.file_copy import Copier
from store.log.damaged_ranges import write_damaged
from store.log.disk import UNREADABLE, Disk
from store.log.ranges import Ranges
from store.log.segments import Segments, segment_name
from store.repair.verify import Damage, pieces
from store.views.database.database import Checkpoint

_PAGE: Final = 4096


class _TolerantDisk(Disk):
    """Returns random bytes, which no record contains, where the device cannot read."""

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
    """Read the whole log in the folder and record its damage. Returns the new damage. The caller has the folder's lock.

    `size` is that of the segments, `saved` the checkpoint of the views. It can be repeated after a crash. Raises
    `LogCorrupt` for a segment that does not belong to this log, and OSError.
    """
    begin = None if saved is None else saved.log_begin
    if not _complete(log, size, begin, 0, disk):
        return []
    segments = Segments(log, size, _TolerantDisk(disk))
    segments.find()
    found: list[Damage] = []
    end = segments.bases[0]
    durable = 0 if saved is None else saved.durable
    for piece in pieces(segments, end, durable):
        if isinstance(piece, Damage):
            found.append(piece)
        else:
            end = piece.position + len(piece.data)
    end = segments.gone.behind(end)
    if saved is not None and end < durable:
        resumes = -(-max(saved.position, durable) // size) * size
        what = f"records up to {durable} are lost"
        found.append(Damage(segment_name(segments.base_of(end)), end, what, resumes))
        _complete(log, size, begin, resumes, disk)
    if found:
        ranges = [(damage.position, damage.resumes or 0) for damage in found]
        write_damaged(log, Ranges([*segments.damaged, *ranges]), disk)
    return found


def forget_reclaimed(segments: Segments) -> None:
    """Drop damaged ranges in segments that retention has removed."""
    tiered = segments.tiered.segments
    begin = min(segments.begin, tiered[0].base) if tiered else segments.begin
    kept = Ranges((first, end) for first, end in segments.damaged if end > begin)
    if kept.size() != segments.damaged.size():
        write_damaged(segments.folder, kept, segments.disk)
        segments.set_gone(kept, segments.removed)


def _complete(log: Path, size: int, begin: int | None, end: int, disk: Disk) -> bool:
    """Complete missing and shortened segments from `begin`, or the first segment, up to position `end`.

    Returns False if there is no segment at all.
    """
    for unfinished in log.glob("*.new"):
        unfinished.unlink()
    bases = sorted(int(path.stem) for path in log.glob("*.log") if path.stem.isdecimal())
    if not bases:
        return False
    first = bases[0] if begin is None else min(bases[0], begin - begin % size)
    for base in range(first, max(bases[-1] + size, end), size):
        path = log / segment_name(base)
        length = path.stat().st_size if path.exists() else 0
        if length > size:
            raise LogCorrupt(path.name, base, "not a segment of this log (name or size)")
        if length < size:
            _replace(path, length, size, disk)
    return True


def _replace(path: Path, length: int, size: int, disk: Disk) -> None:
    """Replace a segment by a copy with zeros behind `length`. The old file may be shared with a backup."""
    unfinished = path.with_suffix(".new")
    source = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        Copier(_TolerantDisk(disk)).copy(source, unfinished, length, size)
    finally:
        os.close(source)
    unfinished.rename(path)
    disk.sync_folder(path.parent)
