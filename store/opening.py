"""Opens a data folder: recovers the log, opens the views and folds what they lack."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from store.config import StoreConfig
from store.data_folder import Folder, Meta
from store.errors import LogCorrupt, StoreError
from store.exports.stage import remove_left
from store.log.commitlog import Decide
from store.log.disk import Disk
from store.log.recovery import Recovered, missing_at_begin, recover, sound_batches
from store.log.segments import Segments, segment_name
from store.log.tiered import FILE as TIERED
from store.log.writer import Clock, Writer
from store.repair.salvage import forget_reclaimed, salvage
from store.tier.codec import Zstd
from store.tier.objects import Objects
from store.tier.stores import open_objects
from store.tier.tier import Tier
from store.views.database.database import Database, saved_checkpoint
from store.views.fold import Views
from store.views.log_begin import saved_begin

logger = logging.getLogger(__name__)


class OpenedStore:
    """The parts of an opened store. The opening thread hands them to the loop."""

    __slots__ = ("clock", "config", "database", "decide", "folder", "meta", "segments", "tier", "views", "writer")

    def __init__(
        self,
        folder: Folder,
        meta: Meta,
        config: StoreConfig,
        segments: Segments,
        database: Database,
        views: Views,
        writer: Writer,
        clock: Clock,
        decide: Decide | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.folder = folder
        self.meta = meta
        self.config = config
        self.segments = segments
        self.database = database
        self.views = views
        self.writer = writer
        self.clock = clock
        self.decide = decide  # of a shared log that this process writes
        self.tier = tier


def open_store(
    path: Path,
    config: StoreConfig,
    disk: Disk,
    clock: Clock,
    objects: Objects | None = None,
    needs_old_segments: bool = True,
) -> OpenedStore:
    """Open and recover a data folder. objects, needs_old_segments: see `Engine.open`."""
    objects = objects_of(config, objects)
    with ExitStack() as undo:
        folder = Folder(path, disk)
        undo.callback(folder.close)
        remove_left(path)
        meta = folder.read_or_create_meta(config)
        if meta.shared:
            raise StoreError(f"{path} has a copy of a shared log: open it as a node of its cluster")
        for name in ("partitions", "segment_size", "generation_segments"):
            if getattr(config, name) != getattr(meta, name):
                kept, given = getattr(meta, name), getattr(config, name)
                logger.warning("%s is %d, as %s was made with; the configured %d is ignored", name, kept, path, given)
        config = as_made(config, meta)
        segments = Segments(folder.log, config.segment_size, disk)
        undo.callback(segments.close)
        if config.serve_damaged:
            salvage(folder.log, config.segment_size, saved_checkpoint(folder.views), disk)
        segments.load()
        forget_reclaimed(segments)
        for first, end in segments.damaged:
            logger.warning("the log is damaged from position %d up to %d: reads skip this range", first, end)
        database, recovered = recover_views(folder, config, segments)
        undo.callback(database.close)
        views = open_views(database, config, segments, recovered)
        if objects is None and needs_old_segments and views.begin < recovered.begin:
            raise StoreError(f"{no_tier(recovered.begin)}, or remove {folder.log / TIERED} to give them up")
        _replay(views, segments, recovered.end)
        store_time = max(views.store_time, recovered.store_time)
        meta = folder.begin_epoch(meta, recovered.end)
        writer = Writer(segments, recovered.end, store_time, meta.epoch, config.policy, clock)
        writer.open()
        undo.pop_all()
    tier = tier_of(segments, objects, config, [opening.name for opening in meta.openings])
    return OpenedStore(folder, meta, config, segments, database, views, writer, clock, tier=tier)


def objects_of(config: StoreConfig, given: Objects | None) -> Objects | None:
    """The object store of the tier: the given one, or the configured one; None without a tier. Raises `StoreError`."""
    if given is None and config.tier.is_on:
        return open_objects(config.tier.store, config.tier.options)
    return given


def no_tier(begin: int) -> str:
    """What is wrong if a folder needs a tier, and what to do."""
    return f"segments before {begin} are in a tier, and none is configured: set tier.store"


def tier_of(
    segments: Segments, objects: Objects | None, config: StoreConfig, openings: Sequence[str] = ()
) -> Tier | None:
    """The tier of these segments, if there is one (`Tier`)."""
    return None if objects is None else Tier(segments, objects, Zstd(), config.tier, openings)


def as_made(config: StoreConfig, meta: Meta) -> StoreConfig:
    """The settings, with those that were fixed when the folder was made."""
    return replace(
        config,
        partitions=meta.partitions,
        segment_size=meta.segment_size,
        generation_segments=meta.generation_segments,
    )


def open_views(database: Database, config: StoreConfig, segments: Segments, recovered: Recovered) -> Views:
    """The views as of their checkpoint. The log has what is in files, and in front of that what is in the tier.

    Raises `LogCorrupt` if segments between the two are missing.
    """
    database.put_log_begin(recovered.begin)
    first, last = segments.tiered.first, segments.tiered.last
    if first is None or last is None or last.base + segments.size < recovered.begin <= saved_begin(database):
        # What is in the tier, if anything, is before the log's begin.
        views = Views(database, config, recovered.begin, recovered.begin_time, segments.gone)
    elif last.base + segments.size < recovered.begin:
        missing = last.base + segments.size
        raise LogCorrupt(segment_name(missing), missing, "the segment is missing")
    else:
        begin = min(first.base, recovered.begin)
        views = Views(database, config, begin, first.time_ms if begin else 0, segments.gone)
        if begin < recovered.begin:
            views.forget_files(recovered.begin)
    views.held.kept_below = segments.whole_from
    return views


def recover_views(folder: Folder, config: StoreConfig, segments: Segments) -> tuple[Database, Recovered]:
    """Recover the log and open the views. Views that are ahead of the log or unreadable are deleted first."""
    database = Database(folder.views, config.view_cache_bytes)
    try:
        saved = database.checkpoint()
        missing = missing_at_begin(segments, saved.log_begin)
        if missing is not None and segments.begin <= saved.position:  # otherwise the views are of another log, or new
            raise missing
        recovered = recover(segments, saved.position, saved.durable)
        whole_from = segments.whole_from
        if whole_from and not whole_from <= saved.position <= recovered.end:
            text = f"the views end at {saved.position} and the log has only [{whole_from}, {recovered.end})"
            raise StoreError(f"{text}: restore the views from a backup")
        if whole_from and not saved.is_readable:
            text = "the views are of another version, and retention removed the log that they were built from"
            raise StoreError(f"{text}: open them with the version that wrote them")
    except BaseException:
        database.close()
        raise
    if recovered.cut:
        logger.warning("cut a torn tail of %d bytes at position %d", recovered.cut, recovered.end)
    if recovered.end < saved.position or not saved.is_readable:
        reason = "of another version" if not saved.is_readable else "ahead of the log, which was not synced"
        logger.warning("the views are %s: rebuilding them from the log", reason)
        database.close()
        Database.destroy(folder.views)
        database = Database(folder.views, config.view_cache_bytes)
    return database, recovered


def _replay(views: Views, segments: Segments, end: int) -> None:
    """Fold the end of the log that the views do not have yet."""
    if views.position >= end:
        return
    for batch in sound_batches(segments, views.position):
        views.fold(batch)
        if views.is_full:
            views.checkpoint(end)
    views.skip(segments.gone.behind(views.position))
    views.checkpoint(end)
    assert views.position == end
