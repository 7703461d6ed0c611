"""A node's own copy of a shared log: a follower's store, or an engine while the node leads.

Both are over the same data folder, which is a cache of what the slots have decided. A follower becomes an engine in
place. An engine is closed when its leadership ends, and the folder is opened again as of what was folded.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import record
from record.layout import MAX_FRAME
from store.cluster.copy import open_copy, open_folder, open_new_copy
from store.cluster.follower import Follower
from store.cluster.history import History
from store.cluster.leadership import Deposed, Leadership
from store.cluster.shared_log import SlotRemoved
from store.cluster.slot import LeaderClaim, Slot, SlotKind
from store.config import StoreConfig
from store.data_folder import Folder
from store.engine import Engine
from store.errors import StoreClosed, StoreError, StoreFailed
from store.log.disk import Disk
from store.log.writer import Clock, SealedBatch, Writer
from store.opening import OpenedStore, objects_of
from store.tier.objects import Objects

# What a node has to read again after a kill, from a service that is slower than its disk.
_UNSAVED_SLOTS: Final = 4096
_UNSAVED_BYTES: Final = 64 << 20
_COUNT_S: Final = 1.0  # between two looks of a leader how many these are


class DecidedSlots:
    """What the slots have decided up to each position that the views may have a checkpoint at."""

    def __init__(self, history: History) -> None:
        self._histories = deque([history])  # their ends differ, and rise

    def add(self, history: History) -> None:
        """The next slot. Views must not be behind its end yet."""
        if self._histories[-1].end == history.end:
            self._histories[-1] = history
        else:
            self._histories.append(history)

    def idle(self, history: History) -> None:
        """Slots without records may have followed the newest one."""
        if self._histories[-1].end == history.end:
            self._histories[-1] = history

    def at(self, position: int) -> History:
        """The log up to and with the last slot that ends at `position` or before. Forgets earlier slots."""
        histories = self._histories
        while len(histories) > 1 and histories[1].end <= position:
            histories.popleft()
        return histories[0]


BeforeClose = Callable[[], Awaitable[object]]
Fill = Callable[[Folder, Disk], Awaitable[None]]  # puts a copy of the log into an empty folder


class Replica:
    """`member.Replica` over a data folder. Create it with `open`, and call its methods only on that loop.

    `engine` is there while the node leads. `on_over` is called when a leadership has ended, before an append that was
    not decided is answered. `before_close` is awaited before the engine of such a leadership is closed, and before the
    copy is replaced.
    """

    def __init__(
        self,
        folder: Folder,
        config: StoreConfig,
        disk: Disk,
        clock: Clock,
        on_over: Callable[[], None],
        objects: Objects | None = None,
    ) -> None:
        self.engine: Engine | None = None
        self.before_close: BeforeClose | None = None
        self._is_replaced = False  # the copy, right now
        self._folder = folder
        self._config = config
        self._disk = disk
        self._clock = clock
        self._on_over = on_over
        self._objects = objects
        self._loop = asyncio.get_running_loop()
        self._slots = DecidedSlots(History())
        self._saved = 0  # the slot of the last `LocalStore.save`
        self._saving: asyncio.Task[None] | None = None  # while the node leads
        self._opened: OpenedStore | None = None  # what the follower or the engine is over
        self._follower: Follower | None = None
        self._leadership: Leadership | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        config: StoreConfig,
        disk: Disk,
        clock: Clock,
        on_over: Callable[[], None],
        objects: Objects | None = None,
    ) -> "Replica":
        """Open the copy of the log in a folder. What is damaged in it is removed, and comes from the slots again.

        objects: the object store of the tier, in place of the configured one. Raises `StoreError` if the folder has a
        log of its own, or another process has it open, `SharedLogMisconfigured` if it needs a tier, and OSError.
        """
        unsaved = min(config.view_flush_bytes, _UNSAVED_BYTES)
        config = replace(config, policy="shared", view_flush_bytes=unsaved)
        objects = objects_of(config, objects)
        loop = asyncio.get_running_loop()
        folder = await loop.run_in_executor(None, open_folder, path, disk)
        replica = cls(folder, config, disk, clock, on_over, objects)
        try:
            await replica._open()
        except BaseException:
            await replica.close()
            raise
        return replica

    @property
    def history(self) -> History:
        """The log up to and with the last slot that was applied, or was decided for this node and folded."""
        folded = self._slots.at(0 if self._opened is None else self._opened.views.position)
        leadership = self._leadership  # has the slots without records too
        return leadership.history if leadership is not None and leadership.history.end == folded.end else folded

    @property
    def local(self) -> Engine | Follower | None:
        """What answers reads; None before the log is founded, and while another copy takes its place."""
        return None if self._is_replaced else self.engine or self._follower

    def change_retention(self, config: StoreConfig) -> None:
        """Take the limits of retention from this configuration, now and for what is opened later."""
        self._config = self._config.with_retention_of(config)
        store = self.engine or self._follower
        if store is not None:
            store.change_retention(config)

    async def apply(self, slot: Slot, history: History) -> None:
        if slot.kind == SlotKind.FOUNDED:
            if slot.position:
                raise SlotRemoved(slot.number, slot.number + 1)  # the records before it are in a snapshot
            await self._take(
                await self._loop.run_in_executor(
                    None, open_new_copy, self._folder, self._config, self._clock, self._disk, history, self._objects
                )
            )
        elif isinstance(slot.content, LeaderClaim):
            await self._note_claim(slot, slot.content)
        self._slots.add(history)
        assert self._follower is not None
        if slot.batch:
            await self._follower.apply(SealedBatch(slot.position, slot.batch, record.store_time_of(slot.batch, 0)))
        if slot.number - self._saved >= _UNSAVED_SLOTS:
            self._saved = slot.number
            await self._follower.save()

    async def lead(self, leadership: Leadership) -> None:
        follower, opened = self._follower, self._opened
        assert follower is not None
        assert opened is not None
        await follower.end()
        views = opened.views
        most = min(leadership.max_batch, MAX_FRAME)
        config = replace(opened.config, max_batch_bytes=most, batch_bytes=min(opened.config.batch_bytes, most))
        writer = Writer(
            opened.segments, views.position, views.store_time, leadership.history.epoch, config.policy, self._clock
        )
        await self._loop.run_in_executor(None, writer.open)

        async def decide(position: int, data: bytes) -> None:
            try:
                self._slots.add(await leadership.decide(position, data))
            except StoreError as error:
                self._on_over()
                raise StoreClosed(f"this node does not lead any more: {error}") from error

        self._follower, self._leadership = None, leadership
        self._opened = OpenedStore(
            opened.folder,
            opened.meta,
            config,
            opened.segments,
            opened.database,
            views,
            writer,
            self._clock,
            decide,
            opened.tier,
        )
        try:
            self.engine = await Engine.start(self._opened, config)
            self.engine.change_retention(self._config)  # it may have changed since the folder was opened
        except StoreClosed as error:  # it has closed the files
            self._opened = self._leadership = None
            leadership.close()  # it is over, unless something else has closed the log
            raise Deposed(str(error)) from error
        self.engine.on_failed = self._on_failed
        if self.engine.has_failed:
            self._on_failed()
        self._saving = self._loop.create_task(self._save_forever(self.engine, leadership))

    def _on_failed(self) -> None:
        """End the leadership before an append hears that the log failed: the next leader knows if it was decided."""
        if self._leadership is not None:
            self._leadership.close()
        self._on_over()

    async def follow(self) -> None:
        """Raises `StoreFailed` if the engine's log has failed, and OSError."""
        engine = self.engine
        if engine is not None:
            if self.before_close is not None:
                await self.before_close()
            await self._close_store()
            if engine.has_failed:
                raise StoreFailed("the log failed while this node led: restart it")
        await self._open()

    async def replace(self, fill: Fill) -> None:
        """Let `fill` put another copy into the folder, and open it. There is none if it is damaged, or `fill` fails.

        Raises what `fill` raises, and OSError. The node must not lead.
        """
        self._is_replaced = True
        try:
            if self._follower is not None and self.before_close is not None:
                await self.before_close()
            await self._close_store()
            await self._loop.run_in_executor(None, self._folder.clear)
            self._slots = DecidedSlots(History())
            try:
                await fill(self._folder, self._disk)
            except BaseException:
                self._folder.clear()
                raise
            await self._open()
        finally:
            self._is_replaced = False

    async def close(self) -> None:
        """End a leadership, checkpoint the views and unlock the folder."""
        if self._leadership is not None:
            self._leadership.close()
        await self._close_store()
        self._folder.close()

    async def _save_forever(self, engine: Engine, leadership: Leadership) -> None:
        """Save the views of the leader each time that it has decided enough slots, until cancelled."""
        with suppress(StoreError):  # the engine's log has failed: it tells so itself
            while True:
                await asyncio.sleep(_COUNT_S)
                history = leadership.history
                if history.slot - self._saved >= _UNSAVED_SLOTS:
                    self._saved = history.slot
                    self._slots.idle(history)
                    await engine.save()

    async def _close_store(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._saving = None
        if self._leadership is not None:
            self._slots.idle(self._leadership.history)
        store: Engine | Follower | None = self.engine or self._follower
        self.engine = self._follower = self._leadership = None
        if store is not None:
            await store.close()
        self._opened = None

    async def _open(self) -> None:
        found = await self._loop.run_in_executor(
            None, open_copy, self._folder, self._config, self._clock, self._disk, self._objects
        )
        self._slots = DecidedSlots(History())
        if found is not None:
            await self._take(found)

    async def _take(self, found: tuple[OpenedStore, History]) -> None:
        self._opened, history = found
        self._slots = DecidedSlots(history)
        self._saved = history.slot
        self._opened.views.slots_at = lambda position: self._slots.at(position).pack()
        self._follower = Follower(self._opened, self._opened.config, self._loop)
        self._follower.change_retention(self._config)  # it may have changed since the folder was opened
        await self._follower.start()

    async def _note_claim(self, slot: Slot, claim: LeaderClaim) -> None:
        """Each claim opens the log, on all nodes alike. One process may claim several times."""
        opened = self._opened
        assert opened is not None
        if slot.epoch <= opened.meta.epoch:  # the folder has it already
            return
        meta = opened.meta.opened(f"{claim.opening}{slot.epoch:08x}", slot.position, slot.epoch)
        await self._loop.run_in_executor(None, self._folder.write_meta, meta)
        opened.meta = meta
        if self._follower is not None:
            self._follower.meta = meta
