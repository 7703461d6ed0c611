"""Long polling of groups: members that wait for messages stand in line.

Who has what is the store's to say (`Store.pop`, `Store.settle`). The rules of the file:

* A member that waits asks the store again when something may have come: a commit of messages, one that has some of
  the group come again, a time that the store named, or a settlement where the group had as much out as it may.
* Members that wait stand in line, and only the first is woken. Who leaves the line wakes the next, which looks
  whether anything is left: so a message costs the same with one member waiting and with a thousand.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.wakeups import Wakeups, group_key, wait_until
from store.api import PopRequest, PopResult, Receipts, Store, dead_letter_queue, partition_queue

_SOURCES: Final = 256  # that are remembered: of many partitions each
_LONGEST_S: Final = 3600.0  # until a line looks again by itself


@dataclass(slots=True, frozen=True)
class Source:
    """What a group receives from. A partition on the wire is an index of `queues`."""

    group: bytes
    key: bytes  # what wakes those who wait for it
    queues: tuple[bytes, ...]


@lru_cache(_SOURCES)
def parent_source(group: bytes, parent: bytes, partitions: int) -> Source:
    """The partitions of a parent topic."""
    return Source(group, b"p" + parent, tuple(partition_queue(parent, number) for number in range(partitions)))


def dead_letter_source(group: bytes) -> Source:
    """What the group gave up on."""
    queue = dead_letter_queue(group)
    return Source(group, queue, (queue,))


class WaitingMembers:
    """The members of a group that wait for the same."""

    __slots__ = ("_timer", "_wakes_at", "is_limited", "source", "waiters")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.waiters: OrderedDict[asyncio.Event, None] = OrderedDict()  # the first hears of commits
        self._timer: asyncio.Handle | None = None  # when the store has something again, at the latest
        self._wakes_at = 0.0  # loop time of the timer, which a handle of uvloop does not tell
        self.is_limited = False  # the first was told that something has to be settled before

    @property
    def first(self) -> asyncio.Event:
        return next(iter(self.waiters))

    def wake(self) -> None:
        self.first.set()

    def look_again(self, popped: PopResult) -> None:
        """Have the first look when there is something again, after this look or an earlier one."""
        self.is_limited = popped.is_limited
        if popped.available_at is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(max(popped.available_at / 1000 - time.time(), 0.0), _LONGEST_S)
        if self._timer is not None:
            if self._wakes_at <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._due)
        self._wakes_at = at

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self.wake()


class LongPolling:
    """The lines there are: none without somebody in it."""

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups
        self._lines: dict[tuple[bytes, bytes], WaitingMembers] = {}  # by group and key
        self._stopped = False

    def stop(self) -> None:
        """End the waits of members, with nothing."""
        self._stopped = True
        for line in self._lines.values():
            for waiter in line.waiters:
                waiter.set()

    async def receive(self, source: Source, request: PopRequest, wait_s: float) -> PopResult:
        """Lease messages, waiting up to `wait_s` for the first one. Raises `RequestError` where the connection has too
        much to read first, and `StoreError`."""
        if not wait_s:
            return await self.pop(request)
        deadline = asyncio.get_running_loop().time() + wait_s
        waiter = asyncio.Event()
        line = self._join(source, waiter)  # before looking, so that nothing comes unheard in between
        try:
            while True:
                popped = await self.pop(request)
                line.look_again(popped)
                if popped.runs or self._stopped or not await wait_until(waiter, deadline):
                    return popped
        finally:
            self._leave(line, waiter)

    async def settle(
        self,
        source: Source,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int | None]],
        member: bytes = b"",
    ) -> list[Receipts]:
        """See `Store.settle`."""
        stale = await self._store.settle(source.group, done, again, member=member)
        self._settled(source)
        return stale

    async def give_back(self, source: Source, receipts: Sequence[Receipts]) -> None:
        """These were leased and given to nobody: they come again at once, and have not been leased out."""
        await self._store.settle(source.group, (), (), [(each, 0) for each in receipts])
        self._settled(source)

    async def bury(self, source: Source, receipts: Sequence[Receipts], member: bytes) -> list[Receipts]:
        """See `Store.bury`."""
        stale = await self._store.bury(source.group, receipts, member)
        self._settled(source)
        return stale

    def _settled(self, source: Source) -> None:
        line = self._lines.get((source.group, source.key))
        if line is not None and line.is_limited:
            line.wake()

    async def pop(self, request: PopRequest) -> PopResult:
        """Lease messages that are there. Raises as `receive` does."""
        async with reply_budget() as budget:
            popped = await self._store.pop(request)
            budget.add(sum([len(run.data) for run in popped.runs]))
        return popped

    def _join(self, source: Source, waiter: asyncio.Event) -> WaitingMembers:
        key = (source.group, source.key)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = WaitingMembers(source)
            self._hear(source, waiter)
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
            self._hear(source, line.first)
            line.wake()
        else:
            line.stop()
            del self._lines[source.group, source.key]

    def _hear(self, source: Source, waiter: asyncio.Event) -> None:
        self._wakeups.add(source.key, waiter)
        self._wakeups.add(group_key(source.group), waiter)
