"""Verifies a whole log and finds its end and all its damage, without changing anything.

Opening a log verifies only the part that its views do not have, and stops at the first damage. `audit` reads all of
it and continues behind damage. `repair` cuts the log at the first damage; no node may have it open then.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import record
from store.data_folder import Folder, read_meta
from store.errors import LogCorrupt, StoreError
from store.file_copy import Copier
from store.log.damaged_ranges import write_damaged
from store.log.disk import Disk
from store.log.pinned_segments import PinnedSegments
from store.log.recovery import clear, frames_behind, sound_batches
from store.log.segments import Segments, segment_name
from store.log.writer import SealedBatch
from store.views.database import seen_checkpoint

ASIDE: Final = "damaged"


@dataclass(slots=True, frozen=True)
class Damage:
    """Bytes from `position` on that were durable once and are not a valid record."""

    segment: str
    position: int
    what: str
    resumes: int | None  # position of the next sound record; None: there is none
    is_known: bool = False  # it is served around


@dataclass(slots=True)
class SegmentAudit:
    """A segment: its records and the position behind the last of them."""

    name: str
    base: int
    end: int
    records: int = 0


@dataclass(slots=True)
class Audit:
    """The result of verifying a whole log."""

    begin: int
    end: int  # behind the last sound record
    torn: int = 0  # bytes behind it that the next opening clears: a batch that was never acknowledged
    segments: list[SegmentAudit] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def unknown_damage(self) -> list[Damage]:
        """Damage that is not known yet, which stops opening and reading."""
        return [damage for damage in self.damage if not damage.is_known]

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)


def open_segments(path: Path) -> tuple[Segments, Damage | None]:
    """The segments of the data folder up to the first that is missing or no segment, and that as damage. To be closed.

    Raises `StoreError` when there is no data folder at `path`.
    """
    if not (path / "store.json").exists():
        raise StoreError(f"there is no data folder at {path}")
    segments = PinnedSegments(path / "log", read_meta(path).segment_size, Disk())
    try:
        segments.find()
    except LogCorrupt as error:
        segments.bases = [base for base in segments.bases if base < error.position]
        return segments, Damage(error.segment, error.position, error.what, None)
    return segments, None


def audit(path: Path) -> Audit:
    """Read the whole log of the data folder. A node may have it open: then the end is where it was just now."""
    saved = seen_checkpoint(path / "views")  # first: what it speaks of is in the log that is read then
    segments, missing = open_segments(path)
    try:
        return _audit(segments, missing, 0 if saved is None else saved.durable)
    finally:
        segments.close()


def _audit(segments: Segments, missing: Damage | None, durable: int) -> Audit:
    begin = segments.bases[0] if segments.bases else 0
    found = Audit(begin, begin)
    by_base = {base: SegmentAudit(segment_name(base), base, base) for base in segments.bases}
    found.segments = list(by_base.values())
    for piece in pieces(segments, begin, durable):
        if isinstance(piece, Damage):
            found.damage.append(piece)
            continue
        found.end = piece.position + len(piece.data)
        segment = by_base[segments.base_of(piece.position)]
        segment.records += len(record.split(piece.data))
        segment.end = found.end
    found.end = segments.damaged.behind(found.end)
    if missing is not None:
        found.damage.append(missing)
    elif found.end < durable:
        what = f"records up to {durable} are lost: the log ends"
        found.damage.append(Damage(segment_name(segments.base_of(found.end)), found.end, what, None))
    elif not found.damage and segments.bases:
        found.torn = clear(segments, found.end, dry=True)
    found.damage += known_damage(segments)
    found.damage.sort(key=lambda damage: damage.position)
    return found


def known_damage(segments: Segments) -> list[Damage]:
    """What is served around, of the log as it is."""
    begin = segments.bases[0] if segments.bases else 0
    return [
        Damage(segment_name(segments.base_of(first)), first, "damaged, and served around", end, is_known=True)
        for first, end in segments.damaged
        if end > begin
    ]


def pieces(segments: Segments, position: int, durable: int = 0) -> Iterator[SealedBatch | Damage]:
    """The log from a record's `position` on: batches, and what lies damaged between them. What is before `durable` is
    known to have been on disk."""
    end = position
    while segments.has(segments.base_of(position)):
        for batch in sound_batches(segments, position):
            end = batch.position + len(batch.data)
            yield batch
        end = segments.damaged.behind(end)
        resumes: int | None = None
        is_damage = end < durable
        for at, proven in frames_behind(segments, end):
            resumes = at if resumes is None else resumes
            is_damage |= proven > end
            if is_damage:
                break
        if resumes is None or not is_damage:
            return  # nothing proves that anything was durable here: the end, and perhaps a torn tail
        position = resumes
        if position == end:
            continue  # a node has the log open, and has come further meanwhile
        what = "zeros where a record was" if _is_zero(segments, end) else "damaged record"
        yield Damage(segment_name(segments.base_of(end)), end, what, position)
        end = position


def repair(path: Path, disk: Disk) -> tuple[Damage | None, Path | None]:
    """Cut the log at its first damage, after copying what that changes aside. The views go, to be folded anew.

    Returns the damage and the folder of the copies; (None, None) when there is none. Raises `StoreError` while a
    node has the folder. After a crash in here, do it again: the copies are made, and durable, before any change.
    """
    found = audit(path)  # before the lock, which would make a folder of any path
    folder = Folder(path, disk)
    try:
        found = audit(path)
        if not found.unknown_damage:
            return None, None
        damage = found.unknown_damage[0]
        segments, _ = open_segments(path)
        segments.close()
        base = segments.base_of(damage.position)
        touched = sorted(file for file in folder.log.glob("*.log") if int(file.stem) >= base)
        aside = _copy_aside(path, touched, damage.position, disk)
        shutil.rmtree(folder.views, ignore_errors=True)
        for file in reversed(touched):
            if int(file.stem) > base or not segments.has(base):
                file.unlink()
        disk.sync_folder(folder.log)
        if segments.damaged:
            write_damaged(folder.log, segments.damaged.up_to(damage.position), disk)
        if segments.has(base):
            _cut(folder.log / segment_name(base), damage.position - base, segments.size, disk)
        return damage, aside
    finally:
        folder.close()


def _copy_aside(path: Path, files: list[Path], position: int, disk: Disk) -> Path:
    aside = path / f"{ASIDE}-{position}"
    while aside.exists():  # an earlier repair at the same place
        aside = aside.with_name(aside.name + "+")
    disk.make_folder(aside)
    for file in files:
        Copier(disk).copy_file(file, aside / file.name)
    disk.sync_folder(aside)
    return aside


def _cut(segment: Path, length: int, size: int, disk: Disk) -> None:
    """Put zeros behind `length` of a segment. In a file of its own: a backup may share the old one."""
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
