"""The store in this process: `store.api.Store` over a data folder.

The path of a record: `append` hands it to `log`, whose flush thread seals it and makes it durable. `_on_batch` then
runs on the loop: it adds the batch to the tail cache, folds it into the views and calls the commit listeners. The log
answers the append last. Reads are in `store.queries`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from store import control
from store.api import (
    Appended,
    Attendance,
    DeadLetterReason,
    Done,
    Handed,
    NamedClaim,
    Receipts,
    TransactionListener,
)
from store.config import StoreConfig
from store.errors import StoreError
from store.gateways.registry import GatewayRegistry
from store.groups.pop import GroupService
from store.held.release import HeldMessages
from store.local_store import LocalStore
from store.log.disk import Disk
from store.log.writer import Clock, SealedBatch, clock_ms
from store.opening import OpenedStore, open_store
from store.retention.retention import Retention
from store.retention.tier_lists import ManifestList, RecordList, TierList
from store.tier.objects import Objects
from store.tier.tier import Tier

logger = logging.getLogger(__name__)

_MAX_COUNTS: Final = 1024  # parent topics with a number of partitions of their own


class Engine(LocalStore):
    """A store in this process. Create it with `open`, and call its methods only on the loop that opened it."""

    def __init__(self, opened: OpenedStore, config: StoreConfig, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(opened, config, loop)
        self.wants = None  # listeners get every commit
        self.max_record = opened.config.max_record
        self.max_wait_ms = opened.config.max_wait_ms
        self.reached_at = 0.0
        self.max_pending = opened.config.max_pending_bytes
        self.append = self._log.append  # bound directly: each read of each connection calls it
        self._groups = GroupService(
            opened.config, self._views, self._reader, self._log.offer, self._log.offer_later, opened.clock
        )
        self.pop = self._groups.pop  # bound directly: each batch of each member calls it
        self.settle = self._groups.settle
        self.redelivery = self._groups.redelivery
        self._held = HeldMessages(opened.config, self._views.held, self._log.append, opened.clock, loop)
        self._retention = Retention(
            opened.config,
            self._segments,
            self._reader,
            self._views,
            self._log,
            self._removal,
            self._stopped,
            self._checkpointed,
            self._held.wait_for_commits,
            opened.clock,
            opened.tier,
            self._list_of(opened.tier),
        )
        self.gateway_registry = GatewayRegistry(self._views.gateways, self._log.append, opened.config.lease_s)
        self._segment_end = 0  # of the segment that was written last
        self._begun_at = 0  # the log's end when the store was open

    @classmethod
    async def open(
        cls,
        path: Path,
        config: StoreConfig,
        disk: Disk | None = None,
        clock: Clock = clock_ms,
        objects: Objects | None = None,
        needs_old_segments: bool = True,
    ) -> "Engine":
        """Open and recover the data folder. Create it if it does not exist.

        objects: the object store of the tier, in place of the configured one. needs_old_segments: whether it is an
        error if segments are only in a tier and none is configured. Otherwise reads there raise `LogCorrupt`.

        Raises `LogCorrupt` for damage other than a torn tail, `StoreError` when another process has the folder open,
        and OSError when the disk fails.
        """
        run = asyncio.get_running_loop().run_in_executor
        opened = await run(None, open_store, path, config, disk or Disk(), clock, objects, needs_old_segments)
        return await cls.start(opened, config)

    @classmethod
    async def start(cls, opened: OpenedStore, config: StoreConfig) -> "Engine":
        """Start a store over an opened data folder, which is closed if that fails. Raises `StoreError` and OSError."""
        engine = cls(opened, config, asyncio.get_running_loop())
        try:
            await engine._start()
            await engine._set_partitions(config.parent_partitions)
        except BaseException:
            await engine.close_after_failed_start()
            raise
        return engine

    def _list_of(self, tier: Tier | None) -> TierList | None:
        """Who changes what is in the tier."""
        if tier is None:
            return None
        if self.meta.shared:
            return RecordList(tier, self._views, self._log.append, self.meta.log_id, self._writer.epoch)
        return ManifestList(tier, self._views)

    async def _start(self) -> None:
        """Start what happens by itself."""
        if self._removal.is_due:  # the process ended between the log's decision and the removal
            await self._removal.keep_held(self._views.begin)
        self._held.start()
        self._retention.start()

    def change_retention(self, config: StoreConfig) -> None:
        super().change_retention(config)
        self._retention.change(config)

    async def _set_partitions(self, wanted: Mapping[bytes, int]) -> None:
        """Have these parent topics have so many partitions from now on, where they have fewer or no messages yet.

        Raises `StoreError`.
        """
        known = self.partitions
        if len({*known.counts, *wanted}) > _MAX_COUNTS:
            raise StoreError(f"at most {_MAX_COUNTS} parent topics may have a number of partitions of their own")
        changed: list[bytes] = []
        for parent, count in wanted.items():
            has = known.of(parent)
            if count > has or (count < has and not any(each.end for each in await self.partition_bounds(parent))):
                changed.append(control.TopicPartitions(count).frame(parent))
            elif count < has:
                logger.warning(
                    "parent topic %r has messages in %d partitions; the configured %d is ignored",
                    parent.decode(errors="replace"),
                    has,
                    count,
                )
        if changed:
            answer: asyncio.Future[Appended] = self._loop.create_future()
            self.append(changed, answer.set_result)
            error = (await answer).error
            if error is not None:
                raise error
        self._begun_at = self._log.end

    async def close(self) -> None:
        """Commit accepted appends, checkpoint the views and unlock the folder."""
        await self._retention.stop()
        self._held.stop()
        await super().close()

    async def close_after_failed_start(self) -> None:
        """Close, and remove the data folder's content again if `open` created it and nothing was appended.

        A prepared segment would take its place on disk until a start succeeds.
        """
        is_unused = self._log.end == self._begun_at and not self._log.pending_bytes
        self._is_discarded = self._writer.epoch == 1 and is_unused and not self.meta.shared
        await self.close()

    def offer(self, frames: list[bytes], done: Done) -> StoreError | None:
        """Append frames, or return at once why not; then `done` is never called.

        Accepted frames are committed in the order of the calls. If one append fails, all later ones fail too.
        """
        return self._log.offer(frames, done)

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

    async def answer_question(self, gateway: bytes, number: int, answer: bytes) -> None:
        self.gateway_registry.answered(gateway, number, answer)

    def group_members(self, group: bytes) -> int:
        """How many members of a consumer group have asked for messages lately."""
        return self._groups.members.count(group, self._groups.now())

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

    def publishers_asked(self, handles: Sequence[int]) -> None:
        """Publishers at a gateway are asked about the transactions of these half messages."""
        self._held.asked(handles)

    def may_hold(self) -> bool:
        return self._views.held.count.value < self._config.max_held

    def _after_batch(self, batch: SealedBatch) -> None:
        if batch.position >= self._segment_end:
            self._segment_end = self._segments.base_of(batch.position) + self._segments.size
            self._retention.segment_begun()
        if self._views.held.earlier.is_set:
            self._held.reschedule()
