"""Whose a client is: gateways at a store that is opened anew again and again, over links that come back one by one.

What is here between a gateway and the store does what `store.remote` does: questions and answers keep their order, and
those that are under way when the store ends fail as soon as the gateway is at the next one. Seeded:
`MODEL_SEEDS=100:200` runs those.
"""

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import pytest

from gateway.auth.refusal import ClientGone
from gateway.broker import client_ownership
from gateway.broker import wait_limit as patience
from gateway.broker.client_locks import ClientLocks
from gateway.broker.client_ownership import JoinedGateway
from gateway.broker.wait_limit import HasLeft
from store.api import Appended, Attendance, Done, NamedClaim, Store
from store.errors import ClaimedByAnotherUser, StoreClosed
from store.gateways.registry import GatewayRegistry
from store.views.gateways import Gateways
from tests.waiting import until

LEASE = 4.0
SEEDS = [int(number) for number in os.environ.get("MODEL_SEEDS", "0:20").split(":")]


class Known:
    """The gateways that have joined, as the log has them."""

    def __init__(self) -> None:
        self.names: list[bytes] = []

    def page(self, after: bytes | None, limit: int) -> list[bytes]:
        return [name for name in sorted(self.names) if name > (after or b"")][:limit]


class Shop:
    """The store, which can be opened anew."""

    def __init__(self) -> None:
        self.known = Known()
        self.life = 0
        self.tasks: set[asyncio.Task[Any]] = set()  # questions that are being answered

    async def open(self) -> None:
        self.life += 1
        self.registry = GatewayRegistry(cast("Gateways", self.known), self._append, LEASE)
        await self.registry.start(nothing_left)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.registry.stop()

    def _append(self, _frames: list[bytes], done: Done) -> None:
        asyncio.get_running_loop().call_soon(done, Appended())


def stays() -> bool:
    """The client waits for as long as it takes."""
    return False


async def nothing_left(_is_gone: object) -> None:
    """No gateway left anything."""


