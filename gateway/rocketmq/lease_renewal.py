"""Leases that a node renews for push consumers, as long as these are there: RocketMQ leaves that to the server.

A message that is handed out so is leased for a minute, and the lease renewed until it is settled, for three hours at
the most. When its client is gone, it comes to another member at once.
"""

import asyncio
import logging
from typing import Final

from gateway.rocketmq.access import ClientKey
from gateway.rpc.long_polling import LongPolling, Source
from store.api import Receipts
from store.errors import StoreError

log = logging.getLogger(__name__)

LEASE_MS: Final = 60_000
_LOOK_S: Final = 10.0
_RENEWED_S: Final = 30.0  # before a lease would end
_LONGEST_S: Final = 3 * 3600.0
_MOST: Final = 1 << 16  # messages of one client; further ones are leased for a minute and no longer

_Key = tuple[bytes, bytes, int]  # group, queue, offset


class _RenewedLease:
    __slots__ = ("end", "receipts", "source", "until")

    def __init__(self, source: Source, receipts: Receipts, until: float, end: float) -> None:
        self.source = source
        self.receipts = receipts
        self.until = until  # loop time
        self.end = end  # when it is renewed no more


class LeaseRenewal:
    """Those of all clients of a node."""

    def __init__(self, groups: LongPolling) -> None:
        self._groups = groups
        self._of: dict[ClientKey, dict[_Key, _RenewedLease]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, who: ClientKey, source: Source, receipts: list[Receipts]) -> None:
        """Renew the leases of messages that the client just got."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        kept = self._of.setdefault(who, {})
        for each in receipts:
            for offset in range(each.offset, each.offset + each.count):
                if len(kept) >= _MOST:
                    return
                one = Receipts(each.queue, offset, 1, each.deliveries)
                kept[source.group, each.queue, offset] = _RenewedLease(
                    source, one, now + LEASE_MS / 1000, now + _LONGEST_S
                )
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)

    def drop(self, who: ClientKey, source: Source, receipts: Receipts) -> None:
        """The message is settled."""
        kept = self._of.get(who)
        if kept is not None:
            kept.pop((source.group, receipts.queue, receipts.offset), None)
            if not kept:
                del self._of[who]

    def release(self, who: ClientKey) -> None:
        """The client is gone: others get what it has."""
        kept = self._of.pop(who, None)
        if kept:
            self._settle(list(kept.values()), 0)

    async def stop(self) -> None:
        """Renew nothing more. What is out comes again when its lease ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._of.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        due: list[_RenewedLease] = []
        for who, kept in list(self._of.items()):
            for key, lease in list(kept.items()):
                if lease.until - now > _RENEWED_S:
                    continue
                if lease.end <= now:
                    del kept[key]
                else:
                    lease.until = now + LEASE_MS / 1000
                    due.append(lease)
            if not kept:
                del self._of[who]
        if due:
            self._settle(due, LEASE_MS)
        if self._of:
            self._timer = loop.call_later(_LOOK_S, self._look)

    def _settle(self, leases: list[_RenewedLease], delay_ms: int) -> None:
        by_source: dict[Source, list[tuple[Receipts, int | None]]] = {}
        for lease in leases:
            by_source.setdefault(lease.source, []).append((lease.receipts, delay_ms))
        for source, again in by_source.items():
            task = asyncio.get_running_loop().create_task(self._again(source, again))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _again(self, source: Source, again: list[tuple[Receipts, int | None]]) -> None:
        try:
            await self._groups.settle(source, (), again)  # what is stale by now was settled
        except StoreError as error:
            log.warning("leases of group %r could not be renewed or given back: %s", source.group, error)
