"""A leader that is not sure of it asks other nodes before it answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.node.leader_check import LeaderCheck
from store.cluster.clustered_store import ClusteredStore
from store.cluster.member import NodeRole
from tests.waiting import patience, until


class Leader:
    """The store of a node that leads in epoch 4, and what the others say of theirs."""

    def __init__(self) -> None:
        self.role = NodeRole.LEADER
        self.is_sure = False
        self.history = SimpleNamespace(founded=SimpleNamespace(log_id="log"))
        self.epochs: dict[str, int | None] = {}  # by address; None: it does not answer
        self.log_id = "log"
        self.asked: list[str] = []
        self.deposed = ""
        self.check = LeaderCheck(cast("ClusteredStore", self), self.ask, "own:1")

    def depose(self, epoch: int, why: str) -> None:
        if epoch > 4:
            self.deposed, self.role = why, NodeRole.FOLLOWER

    async def ask(self, address: str) -> Mapping[str, Any]:
        self.asked.append(address)
        epoch = self.epochs[address]
        if epoch is None:
            await asyncio.Future()
        return {"node": address[:2], "epoch": epoch, "log_id": self.log_id}

    def set(self, **epochs: int | None) -> None:
        self.epochs = {f"{name}:1": epoch for name, epoch in epochs.items()}
        self.check.note([*self.epochs, "own:1"])

    async def is_confirmed(self) -> bool:
        """Whether a question of a gateway is answered, before the node leads no more."""
        confirmed = self.check.confirm()
        if confirmed is None:
            return True
        waiting = asyncio.ensure_future(confirmed)
        try:
            await until(lambda: waiting.done() or bool(self.deposed))
            await asyncio.sleep(0)
            return waiting.done()
        finally:
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    made = Leader()
    running = asyncio.ensure_future(made.check.run())
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_leader_that_is_sure_asks_nobody(leader: Leader) -> None:
    leader.set(n2=5)
    leader.is_sure = True
    assert leader.check.confirm() is None
    assert not leader.asked


async def test_others_are_asked_and_know_nothing_newer(leader: Leader) -> None:
    leader.set(n2=4, n3=3)
    assert await leader.is_confirmed()
    assert leader.asked[:2] == ["n2:1", "n3:1"]  # and not this node itself
    asked = len(leader.asked)
    assert await leader.is_confirmed()  # by questions that were asked behind it
    assert len(leader.asked) > asked


async def test_a_node_that_knows_a_newer_claim_deposes_it(leader: Leader) -> None:
    leader.set(n2=4, n3=5)
    assert not await leader.is_confirmed()
    assert leader.deposed == "node n3 says that the log is in epoch 5"


async def test_a_leader_that_nobody_asks_finds_out(leader: Leader) -> None:
    leader.set(n2=5)
    await until(lambda: bool(leader.deposed))


async def test_a_node_of_another_log_is_not_believed(leader: Leader) -> None:
    leader.set(n2=5)
    leader.log_id = "another"
    assert await leader.is_confirmed()
    assert not leader.deposed


async def test_an_answer_of_the_shared_log_is_enough(leader: Leader) -> None:
    leader.set(n2=None)
    confirmed = leader.check.confirm()
    assert confirmed is not None
    waiting = asyncio.ensure_future(confirmed)
    await until(lambda: bool(leader.asked))
    assert not waiting.done()
    leader.is_sure = True
    async with patience():
        await waiting


async def test_a_node_that_fails_to_answer_knows_nothing(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    leader.set(n2=5)

    async def say_what_is_wrong(address: str) -> Mapping[str, Any]:
        return {"address": address, "trouble": "it does not answer"}

    monkeypatch.setattr(leader.check, "_ask", say_what_is_wrong)
    assert await leader.is_confirmed()
