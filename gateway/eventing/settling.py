"""Settles the events of a rule in batches: finished ones as runs, failed ones with their cause."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.observe.throttled_log import ThrottledLog
from store.api import MAX_ERROR, Failed, GroupStore, Receipts
from store.errors import StoreError

_AFTER_S: Final = 0.02  # within which the events of a batch are gathered
_AT_ONCE: Final = 256  # events that are settled at once; fewer wait, and start no write to disk
_FINAL: Final = 1  # deliveries after which an event that can never be handled is a dead letter

MATCHED: Final = b"matched"  # members of the group, for traces
UNMATCHED: Final = b"no match"


class Settling:
    """What is to be settled of one group. `flush` it in the end."""

    def __init__(self, store: GroupStore, group: bytes, log: logging.Logger, on_room: Callable[[], None]) -> None:
        """on_room: called after each settlement."""
        self._store = store
        self._group = group
        self._log = ThrottledLog(log)
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._done: dict[bytes, list[Receipts]] = {MATCHED: [], UNMATCHED: []}
        self._failed: list[Failed] = []
        self._final: list[Failed] = []
        self._unsent: list[tuple[Receipts, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0  # events that are not settled yet

    def done(self, queue: bytes, offset: int, count: int, deliveries: int, member: bytes) -> None:
        """Consecutive events are finished. member: `MATCHED` or `UNMATCHED`."""
        runs = self._done[member]
        if runs:
            last = runs[-1]
            if last.offset + last.count == offset and last.queue == queue and last.deliveries == deliveries:
                last.count += count
                self._added(count)
                return
        runs.append(Receipts(queue, offset, count, deliveries))
        self._added(count)

    def failed(self, receipts: Receipts, error: str, delay_ms: int | None = None) -> None:
        """The event comes again, or is a dead letter after its last delivery. delay_ms: None for the usual one."""
        self._failed.append(Failed(receipts, delay_ms, _cut(error)))
        self._added()

    def refused(self, receipts: Receipts, error: str) -> None:
        """The event can never be handled: it is a dead letter."""
        self._final.append(Failed(receipts, None, _cut(error)))
        self._added()

    def unsent(self, receipts: Receipts) -> None:
        """Nobody has tried to handle the event: it comes again."""
        self._unsent.append((receipts, 0))
        self._added()

    async def flush(self) -> None:
        """Settle everything now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._task is not None:
            await asyncio.wait((self._task,))
        await self._settle()

    def _added(self, count: int = 1) -> None:
        self.waiting += count
        if self._task is not None:
            return
        if self.waiting >= _AT_ONCE:
            self._begin()
        elif self._timer is None:
            self._timer = self._loop.call_later(_AFTER_S, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = self._loop.create_task(self._settle())
            self._task.add_done_callback(self._ended)

    def _ended(self, _task: "asyncio.Task[None]") -> None:
        self._task = None
        if self.waiting:
            self._timer = self._loop.call_later(_AFTER_S, self._begin)
        self._on_room()

    async def _settle(self) -> None:
        done, failed, final, unsent = self._done, self._failed, self._final, self._unsent
        self._done, self._failed, self._final, self._unsent = {MATCHED: [], UNMATCHED: []}, [], [], []
        late = self.waiting < _AT_ONCE
        self.waiting = 0
        try:
            for member, receipts in done.items():
                if receipts:
                    await self._store.settle(self._group, receipts, member=member, late=late)
            if failed or unsent:
                await self._store.settle(self._group, (), (), unsent, MATCHED, failed)
            if final:
                await self._store.settle(self._group, (), (), (), MATCHED, final, _FINAL)
        except StoreError as error:  # the events come again when their leases end
            self._log.warning("settle", f"{self._group.decode()}: its events cannot be settled: {error}")


def _cut(error: str) -> bytes:
    return error.encode()[:MAX_ERROR].decode(errors="ignore").encode()