class Link:
    """A gateway's way to the store. A question is under way for as long as `pace` says, in turns of the loop."""

    def __init__(self, shop: Shop, pace: Callable[[], int]) -> None:
        self.asked: list[str] = []
        self._shop = shop
        self._pace = pace
        self._life = shop.life
        self._up = asyncio.Event()
        self._up.set()
        self._there: deque[tuple[Callable[[], Coroutine[Any, Any, Any]], asyncio.Future[Any]]] = deque()
        self._back: deque[tuple[asyncio.Task[Any], asyncio.Future[Any]]] = deque()
        self._new = asyncio.Event()
        self._open: set[asyncio.Future[Any]] = set()
        self._carrier = asyncio.get_running_loop().create_task(self._carry())

    def lose(self) -> None:
        self._up.clear()

    def find(self) -> None:
        """The link is there again. What was under way to a store that has ended fails."""
        if self._life != self._shop.life:
            self._life = self._shop.life
            self._there.clear()
            self._back.clear()
            for answer in self._open:
                if not answer.done():
                    answer.set_exception(StoreClosed("the store was restarted"))
        self._up.set()

    async def close(self) -> None:
        self._carrier.cancel()
        await asyncio.gather(self._carrier, return_exceptions=True)

    async def turns(self) -> None:
        """Wait as long as a request or an answer is on its way."""
        for _ in range(self._pace()):
            await asyncio.sleep(0)
        await self._up.wait()

    async def _carry(self) -> None:
        while True:
            await self._new.wait()
            self._new.clear()
            await self.turns()
            while self._there and self._up.is_set():
                question, answer = self._there.popleft()
                task = asyncio.get_running_loop().create_task(question())
                self._shop.tasks.add(task)
                task.add_done_callback(self._shop.tasks.discard)
                task.add_done_callback(lambda task, answer=answer: self._answered(task, answer))
            while self._back and self._up.is_set():
                task, answer = self._back.popleft()
                if answer.done():
                    continue
                if error := task.exception():
                    answer.set_exception(error)
                else:
                    answer.set_result(task.result())
            if self._there or self._back:
                self._new.set()

    def _answered(self, task: asyncio.Task[Any], answer: asyncio.Future[Any]) -> None:
        if not task.cancelled():
            task.exception()  # nobody may be there to hear it
            self._back.append((task, answer))
            self._new.set()

    async def _ask(self, what: str, *arguments: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def question() -> Any:
            self.asked.append(what)
            return await getattr(self._shop.registry, what)(*arguments)

        self._open.add(answer)
        self._there.append((question, answer))
        self._new.set()
        try:
            return await answer
        finally:
            self._open.discard(answer)

    async def join_gateway(self, name: bytes, claims: Sequence[NamedClaim] | None, more: bool = False) -> float:
        return cast("float", await self._ask("join", name, claims, more))

    async def heartbeat(self, name: bytes, figures: Mapping[str, int]) -> Attendance:
        return cast("Attendance", await self._ask("heartbeat", name, figures))

    async def leave_gateway(self, name: bytes) -> None:
        await self._ask("leave", name)

    async def claim_client(self, name: bytes, client_id: bytes, number: int, user: bytes) -> None:
        await self._ask("claim_client", name, client_id, number, user)

    async def release_clients(self, name: bytes, claims: Sequence[tuple[bytes, int]]) -> None:
        await self._ask("release_clients", name, claims)


class Gate:
    """A gateway that serves clients as `gateway.broker.sessions` does, with last records for each connection. `owners`
    of clients are those that have a connection of it, or its last records under way."""

    def __init__(self, shop: Shop, name: bytes, owners: dict[bytes, bytes], pace: Callable[[], int]) -> None:
        self.name = name
        self.link = Link(shop, pace)
        self.joined = JoinedGateway(cast("Store", self.link), name, dict)
        self.held: set[bytes] = set()
        self.records = asyncio.Event()  # last ones get to the log
        self.records.set()
        self.is_over = False
        self._owners = owners
        self._locks = ClientLocks()
        self._ending: dict[bytes, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self.joined.start(self.give_up, lambda _: None, bytes, self._over)

    def _over(self) -> None:
        self.is_over = True

    async def connect(self, client_id: bytes, has_left: HasLeft = stays) -> None:
        try:
            async with self._locks.lock(client_id):
                await self._end(client_id)
                await self.joined.claim(client_id, b"", has_left)
                assert self._owners.setdefault(client_id, self.name) == self.name, "two gateways have a client"
                self.held.add(client_id)
        finally:
            self._release_if_unused(client_id)

    def drop(self, client_id: bytes) -> None:
        self.held.remove(client_id)
        self._ending[client_id] = asyncio.get_running_loop().create_task(self._ended(client_id))

    async def _ended(self, client_id: bytes) -> None:
        await self.link.turns()
        await self.records.wait()
        del self._owners[client_id]
        del self._ending[client_id]
        self._release_if_unused(client_id)

    async def _end(self, client_id: bytes) -> None:
        if client_id in self.held:
            self.drop(client_id)
        if client_id in self._ending:
            await asyncio.wait([self._ending[client_id]])

    async def give_up(self, client_id: bytes, _is_taken_over: bool) -> None:
        async with self._locks.lock(client_id):
            await self._end(client_id)
        self._release_if_unused(client_id)

    def _release_if_unused(self, client_id: bytes) -> None:
        if client_id not in self.held and client_id not in self._locks and client_id not in self._ending:
            self.joined.release(client_id)

    async def stop(self) -> None:
        for client_id in list(self.held):
            self.drop(client_id)
        if self._ending:
            await asyncio.wait(list(self._ending.values()))
        await self.joined.stop()
        await self.link.close()


class World:
    """A store and its gateways. `random`: what decides how long things take."""

    def __init__(self, names: Sequence[bytes], random: random.Random) -> None:
        self.shop = Shop()
        self.owners: dict[bytes, bytes] = {}
        self.gates: dict[bytes, Gate] = {}
        self._names = names
        self._random = random

    async def __aenter__(self) -> "World":
        await self.shop.open()
        self.shop.known.names.extend(self._names)
        for name in self._names:
            gate = self.gates[name] = Gate(self.shop, name, self.owners, lambda: self._random.randrange(6))
            await gate.start()
        return self

    async def restart(self) -> None:
        """The store ends and is opened anew; the gateways have not found it yet."""
        for gate in self.gates.values():
            gate.link.lose()
        await self.shop.close()
        await self.shop.open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return  # some of it may wait for ever
        for gate in self.gates.values():
            gate.link.find()
        for gate in self.gates.values():
            await gate.stop()
        await self.shop.close()
        assert not any(gate.is_over for gate in self.gates.values())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that did not answer is asked again without a rest, and who has left is noticed in no time."""
    monkeypatch.setattr(client_ownership, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(patience, "_CHECK_SECONDS", 0)


async def settle() -> None:
    """Whatever waits for no clock happens."""
    for _ in range(500):
        await asyncio.sleep(0)


@pytest.mark.parametrize("order", [b"ab", b"ba"])
async def test_a_pending_claim_does_not_win_by_returning_first(order: bytes) -> None:
    """The last records of a's client are on their way when the store is opened anew, and b asks for it."""
    async with World([b"a", b"b"], random.Random(1)) as world:
        a, b = world.gates[b"a"], world.gates[b"b"]
        await a.connect(b"s")
        asking = asyncio.ensure_future(b.connect(b"s"))
        a.records.clear()
        await until(lambda: "claim_client" in b.link.asked)
        await world.restart()
        a.drop(b"s")
        for each in order:
            gate = a if each == ord("a") else b
            gate.link.find()
            await until(lambda gate=gate: gate.name in world.shop.registry.figures)  # type: ignore[misc]
        assert world.shop.registry.owner(b"s") == b"a"
        assert not asking.done()
        a.records.set()
        await asking
        assert world.shop.registry.owner(b"s") == b"b"


async def test_a_grant_of_a_store_that_ended_is_claimed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes when the gateway has told the next store already what it has."""
    async with World([b"a", b"b"], random.Random(1)) as world:
        a, b = world.gates[b"a"], world.gates[b"b"]
        given, late = asyncio.Event(), asyncio.Event()
        claim = a.link.claim_client

        async def held_up(name: bytes, client_id: bytes, number: int, user: bytes) -> None:
            await claim(name, client_id, number, user)
            given.set()
            await late.wait()

        monkeypatch.setattr(a.link, "claim_client", held_up)
        first = asyncio.ensure_future(a.connect(b"s"))
        await given.wait()
        await world.restart()
        a.link.find()
        b.link.find()
        await until(lambda: len(world.shop.registry.figures) == 2)
        await b.connect(b"s")
        late.set()
        await first
        assert world.owners == {b"s": b"a"}
        assert b.held == set()


async def test_a_claim_in_the_turn_of_a_release_is_not_released() -> None:
    async with World([b"a", b"b"], random.Random(1)) as world:
        a = world.gates[b"a"]
        await a.connect(b"s")
        a.held.clear()  # its records are in the log
        a.joined.release(b"s")
        await a.joined.claim(b"s", b"", stays)
        await a.connect(b"t")  # what was said before has arrived
        assert world.shop.registry.owner(b"s") == b"a"


async def test_an_order_also_ends_a_connection_that_waited_behind_it() -> None:
    """At once: not when the gateway is told again after a part of the lease."""
    async with World([b"a", b"b"], random.Random(1)) as world:
        a, b = world.gates[b"a"], world.gates[b"b"]
        await a.connect(b"s")
        a.records.clear()
        asking = asyncio.ensure_future(b.connect(b"s"))
        await until(lambda: not a.held)
        behind = asyncio.ensure_future(a.connect(b"s"))
        await settle()
        a.records.set()
        await behind
        await settle()
        assert asking.done()
        assert a.held == set()


async def test_an_order_about_what_was_let_go_of_does_not_end_what_came_after() -> None:
    async with World([b"a", b"b"], random.Random(1)) as world:
        a = world.gates[b"a"]
        await a.connect(b"s")
        a.link.lose()
        kicking = asyncio.ensure_future(world.shop.registry.kick(b"s"))
        await settle()
        assert not kicking.done()
        a.held.clear()  # its records are in the log
        del world.owners[b"s"]
        a.joined.release(b"s")
        again = asyncio.ensure_future(a.connect(b"s"))
        await settle()
        a.link.find()  # the order comes
        await again
        await settle()
        assert kicking.done()
        assert a.held == {b"s"}


async def test_an_order_that_comes_with_a_connection_of_what_was_let_go_of_does_not_end_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the turn of the loop in which it comes the client connects, and is first."""
    async with World([b"a", b"b"], random.Random(1)) as world:
        a = world.gates[b"a"]
        await a.connect(b"s")
        a.link.lose()
        kicking = asyncio.ensure_future(world.shop.registry.kick(b"s"))
        await settle()
        a.held.clear()  # its records are in the log
        del world.owners[b"s"]
        a.joined.release(b"s")
        await settle()
        obey, again = a.joined._carry_out, list[asyncio.Task[None]]()

        async def second(*arguments: Any) -> None:
            again.append(asyncio.create_task(a.connect(b"s")))
            await until(lambda: b"s" in a.joined._claims)
            obey(*arguments)

        monkeypatch.setattr(a.joined, "_carry_out", lambda *order: a.joined._spawn(second(*order)))
        a.link.find()  # the order comes
        await until(lambda: bool(again))
        await again[0]
        await settle()
        assert kicking.done()
        assert a.held == {b"s"}


async def test_a_client_is_held_for_the_user_of_its_last_connection() -> None:
    """Of nobody in particular at first; then a user comes at the same gateway."""
    async with World([b"a", b"b"], random.Random(1)) as world:
        a, b = world.gates[b"a"], world.gates[b"b"]
        await a.joined.claim(b"s", b"", stays)
        await a.joined.claim(b"s", b"u", stays)
        with pytest.raises(ClaimedByAnotherUser):
            await b.joined.claim(b"s", b"v", stays)
        await world.restart()
        a.link.find()
        b.link.find()
        with pytest.raises(ClaimedByAnotherUser):
            await b.joined.claim(b"s", b"v", stays)


async def test_an_order_for_an_older_claim_does_not_end_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's connection has ended, and another user connects with the same client id."""
    async with World([b"a"], random.Random(1)) as world:
        a = world.gates[b"a"]
        await a.connect(b"s")
        a.held.clear()
        del world.owners[b"s"]
        late, claim = asyncio.Event(), a.link.claim_client

        async def held_up(name: bytes, client_id: bytes, number: int, user: bytes) -> None:
            await late.wait()
            await claim(name, client_id, number, user)

        monkeypatch.setattr(a.link, "claim_client", held_up)
        again = asyncio.ensure_future(a.joined.claim(b"s", b"u", stays))
        kicking = asyncio.ensure_future(world.shop.registry.kick(b"s"))
        await settle()
        assert kicking.done()
        late.set()
        await again
        await settle()
        assert world.shop.registry.owner(b"s") == b"a"


async def test_a_gateway_unknown_to_a_new_store_is_asked_to_join_again() -> None:
    """It attends at the next store without having noticed that this is another one."""
    async with World([b"a"], random.Random(1)) as world:
        await world.shop.close()
        await world.shop.open()
        with pytest.raises(StoreClosed):
            await world.shop.registry.heartbeat(b"a", {})


@pytest.mark.parametrize("seed", range(*SEEDS))
async def test_a_client_is_never_at_two_gateways(seed: int) -> None:
    chance = random.Random(seed)
    names = [b"a", b"b", b"c"][: chance.randint(2, 3)]
    clients = [b"s", b"t", b"u"][: chance.randint(1, 3)]
    async with World(names, chance) as world:
        gates = list(world.gates.values())
        connecting: list[asyncio.Task[None]] = []
        for _ in range(200):
            step = chance.random()
            gate = chance.choice(gates)
            if step < 0.4:
                has_left = (lambda: chance.random() < 0.1) if chance.random() < 0.3 else stays
                connecting.append(asyncio.ensure_future(gate.connect(chance.choice(clients), has_left)))
            elif step < 0.6 and gate.held:
                gate.drop(chance.choice(sorted(gate.held)))
            elif step < 0.65 and connecting:
                chance.choice(connecting).cancel()
            elif step < 0.7:
                await world.restart()
            elif step < 0.85:
                gate.link.find()
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)
        for gate in gates:
            gate.link.find()
        results = await asyncio.gather(*connecting, return_exceptions=True)
        assert not [each for each in results if isinstance(each, Exception) and not isinstance(each, ClientGone)]
        for client_id in clients:
            await chance.choice(gates).connect(client_id)
