"""Renews leases for connected push consumers, since RocketMQ's clients leave that to the server.

A message for a push consumer is leased for a minute. The lease is renewed until the message is settled, for three hours
at most. When the client disconnects, another member of the group can get the message at once.
"""

import asyncio
import logging
from typing import Final

from gateway.observe.service_clients import CLIENT
from gateway.rocketmq.access import ClientKey
from gateway.rpc.groups.long_polling import LongPolling, Source
from store.api import Receipts
from store.errors import StoreError

log = logging.getLogger(__name__)

LEASE_MS: Final = 60_000
_INTERVAL_S: Final = 10.0  # between checks
_MARGIN_S: Final = 30.0  # a lease is renewed this long before it ends
MAX_TOTAL_S: Final = 3 * 3600.0
_MAX_LEASES: Final = 1 << 16  # of one client; the leases of further messages are not renewed

_Key = tuple[bytes, bytes, int]  # group, queue, offset


class _RenewedLease:
    """The lease of one message."""

    __slots__ = ("end", "receipts", "source", "until")

    def __init__(self, source: Source, receipts: Receipts, until: float, end: float) -> None:
        self.source = source
        self.receipts = receipts
        self.until = until  # loop time at which the lease ends
        self.end = end  # loop time from which it is not renewed


class LeaseRenewal:
    """Renews the leases of all clients of a node."""

    def __init__(self, groups: LongPolling) -> None:
        self._groups = groups
        self._leases: dict[ClientKey, dict[_Key, _RenewedLease]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, client_key: ClientKey, source: Source, receipts: list[Receipts]) -> None:
        """Renew the leases of messages that a client just received."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        leases = self._leases.setdefault(client_key, {})
        for run in receipts:
            for offset in range(run.offset, run.offset + run.count):
                if len(leases) >= _MAX_LEASES:
                    return
                receipt = Receipts(run.queue, offset, 1, run.deliveries)
                leases[source.group, run.queue, offset] = _RenewedLease(
                    source, receipt, now + LEASE_MS / 1000, now + MAX_TOTAL_S
                )
        if self._timer is None:
            self._timer = loop.call_later(_INTERVAL_S, self._renew_due)

    def remove(self, client_key: ClientKey, source: Source, receipts: Receipts) -> bool:
        """Stop renewing the lease of a message that is settled. Returns whether it was renewed."""
        leases = self._leases.get(client_key)
        if leases is None:
            return False
        lease = leases.pop((source.group, receipts.queue, receipts.offset), None)
        if not leases:
            del self._leases[client_key]
        return lease is not None

    def release(self, client_key: ClientKey) -> None:
        """Return the messages of a client that is gone, so that other members get them."""
        leases = self._leases.pop(client_key, None)
        if leases:
            self._settle(list(leases.values()), 0)

    async def stop(self) -> None:
        """Stop renewing. Unsettled messages are delivered again when their leases end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leases.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _renew_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        due: list[_RenewedLease] = []
        for client_key, leases in list(self._leases.items()):
            for key, lease in list(leases.items()):
                if lease.until - now > _MARGIN_S:
                    continue
                if lease.end <= now:
                    del leases[key]
                else:
                    lease.until = now + LEASE_MS / 1000
                    due.append(lease)
            if not leases:
                del self._leases[client_key]
        if due:
            self._settle(due, LEASE_MS)
        if self._leases:
            self._timer = loop.call_later(_INTERVAL_S, self._renew_due)

    def _settle(self, leases: list[_RenewedLease], delay_ms: int) -> None:
        by_source: dict[Source, list[tuple[Receipts, int]]] = {}
        for lease in leases:
            by_source.setdefault(lease.source, []).append((lease.receipts, delay_ms))
        for source, postponed in by_source.items():
            task = asyncio.get_running_loop().create_task(self._settle_source(source, postponed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _settle_source(self, source: Source, postponed: list[tuple[Receipts, int]]) -> None:
        try:
            CLIENT.set(None)  # the call that began the task may be another client's
            await self._groups.settle(source, (), postponed)  # a stale receipt was settled meanwhile
        except StoreError as error:
            log.warning("leases of group %r could not be renewed or returned: %s", source.group, error)
