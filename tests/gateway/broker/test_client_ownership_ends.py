"""Whose a client is where gateways die, stop and are followed by others, links break, and the store is opened anew.

What is between them is that of `test_client_ownership`. Seeded: `MODEL_SEEDS=100:200` runs those.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from gateway.broker import client_ownership
from store import control
from store.api import Appended, Done
from store.errors import ClaimedByAnotherUser, GatewayEnded, StoreBusy, StoreError
from store.gateways import registry
from tests.gateway.broker.test_client_ownership import SEEDS, Gate, Shop, stays
from tests.waiting import patience, until

PLACES: Final = [b"a", b"b", b"c"]
USERS: Final = [b"", b"", b"u", b"v"]
STEPS: Final = 150


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was not answered, or found no room, asks again without a rest."""
    monkeypatch.setattr(client_ownership, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(registry, "_BUSY_SECONDS", 0)


class Market(Shop):
    """A store that ends what gateways leave, and is busy now and then."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.owners: dict[bytes, bytes] = {}
        self.gates: dict[bytes, Process] = {}

    async def open(self) -> None:
        self.life += 1
        self.registry = registry.GatewayRegistry(self.known, self._append, 3600.0)  # type: ignore[arg-type]
        self.registry.on_ended = lambda name: self.gates[name].cut() if name in self.gates else None
        await self.registry.start(self._see_to)

    async def _see_to(self, is_gone: Callable[[bytes], bool]) -> None:
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)
        if self.chance.random() < 0.2 and self.registry._endings:
            raise StoreBusy("no room")
        for client_id in [c for c, name in self.owners.items() if is_gone(name)]:
            del self.owners[client_id]

    def _append(self, frames: list[bytes], done: Done) -> None:
        loop = asyncio.get_running_loop()
        if self.registry._endings and self.chance.random() < 0.2:
            loop.call_soon(done, Appended(error=StoreBusy("no room")))
            return
        for name in self.gates:
            if frames == [control.GatewayJoined().frame(name)]:
                self.known.names.append(name)
            elif frames == [control.GatewayLeft().frame(name)]:
                self.known.names.remove(name)
        loop.call_soon(done, Appended())


class Process(Gate):
    """A gateway that can be killed. Whose a client is, by user, it knows as `gateway.broker.sessions` does."""

    def __init__(self, shop: Market, name: bytes) -> None:
        super().__init__(shop, name, shop.owners, lambda: shop.chance.randrange(6))
        self.is_cut = False
        self.is_leaving = False
        self.users: dict[bytes, bytes] = {}
        self.tasks: list[asyncio.Task[Any]] = []  # that serve a CONNECT
        self.life: set[asyncio.Task[Any]] = set()  # that it begins and stops in
        self._market = shop

    def cut(self) -> None:
        """Nothing that it says arrives any more."""
        self.is_cut = True
        self.link.lose()

    def find(self) -> None:
        if not self.is_cut:
            self.link.find()

    async def kill(self) -> None:
        self.cut()
        tasks = [*self.tasks, *self.life, *self.joined._tasks, *self._ending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.link.close()

    async def serve(self, client_id: bytes, user: bytes) -> None:
        """A CONNECT of this user."""
        try:
            async with self._locks.lock(client_id):
                if client_id in self.held and self.users[client_id] not in (b"", user):
                    return
                await self._end(client_id)
                await self.joined.claim(client_id, user, stays)
                if self._market.registry.has_ended(self.name):
                    return  # its first record does not count
                owner = self._owners.setdefault(client_id, self.name)
                assert owner == self.name, f"{self.name!r} and {owner!r} have a client"
                self.held.add(client_id)
                self.users[client_id] = user
        except (ClaimedByAnotherUser, GatewayEnded):
            pass
        finally:
            self._release_if_unused(client_id)

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, *self.life - {asyncio.current_task()}, return_exceptions=True)
        await self.stop()


class Town:
    """A market and the processes at their places."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.market = Market(chance)
        self.number = 0
        self.dead: list[Process] = []
        self.kicks: set[asyncio.Task[bool]] = set()

    @property
    def gates(self) -> list[Process]:
        return [each for each in self.market.gates.values() if not each.is_leaving and not each.is_cut]

    def begin(self, place: bytes) -> None:
        self.number += 1
        gate = Process(self.market, b"%s/%d" % (place, self.number))
        self.market.gates[gate.name] = gate
        gate.life.add(asyncio.ensure_future(self._start(gate)))

    async def _start(self, gate: Process) -> None:
        try:
            await gate.start()
        except StoreError:
            gate.cut()

    async def end_dead(self) -> None:
        """Those that were ended, or killed, are no processes any more."""
        for gate in [each for each in self.market.gates.values() if each.is_cut and each not in self.dead]:
            await gate.kill()
            self.dead.append(gate)

    async def restart(self) -> None:
        for gate in self.market.gates.values():
            gate.link.lose()
        await self.market.close()
        for kick in self.kicks:
            kick.cancel()
        await self.market.open()

    async def step(self, clients: list[bytes]) -> None:
        step, gate = self.chance.random(), self.chance.choice(self.gates) if self.gates else None
        if gate is None:
            self.begin(self.chance.choice(PLACES))
        elif step < 0.35:
            gate.tasks.append(asyncio.ensure_future(gate.serve(self.chance.choice(clients), self.chance.choice(USERS))))
        elif step < 0.5 and gate.held:
            gate.drop(self.chance.choice(sorted(gate.held)))
        elif step < 0.83:
            await self._connects(step, gate, clients)
        elif step < 0.97:
            await self._ends(step, gate)
        for _ in range(self.chance.randrange(8)):
            await asyncio.sleep(0)

    async def _connects(self, step: float, gate: Process, clients: list[bytes]) -> None:
        if step < 0.56 and gate.tasks:
            self.chance.choice(gate.tasks).cancel()
        elif step < 0.6:
            await self.restart()
        elif step < 0.64:
            gate.link.lose()
        elif step < 0.8:
            gate.find()
        elif step < 0.83:
            self.kicks.add(asyncio.ensure_future(self.market.registry.kick(self.chance.choice(clients))))

    async def _ends(self, step: float, gate: Process) -> None:
        if step < 0.86:
            self.begin(gate.name.partition(b"/")[0])
        elif step < 0.88:
            gate.cut()  # and a successor comes, or the lease ends
        elif step < 0.9:
            gate.is_leaving = True
            gate.life.add(asyncio.ensure_future(gate.leave()))
        elif step < 0.94 and self.market.gates:
            gone = self.chance.choice(list(self.market.gates.values()))
            if gone.is_cut:
                self.market.registry.expire(gone.name)
        else:
            await self.end_dead()

    async def heal(self) -> None:
        """All links are there, and who is gone has been taken for that."""
        for _ in range(300):
            await self.end_dead()
            if not self.gates:
                self.begin(PLACES[0])
            for gate in self.market.gates.values():
                gate.find()
            for name in list(self.market.registry._gateways):
                gate = self.market.gates[name]
                if gate.is_cut or (gate.is_leaving and all(each.done() for each in gate.life)):
                    self.market.registry.expire(name)
            for _ in range(5):
                await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(*SEEDS))
