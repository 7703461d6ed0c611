"""The store in this process: `store.api.Store` over a data folder.

The path of a record: `append` hands it to `log`, whose flush thread seals it and makes it durable. `_on_batch` then
runs on the loop: it adds the batch to the tail cache, folds it into the views and calls the commit listeners. The log
answers the append last. Reads are in `store.queries`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from store.api import (
    Attendance,
    CommitListener,
    DeadLetterReason,
    Done,
    Handed,
    Listening,
    NamedClaim,
    Receipts,
    StoreStats,
    TransactionListener,
)
from store.commit_listeners import EVERY_COMMIT, CommitListeners
from store.config import StoreConfig
from store.data_folder import Folder, Meta
from store.errors import StoreError, StoreFailed
from store.exports.stage import Staged, link_segments, remove_left
from store.gateways.registry import GatewayRegistry
from store.groups.pop import GroupService
from store.held.release import HeldMessages
from store.log.commitlog import CommitLog
from store.log.disk import Disk
from store.log.reader import LogReader
from store.log.recovery import Recovered, missing_at_begin, recover, sound_batches
from store.log.segments import Segments
from store.log.tail_cache import TailCache
from store.log.writer import Clock, SealedBatch, Writer, clock_ms
from store.queries import Queries
from store.repair.salvage import forget_reclaimed, salvage
from store.retention.retention import Retention
from store.views.database.database import Database, saved_checkpoint
from store.views.fold import Views

logger = logging.getLogger(__name__)


class Engine(Queries):
    """A store in this process. Create it with `open`, and call its methods only on the loop that opened it."""

    def __init__(self, opened: "_Opened", config: StoreConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.wants = None  # listeners get every commit
        self.meta = opened.meta
        self.partitions = opened.config.partitions
        self.max_record = opened.config.max_record
        self.max_wait_ms = opened.config.max_wait_ms
        self.reached_at = 0.0
        self.max_pending = opened.config.max_pending_bytes
        self._config = config
        self._loop = loop
        self._folder = opened.folder
        self._segments = opened.segments
        self._database = opened.database
        self._views = opened.views
        self._tail = TailCache(config.tail_cache_bytes)
        self._reader = LogReader(self._segments, self._tail, opened.config.max_reads)
        self._writer = opened.writer
        self._listeners = CommitListeners()
        self._log = CommitLog(opened.writer, opened.config, loop, self._on_batch, self._listeners.go_on, self._on_sync)
        self.append = self._log.append  # bound directly: each read of each connection calls it
        self._groups = GroupService(
            opened.config, self._views, self._reader, self._log.offer, self._log.offer_later, opened.clock
        )
        self.pop = self._groups.pop  # bound directly: each batch of each member calls it
        self.settle = self._groups.settle
        self._held = HeldMessages(opened.config, self._views.held, self._log.append, opened.clock, loop)
        self._retention = Retention(
            opened.config,
            self._segments,
            self._reader,
            self._database,
            self._views,
            self._log,
            self._checkpointed,
            self._held.wait_for_commits,
            opened.clock,
        )
        self.gateway_registry = GatewayRegistry(self._views.gateways, self._log.append, opened.config.lease_s)
        self._checkpoint_awaited: asyncio.Future[None] | None = None  # a sync runs, and a checkpoint follows it
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._view_flush: asyncio.Future[None] | None = None
        self._view_flushed = self._views.position  # log position of the last view flush
        self._stagings: set[asyncio.Task[Staged]] = set()
        self._replayed = (self._views.records, self._views.messages)
        self._batches = 0
        self._segment_end = 0  # of the segment that was written last
        self._is_discarded = False

    @classmethod
    async def open(cls, path: Path, config: StoreConfig, disk: Disk | None = None, clock: Clock = clock_ms) -> "Engine":
        """Open and recover the data folder. Create it if it does not exist.

        Raises `LogCorrupt` for damage other than a torn tail, `StoreError` when another process has the folder open,
        and OSError when the disk fails.
        """
        loop = asyncio.get_running_loop()
        opened = await loop.run_in_executor(None, _open, path, config, disk or Disk(), clock)
        engine = cls(opened, config, loop)
        try:
            await engine._start()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _start(self) -> None:
        """Start what happens by itself."""
        if self._retention.removal.is_due:  # the process ended between the log's decision and the removal
            await self._retention.removal.keep_held(self._views.begin)
        self._held.start()
        self._retention.start()

    async def close(self) -> None:
        """Commit accepted appends, checkpoint the views and unlock the folder."""
        await self._retention.stop()
        self._held.stop()
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
        await self._loop.run_in_executor(None, self._close_files)

    async def close_after_failed_start(self) -> None:
        """Close, and remove the data folder's content again if `open` created it and nothing was appended.

        A prepared segment would take its place on disk until a start succeeds.
        """
        self._is_discarded = self._writer.epoch == 1 and not self._log.end and not self._log.pending_bytes
        await self.close()

    async def stage(self, folder: Path) -> Staged:
        """Snapshot the store into `views` and `log` of `folder`, which is empty and on the data folder's file system.

        The snapshot's log ends at the returned position; later bytes do not belong to it. Raises `StoreError` and
        OSError.
        """
        if self._log.failed:
            raise StoreFailed("the log has failed: stop the node and back up its folder")
        task = self._loop.create_task(self._stage(folder))
        self._stagings.add(task)
        task.add_done_callback(self._on_staged)
        return await asyncio.shield(task)  # its thread continues when the caller is cancelled

    async def _stage(self, folder: Path) -> Staged:
        async with self._retention.removal.removing:
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

    def offer(self, frames: list[bytes], done: Done) -> StoreError | None:
        """Append frames, or return at once why not; then `done` is never called.

        Accepted frames are committed in the order of the calls. If one append fails, all later ones fail too.
        """
        return self._log.offer(frames, done)

    def on_commit(self, listener: CommitListener, parts: int = EVERY_COMMIT) -> Listening:
        return self._listeners.add(listener, parts)

    async def release_due(self) -> None:
        """Fire due timers and check due transactions now instead of when the timer wakes."""
        await self._held.release_due()

    async def dead_letter(
        self, group: bytes, receipts: Sequence[Receipts], reason: DeadLetterReason, member: bytes = b""
    ) -> list[Receipts]:
        return await self._groups.dead_letter(group, receipts, reason, member)

    async def release_leases(self, group: bytes, queue: bytes) -> None:
        await self._groups.release(group, queue)

    @property
    def owners(self) -> list[bytes]:
        """Gateways that have or had leases of groups."""
        return self._groups.owners.names

    def on_back(self, listener: Callable[[bytes], None]) -> None:
        """Call `listener` with each group that had leases returned before they expired."""
        self._groups.on_back = listener

    async def release_of(self, gateway: bytes) -> None:
        """Return all leases of an ended gateway, so that their messages are redelivered now. Raises `StoreError`."""
        await self._groups.release_of(gateway)

    async def release_unowned(self, group: bytes, queue: bytes) -> None:
        """Return the leases of a group in a queue, except those of known gateways."""
        await self._groups.release_unowned(group, queue)

    async def join_gateway(self, gateway: bytes, claims: Sequence[NamedClaim] | None, more: bool = False) -> float:
        return await self.gateway_registry.join(gateway, claims, more)

    async def heartbeat(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        return await self.gateway_registry.heartbeat(gateway, figures)

    async def leave_gateway(self, gateway: bytes) -> None:
        await self.gateway_registry.leave(gateway)

    async def claim_client(self, gateway: bytes, client_id: bytes, number: int, user: bytes) -> None:
        await self.gateway_registry.claim_client(gateway, client_id, number, user)

    async def release_clients(self, gateway: bytes, claims: Sequence[tuple[bytes, int]]) -> None:
        await self.gateway_registry.release_clients(gateway, claims)

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        return await self._groups.hand_over(group, handed)

    async def reset_group(self, group: bytes, offsets: Mapping[bytes, int], user: bytes = b"") -> None:
        await self._groups.reset(group, offsets, user)

    async def remove_group(self, group: bytes) -> None:
        await self._groups.remove(group)

    async def recall(self, handles: Sequence[int]) -> list[int]:
        return await self._held.recall(handles)

    async def end_transaction(self, handles: Sequence[int], commit: bool) -> list[int]:
        return await self._held.end_transaction(handles, commit)

    def on_transaction_check(self, listener: TransactionListener) -> None:
        self._held.on_check(listener)

    def may_hold(self) -> bool:
        return self._views.held.count.value < self._config.max_held

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
            max_held=self._config.max_held,
            damaged_places=places,
            damaged_bytes=size,
            damage_met=len(self._reader.met),
            failed=self._log.failed,
        )

    def _on_batch(self, batch: SealedBatch) -> bool:
        """Fold a committed batch and call the listeners. Returns whether they have something left to do. An exception
        from here stops the log."""
        self._tail.add(batch.position, batch.data)
        commit = self._views.fold(batch)
        self._batches += 1
        if batch.position >= self._segment_end:
            self._segment_end = self._segments.base_of(batch.position) + self._segments.size
            self._retention.segment_begun()
        has_rest = self._listeners.notify(commit)
        if self._views.held.earlier.is_set:
            self._held.reschedule()
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
            self._view_flushed = self._views.position
            self._view_flush = self._loop.run_in_executor(None, self._database.flush)
            self._view_flush.add_done_callback(self._on_view_flushed)

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
        self._database.close()
        self._segments.close()
        if self._is_discarded:
            self._folder.discard()
        else:
            self._folder.close()


class _Opened:
    """The parts of an opened store. The opening thread hands them to the loop."""

    __slots__ = ("clock", "config", "database", "folder", "meta", "recovered", "segments", "views", "writer")

    def __init__(
        self,
        folder: Folder,
        meta: Meta,
        config: StoreConfig,
        segments: Segments,
        database: Database,
        views: Views,
        recovered: Recovered,
        writer: Writer,
        clock: Clock,
    ) -> None:
        self.folder = folder
        self.meta = meta
        self.config = config
        self.segments = segments
        self.database = database
        self.views = views
        self.recovered = recovered
        self.writer = writer
        self.clock = clock


def _open(path: Path, config: StoreConfig, disk: Disk, clock: Clock) -> _Opened:
    with ExitStack() as undo:
        folder = Folder(path, disk)
        undo.callback(folder.close)
        remove_left(path)
        meta = folder.read_or_create_meta(config)
        for name in ("partitions", "segment_size", "generation_segments"):
            if getattr(config, name) != getattr(meta, name):
                text = "%s is %d, as %s was made with; the configured %d is ignored"
                logger.warning(text, name, getattr(meta, name), path, getattr(config, name))
        config = replace(
            config,
            partitions=meta.partitions,
            segment_size=meta.segment_size,
            generation_segments=meta.generation_segments,
        )
        segments = Segments(folder.log, config.segment_size, disk)
        undo.callback(segments.close)
        if config.serve_damaged:
            salvage(folder.log, config.segment_size, saved_checkpoint(folder.views), disk)
        segments.load()
        forget_reclaimed(segments)
        for first, end in segments.damaged:
            logger.warning("the log is damaged from position %d up to %d: reads skip this range", first, end)
        database, recovered = _recover(folder, config, segments)
        undo.callback(database.close)
        database.put_log_begin(recovered.begin)
        views = Views(database, config, recovered.begin, recovered.begin_time, segments.gone)
        views.held.kept_below = segments.whole_from
        _replay(views, segments, recovered.end)
        store_time = max(views.store_time, recovered.store_time)
        meta = folder.begin_epoch(meta, recovered.end)
        writer = Writer(segments, recovered.end, store_time, meta.epoch, config.policy, clock)
        writer.open()
        undo.pop_all()
    return _Opened(folder, meta, config, segments, database, views, recovered, writer, clock)


def _recover(folder: Folder, config: StoreConfig, segments: Segments) -> tuple[Database, Recovered]:
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
