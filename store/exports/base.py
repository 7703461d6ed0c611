"""Finds views to start from when a log is folded up to a moment in its past.

Views only move forward, so they must not be beyond the moment. The folder's own views are used if possible, then those
of an older backup of the same log. If retention has removed nothing yet, the log can be folded from its beginning.

Older views may refer to records that retention has removed since. Those that must be kept are copied from the log of
the older backup.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import record
from store.data_folder import read_meta
from store.errors import StoreError, ViewsDamaged
from store.exports.backup import read_manifest
from store.exports.until import Until, cut
from store.file_copy import Copier, try_link
from store.log.disk import Disk
from store.log.pinned_segments import pinned
from store.log.recovery import segment_batches
from store.log.segments import Segments
from store.views.database.database import RDICT_CONFIG, Checkpoint, Database, saved_checkpoint
from store.views.database.keeping import Keeper
from store.views.database.state import State
from store.views.held import Held
from store.views.topics.retained import RetainedValues

_TRIES: Final = 10
_CACHE: Final = 16 << 20  # bytes of RocksDB's blocks kept
_PAGE: Final = 256  # rows per page


@dataclass(slots=True)
class Base:
    """Copies views into a folder, as a base for folding a log."""

    into: Path  # must not exist yet
    copier: Copier
    may_link: bool  # link tables instead of copying them

    def choose(self, segments: Segments, end: int, own: int | None, others: Sequence[Path]) -> int:
        """Choose the latest views that are not beyond `end`, and put them into `into`.

        The log's own views, as of position `own`, are there already if it has any. `others` are data folders or
        backups of the same log. Returns the position of the views; 0, with an empty `into`, if the log has to be
        folded from its beginning. Raises `StoreError`, which names the earliest possible position, if there are none.
        """
        begin = segments.whole_from
        positions = [] if own is None or own < begin else [own]
        found = own if own is not None and begin <= own <= end else 0
        source: Path | None = None
        if not found:
            shutil.rmtree(self.into, ignore_errors=True)
        for folder in others:
            trial = self.into.with_name(self.into.name + ".trial")
            position = self.copy_from(folder, trial, end)
            if position is not None and position >= begin and _is_same_log(segments, folder, position):
                positions.append(position)
                if found < position <= end:
                    shutil.rmtree(self.into, ignore_errors=True)
                    trial.rename(self.into)
                    found, source = position, folder
            shutil.rmtree(trial, ignore_errors=True)
        if begin and not found:
            wanted = f"the views cannot be had as of position {end}"
            if not positions:
                raise StoreError(f"{wanted}: the log is whole from {begin} on, and no views of this version go with it")
            raise StoreError(
                f"{wanted}: the earliest possible position is {min(positions)}; an older backup reaches back further"
            )
        if source is not None:
            _keep_reclaimed(self.into, source, segments.begin, begin)
        return found

    def copy_from(self, folder: Path, into: Path, end: int | None = None) -> int | None:
        """Copy the views of a data folder or backup. Returns their position; None if it has no readable views.

        Nothing is copied if a backup's manifest says that they are beyond `end`. Raises `ViewsDamaged` and OSError.
        """
        in_manifest = _position_in_manifest(folder)
        if in_manifest is not None and end is not None and in_manifest > end:
            return in_manifest
        saved = copy_views(folder / "views", into, self.copier, self.may_link)
        return saved.position if saved is not None and saved.is_readable else None


def copy_views(source: Path, target: Path, copier: Copier, may_link: bool) -> Checkpoint | None:
    """Copy views that a node may have open into a new folder. Returns their checkpoint; None if there are none.

    The copy has only what the node has flushed. Raises `ViewsDamaged` and OSError.
    """
    for attempt in range(_TRIES):
        if not (source / "CURRENT").exists():
            return None
        try:
            _copy_views(source, target, copier, may_link)
            return saved_checkpoint(target)
        except (FileNotFoundError, ViewsDamaged):  # a compaction removed a file meanwhile, or the views are damaged
            shutil.rmtree(target, ignore_errors=True)
            if attempt == _TRIES - 1:
                raise
    return None


def _copy_views(source: Path, target: Path, copier: Copier, may_link: bool) -> None:
    target.mkdir(mode=0o750)
    # The manifest comes first: each table that it names exists, unless a compaction removed it since.
    small = ["CURRENT", (source / "CURRENT").read_text().strip(), RDICT_CONFIG]
    for name in (*small, *(path.name for path in source.glob("OPTIONS-*"))):
        (target / name).write_bytes((source / name).read_bytes())
    to_copy = []
    try:
        for path in source.glob("*.sst"):
            if not (may_link and try_link(path, target / path.name)):
                to_copy.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), path.name))
        for fd, name in to_copy:
            copier.copy(fd, target / name, os.fstat(fd).st_size)
    finally:
        for fd, _ in to_copy:
            os.close(fd)


def _keep_reclaimed(views: Path, folder: Path, begin: int, whole_from: int) -> None:
    """Copy the records before `whole_from` that views refer to into them, and move their begin of the log to `begin`,
    as retention does in a running store.

    The views are from `folder`, and so are the records. Damaged ones are left out.
    """
    with pinned(folder / "log", read_meta(folder).segment_size, Disk()) as segments:
        first = segments.bases[0] if segments.bases else begin
        if first >= whole_from:
            return
        with closing(Database(views, _CACHE)) as database:
            database.put_log_begin(begin)
            state = State(database)
            for view in (Held(state, first), RetainedValues(state)):
                _keep(view, whole_from, segments, database, state)


def _keep(view: Keeper, begin: int, segments: Segments, database: Database, state: State) -> None:
    page = view.to_keep(begin, None, _PAGE)
    while True:
        for name, position, length in page.rows:
            frame = _record_at(segments, position, length)
            if frame:
                view.keep(name, frame)
                batch = database.batch()
                state.drain(batch)
                database.write(batch, database.checkpoint())
                state.forget()
        if page.after is None:
            return
        page = view.to_keep(begin, page.after, _PAGE)


def _record_at(segments: Segments, position: int, length: int) -> bytes:
    """The record at `position`; empty if it is damaged."""
    base = segments.base_of(position)
    if not segments.has(base):
        return b""
    frame = segments.disk.read(segments.descriptor(base), length, position - base)
    return frame if record.verify(frame, position)[1] == length else b""


def _position_in_manifest(folder: Path) -> int | None:
    """The position of a backup's views according to its manifest; None without a manifest."""
    try:
        return read_manifest(folder).views
    except (StoreError, OSError):
        return None


def _is_same_log(segments: Segments, folder: Path, position: int) -> bool:
    """Whether the log of `folder` has the same record before `position`, with equal time, writer and content."""
    own = _record_before(segments, position)
    with pinned(folder / "log", read_meta(folder).segment_size, Disk()) as others:
        return own != b"" and own == _record_before(others, position)


def _record_before(segments: Segments, position: int) -> bytes:
    """The record that ends at `position`; empty if there is none."""
    if position == 0 or cut(segments, Until(position=position)) != position:
        return b""
    for batch in segment_batches(segments, segments.base_of(position - 1)):
        if batch.position + len(batch.data) >= position:
            data = batch.data[: position - batch.position]
            return data[record.split(data)[-1] :]
    return b""
