"""The log of a data folder and the views folded from it: what a store that writes and one that follows have in common.

A committed batch comes to `_on_batch` on the loop. It is added to the tail cache and folded into the views, and the
commit listeners are called. Checkpoints of the views follow by time and by size. Reads are in `store.queries`.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from store.api import CommitListener, Listening, StoreStats, TierStats
from store.commit_listeners import EVERY_COMMIT, CommitListeners
from store.config import StoreConfig
from store.errors import StoreClosed, StoreError, StoreFailed
from store.exports.stage import Staged, link_segments
from store.histogram import BATCH_BYTES, BATCH_MESSAGES, Histogram
from store.log.commitlog import CommitLog
from store.log.reader import LogReader
from store.log.tail_cache import TailCache
from store.log.writer import SealedBatch
from store.opening import OpenedStore
from store.queries import Queries
from store.retention.removal import Removal
from store.tier.tier import Tier
from store.views.groups.counts import GroupCounts

logger = logging.getLogger(__name__)


class LocalStore(Queries):
    """An opened data folder. Call its methods only on the loop that created it."""

    def __init__(self, opened: OpenedStore, config: StoreConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.meta = opened.meta
        self._config = config
        self._loop = loop
        self._folder = opened.folder
        self._segments = opened.segments
        self._database = opened.database
        self._views = opened.views
        self._tail = TailCache(config.tail_cache_bytes)
        self._tier = opened.tier
        self._reader = LogReader(self._segments, self._tail, opened.config.max_reads, opened.tier)
        self._writer = opened.writer
        self._listeners = CommitListeners()
        self._log = CommitLog(
            opened.writer,
            opened.config,
            loop,
            self._on_batch,
            self._listeners.go_on,
            self._on_sync,
            self._on_fail,
            opened.decide,
        )
        self.on_failed: Callable[[], None] | None = None  # called when the log fails, before it answers an append
        self._stopped = asyncio.Event()  # what happens by itself ends
        self._removal = Removal(
            opened.config,
            self._segments,
            self._reader,
            self._database,
            self._views,
            self._checkpointed,
            self._stopped,
        )
        self._checkpoint_awaited: asyncio.Future[None] | None = None  # a sync runs, and a checkpoint follows it
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._view_flush: asyncio.Future[None] | None = None
        self._view_flushed = self._views.position  # log position of the last view flush
        self._stagings: set[asyncio.Task[Staged]] = set()
        self._replayed = (self._views.records, self._views.messages)
        self._views.pops.counts = GroupCounts()  # without what was replayed
        self._batches = 0
        self.batch_messages = Histogram(BATCH_MESSAGES)  # of batches with messages
        self.batch_bytes = Histogram(BATCH_BYTES)
        self._is_discarded = False
        self._is_ending = False  # nothing can be staged any more

    @property
    def has_failed(self) -> bool:
        """Whether the log refuses appends until a restart."""
        return self._log.failed

    async def close(self) -> None:
        """Commit accepted appends, checkpoint the views and unlock the folder."""
        await self._end_log()
        await self._loop.run_in_executor(None, self._close_files)

    async def _end_log(self) -> None:
        """Commit accepted appends, and checkpoint the views. The files stay open."""
        self._is_ending = True
        if self._stagings:
            await asyncio.wait(self._stagings)
        await self._log.close()
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        if self._view_flush is not None:
            await asyncio.wait([self._view_flush])
        try:
            if not self._log.failed and self._writer.durable >= self._views.position:
                self._views.checkpoint(self._writer.durable)
        except StoreError:
            logger.exception("the last checkpoint of the views failed; a restart replays more")

    async def save(self) -> None:
        """Checkpoint the views, and flush them to disk: a restart after a kill goes on from there.

        Raises `StoreError` if there can be no checkpoint.
        """
        await self._checkpointed()
        while (flush := self._view_flush) is not None:  # it may have begun before the checkpoint
            await asyncio.wait([flush])
        await asyncio.wait([self._flush_views()])

    async def stage(self, folder: Path) -> Staged:
        """Snapshot the store into `views` and `log` of `folder`, which is empty and on the data folder's file system.

        The snapshot's log ends at the returned position; later bytes do not belong to it. Raises `StoreError` and
        OSError.
        """
        if self._log.failed:
            raise StoreFailed("the log has failed: stop the node and back up its folder")
        if self._is_ending:
            raise StoreClosed("the store is closing")
        task = self._loop.create_task(self._stage(folder))
        self._stagings.add(task)
        task.add_done_callback(self._on_staged)
        return await asyncio.shield(task)  # its thread continues when the caller is cancelled

    async def _stage(self, folder: Path) -> Staged:
        async with self._removal.removing:
            # `link_to` flushes the rest of the views and blocks other writes meanwhile: flush most of it first.
            await self._loop.run_in_executor(None, self._database.flush)
            await self._checkpointed()
            await self._loop.run_in_executor(None, self._database.flush)
            await self._loop.run_in_executor(None, self._database.link_to, folder / "views")
            staged = Staged(self._views.begin, self._views.position, self._views.store_time)
            await self._loop.run_in_executor(None, link_segments, self._segments, staged.position, folder / "log")
            if self._config.policy != "fsync":
                # The linked files share pages that are not synced. After a power failure the log would lose and
                # rewrite them, so sync them before the snapshot counts.
                await self._checkpointed()
        return staged

    def on_commit(self, listener: CommitListener, parts: int = EVERY_COMMIT) -> Listening:
        return self._listeners.add(listener, parts)

    def segments(self) -> list[tuple[int, int]]:
        """The position of each segment's first byte, and its bytes on disk."""
        return [(base, self._segments.size_on_disk(base)) for base in self._segments.bases]

    def damaged(self) -> list[tuple[int, int]]:
        """The damaged ranges [begin, end) of the log that reads skip."""
        return list(self._segments.damaged)

    def change_retention(self, config: StoreConfig) -> None:
        """Take the limits of retention from this configuration. All other settings stay."""
        self._config = self._config.with_retention_of(config)

    def stats(self) -> StoreStats:
        places, size = self._segments.damaged.size(self._views.begin)
        free_bytes = self._segments.free_bytes()
        return StoreStats(
            log_begin=self._views.begin,
            log_end=self._log.end,
            records=self._views.records - self._replayed[0],
            messages=self._views.messages - self._replayed[1],
            batches=self._batches,
            checkpoint=self._views.checkpointed,
            log_bytes=self._segments.disk_bytes(),
            view_bytes=self._database.size(),
            free_bytes=free_bytes,
            is_disk_low=free_bytes < self._config.retention_free_bytes,
            tail_bytes=self._tail.size,
            pending_bytes=self._log.pending_bytes,
            sessions=self._views.sessions.count,
            retained=self._views.retained.count.value,
            held=self._views.held.count.value,
            halves=self._views.held.halves.value,
            max_held=self._config.max_held,
            damaged_places=places,
            damaged_bytes=size,
            damage_met=len(self._reader.met),
            entries=self._views.buckets.count.value,
            entry_bytes=self._views.buckets.size.value,
            failed=self._log.failed,
            tier=None if self._tier is None else self._tier_stats(self._tier),
        )

    def batch_times(self) -> tuple[int, int, int]:
        """For a commit listener: when the oldest append of the batch came, when its flush began, and when it was on
        disk, or decided, in ns of `time.monotonic_ns`. 0: not known."""
        flush = self._log.folding
        return (0, 0, 0) if flush is None else (flush.appended_ns, flush.began_ns, flush.ended_ns)

    @property
    def append_us(self) -> Histogram:
        """Times from the oldest append of each batch to its answer, in microseconds."""
        return self._log.append_us

    @property
    def flush_us(self) -> Histogram:
        """Times until each batch was on disk, or decided in a shared log, in microseconds."""
        return self._log.flush_us

    def view_figures(self) -> dict[str, int]:
        """What the database of the views says about itself, see `Database.figures`."""
        return self._database.figures()

    def _tier_stats(self, tier: Tier) -> TierStats:
        segments, last = self._segments, tier.tiered.last
        end = max(segments.begin, self._views.begin) if last is None else last.base + segments.size
        return TierStats(
            segments=len(tier.tiered.segments),
            object_bytes=tier.object_bytes,
            local_begin=max(segments.begin, self._views.begin),
            waiting_bytes=max(segments.base_of(max(self._log.end - 1, 0)) - end, 0),
            reads=tier.reads,
            hits=tier.hits,
            cache_bytes=tier.cache_bytes,
            errors=tier.errors,
            error=tier.error,
        )

    def _after_batch(self, batch: SealedBatch) -> None:
        """Called for each batch when it is folded and the listeners have heard of it."""

    def _on_batch(self, batch: SealedBatch) -> bool:
        """Fold a committed batch and call the listeners. Returns whether they have something left to do. An exception
        from here stops the log."""
        self._tail.add(batch.position, batch.data)
        commit = self._views.fold(batch)
        self._batches += 1
        self.batch_bytes.add(len(batch.data))
        if commit.starts:
            self.batch_messages.add(len(commit.starts))
        has_rest = self._listeners.notify(commit)
        self._after_batch(batch)
        if self._views.is_full:
            self._checkpoint()
        elif self._checkpoint_timer is None:
            self._checkpoint_timer = self._loop.call_later(self._config.checkpoint_age_s, self._on_checkpoint_age)
        return has_rest

    def _on_checkpoint_age(self) -> None:
        self._checkpoint_timer = None
        if self._log.failed:
            return
        try:
            self._checkpoint()
        except Exception as error:  # noqa: BLE001  a store must not continue with views that it cannot write
            self._log.fail(error)

    def _checkpoint(self) -> "asyncio.Future[None]":
        """Checkpoint the views. The returned future is done at once unless the log has to be synced first.

        RocksDB may write a checkpoint to disk at any time, so the log must be durable up to it before.
        """
        awaited = self._checkpoint_awaited
        if awaited is None:
            awaited = self._loop.create_future()
            if self._config.policy == "fsync":
                self._checkpoint_now()
                awaited.set_result(None)
            else:
                self._checkpoint_awaited = awaited
                self._log.sync()
        return awaited

    async def _checkpointed(self) -> None:
        """Checkpoint the views and wait until that is done.

        Raises `StoreError` when it fails, and when the log has failed: a batch may be folded by half then.
        """
        try:
            if not self._log.failed:
                await self._checkpoint()
        except Exception as error:
            self._log.fail(error)
            raise
        if self._log.failed:
            raise StoreFailed("the log has failed: its views take no checkpoint until a restart")

    def _on_fail(self) -> None:
        if self.on_failed is not None:
            self.on_failed()

    def _on_sync(self) -> None:
        awaited, self._checkpoint_awaited = self._checkpoint_awaited, None
        if awaited is None:
            return
        try:
            if not self._log.failed:
                self._checkpoint_now()
        except Exception as error:  # noqa: BLE001  a store must not continue with views that it cannot write
            self._log.fail(error)
        awaited.set_result(None)

    def _checkpoint_now(self) -> None:
        self._views.checkpoint(self._writer.durable)
        if self._views.position - self._view_flushed >= self._config.view_flush_bytes and self._view_flush is None:
            self._flush_views()

    def _flush_views(self) -> "asyncio.Future[None]":
        """Flush the checkpoint of the views to disk. Not to be called again before that is done."""
        self._view_flushed = self._views.position
        self._view_flush = flush = self._loop.run_in_executor(None, self._database.flush)
        flush.add_done_callback(self._on_view_flushed)
        return flush

    def _on_staged(self, task: "asyncio.Task[Staged]") -> None:
        self._stagings.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.warning("a stage for a backup failed: %s", task.exception())

    def _on_view_flushed(self, flush: "asyncio.Future[None]") -> None:
        self._view_flush = None
        error = None if flush.cancelled() else flush.exception()
        if error is not None:
            logger.error("flushing the views failed; a restart replays more", exc_info=error)

    def _close_files(self) -> None:
        if self._tier is not None:
            self._tier.close(wait=not self.meta.shared)  # threads of a shared log's tier write nothing to the folder
        self._database.close()
        self._segments.close()
        if self._is_discarded:
            self._folder.discard()
        else:
            self._folder.close()
