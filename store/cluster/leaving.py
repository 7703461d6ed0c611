"""Makes a node's copy of a shared log the folder of a single node.

The log goes on from there as after a restore of a backup: it has the same `log_id` and the openings of before, and gets
another one when a node opens it. So whoever knows more of the shared log than the folder has finds out.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from store.cluster.copy import history_of
from store.data_folder import Folder, Meta, is_data_folder, read_meta
from store.errors import LogCorrupt, StoreError
from store.log.disk import Disk
from store.log.recovery import clear, missing_at_begin, sound_batches
from store.log.segments import Segments, segment_name
from store.views.database.database import Checkpoint, saved_checkpoint


@dataclass(slots=True, frozen=True)
class Left:
    """What the folder has."""

    slot: int  # of the shared log, at the checkpoint of the views, 0: they have none; the log may go on behind it
    begin: int  # of the log
    position: int  # end of the log
    time_ms: int  # store time of its newest record; 0: it has none
    dropped_bytes: int  # behind the end, not whole


def leave(path: Path, disk: Disk) -> Left:
    """Make the copy of a shared log in this folder a log of its own. It can be repeated after a crash.

    The whole log is read. It ends where the copy is not whole any more, which is behind the checkpoint of the views:
    nothing was written there that the slots had not decided. Raises `LogCorrupt` if it is not whole up to the
    checkpoint, `StoreError` if the folder has no copy or a process has it open, and OSError. Nothing is changed then.
    """
    if not is_data_folder(path):
        raise StoreError(f"there is no data folder at {path}")
    folder = Folder(path, disk)
    try:
        meta = read_meta(path)
        if not meta.shared:
            raise StoreError(f"{path} is the folder of a single node already")
        saved = saved_checkpoint(folder.views)
        if saved is None and folder.views.exists():  # a backup was restored up to a moment before its views
            saved = Checkpoint(0, 0, 0)
        if saved is None:
            raise StoreError(f"{path} has no whole copy of the log: it was still being filled from a snapshot")
        segments = Segments(folder.log, meta.segment_size, disk)
        segments.load()
        try:
            if segments.whole_from and not (saved.slots and saved.is_readable):
                raise StoreError(f"{path} has no views that go with its log, which does not begin at 0 any more")
            return _leave(folder, meta, saved, segments)
        finally:
            segments.close()
    finally:
        folder.close()


def _leave(folder: Folder, meta: Meta, saved: Checkpoint, segments: Segments) -> Left:
    missing = missing_at_begin(segments, saved.log_begin)
    if missing is not None:
        raise missing
    begin = end = max(segments.begin, segments.base_of(saved.log_begin))
    time_ms = 0
    for batch in sound_batches(segments, begin):
        end, time_ms = batch.position + len(batch.data), batch.store_time
    end = segments.gone.behind(end)
    if end < saved.position:
        raise LogCorrupt(segment_name(segments.base_of(end)), end, "damaged record")
    dropped = clear(segments, end)
    _sync(segments, saved.position)
    folder.write_meta(msgspec.structs.replace(meta, shared=False))
    slot = history_of(saved.slots).slot if saved.slots else 0
    return Left(slot, begin, end, time_ms, dropped)


def _sync(segments: Segments, position: int) -> None:
    """Sync the log from `position` on. A copy is not, behind the checkpoint of its views."""
    for base in segments.bases:
        if base >= segments.base_of(position):
            fd = segments.open(base)
            try:
                segments.disk.sync(fd)
            finally:
                os.close(fd)