async def test_after_any_death_a_client_is_at_one_gateway_at_most_and_can_be_claimed(seed: int) -> None:
    chance = random.Random(seed)
    clients = [b"s", b"t", b"u"][: chance.randint(1, 3)]
    town = Town(chance)
    await town.market.open()
    for place in PLACES[: chance.randint(2, 3)]:
        town.begin(place)
    for _ in range(STEPS):
        await town.step(clients)
    await town.heal()
    async with patience():
        faults: list[object] = []
        for gate in town.gates:
            faults += await asyncio.gather(*gate.tasks, return_exceptions=True)
        faults += [each.exception() for gate in town.dead for each in (*gate.tasks, *gate.life) if not each.cancelled()]
        assert not [each for each in faults if isinstance(each, Exception)]
        for client_id in clients:
            for gate in town.gates:  # whoever else had it
                gate.users.clear()
                if client_id in gate.held:
                    gate.drop(client_id)
            gate = chance.choice(town.gates)
            while client_id not in gate.held:  # it may be another user's until that one's end is told
                await gate.serve(client_id, b"last")
        await until(lambda: all(each.done() for each in town.kicks))
    found = town.market.registry
    assert set(found.clients) == set(clients)
    assert not found._claims._waiting
    assert not found._endings
    assert {each.name for each in town.gates} >= set(found.figures)
    for gate in town.market.gates.values():
        await gate.kill()
    await town.market.close()
