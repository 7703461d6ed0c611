"""The gateways of a store that are processes of their own: who is there, and which of them has whose connection.

A gateway joins under a name that nobody else ever has, and is there as long as it attends. All of this is live state:
only the beginning and the end of a gateway are records. The rules of the file:

* A client is held by one gateway. Who else asks for it waits until the holder has closed that connection and its last
  records are committed. So nothing of a session is decided at two places, and no record of an old connection is late.
* Who has not attended for a lease is ended: GATEWAY_LEFT is appended, nothing that it says counts any more, what it
  left is seen to (`serve`), and then its clients are free. A gateway whose name begins as that of a new one does, up to
  the slash, is the new one's predecessor, and ends at once.
* A store that was opened anew waits for the gateways that it knows, and frees nothing before they are back or ended.
  They name what they have, not what they ask for: of two that name a client the one that has it could be the later.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from store import control
from store.api import Appended, Attendance, Done
from store.errors import GatewayEnded, HeldByAnother, StoreBusy, StoreClosed, StoreError
from store.views.gateways import Gateways

log = logging.getLogger(__name__)

MAX_GATEWAYS: Final = 1024
MAX_NAME: Final = 256  # bytes
_BUSY_SECONDS: Final = 0.1
_PAGE: Final = 1000

SeeTo = Callable[[Callable[[bytes], bool]], Awaitable[None]]


class _Gateway:
    """One that is there, or expected back."""

    __slots__ = ("figures", "groups", "heard", "is_back", "name", "orders", "returning", "waiter")

    def __init__(self, name: bytes, heard: float, is_back: bool) -> None:
        self.name = name
        self.heard = heard  # loop time
        self.is_back = is_back  # it has joined this process of the store
        # Clients to be let go of, until they are; True: for another connection. Told again and again: an answer may be
        # lost on its way.
        self.orders: dict[bytes, bool] = {}
        self.returning: dict[bytes, bytes] = {}  # clients that it says it has, while it joins again
        self.groups: dict[bytes, None] = {}  # of which messages came back, since it was told last
        self.waiter: asyncio.Event = asyncio.Event()  # there are orders, or it has ended
        self.figures: Mapping[str, int] = {}


class _Hold:
    """Whose a client is."""

    __slots__ = ("gateway", "user")

    def __init__(self, gateway: _Gateway | None, user: bytes) -> None:
        self.gateway = gateway  # None: of the store's own process, for a moment
        self.user = user  # proven; b"": nobody in particular


class Members:
    """The gateways of one store. Everything happens on the loop."""

    def __init__(self, known: Gateways, append: Callable[[list[bytes], Done], None], lease: float) -> None:
        self._known = known
        self._append = append
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._gateways: dict[bytes, _Gateway] = {}
        self._holds: dict[bytes, _Hold] = {}
        self._waiting: dict[bytes, dict[asyncio.Future[None], None]] = {}  # by client; who waits, in line
        self._absent: set[bytes] = set()  # known from before, and neither back nor ended
        self._all_back = asyncio.Event()  # there are none of those
        self._is_any_back = False
        self._see_to: SeeTo | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._endings: dict[bytes, asyncio.Task[None]] = {}
        self.on_ended: Callable[[bytes], None] = _nobody  # what this gateway says does not count any more
        self.on_free: Callable[[], None] = _nothing  # a connection has ended somewhere
        self.on_nobody_back: Callable[[], Awaitable[None]] = _nothing_to_do  # no earlier gateway is there

    # --- life of the store's process

    async def serve(self, see_to: SeeTo) -> None:
        """Take gateways from here on. `see_to` has to end what those leave that a predicate names: their sessions,
        wills and shared subscriptions. Raises StoreError."""
        self._see_to = see_to
        after: bytes | None = None
        now = self._loop.time()
        while page := self._known.page(after, _PAGE):
            self._gateways.update({name: _Gateway(name, now, False) for name in page})
            after = page[-1]
        self._absent = set(self._gateways)
        await see_to(lambda name: name not in self._gateways)
        await self._look_for_absent()
        self._watcher = self._loop.create_task(self._watch())

    async def stop(self) -> None:
        """Take no more calls; those that wait fail."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        for task in self._endings.values():
            task.cancel()
        await asyncio.gather(*self._endings.values(), return_exceptions=True)
        self._see_to = None
        for gateway in self._gateways.values():
            gateway.waiter.set()
        self._all_back.set()
        for client_id in list(self._waiting):
            self._wake(client_id)

    async def _watch(self) -> None:
        rest = self._lease / 4
        while True:
            began = self._loop.time()
            await asyncio.sleep(rest)
            pause = self._loop.time() - began - rest
            if pause > rest:  # of this whole process: what they said meanwhile waits to be read
                for gateway in self._gateways.values():
                    gateway.heard += pause
            late = self._loop.time() - self._lease
            for gateway in [each for each in self._gateways.values() if each.heard < late]:
                what = "has not been heard of" if gateway.is_back else "has not come back"
                text = "gateway %s %s for %g seconds: its connections are ended"
                log.warning(text, _text(gateway), what, self._lease)
                self._end(gateway)

    # --- gateways

    def is_there(self, name: bytes) -> bool:
        """Whether what a gateway says counts."""
        return name in self._gateways

    def has_ended(self, name: bytes) -> bool:
        """Whether what it says does not count any more, of a gateway that was there."""
        return self._see_to is not None and name not in self._gateways

    @property
    def gateways(self) -> dict[bytes, Mapping[str, int]]:
        """Those that are there, with what they count."""
        return {name: gateway.figures for name, gateway in self._gateways.items() if gateway.is_back}

    def holder(self, client_id: bytes) -> bytes | None:
        """The gateway that has a client's connection."""
        hold = self._holds.get(client_id)
        return hold.gateway.name if hold is not None and hold.gateway is not None else None

    @property
    def held(self) -> Collection[bytes]:
        """The clients that somebody has."""
        return self._holds.keys()

    def __contains__(self, client_id: object) -> bool:
        """Whether somebody has the client, or may have: not all gateways of before are back."""
        return client_id in self._holds or not self._all_back.is_set()

    async def join(self, name: bytes, held: Sequence[tuple[bytes, bytes]] | None, more: bool) -> float:
        """See `store.api.Store.join`."""
        if self._see_to is None:
            raise StoreError("this node takes no gateways beside it: see sluice serve --roles store")
        if not 0 < len(name) <= MAX_NAME or b"\0" in name:
            raise StoreError(f"a gateway has a name of 1 to {MAX_NAME} bytes")
        gateway = self._gateways.get(name)
        if held is None:
            if gateway is not None:
                raise StoreError(f"there is a gateway {name!r}")
            await self._joined(name)
        elif gateway is None:
            raise GatewayEnded(name)
        else:
            self._returned(gateway, held, more)
            if not more:
                await self._here_or_gone(name)
        return self._lease

    async def _joined(self, name: bytes) -> None:
        slot, slash, _ = name.partition(b"/")
        for gateway in list(self._gateways.values()):
            if slash and gateway.name.startswith(slot + slash):
                log.info("gateway %s is the successor of %s", name.decode(errors="replace"), _text(gateway))
                self._end(gateway)
        if len(self._gateways) >= MAX_GATEWAYS:
            raise StoreError(f"there are {MAX_GATEWAYS} gateways, which is the limit")
        gateway = self._gateways[name] = _Gateway(name, self._loop.time(), True)
        try:
            await self._record(control.gateway_joined(name))
        except asyncio.CancelledError:
            if self._see_to is not None and self._gateways.get(name) is gateway:
                self._end(gateway)  # its record is on the way
            raise
        except StoreError:
            if self._gateways.get(name) is gateway:
                del self._gateways[name]
            raise
        gateway.heard = self._loop.time()

    def _returned(self, gateway: _Gateway, held: Sequence[tuple[bytes, bytes]], more: bool) -> None:
        gateway.heard = self._loop.time()
        gateway.returning.update(held)
        if more:
            return
        returning, gateway.returning = gateway.returning, {}
        gateway.is_back = True
        self._is_any_back = True
        for client_id in [c for c, hold in self._holds.items() if hold.gateway is gateway and c not in returning]:
            self._free(client_id)
        for client_id, user in returning.items():
            hold = self._holds.get(client_id)
            if hold is None:
                self._holds[client_id] = _Hold(gateway, user)
            elif hold.gateway is not gateway:
                self._order(gateway, client_id, True)

    async def _here_or_gone(self, name: bytes) -> None:
        """A gateway of before is back, or what it left is seen to."""
        if name in self._absent:
            self._absent.discard(name)
            await self._look_for_absent()

    async def _look_for_absent(self) -> None:
        if not self._absent and not self._all_back.is_set():
            if not self._is_any_back:
                await self.on_nobody_back()
            self._all_back.set()

    async def attend(self, name: bytes, figures: Mapping[str, int]) -> Attendance:
        """See `store.api.Store.attend`."""
        gateway = self._there(name)
        if not gateway.is_back:
            raise StoreClosed("the store was opened anew: it has to hear first which clients the gateway has")
        gateway.heard = self._loop.time()
        gateway.figures = figures
        with suppress(TimeoutError):
            async with asyncio.timeout(self._lease / 4):
                await gateway.waiter.wait()
        self._there(name)
        gateway.waiter.clear()
        total: dict[str, int] = {}
        for other in self._gateways.values():
            if other is not gateway:
                for key, value in other.figures.items():
                    total[key] = total.get(key, 0) + value
        groups, gateway.groups = list(gateway.groups), {}
        return Attendance(list(gateway.orders.items()), total, groups)

    def gone(self, name: bytes) -> None:
        """A gateway cannot be heard any more, and does not come back."""
        gateway = self._gateways.get(name)
        if gateway is not None:
            self._end(gateway)

    async def leave(self, name: bytes) -> None:
        """See `store.api.Store.leave`."""
        # It says nothing more, but has to hear our answer. It is ended too where it does not wait for that.
        await asyncio.shield(self._end(self._there(name), is_told=False))

    def _there(self, name: bytes) -> _Gateway:
        gateway = self._gateways.get(name)
        if self._see_to is None:
            raise StoreClosed("the store is stopping")
        if gateway is None:
            raise GatewayEnded(name)
        return gateway

    def _end(self, gateway: _Gateway, *, is_told: bool = True) -> "asyncio.Task[None]":
        """Nothing that a gateway says counts any more."""
        del self._gateways[gateway.name]
        gateway.waiter.set()
        if is_told:
            self.on_ended(gateway.name)
        task = self._endings[gateway.name] = self._loop.create_task(self._ended(gateway))
        return task

    async def _ended(self, gateway: _Gateway) -> None:
        try:
            see_to = self._see_to
            assert see_to is not None
            # What it appended before is committed with this record, so that the views tell all that it had.
            await self._again(lambda: self._record(control.gateway_left(gateway.name)))
            await self._again(lambda: see_to(lambda name: name == gateway.name))
            for client_id in [c for c, hold in self._holds.items() if hold.gateway is gateway]:
                self._free(client_id)
        except StoreError as error:
            log.error("what gateway %s left cannot be ended: %s", _text(gateway), error)
        finally:
            del self._endings[gateway.name]
        await self._here_or_gone(gateway.name)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except StoreBusy:
                await asyncio.sleep(_BUSY_SECONDS)
            else:
                return

    async def _record(self, frame: bytes) -> None:
        answer: asyncio.Future[Appended] = self._loop.create_future()
        self._append([frame], answer.set_result)
        appended = await asyncio.shield(answer)
        if appended.error is not None:
            raise appended.error

    # --- clients

    async def hold(self, name: bytes, client_id: bytes, user: bytes) -> None:
        """See `store.api.Store.hold`."""
        while True:
            gateway = self._there(name)
            await self._all_back.wait()
            hold = self._holds.get(client_id)
            if hold is None or hold.gateway is gateway:
                self._there(name)
                self._holds[client_id] = _Hold(gateway, user)
                if hold is None:
                    gateway.orders.pop(client_id, None)  # about what it had before
                elif client_id in gateway.orders:
                    gateway.waiter.set()  # it may have heard that while it asked, and passed over it
                return
            if hold.user and hold.user != user:
                raise HeldByAnother(client_id)
            await self._given_up(client_id, hold, True)

    async def free(self, name: bytes, clients: Sequence[bytes]) -> None:
        """See `store.api.Store.free`."""
        gateway = self._there(name)
        for client_id in clients:
            hold = self._holds.get(client_id)
            if hold is not None and hold.gateway is gateway:
                self._free(client_id)
            else:
                gateway.orders.pop(client_id, None)
        self.on_free()

    async def _given_up(self, client_id: bytes, hold: _Hold, is_taken_over: bool) -> None:
        """Have the holder let go, and wait until it may have."""
        if hold.gateway is not None:
            self._order(hold.gateway, client_id, is_taken_over)
        free: asyncio.Future[None] = self._loop.create_future()
        waiting = self._waiting.setdefault(client_id, {})
        waiting[free] = None
        try:
            await free
        finally:
            del waiting[free]
            if not waiting and self._waiting.get(client_id) is waiting:
                del self._waiting[client_id]

    def _order(self, gateway: _Gateway, client_id: bytes, is_taken_over: bool) -> None:
        gateway.orders[client_id] = is_taken_over
        gateway.waiter.set()

    def _free(self, client_id: bytes) -> None:
        hold = self._holds.pop(client_id)
        if hold.gateway is not None:
            hold.gateway.orders.pop(client_id, None)
        self._wake(client_id)

    def _wake(self, client_id: bytes) -> None:
        for free in list(self._waiting.get(client_id, ())):
            if not free.done():
                free.set_result(None)

    def came_back(self, group: bytes) -> None:
        """Messages of a shared subscription are to be had again: gateways with members have to hear of it."""
        for gateway in self._gateways.values():
            gateway.groups[group] = None
            gateway.waiter.set()

    # --- for the store's own process

    async def kick(self, client_id: bytes) -> bool:
        """Have a client's connection closed. Returns when it is; False: it has none."""
        hold = self._holds.get(client_id)
        if hold is None or hold.gateway is None:
            return False
        await self._given_up(client_id, hold, False)
        return True

    @asynccontextmanager
    async def of(self, client_id: bytes) -> AsyncIterator[bool]:
        """While the block runs no gateway has the client, unless one has it now: then the block is told so (False)."""
        if client_id in self:
            yield False
            return
        async with self._own(client_id):
            yield True

    @asynccontextmanager
    async def taken(self, client_id: bytes) -> AsyncIterator[bool]:
        """The same, whoever has the client: its connection is closed first. Tells whether it had one."""
        await self._all_back.wait()
        was_held = False
        while (hold := self._holds.get(client_id)) is not None:
            was_held = was_held or hold.gateway is not None
            await self._given_up(client_id, hold, False)
        async with self._own(client_id):
            yield was_held

    @asynccontextmanager
    async def _own(self, client_id: bytes) -> AsyncIterator[None]:
        self._holds[client_id] = _Hold(None, b"")
        try:
            yield
        finally:
            self._free(client_id)


def _text(gateway: _Gateway) -> str:
    return gateway.name.decode(errors="replace")


def _nobody(_: bytes) -> None:
    """Nobody has to hear of it."""


def _nothing() -> None:
    """Nothing is to be done."""


async def _nothing_to_do() -> None:
    """Nothing is to be done."""
