"""Long polling of consumer groups: members that find no messages wait in line.

The store owns all leases (`Store.pop`, `Store.settle`). The rules of the file:

* A waiting member pops again when messages may be available. That is after a commit of messages, after a commit that
  makes messages of the group available again (also by making room for leases), and at the time that the store named.
* Only the first member in line is woken. When it leaves the line, it wakes the next member, which pops what is left.
  A message therefore costs the same with one waiting member as with a thousand.
* The pops of groups that are far behind take turns (`gateway.rpc.loop_turns`). Groups that keep up never wait there.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gateway.observe.service_clients import CLIENT
from gateway.rpc.loop_turns import LoopTurns, Turn
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.wakeups import Wakeups, group_key, wait_until
from store.api import (
    DeadLetterReason,
    Failed,
    PopRequest,
    PopResult,
    QueueStore,
    Receipts,
    Store,
    dead_letter_queue,
    partition_queue,
)

_SOURCES: Final = 256  # in the cache; each has all partitions of a topic
_MAX_TIMER_S: Final = 3600.0
_FAR: Final = 4  # batches of the same size that a pop leaves in the queues of a group that is far behind ...
_FAR_MESSAGES: Final = 1_000  # ... and as many messages: a burst for a group that keeps up is shorter
_MAX_FAR: Final = 4_096  # groups that are known to be far behind; some of them have ended


@dataclass(slots=True, frozen=True)
class Source:
    """The queues that a group receives from. A partition number on the wire is an index of `queues`."""

    group: bytes
    key: bytes  # of `Wakeups`
    queues: tuple[bytes, ...]


@lru_cache(_SOURCES)
def parent_source(group: bytes, parent: bytes, partitions: int) -> Source:
    """The source that is the partitions of a parent topic."""
    return Source(group, b"p" + parent, tuple(partition_queue(parent, number) for number in range(partitions)))


def dead_letter_source(group: bytes) -> Source:
    """The source that is the dead-letter queue of a group."""
    queue = dead_letter_queue(group)
    return Source(group, queue, (queue,))


def current_source(source: Source, store: QueueStore) -> Source:
    """The source with all partitions that its parent topic has by now."""
    if source.key[:1] == b"p":
        parent = source.key[1:]
        count = store.partition_count(parent)
        if count != len(source.queues):
            return parent_source(source.group, parent, count)
    return source


class WaitingMembers:
    """The members of a group that wait for messages of one source, in the order of their arrival."""

    __slots__ = ("_timer", "_wakes_at", "source", "waiters")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.waiters: OrderedDict[asyncio.Event, None] = OrderedDict()  # only the first is woken by commits
        self._timer: asyncio.Handle | None = None  # wakes the first member
        self._wakes_at = 0.0  # loop time of the timer; a handle of uvloop does not have it

    @property
    def first(self) -> asyncio.Event:
        return next(iter(self.waiters))

    def wake(self) -> None:
        self.first.set()

    def schedule_wake(self, popped: PopResult) -> None:
        """Wake the first member when messages become available, as this pop or an earlier one reported."""
        if popped.available_at is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(max(popped.available_at / 1000 - time.time(), 0.0), _MAX_TIMER_S)
        if self._timer is not None:
            if self._wakes_at <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._timer_expired)
        self._wakes_at = at

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timer_expired(self) -> None:
        self._timer = None
        self.wake()


class LongPolling:
    """Leases and settles messages for members of groups. It has a line for each source with waiting members."""

    def __init__(self, store: Store, wakeups: Wakeups, turns: LoopTurns) -> None:
        self._store = store
        self._wakeups = wakeups
        self._turns = turns
        self._far: dict[tuple[bytes, bytes], None] = {}  # groups that were far behind at their last pop; first queues
        self._lines: dict[tuple[bytes, bytes], WaitingMembers] = {}  # by group and key
        self._stopped = False

    def stop(self) -> None:
        """End all waits with empty results."""
        self._stopped = True
        for line in self._lines.values():
            for waiter in line.waiters:
                waiter.set()

    async def receive(self, source: Source, request: PopRequest, wait_s: float) -> PopResult:
        """Lease messages. Wait up to `wait_s` seconds for the first one, also in partitions that are added meanwhile.

        Raises `RequestError` if the connection has too many unread replies, and `StoreError`.
        """
        if not wait_s:
            return await self.pop(request)
        deadline = asyncio.get_running_loop().time() + wait_s
        waiter = asyncio.Event()
        line = self._join(source, waiter)  # before the pop, so that no commit in between is missed
        try:
            while True:
                popped = await self.pop(request)
                line.schedule_wake(popped)
                if popped.runs or self._stopped or not await wait_until(waiter, deadline):
                    return popped
                queues = current_source(source, self._store).queues
                if queues != request.queues:
                    request = replace(request, queues=queues)
        finally:
            self._leave(line, waiter)

    async def settle(
        self,
        source: Source,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int]],
        member: bytes = b"",
        unsent: Sequence[tuple[Receipts, int]] = (),
        failed: Sequence[Failed] = (),
        max_deliveries: int = 0,
        late: bool = False,
    ) -> list[Receipts]:
        """See `Store.settle`."""
        stale = await self._store.settle(source.group, done, again, unsent, member, failed, max_deliveries, late)
        client = CLIENT.get()
        if client is not None:
            returned = [receipts for receipts, delay_ms in again if not delay_ms]
            returned += [receipts for receipts, _ in unsent]
            client.settled(source.group, done, [each.receipts for each in failed], returned)
            if again and (longest := max([delay_ms for _, delay_ms in again])):
                client.extended(source.group, longest)
        return stale

    async def return_leases(self, source: Source, receipts: Sequence[Receipts]) -> None:
        """Make leased messages available again that no client got. The lease does not count as a delivery."""
        await self.settle(source, (), (), unsent=[(receipt, 0) for receipt in receipts])

    async def dead_letter(
        self, source: Source, receipts: Sequence[Receipts], reason: DeadLetterReason, member: bytes
    ) -> list[Receipts]:
        """See `Store.dead_letter`."""
        stale = await self._store.dead_letter(source.group, receipts, reason, member)
        client = CLIENT.get()
        if client is not None:
            client.settled(source.group, (), receipts, ())
        return stale

    async def pop(self, request: PopRequest) -> PopResult:
        """Lease available messages without waiting for any. Raises what `receive` raises."""
        key = (request.group, request.queues[0])
        if key not in self._far:
            popped = await self._pop(request, None)
        else:
            turn = Turn(self._turns)
            await turn.wait()
            popped = await self._pop(request, turn)
            turn.end_soon()
        if popped.left <= max(sum([run.count for run in popped.runs]) * _FAR, _FAR_MESSAGES):
            self._far.pop(key, None)
        else:
            self._far[key] = None
            if len(self._far) > _MAX_FAR:
                del self._far[next(iter(self._far))]
        return popped

    async def _pop(self, request: PopRequest, turn: Turn | None) -> PopResult:
        async with reply_budget() as budget:
            if turn is None:
                popped = await self._store.pop(request)
            else:
                max_bytes = min(request.max_bytes, self._turns.most_bytes())
                popped = await turn.timed(self._store.pop(replace(request, max_bytes=max_bytes)))
            budget.add(sum([len(run.data) for run in popped.runs]))
        client = CLIENT.get()
        if client is not None:
            client.leased(request.group, request.member, popped.runs, request.invisible_ms)
        return popped

    def _join(self, source: Source, waiter: asyncio.Event) -> WaitingMembers:
        key = (source.group, source.key)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = WaitingMembers(source)
            self._add_wakeups(source, waiter)
        line.waiters[waiter] = None
        return line

    def _leave(self, line: WaitingMembers, waiter: asyncio.Event) -> None:
        source = line.source
        is_first = line.first is waiter
        del line.waiters[waiter]
        if not is_first:
            return
        self._wakeups.remove(source.key, waiter)
        self._wakeups.remove(group_key(source.group), waiter)
        if line.waiters:
            self._add_wakeups(source, line.first)
            line.wake()
        else:
            line.stop()
            del self._lines[source.group, source.key]

    def _add_wakeups(self, source: Source, waiter: asyncio.Event) -> None:
        self._wakeups.add(source.key, waiter)
        self._wakeups.add(group_key(source.group), waiter)
