"""Maintenance of one store, in its own process: due wills, expired sessions, bans and requests for access, and cleanup
after dead nodes."""

import asyncio
import logging
from collections.abc import Callable
from time import time
from typing import Final

from gateway.auth.authority import Authority
from gateway.auth.bans import is_in_force
from gateway.broker.append import append
from gateway.broker.expired_producers import ExpiredProducers
from gateway.broker.wills import Wills
from gateway.observe.counters import Counters
from matcher.names import is_shared
from store import control
from store.api import Outcome, subscription_queue
from store.engine import Engine
from store.errors import StoreError

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 5.0  # between checks for what has expired
_PAGE: Final = 1000


class Maintenance:
    """The periodic tasks of one store."""

    def __init__(
        self, store: Engine, wills: Wills, is_in_use: Callable[[bytes], bool], accepts_gateways: bool = False
    ) -> None:
        """is_in_use: whether a client has its session open, so that it does not expire now. accepts_gateways: other
        processes may be gateways of the store."""
        self._store = store
        self._producers = ExpiredProducers(store, accepts_gateways)
        self.wills = wills
        self._is_in_use = is_in_use
        self._tasks: list[asyncio.Task[None]] = []

    async def clean_up_after(self, is_gone: Callable[[bytes], bool]) -> None:
        """Clean up after nodes that are gone: close their sessions, send their wills, end their shared memberships.

        The sessions come first. What is in their queues then may have been sent, and comes again with DUP; a will was
        not (MQTT-3.3.1-3). Raises StoreError.
        """
        after: bytes | None = None
        while page := await self._store.sessions_open(after, _PAGE):
            now_ms = int(time() * 1000)
            lost = [each[:3] for each in page if is_gone(each[3])]
            await append(
                self._store, [control.SessionLost(epoch, expiry, now_ms).frame(c) for c, epoch, expiry in lost]
            )
            after = page[-1][0]
            await asyncio.sleep(0)  # there may be very many: let other tasks run
        await self.wills.send_left(is_gone)
        after = None
        while shares := await self._store.transient_shares(after, _PAGE):
            left = [(group, gateway) for group, gateways in shares for gateway in gateways if is_gone(gateway)]
            await append(self._store, [control.ShareLeft(gateway).frame(group) for group, gateway in left])
            after = shares[-1][0]
            await asyncio.sleep(0)
        self.wills.waits()

    def start(self) -> None:
        """Start the periodic tasks, after `clean_up_after`."""
        loop = asyncio.get_running_loop()
        duties = (self.wills.run(), self._sweep(), self._producers.run())
        self._tasks = [loop.create_task(duty) for duty in duties]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            try:
                while expired := await self._store.sessions_expired(int(time() * 1000), _PAGE):
                    ended = [(c, e) for c, e in expired if not self._is_in_use(c)]
                    await append(self._store, [control.SessionEnded(epoch).frame(client) for client, epoch in ended])
                    if len(expired) < _PAGE or not ended:
                        break  # sessions in use are found again later
                await self._end_bans()
                await self._expire_requests()
            except StoreError as error:
                log.error("ending expired sessions, bans and requests for access failed: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _end_bans(self) -> None:
        """End the bans whose time is over. One that has got another end meanwhile stays. Raises StoreError."""
        after: bytes | None = None
        while page := await self._store.bans(after, _PAGE):
            now = int(time() * 1000)
            over = [ban for ban in page if not is_in_force(ban, now)]
            await append(self._store, [control.BanEnded(ban.until_ms).frame(ban.target) for ban in over])
            after = page[-1].target
            await asyncio.sleep(0)

    async def _expire_requests(self) -> None:
        """Close the requests for access on which nobody decided in time. Raises StoreError."""
        now = int(time() * 1000)
        over = [each for each in await self._store.open_access_requests() if each.until_ms <= now]
        expired = int(Outcome.EXPIRED)
        frames = [control.AccessDecided(each.number, expired).frame(each.user) for each in over]
        await append(self._store, frames)


class SplitMaintenance(Maintenance):
    """The periodic tasks of a store whose gateways are separate processes."""

    def __init__(self, engine: Engine, authority: Authority, counters: Counters) -> None:
        self._engine = engine
        self._registry = registry = engine.gateway_registry
        wills = Wills(engine, counters, registry.claim_if_unowned, authority.may_send_will)
        super().__init__(engine, wills, registry.may_have, accepts_gateways=True)
        registry.on_released = wills.waits
        registry.on_none_returned = self._release
        engine.on_back(registry.notify_returned)

    async def serve(self) -> None:
        """Accept gateways, and clean up after earlier ones. Raises StoreError."""
        await self._registry.start(self._clean_up_after_gateway)
        self.start()

    async def stop(self) -> None:
        await self._registry.stop()
        await super().stop()

    async def _clean_up_after_gateway(self, is_gone: Callable[[bytes], bool]) -> None:
        await self.clean_up_after(is_gone)
        for gateway in self._engine.owners:
            if is_gone(gateway):
                await self._engine.release_of(gateway)

    async def _release(self) -> None:
        """Release messages of shared subscriptions that are leased to no gateway that has come back."""
        after: bytes | None = None
        while page := await self._engine.groups(after, _PAGE):
            for state in page:
                if is_shared(state.group):
                    await self._engine.release_unowned(state.group, subscription_queue(state.group))
            after = page[-1].group
