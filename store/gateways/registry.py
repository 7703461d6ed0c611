"""The gateways of a store that are processes of their own: their beginning, their end, and their clients.

A gateway joins under a name that no other gateway ever has, and is registered as long as its heartbeats come. All of
this is live state: only the beginning and the end of a gateway are records of the log. Rules of the file:

* A gateway without a heartbeat for a lease, whose connection is not busy either, is ended: GATEWAY_LEFT is appended,
  its messages are refused from then on, what it left behind is cleaned up, and then its claims are released. A gateway
  that joins with the same name up to the slash is its successor and ends it at once.
* A store that was opened anew waits for the gateways that the log knows. It grants no client before all of them have
  returned or were ended. A returning gateway names the claims that it was granted, not those that it waits for: of two
  gateways that name a client, the second one could be the one that has its connection.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Final

from store import control
from store.api import Appended, Attendance, Done, NamedClaim
from store.errors import ClaimedByAnotherUser, GatewayEnded, StoreBusy, StoreClosed, StoreError
from store.gateways.client_claims import ClientClaim, ClientClaims
from store.views.gateways import Gateways

log = logging.getLogger(__name__)

MAX_GATEWAYS: Final = 1024
MAX_NAME: Final = 256  # bytes
_MAX_QUESTIONS: Final = 2048  # under way
_ANSWER_SECONDS: Final = 5.0
_BUSY_SECONDS: Final = 0.1
_PAGE: Final = 1000
_STORE: Final = b""  # the name under which the store's own process claims clients

CleanUp = Callable[[Callable[[bytes], bool]], Awaitable[None]]


class _Gateway:
    """A gateway that is registered, or expected to return."""

    __slots__ = ("claims", "figures", "groups", "has_news", "has_returned", "last_heartbeat", "name", "questions")

    def __init__(self, name: bytes, now: float, has_returned: bool) -> None:
        self.name = name
        self.last_heartbeat = now  # loop time; inf: it is joining
        self.has_returned = has_returned  # it has joined this process of the store
        self.claims: list[NamedClaim] = []  # pages that a returning gateway has sent so far
        self.groups: dict[bytes, None] = {}  # shared subscriptions whose messages were returned since its last call
        self.questions: dict[int, bytes] = {}  # that it has not been sent
        self.has_news: asyncio.Event = asyncio.Event()  # orders, groups, questions, or its end
        self.figures: Mapping[str, int] = {}


class GatewayRegistry:
    """The gateways of one store. Everything happens on the loop."""

    def __init__(self, known: Gateways, append: Callable[[list[bytes], Done], None], lease: float) -> None:
        self._known = known
        self._append = append
        self._lease = lease
        self._loop = asyncio.get_running_loop()
        self._gateways: dict[bytes, _Gateway] = {}
        self._claims = ClientClaims(self._notify)
        self._absent: set[bytes] = set()  # the log knows them; they have neither returned nor ended
        self._none_absent = asyncio.Event()
        self._has_any_returned = False
        self._clean_up: CleanUp | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._endings: dict[bytes, asyncio.Task[None]] = {}
        self._asked: dict[int, tuple[bytes, asyncio.Future[bytes]]] = {}  # questions under way: gateway and answer
        self._last_question = 0
        self.on_ended: Callable[[bytes], None] = _ignore_name  # messages of this gateway are refused from now on
        self.on_released: Callable[[], None] = _ignore  # a gateway has closed a connection
        self.on_none_returned: Callable[[], Awaitable[None]] = _ignore_later  # all gateways of before have ended

    # --- life of the store's process

    async def start(self, clean_up: CleanUp) -> None:
        """Accept gateways from here on. `clean_up` ends the sessions, wills and shared subscriptions of all gateways
        whose names its predicate selects. Raises StoreError."""
        self._clean_up = clean_up
        after: bytes | None = None
        now = self._loop.time()
        while page := self._known.page(after, _PAGE):
            self._gateways.update({name: _Gateway(name, now, False) for name in page})
            after = page[-1]
        self._absent = set(self._gateways)
        await clean_up(lambda name: name not in self._gateways)
        await self._note_none_absent()
        self._watcher = self._loop.create_task(self._watch())

    async def stop(self) -> None:
        """Accept no more calls. Calls that wait fail."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        for task in self._endings.values():
            task.cancel()
        await asyncio.gather(*self._endings.values(), return_exceptions=True)
        self._clean_up = None
        for gateway in self._gateways.values():
            gateway.has_news.set()
        self._none_absent.set()
        self._claims.wake_all()

    async def _watch(self) -> None:
        """End gateways without a heartbeat for a lease."""
        rest = self._lease / 4
        while True:
            began = self._loop.time()
            await asyncio.sleep(rest)
            pause = self._loop.time() - began - rest
            if pause > rest:  # this process did not run: calls of that time have not been read yet
                for gateway in self._gateways.values():
                    gateway.last_heartbeat += pause
            oldest = self._loop.time() - self._lease
            for gateway in [each for each in self._gateways.values() if each.last_heartbeat < oldest]:
                what = "has not been heard of" if gateway.has_returned else "has not come back"
                name, lease = _text(gateway), self._lease
                log.warning("gateway %s %s for %g seconds: its connections are ended", name, what, lease)
                self._end(gateway)

    # --- gateways

    def has_ended(self, name: bytes) -> bool:
        """Whether the gateway was registered once, and is not any more."""
        return self._clean_up is not None and name not in self._gateways

    @property
    def figures(self) -> dict[bytes, Mapping[str, int]]:
        """The counters of the gateways that are connected, by name."""
        return {name: gateway.figures for name, gateway in self._gateways.items() if gateway.has_returned}

    async def join(self, name: bytes, claims: Sequence[NamedClaim] | None, more: bool) -> float:
        """See `store.api.GatewayStore.join_gateway`."""
        if self._clean_up is None:
            raise StoreError("this node takes no gateways beside it: see sluice serve --roles store")
        if not 0 < len(name) <= MAX_NAME or b"\0" in name:
            raise StoreError(f"a gateway has a name of 1 to {MAX_NAME} bytes")
        gateway = self._gateways.get(name)
        if claims is None:
            if gateway is not None:
                raise StoreError(f"there is a gateway {name!r}")
            await self._register(name)
        elif gateway is None:
            raise GatewayEnded(name)
        else:
            gateway.last_heartbeat = self._loop.time()
            gateway.claims.extend(claims)
            if not more:
                self._return(gateway)
                await self._note_not_absent(name)
        return self._lease

    async def _register(self, name: bytes) -> None:
        place, slash, _ = name.partition(b"/")
        for gateway in list(self._gateways.values()):
            if slash and gateway.name.startswith(place + slash):
                log.info("gateway %s is the successor of %s", name.decode(errors="replace"), _text(gateway))
                self._end(gateway)
        if len(self._gateways) >= MAX_GATEWAYS:
            raise StoreError(f"there are {MAX_GATEWAYS} gateways, which is the limit")
        # It may send heartbeats when its record is committed. A slow disk can take longer than a lease.
        gateway = self._gateways[name] = _Gateway(name, inf, True)
        try:
            await self._record(control.GatewayJoined().frame(name))
        except asyncio.CancelledError:
            if self._clean_up is not None and self._gateways.get(name) is gateway:
                self._end(gateway)  # its record is on the way
            raise
        except StoreError:
            if self._gateways.get(name) is gateway:
                del self._gateways[name]
            raise
        gateway.last_heartbeat = self._loop.time()

    def _return(self, gateway: _Gateway) -> None:
        """Restore the claims that a returning gateway has named."""
        claims, gateway.claims = gateway.claims, []
        gateway.has_returned = True
        self._has_any_returned = True
        self._claims.release_except(gateway.name, {client_id: number for client_id, number, _ in claims})
        for client_id, number, user in claims:
            claim = ClientClaim(gateway.name, number, user)
            current = self._claims.get(client_id)
            if current is None or current.gateway == gateway.name:
                self._claims.grant(client_id, claim)
            else:
                self._claims.order(client_id, claim, True)

    async def _note_not_absent(self, name: bytes) -> None:
        """A gateway of before has returned, or has ended and is cleaned up."""
        if name in self._absent:
            self._absent.discard(name)
            await self._note_none_absent()

    async def _note_none_absent(self) -> None:
        if not self._absent and not self._none_absent.is_set():
            if not self._has_any_returned:
                await self.on_none_returned()
            self._none_absent.set()

    async def heartbeat(self, name: bytes, figures: Mapping[str, int]) -> Attendance:
        """See `store.api.GatewayStore.heartbeat`."""
        gateway = self._registered(name)
        if not gateway.has_returned:
            raise StoreClosed("the store was opened anew: it has to hear first which clients the gateway has")
        gateway.last_heartbeat = self._loop.time()
        gateway.figures = figures
        with suppress(TimeoutError):
            async with asyncio.timeout(self._lease / 4):
                await gateway.has_news.wait()
        self._registered(name)
        gateway.has_news.clear()
        others: Counter[str] = Counter()
        for other in self._gateways.values():
            if other is not gateway:
                others.update(other.figures)
        groups, gateway.groups = list(gateway.groups), {}
        questions, gateway.questions = list(gateway.questions.items()), {}
        return Attendance(self._claims.orders(name), dict(others), groups, questions)

    async def ask(self, name: bytes, question: bytes) -> bytes:
        """The answer of a gateway. Raises `StoreClosed` if it is not there or does not answer in time, and `StoreBusy`
        for too many questions."""
        gateway = self._gateways.get(name)
        if gateway is None or not gateway.has_returned:
            raise StoreClosed(f"the gateway {name.decode(errors='replace')} is not there")
        if len(self._asked) >= _MAX_QUESTIONS:
            raise StoreBusy(f"{_MAX_QUESTIONS} questions to gateways are under way")
        self._last_question = number = self._last_question + 1
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked[number] = name, answer
        gateway.questions[number] = question
        gateway.has_news.set()
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            text = f"the gateway {_text(gateway)} has not answered within {_ANSWER_SECONDS:g} s"
            raise StoreClosed(text) from None
        finally:
            gateway.questions.pop(number, None)
            del self._asked[number]

    def answered(self, name: bytes, number: int, answer: bytes) -> None:
        """See `store.api.GatewayStore.answer_question`."""
        self._registered(name)
        asked, waiting = self._asked.get(number, (b"", None))
        if waiting is not None and asked == name and not waiting.done():
            waiting.set_result(answer)

    def heard(self, name: bytes) -> None:
        """Much has come from a gateway, or went there: its heartbeat may be behind that."""
        gateway = self._gateways.get(name)
        if gateway is not None and gateway.has_returned:
            gateway.last_heartbeat = max(gateway.last_heartbeat, self._loop.time())

    def expire(self, name: bytes) -> None:
        """End a gateway whose connection is lost for good."""
        gateway = self._gateways.get(name)
        if gateway is not None:
            self._end(gateway)

    async def leave(self, name: bytes) -> None:
        """See `store.api.GatewayStore.leave_gateway`."""
        # The gateway says nothing more, but has to hear our answer. It is ended also if it does not wait for that.
        await asyncio.shield(self._end(self._registered(name), is_refused=False))

    def _registered(self, name: bytes) -> _Gateway:
        gateway = self._gateways.get(name)
        if self._clean_up is None:
            raise StoreClosed("the store is stopping")
        if gateway is None:
            raise GatewayEnded(name)
        return gateway

    def _end(self, gateway: _Gateway, *, is_refused: bool = True) -> "asyncio.Task[None]":
        """Nothing that the gateway says counts from here on."""
        del self._gateways[gateway.name]
        gateway.has_news.set()
        if is_refused:
            self.on_ended(gateway.name)
        task = self._endings[gateway.name] = self._loop.create_task(self._clean_up_after(gateway))
        return task

    async def _clean_up_after(self, gateway: _Gateway) -> None:
        try:
            clean_up = self._clean_up
            assert clean_up is not None
            # What it appended before is committed with this record: then the views tell all that it had.
            await self._retry(lambda: self._record(control.GatewayLeft().frame(gateway.name)))
            await self._retry(lambda: clean_up(lambda name: name == gateway.name))
            self._claims.release_all(gateway.name)
        except StoreError as error:
            log.error("what gateway %s left cannot be ended: %s", _text(gateway), error)
        finally:
            del self._endings[gateway.name]
        await self._note_not_absent(gateway.name)

    async def _retry(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat the work while the store is busy."""
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

    def _notify(self, name: bytes) -> None:
        gateway = self._gateways.get(name)
        if gateway is not None:
            gateway.has_news.set()

    def notify_returned(self, group: bytes) -> None:
        """Messages of a shared subscription were returned: gateways with members of it have to hear of that."""
        for gateway in self._gateways.values():
            gateway.groups[group] = None
            gateway.has_news.set()

    # --- clients

    async def claim_client(self, name: bytes, client_id: bytes, number: int, user: bytes) -> None:
        """See `store.api.GatewayStore.claim_client`."""
        while True:
            self._registered(name)
            await self._none_absent.wait()
            self._registered(name)
            current = self._claims.get(client_id)
            if current is None or current.gateway == name:
                self._claims.grant(client_id, ClientClaim(name, number, user))
                return
            if current.user and current.user != user:
                raise ClaimedByAnotherUser(client_id)
            await self._claims.released(client_id, current, True)

    async def release_clients(self, name: bytes, claims: Sequence[tuple[bytes, int]]) -> None:
        """See `store.api.GatewayStore.release_clients`."""
        self._registered(name)
        for client_id, number in claims:
            self._claims.release(name, client_id, number)
        self.on_released()

    def owner(self, client_id: bytes) -> bytes | None:
        """The name of the gateway that has the client."""
        claim = self._claims.get(client_id)
        return claim.gateway if claim is not None and claim.gateway else None

    @property
    def clients(self) -> Collection[bytes]:
        """The ids of the clients that gateways have."""
        return self._claims.clients

    def may_have(self, client_id: bytes) -> bool:
        """Whether a gateway has the client, or may have it because not all gateways of before have returned."""
        return self._claims.get(client_id) is not None or not self._none_absent.is_set()

    async def kick(self, client_id: bytes) -> bool:
        """Have a client's connection closed. Returns when it is; False: it has none."""
        claim = self._claims.get(client_id)
        if claim is None or not claim.gateway:
            return False
        await self._claims.released(client_id, claim, False)
        return True

    @asynccontextmanager
    async def claim_if_unowned(self, client_id: bytes) -> AsyncIterator[bool]:
        """Keep all gateways from having the client while the block runs. False: a gateway has it or may have it."""
        if self.may_have(client_id):
            yield False
            return
        async with self._claim_for_store(client_id):
            yield True

    @asynccontextmanager
    async def evict(self, client_id: bytes) -> AsyncIterator[bool]:
        """Close the client's connection, and keep all gateways from having the client while the block runs. Yields
        whether it had a connection."""
        await self._none_absent.wait()
        had_connection = False
        while (claim := self._claims.get(client_id)) is not None:
            had_connection = had_connection or bool(claim.gateway)
            await self._claims.released(client_id, claim, False)
        async with self._claim_for_store(client_id):
            yield had_connection

    @asynccontextmanager
    async def _claim_for_store(self, client_id: bytes) -> AsyncIterator[None]:
        self._claims.grant(client_id, ClientClaim(_STORE, 0, b""))
        try:
            yield
        finally:
            self._claims.release(_STORE, client_id, 0)


def _text(gateway: _Gateway) -> str:
    return gateway.name.decode(errors="replace")


def _ignore_name(_: bytes) -> None:
    """No callback is set."""


def _ignore() -> None:
    """No callback is set."""


async def _ignore_later() -> None:
    """No callback is set."""
