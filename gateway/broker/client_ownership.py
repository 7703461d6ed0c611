"""This gateway among the others of its store (`store.gateway_registry`): which clients are its own.

The process of the store itself is alone, and asks nobody. A gateway that is a process of its own has the store's word
for each client that it serves. It attends as long as it runs, closes the connections that others are to have, and when
the store has ended it, it is over: it has to begin anew, under another name.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, Protocol

from gateway.broker.wait_limit import HasLeft, WaitLimit
from gateway.observe.throttled_log import tell_failure
from store.api import Store
from store.errors import GatewayEnded, StoreClosed, StoreError

log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 0.1  # until a store that does not answer is asked again
_COUNT_SECONDS: Final = 1.0
_PAGE: Final = 1000  # clients
_MAX_WAITING: Final = 256  # that the store is asked for at a time: others may have to be closed elsewhere first

GiveUp = Callable[[bytes, bool], Awaitable[None]]  # client id, whether another connection takes over


class Membership(Protocol):
    """What a node needs to know of the other gateways."""

    name: bytes  # of this one; b"": the process of the store itself
    is_shared: bool  # there may be others
    others: Mapping[str, int]  # what they count, added up

    async def hold(self, client_id: bytes, user: bytes, has_left: HasLeft) -> None:
        """Have a client to ourselves: whoever has it closes its connection first. `has_left`: the client does not wait
        for that any more. Raises ClientGone then, and StoreError."""

    def free(self, client_id: bytes) -> None:
        """Nothing of the client is here any more, if anything was."""


class _Alone:
    """There are no others."""

    name = b""
    is_shared = False
    others: Mapping[str, int] = {}

    async def hold(self, client_id: bytes, user: bytes, has_left: HasLeft) -> None:
        """Nobody else has it."""

    def free(self, client_id: bytes) -> None:
        """Nobody else waits for it."""


ALONE: Final[Membership] = _Alone()


def gateway_name(place: str) -> bytes:
    """A name for this process as a gateway: who comes after it at the same place replaces it. "": its own place."""
    return f"{place or uuid.uuid4().hex[:8]}/{uuid.uuid4().hex}".encode()


class _Held:
    """One that the store has given us."""

    __slots__ = ("user",)

    def __init__(self, user: bytes) -> None:
        self.user = user


class Joined:
    """A gateway that is a process of its own, by its name (`gateway_name`)."""

    is_shared = True

    def __init__(self, store: Store, name: bytes, figures: Callable[[], Mapping[str, int]]) -> None:
        self.name = name
        self.others: Mapping[str, int] = {}
        self._store = store
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._holds: dict[bytes, _Held] = {}  # by client
        self._asking: set[bytes] = set()  # those that it is asked for
        self._freed: dict[bytes, None] = {}  # it is to be told of
        self._patience = WaitLimit()
        self._ordered: set[bytes] = set()  # clients that are being given up
        self._room = asyncio.Semaphore(_MAX_WAITING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._here = asyncio.Event()  # the store knows of us, and of all that we hold
        self._losses = 0  # times that it did not any more
        self._is_over = False
        self._count: Mapping[str, int] = {}
        self._count_at = 0.0

    async def start(self, give_up: GiveUp, look: Callable[[bytes], None], on_ended: Callable[[], None]) -> None:
        """Join. `look` is called with shared subscriptions of which there may be messages, `on_ended` when the store
        has ended us. Raises StoreError."""
        await self._store.join_gateway(self.name, None)
        self._here.set()
        self._spawn(self._attend(give_up, look, on_ended))

    async def stop(self) -> None:
        """Leave, when all connections are closed and their last records committed."""
        await asyncio.sleep(0)  # what was freed is about to be told
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._is_over:
            try:
                await self._store.leave_gateway(self.name)
            except StoreError as error:
                log.warning("the store was not told that this gateway stops: %s", error)

    async def hold(self, client_id: bytes, user: bytes, has_left: HasLeft) -> None:
        held = self._holds.get(client_id)
        if held is not None and held.user == user:
            return
        if client_id in self._freed:
            await asyncio.sleep(0)  # told behind our question it would undo the answer
        self._asking.add(client_id)
        try:
            await self._patience.keep(client_id, has_left, self._ask_for(client_id, user))
        except BaseException:
            self._holds.pop(client_id, None)
            self._free(client_id)  # it may have come to that
            raise
        finally:
            self._asking.discard(client_id)
        if held is None:
            self._holds[client_id] = _Held(user)
        else:
            held.user = user  # from here on only this one may take it over

    async def _ask_for(self, client_id: bytes, user: bytes) -> None:
        """Where the store goes away meanwhile, it is asked again when it is back: what it said before does not count,
        for `_come_back` does not name what we only ask for. Another gateway may have it, and come back after us."""
        while True:
            await self._here.wait()
            losses = self._losses
            try:
                async with self._room:
                    await self._store.claim_client(self.name, client_id, user)
            except StoreClosed:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                if losses == self._losses:
                    return

    def free(self, client_id: bytes) -> None:
        if self._holds.pop(client_id, None) is not None:
            self._free(client_id)

    def _free(self, client_id: bytes) -> None:
        if not self._freed:
            self._spawn(self._tell())
        self._freed[client_id] = None

    async def _tell(self) -> None:
        freed, self._freed = list(self._freed), {}
        if freed:
            await self._tell_of(freed)

    async def _tell_of(self, freed: list[bytes]) -> None:
        """Where this fails the store is told what we have when we come back to it."""
        try:
            await self._store.release_clients(self.name, freed)
        except StoreError as error:
            log.debug("the store was not told of connections that ended: %s", error)

    async def _attend(self, give_up: GiveUp, look: Callable[[bytes], None], on_ended: Callable[[], None]) -> None:
        while True:
            try:
                if not self._here.is_set():
                    await self._come_back()
                attendance = await self._store.heartbeat(self.name, self._counted())
            except GatewayEnded as error:
                log.error("%s", error)
                self._is_over = True
                on_ended()
                return
            except StoreError as error:
                if self._here.is_set():
                    tell_failure(log, error, "gateway %r has no answer of the store: %s", self.name)
                self._here.clear()
                self._losses += 1
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            self.others = attendance.others
            for group in attendance.groups:
                look(group)
            for client_id, is_taken_over in attendance.orders:
                # One that we only ask for may have an order from before we let it go; one that counts is told again.
                if client_id not in self._ordered and client_id not in self._asking:
                    self._ordered.add(client_id)
                    self._spawn(self._give_up(client_id, self._holds.get(client_id), is_taken_over, give_up))

    def _counted(self) -> Mapping[str, int]:
        """What we count: looked at once a second, though orders may come more often."""
        now = self._loop.time()
        if now >= self._count_at:
            self._count_at = now + _COUNT_SECONDS
            self._count = self._figures()
        return self._count

    async def _come_back(self) -> None:
        """Tell the store which clients we have: it was away, and may have been opened anew. Raises StoreError."""
        held = [(client_id, each.user) for client_id, each in self._holds.items()]
        for at in range(0, max(len(held), 1), _PAGE):
            await self._store.join_gateway(self.name, held[at : at + _PAGE], more=at + _PAGE < len(held))
        gone = [client_id for client_id, _ in held if client_id not in self._holds and client_id not in self._asking]
        self._here.set()
        if gone:
            await self._tell_of(gone)

    async def _give_up(self, client_id: bytes, held: _Held | None, is_taken_over: bool, give_up: GiveUp) -> None:
        """`held`: what the order is about; None: nothing of the client is here any more."""
        try:
            while held is not None and self._holds.get(client_id) is held:  # whose turn came has a connection of it now
                await give_up(client_id, is_taken_over)
            if held is None and client_id not in self._holds and client_id not in self._asking:
                await self._tell_of([client_id])  # the store may not have heard
        finally:
            self._ordered.discard(client_id)

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the membership failed", exc_info=task.exception())
