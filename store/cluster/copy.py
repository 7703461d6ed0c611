"""Opens a node's copy of a shared log.

The log in the folder is trusted up to the checkpoint of the views, which says what the slots had decided there. What is
behind it may not have reached the disk, or not be decided: it is cleared, and read from the slots again.
"""

import logging
from contextlib import ExitStack
from pathlib import Path

import msgspec

from store.cluster.history import History, unpack_history
from store.cluster.shared_log import SharedLogMisconfigured
from store.cluster.slot import Founded
from store.config import StoreConfig
from store.data_folder import META, Folder, Meta, read_meta
from store.errors import StoreError
from store.exports.stage import remove_left
from store.log.disk import Disk
from store.log.recovery import clear
from store.log.segments import Segments
from store.log.writer import Clock, Writer
from store.opening import OpenedStore, as_made, no_tier, open_views, recover_views, tier_of
from store.repair.salvage import forget_reclaimed
from store.tier.objects import Objects
from store.views.database.database import saved_checkpoint
from store.views.log_begin import saved_begin
from store.views.uploaded import saved_segments

logger = logging.getLogger(__name__)


def open_folder(path: Path, disk: Disk) -> Folder:
    """Lock the folder, which has a copy of a shared log or nothing. Raises `StoreError` if it has anything else."""
    folder = Folder(path, disk)
    try:
        remove_left(path)
        if (path / META).exists():
            if not read_meta(path).shared:
                raise StoreError(f"{path} has a log of its own, which no other node has: use an empty folder")
        elif any(folder.log.glob("*.log")):
            raise StoreError(f"{path} has a log without {META}: use an empty folder")
    except BaseException:
        folder.close()
        raise
    return folder


def found_copy(folder: Folder, founded: Founded) -> None:
    """Make the folder's copy of the log, which has nothing yet. Raises OSError."""
    folder.clear()  # a power failure may have brought back views that were removed before `store.json`
    meta = Meta(
        log_id=founded.log_id,
        epoch=0,
        partitions=founded.partitions,
        segment_size=founded.segment_size,
        generation_segments=founded.generation_segments,
        openings=[],
        shared=True,
    )
    folder.write_meta(meta)


def open_copy(
    folder: Folder, config: StoreConfig, clock: Clock, disk: Disk, objects: Objects | None
) -> tuple[OpenedStore, History] | None:
    """Open the folder's copy, with what the slots had decided up to its end. objects: the object store of its tier.

    None if there is none, and if it is damaged: it is removed then. Raises `SharedLogMisconfigured` if it needs a tier,
    and OSError.
    """
    if not (folder.path / META).exists():
        return None
    meta = read_meta(folder.path)
    try:
        return _open(folder, meta, config, clock, disk, None, objects)
    except SharedLogMisconfigured:
        raise
    except StoreError as error:
        logger.warning("the copy of the log in %s is read from the shared log again: %s", folder.path, error)
    folder.clear()
    return None


def open_new_copy(
    folder: Folder, config: StoreConfig, clock: Clock, disk: Disk, founded: History, objects: Objects | None
) -> tuple[OpenedStore, History]:
    """Make and open a copy of the log that was founded in this slot. Raises `StoreError` and OSError."""
    assert founded.founded is not None
    found_copy(folder, founded.founded)
    return _open(folder, read_meta(folder.path), config, clock, disk, founded, objects)


def _open(
    folder: Folder,
    meta: Meta,
    config: StoreConfig,
    clock: Clock,
    disk: Disk,
    founded: History | None,
    objects: Objects | None,
) -> tuple[OpenedStore, History]:
    """`founded`: the copy is new. Raises `StoreError` for any damage."""
    with ExitStack() as undo:
        config = as_made(config, meta)
        segments = Segments(folder.log, config.segment_size, disk, is_copy=True)
        undo.callback(segments.close)
        segments.load()
        forget_reclaimed(segments)
        saved = saved_checkpoint(folder.views)
        if founded is None and (saved is None or not saved.slots):
            raise StoreError("it has no checkpoint yet")
        clear(segments, 0 if saved is None else saved.position)
        database, recovered = recover_views(folder, config, segments)
        undo.callback(database.close)
        history = founded or history_of(database.checkpoint().slots)
        if recovered.end != history.end:
            raise StoreError(f"its log ends at {recovered.end}, and its views at {history.end}")
        for segment in saved_segments(database):  # behind what the folder's list has
            segments.add_tiered(segment)
        segments.trim_tiered(saved_begin(database))
        views = open_views(database, config, segments, recovered)
        if objects is None and views.begin < recovered.begin:
            raise SharedLogMisconfigured(no_tier(recovered.begin))
        views.uploaded.follower = segments
        store_time = max(views.store_time, recovered.store_time)
        writer = Writer(segments, recovered.end, store_time, meta.epoch, config.policy, clock)
        writer.open()
        undo.pop_all()
    tier = tier_of(segments, objects, config)
    return OpenedStore(folder.again(), meta, config, segments, database, views, writer, clock, tier=tier), history


def history_of(slots: bytes) -> History:
    """What a checkpoint of the views says of the slots. Raises `StoreError`."""
    try:
        return unpack_history(slots)
    except msgspec.MsgspecError as error:
        raise StoreError(f"its checkpoint does not say which slots it has ({error})") from None
