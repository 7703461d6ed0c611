"""Verifies a whole log and finds its end and all its damage, without changing anything.

Opening a log verifies only the part that its views do not have, and stops at the first damage. `audit` reads the whole
log and continues behind damage. `repair` cuts the log at the first damage, while no node has it open.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import record
from store.data_folder import Folder, is_data_folder, read_meta
from store.errors import LogCorrupt, StoreError
from store.file_copy import Copier
from store.log.disk import Disk
from store.log.pinned_segments import PinnedSegments
from store.log.recovery import clear, frames_behind, missing_at_begin, sound_batches
from store.log.segments import Segments, segment_name
from store.log.writer import SealedBatch
from store.views.database.database import Checkpoint, seen_checkpoint

_TRIES: Final = 5


@dataclass(slots=True, frozen=True)
class Damage:
    """Damage from `position` on: these bytes were durable once, and are not a valid record."""

    segment: str
    position: int
    what: str
    resumes: int | None  # position of the next valid record; None: there is none
    is_known: bool = False  # it is recorded, and reads skip it


@dataclass(slots=True)
class SegmentAudit:
    """The result of verifying a segment."""

    name: str
    base: int
    end: int  # behind its last valid record
    records: int = 0


@dataclass(slots=True)
class Audit:
    """The result of verifying a whole log."""

    begin: int
    end: int  # behind the last valid record
    torn: int = 0  # bytes of a batch behind it that was never acknowledged; the next opening clears them
    segments: list[SegmentAudit] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def unknown_damage(self) -> list[Damage]:
        """Damage that is not recorded. The log cannot be opened with it, and reads fail."""
        return [damage for damage in self.damage if not damage.is_known]

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)


def open_segments(path: Path) -> tuple[Segments, Damage | None]:
    """Open the segments of a data folder. The caller closes them.

    If a segment is missing or invalid, it is returned as damage, and the segments end before it. Raises `StoreError`
    when there is no data folder at `path`.
    """
    if not is_data_folder(path):
        raise StoreError(f"there is no data folder at {path}")
    segments = PinnedSegments(path / "log", read_meta(path).segment_size, Disk())
    try:
        segments.find()
    except LogCorrupt as error:
        segments.bases = [base for base in segments.bases if base < error.position]
        return segments, Damage(error.segment, error.position, error.what, None)
    return segments, None


def audit(path: Path) -> Audit:
    """Read the whole log of a data folder. A node may have it open, and append to it meanwhile."""
    saved = seen_checkpoint(path / "views")  # first, so that the log that is read has everything the views have
    segments, missing = open_segments(path)
    try:
        found = Audit(segments.begin, segments.begin)
        first = _missing_at_begin(path / "views", segments, saved)
        if first is not None:
            found.damage.append(first)
        _audit(found, segments, missing, 0 if saved is None else saved.durable)
        return found
    finally:
        segments.close()


def _missing_at_begin(views: Path, segments: Segments, saved: Checkpoint | None) -> Damage | None:
    """Segments that are missing at the begin of the log. `saved` was read before the segments were opened."""
    error = None
    for _ in range(_TRIES):
        error = None if saved is None else missing_at_begin(segments, saved.log_begin)
        if saved is not None and error is None:
            return None
        saved = seen_checkpoint(views)  # again: retention may have moved the begin before the segments were opened
    return None if error is None else Damage(error.segment, error.position, error.what, segments.begin)


def _audit(found: Audit, segments: Segments, missing: Damage | None, durable: int) -> None:
    by_base = {base: SegmentAudit(segment_name(base), base, base) for base in segments.bases}
    found.segments = list(by_base.values())
    for piece in pieces(segments, found.begin, durable):
        if isinstance(piece, Damage):
            found.damage.append(piece)
            continue
        found.end = piece.position + len(piece.data)
        segment = by_base[segments.base_of(piece.position)]
        segment.records += len(record.split(piece.data))
        segment.end = found.end
    found.end = segments.gone.behind(found.end)
    if missing is not None:
        found.damage.append(missing)
    elif found.end < durable:
        what = f"records up to {durable} are lost: the log ends"
        found.damage.append(Damage(segment_name(segments.base_of(found.end)), found.end, what, None))
    elif not found.damage and segments.bases:
        found.torn = clear(segments, found.end, dry=True)
    found.damage += known_damage(segments)
    found.damage.sort(key=lambda damage: damage.position)


def known_damage(segments: Segments) -> list[Damage]:
    """The recorded damage of the log. Reads skip it."""
    return [
        Damage(segment_name(segments.base_of(first)), first, "damaged, and served around", end, is_known=True)
        for first, end in segments.damaged
        if end > segments.begin
    ]


def pieces(segments: Segments, position: int, durable: int = 0) -> Iterator[SealedBatch | Damage]:
    """Yield the batches of the log from a record's `position` on, and the damage between them.

    The log is known to have been on disk up to `durable`.
    """
    end = position
    while segments.has(segments.base_of(position)):
        for batch in sound_batches(segments, position):
            end = batch.position + len(batch.data)
            yield batch
        end = segments.gone.behind(end)
        resumes: int | None = None
        is_damage = end < durable
        for at, proven in frames_behind(segments, end):
            resumes = at if resumes is None else resumes
            is_damage |= proven > end
            if is_damage:
                break
        if resumes is None or not is_damage:
            return  # the end of the log, perhaps with a torn batch: nothing proves that these bytes were durable
        position = resumes
        if position == end:
            continue  # a node that has the log open has appended meanwhile
        what = "zeros where a record was" if _is_zero(segments, end) else "damaged record"
        yield Damage(segment_name(segments.base_of(end)), end, what, position)
        end = position


def repair(path: Path, disk: Disk) -> tuple[Damage | None, Path | None]:
    """Cut the log at its first damage, and remove the views, which are folded anew. First copy the affected segments.

    Returns the damage and the folder of the copies; (None, None) if there is no damage. Raises `StoreError` while a
    node has the folder open. It can be repeated after a crash: the copies are durable before anything is changed.
    """
    audit(path)  # raises before the lock would create a folder
    folder = Folder(path, disk)
    try:
        found = audit(path)
        if not found.unknown_damage:
            return None, None
        damage = found.unknown_damage[0]
        segments, _ = open_segments(path)
        segments.close()
        base = segments.base_of(damage.position)
        affected = sorted(file for file in folder.log.glob("*.log") if int(file.stem) >= base)
        copies = _save_copies(path, affected, damage.position, disk)
        shutil.rmtree(folder.views, ignore_errors=True)
        for file in reversed(affected):
            if int(file.stem) > base or not segments.has(base):
                file.unlink()
        disk.sync_folder(folder.log)
        segments.write_gone(folder.log, damage.position)
        if segments.has(base):
            _cut(folder.log / segment_name(base), damage.position - base, segments.size, disk)
        return damage, copies
    finally:
        folder.close()


def _save_copies(path: Path, files: list[Path], position: int, disk: Disk) -> Path:
    """Copy files durably into a new folder, and return it."""
    copies = path / f"damaged-{position}"
    while copies.exists():  # from an earlier repair at the same position
        copies = copies.with_name(copies.name + "+")
    disk.make_folder(copies)
    for file in files:
        Copier(disk).copy_file(file, copies / file.name)
    disk.sync_folder(copies)
    return copies


def _cut(segment: Path, length: int, size: int, disk: Disk) -> None:
    """Replace a segment by a copy with zeros behind `length`. A backup may share the old file, which stays as it is."""
    unfinished = segment.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    fd = os.open(segment, os.O_RDONLY | os.O_CLOEXEC)
    try:
        Copier(disk).copy(fd, unfinished, length, size, is_full=True)
    finally:
        os.close(fd)
    unfinished.rename(segment)
    disk.sync_folder(segment.parent)


def _is_zero(segments: Segments, position: int) -> bool:
    fd = segments.open(segments.base_of(position))
    try:
        return not any(segments.disk.read(fd, 48, position % segments.size))
    finally:
        os.close(fd)
