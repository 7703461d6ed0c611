"""Which clients this gateway may serve, among the other gateways of its store (`store.gateways`).

The store's own process has no other gateways and asks nobody. A gateway that is a process of its own claims each client
before it serves it. It sends heartbeats as long as it runs, and closes the connections of clients that other gateways
claim. When the store has ended it, the process starts again under another name.

Claims are numbered, and all that gateway and store say about a client names a number. An order for an older claim, or
the release of one, changes nothing, however late it arrives.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, Protocol

from gateway.broker.wait_limit import HasLeft, WaitLimit
from gateway.observe.throttled_log import log_failure
from store.api import GatewayStore, NamedClaim
from store.errors import GatewayEnded, StoreClosed, StoreError

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.1  # until a store that does not answer is asked again
_FIGURES_SECONDS: Final = 1.0
_LEAVING_SECONDS: Final = 5.0  # for the answer of the store
_PAGE: Final = 1000  # clients
_MAX_REQUESTS: Final = 256  # claims under way at a time: other gateways may have to close connections first

AnswerQuestion = Callable[[bytes], bytes]  # see `gateway.broker.questions`
# Closes the connection of a client, and returns when its records are committed; True: another connection takes over.
CloseClient = Callable[[bytes, bool], Awaitable[None]]


class ClientOwnership(Protocol):
    """What the sessions of a node need to know of other gateways."""

    name: bytes  # of this gateway; b"": the process of the store itself
    is_shared: bool  # there may be other gateways
    others: Mapping[str, int]  # the counters of the other gateways, added up

    async def claim(self, client_id: bytes, user: bytes, has_left: HasLeft) -> None:
        """Become the only gateway that serves the client. A gateway that has it closes its connection first. `has_left`
        tells whether the client has gone meanwhile. Raises `Gone` then, and StoreError."""

    def release(self, client_id: bytes) -> None:
        """Let other gateways have the client: nothing of it is left here. Harmless if it was not claimed."""


class _SingleNode:
    """There are no other gateways."""

    name = b""
    is_shared = False
    others: Mapping[str, int] = {}

    async def claim(self, client_id: bytes, user: bytes, has_left: HasLeft) -> None:
        """All clients belong to this node."""

    def release(self, client_id: bytes) -> None:
        """No other gateway waits for the client."""


SINGLE_NODE: Final[ClientOwnership] = _SingleNode()


def gateway_name(place: str) -> bytes:
    """A name for this process as a gateway. A process that joins later with the same `place` replaces it; "" is a place
    of its own."""
    return f"{place or uuid.uuid4().hex[:8]}/{uuid.uuid4().hex}".encode()


class _Claim:
    """A client that this gateway has, or waits for."""

    __slots__ = ("is_closing", "is_granted", "number", "user")

    def __init__(self, number: int, user: bytes) -> None:
        self.number = number
        self.user = user
        self.is_granted = False
        self.is_closing = False  # the store has ordered its release, and that is under way


class JoinedGateway:
    """A gateway that is a process of its own. `name`: see `gateway_name`. `figures` returns its counters."""

    is_shared = True

    def __init__(self, store: GatewayStore, name: bytes, figures: Callable[[], Mapping[str, int]]) -> None:
        self.name = name
        self.others: Mapping[str, int] = {}
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._claims: dict[bytes, _Claim] = {}  # by client
        self._last_number = 0
        self._releases: list[tuple[bytes, int]] = []  # to be sent in this turn of the loop
        self._wait_limit = WaitLimit()
        self._requests = asyncio.Semaphore(_MAX_REQUESTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_joined = asyncio.Event()  # the store knows this gateway, and all claims that it was granted
        self._losses = 0  # how often the store was lost
        self._has_ended = False
        self._count_figures = figures
        self._figures: Mapping[str, int] = {}
        self._figures_due = 0.0  # loop time
        self._answer: AnswerQuestion = bytes  # until `start`

    async def start(
        self,
        close_client: CloseClient,
        wake_group: Callable[[bytes], None],
        answer: AnswerQuestion,
        on_ended: Callable[[], None],
    ) -> None:
        """Join. `wake_group` is called with shared subscriptions that have messages again, `answer` with questions of
        the store's process, `on_ended` when the store has ended this gateway. Raises StoreError."""
        await self._store.join_gateway(self.name, None)
        self._answer = answer
        self._has_joined.set()
        self._spawn(self._send_heartbeats(close_client, wake_group, on_ended))

    async def stop(self) -> None:
        """Leave, when all connections are closed and their last records committed. The answer comes after a record and
        what that ends. The store does not need this gateway for it, so a slow disk does not keep the gateway."""
        await asyncio.sleep(0)  # releases of this turn are sent first
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._has_ended:
            try:
                async with asyncio.timeout(_LEAVING_SECONDS):
                    await self._store.leave_gateway(self.name)
            except TimeoutError:
                return  # the store was told
            except StoreError as error:
                log.warning("the store was not told that this gateway stops: %s", error)

    # --- claims

    async def claim(self, client_id: bytes, user: bytes, has_left: HasLeft) -> None:
        """See `ClientOwnership`. One call at a time for a client."""
        claim = self._claims.get(client_id)
        if claim is not None and claim.user == user:
            return
        self._last_number += 1
        claim = self._claims[client_id] = _Claim(self._last_number, user)
        try:
            await self._wait_limit.run(client_id, has_left, self._request(client_id, claim))
        except BaseException:
            self.release(client_id)  # the store may have granted it
            raise

    async def _request(self, client_id: bytes, claim: _Claim) -> None:
        """Ask for a claim until it is granted by the store that is there. A grant does not count if the store was lost
        meanwhile: the next one heard only of claims that had been granted before."""
        while not claim.is_granted:
            await self._has_joined.wait()
            losses = self._losses
            try:
                async with self._requests:
                    await self._store.claim_client(self.name, client_id, claim.number, claim.user)
            except StoreClosed:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                claim.is_granted = losses == self._losses

    def release(self, client_id: bytes) -> None:
        """See `ClientOwnership`."""
        claim = self._claims.pop(client_id, None)
        if claim is not None:
            self._send_release(client_id, claim.number)

    def _send_release(self, client_id: bytes, number: int) -> None:
        if not self._releases:
            self._spawn(self._send_releases())
        self._releases.append((client_id, number))

    async def _send_releases(self) -> None:
        releases, self._releases = self._releases, []
        try:
            await self._store.release_clients(self.name, releases)
        except StoreError as error:  # the store hears of all claims when this gateway comes back to it
            log.debug("the store was not told of connections that ended: %s", error)

    # --- the store

    async def _send_heartbeats(
        self, close_client: CloseClient, wake_group: Callable[[bytes], None], on_ended: Callable[[], None]
    ) -> None:
        while True:
            try:
                if not self._has_joined.is_set():
                    await self._return()
                attendance = await self._store.heartbeat(self.name, self._current_figures())
            except GatewayEnded as error:
                log.error("%s", error)
                self._has_ended = True
                on_ended()
                return
            except StoreError as error:
                if self._has_joined.is_set():
                    log_failure(log, error, "gateway %r has no answer of the store: %s", self.name)
                self._has_joined.clear()
                self._losses += 1
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self.others = attendance.others
            for group in attendance.groups:
                wake_group(group)
            for number, question in attendance.questions:
                self._spawn(self._answer_question(number, question))
            for client_id, number, is_taken_over in attendance.orders:
                self._carry_out(client_id, number, is_taken_over, close_client)

    async def _answer_question(self, number: int, question: bytes) -> None:
        try:
            await self._store.answer_question(self.name, number, self._answer(question))
        except StoreError as error:
            log.debug("a question of the store was not answered: %s", error)

    def _carry_out(self, client_id: bytes, number: int, is_taken_over: bool, close_client: CloseClient) -> None:
        """Carry out an order to release a claim. The store repeats it until it has heard of the release."""
        claim = self._claims.get(client_id)
        if claim is None or claim.number != number:
            self._send_release(client_id, number)
        elif not claim.is_closing:
            claim.is_closing = True
            self._spawn(self._close(client_id, claim, is_taken_over, close_client))

    async def _close(self, client_id: bytes, claim: _Claim, is_taken_over: bool, close_client: CloseClient) -> None:
        try:
            while self._claims.get(client_id) is claim:  # a CONNECT that waited for its turn goes on with the claim
                await close_client(client_id, is_taken_over)
        finally:
            claim.is_closing = False

    def _current_figures(self) -> Mapping[str, int]:
        """This gateway's counters, read once a second at most."""
        now = self._loop.time()
        if now >= self._figures_due:
            self._figures_due = now + _FIGURES_SECONDS
            self._figures = self._count_figures()
        return self._figures

    async def _return(self) -> None:
        """Name all granted claims to a store that was away and may have been opened anew. Raises StoreError."""
        claims: list[NamedClaim] = [(c, each.number, each.user) for c, each in self._claims.items() if each.is_granted]
        for at in range(0, max(len(claims), 1), _PAGE):
            await self._store.join_gateway(self.name, claims[at : at + _PAGE], more=at + _PAGE < len(claims))
        self._has_joined.set()
        for client_id, number, _ in claims:  # released meanwhile, and perhaps before the store heard of the claim
            claim = self._claims.get(client_id)
            if claim is None or claim.number != number:
                self._send_release(client_id, number)

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the membership failed", exc_info=task.exception())
