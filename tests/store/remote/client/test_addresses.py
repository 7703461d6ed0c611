"""A store that is looked for at several addresses, and that moves from one to another."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreClosed
from store.remote import RemoteConfig, RemoteStore, StoreServer
from store.remote.client.addresses import Addresses
from store.remote.server.attached import Attached
from store.remote.server.listener import StoreListener
from store.remote.wire.calls import Method
from store.remote.wire.layout import NodeFacts
from tests.waiting import patience, until

CONFIG = RemoteConfig(heartbeat_s=0.05, silence_s=10, grace_s=60, longest_pause_s=0.05)


def test_a_list_is_tried_in_turn() -> None:
    places = Addresses(["a", "b", "c"])
    found = [places.current]
    for _ in range(4):
        places.failed()
        found.append(places.current)
    assert found == ["a", "b", "c", "a", "b"]
    with pytest.raises(ValueError, match="at least one"):
        Addresses([])


def test_a_leader_is_tried_at_once_and_two_that_name_each_other_are_not_asked_without_end() -> None:
    places = Addresses(["a", "b"])
    assert places.referred("l")
    assert places.current == "l"
    assert not places.referred("m")
    assert places.current == "b"
    places.paused()
    assert not places.referred("")
    assert places.current == "a"
    assert not places.referred("a")
    assert places.referred("l")


def test_what_a_store_tells_of_is_tried_behind_the_list() -> None:
    places = Addresses(["a"])
    places.learned(["c", "a", "b"])
    places.served()
    found = []
    for _ in range(4):
        places.failed()
        found.append(places.current)
    assert found == ["a", "c", "b", "a"]


class Node:
    """A place where a store may be served: from its begin it listens, and says who leads while it has no store."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.leader = ""
        self.listener = StoreListener(CONFIG, lambda: (self.leader, "another node does"))

    @asynccontextmanager
    async def leading(self, folder: Path) -> AsyncIterator[Engine]:
        engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20, partitions=1))
        server = StoreServer(engine, Hub(engine), CONFIG)
        server.begin()
        self.listener.serve(server)
        try:
            yield engine
        finally:
            self.listener.serve(None)
            await server.stop()
            await engine.close()


@pytest.fixture
async def nodes():
    with TemporaryDirectory(prefix="sluice-") as folder:  # short: paths of sockets have 107 bytes at the most
        found = [Node(f"unix:{folder}/{name}") for name in "ab"]
        for node in found:
            await node.listener.open(node.address)
        yield found
        for node in found:
            await node.listener.close()


def publish(store: RemoteStore, payload: bytes, answers: list[Appended]) -> None:
    store.append([record.frame(Kind.MESSAGE, 1, 0, b"a/b", b"c", b"", payload)], answers.append)


async def count(store: RemoteStore | Engine) -> int:
    return (await store.bounds(topic_queue(b"a/b"))).end


async def test_a_gateway_follows_its_store_from_node_to_node(
    nodes: list[Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "store.remote")
    a, b = nodes
    answers: list[Appended] = []
    a.leader = b.address
    async with b.leading(tmp_path / "data"):
        store = await RemoteStore.open([a.address], "g", EventReceiver(), CONFIG)
        lost = asyncio.Event()
        store.on_lost(lost.set)
        publish(store, b"1", answers)
        await until(lambda: len(answers) == 1)
    publish(store, b"2", answers)  # while nobody leads
    await until(lambda: not store.is_connected)
    a.leader = ""
    async with a.leading(tmp_path / "data") as engine:
        await until(lambda: len(answers) == 2)
        assert [answer.error for answer in answers] == [None, None]
        assert await count(engine) == 2
        a.leader, b.leader = b.address, a.address
    async with b.leading(tmp_path / "data") as engine:
        publish(store, b"3", answers)
        await until(lambda: len(answers) == 3)
        assert await count(engine) == 3
        assert not lost.is_set()
        await store.close()
    moves = [each.message for each in caplog.records if "now, it was at" in each.message]
    assert moves == [
        f"the store is at {a.address} now, it was at {b.address}",
        f"the store is at {b.address} now, it was at {a.address}",
    ]
    assert len(caplog.records) <= 4, "at most one line more for each change"


async def test_bulk_reads_follow_the_store(nodes: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is under way ends with the store that it was asked of, and the next store answers it."""
    a, b = nodes
    answers: list[Appended] = []
    began, ended = asyncio.Event(), asyncio.Event()
    reads: list[bytes] = []
    read, called = Attached.read, Attached._called

    async def counted(self: Attached, body: bytes) -> bytes:
        reads.append(body)
        return await read(self, body)

    async def slow(self: Attached, method: Method, body: bytes) -> object:
        if method.name == "fetch" and not began.is_set():
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return await called(self, method, body)

    monkeypatch.setattr(Attached, "read", counted)
    monkeypatch.setattr(Attached, "_called", slow)
    a.leader = b.address
    async with a.leading(tmp_path / "data"):
        store = await RemoteStore.open([a.address], "g", EventReceiver(), CONFIG)
        publish(store, b"1", answers)
        await until(lambda: len(answers) == 1)
        reading = asyncio.create_task(store.bulk.fetch(topic_queue(b"a/b"), 0, 10, 1 << 20))
        await began.wait()
        a.listener._server.abort()  # type: ignore[union-attr]
        for _ in range(2):
            await asyncio.sleep(0)
        assert ended.is_set(), "before the engine is closed"
    assert not reading.done()
    async with b.leading(tmp_path / "data"):
        async with patience():
            fetched = await reading
            assert fetched.count == 1
            assert len(reads) == 1, "asked again in order"
            assert (await store.bulk.fetch(topic_queue(b"a/b"), 0, 10, 1 << 20)).data == fetched.data
            assert len(reads) == 2, "over the connection to the node that leads"
        await store.close()


async def test_a_gateway_hears_of_the_nodes_of_others(nodes: list[Node], tmp_path: Path) -> None:
    """It finds the next leader although the store of its own node is away with the last one."""
    a, b = nodes
    async with a.leading(tmp_path / "data"):
        store = await RemoteStore.open(a.address, "g", EventReceiver(), CONFIG, node=NodeFacts(a.address))
        other = await RemoteStore.open([b.address, a.address], "h", EventReceiver(), CONFIG, node=NodeFacts(b.address))
        await until(lambda: store._addresses._all == (a.address, b.address))
    async with b.leading(tmp_path / "data"):
        assert await count(store) == 0
        await other.close()
        await until(lambda: store._addresses._all == (a.address,))
        await store.close()


async def test_a_store_tells_of_two_nodes_under_one_name(
    nodes: list[Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = nodes
    async with a.leading(tmp_path / "s"):
        first = await RemoteStore.open(a.address, "n1.g1/1", EventReceiver(), CONFIG, node=NodeFacts(a.address))
        again = await RemoteStore.open(a.address, "n1.g1/2", EventReceiver(), CONFIG, node=NodeFacts(a.address))
        assert not caplog.messages, "a gateway may be started again"
        twin = await RemoteStore.open(a.address, "n1.g1/3", EventReceiver(), CONFIG, node=NodeFacts(b.address))
        assert f"n1.g1 of the node at {b.address} replaces the one of the node at {a.address}" in caplog.text
        for store in (first, again, twin):
            await store.close()


async def test_gateways_hear_where_services_of_others_are(nodes: list[Node], tmp_path: Path) -> None:
    a, _ = nodes
    async with a.leading(tmp_path / "data"):
        silent = await RemoteStore.open(a.address, "f", EventReceiver(), CONFIG)
        store = await RemoteStore.open(a.address, "g", EventReceiver(), CONFIG, node=NodeFacts(services="n1:7070"))
        other = await RemoteStore.open(a.address, "h", EventReceiver(), CONFIG, node=NodeFacts(services="n2:7070"))
        for each in (silent, store, other):
            await until(lambda each=each: [node.services for node in each.nodes] == ["n1:7070", "n2:7070"])
        await other.close()
        await until(lambda: store.nodes == silent.nodes == [NodeFacts(services="n1:7070")])
        await store.close()
        await until(lambda: silent.nodes == [])
        await silent.close()


async def test_gateways_hear_that_a_node_is_drained(nodes: list[Node], tmp_path: Path) -> None:
    """Also one that comes later, and the next leader, to which the gateway says so when it comes."""
    a, b = nodes
    n1 = NodeFacts(a.address, "n1:7070")
    drained = NodeFacts(a.address, "n1:7070", is_drained=True)
    addresses = [a.address, b.address]
    async with a.leading(tmp_path / "data"):
        store = await RemoteStore.open(addresses, "g", EventReceiver(), CONFIG, node=n1)
        other = await RemoteStore.open(addresses, "h", EventReceiver(), CONFIG)
        await until(lambda: other.nodes == [n1])
        store.tell(drained)
        await until(lambda: other.nodes == store.nodes == [drained])
        late = await RemoteStore.open(addresses, "i", EventReceiver(), CONFIG)
        await until(lambda: late.nodes == [drained])
        await late.close()
    store.tell(n1)  # while nobody leads
    async with b.leading(tmp_path / "data"):
        await until(lambda: other.nodes == store.nodes == [n1])
        for each in (store, other):
            await each.close()


async def test_a_leader_that_died_is_left_for_the_list(nodes: list[Node], tmp_path: Path) -> None:
    a, b = nodes
    a.leader = "unix:/nowhere/at/all"
    async with b.leading(tmp_path / "data"):
        store = await RemoteStore.open([a.address, b.address], "g", EventReceiver(), CONFIG)
        assert await count(store) == 0
        await store.close()


async def test_a_gateway_waits_for_a_leader_and_gives_up_in_the_end(nodes: list[Node], tmp_path: Path) -> None:
    a, b = nodes
    quick = RemoteConfig(heartbeat_s=0.05, silence_s=10, grace_s=2, longest_pause_s=0.05)
    a.leader, b.leader = b.address, a.address  # each takes the other for the leader
    why = r"unix:.*/a or unix:.*/b cannot be reached in 2 s: the node at .* does not lead: another node does"
    with pytest.raises(StoreClosed, match=why):
        await RemoteStore.open([a.address, b.address], "g", EventReceiver(), quick)
    opening = asyncio.create_task(RemoteStore.open([a.address, b.address], "g", EventReceiver(), CONFIG))
    await asyncio.sleep(0)
    async with b.leading(tmp_path / "data"):
        store = await opening
        await store.close()


async def test_an_answer_that_a_restart_took_comes_from_the_next_store(nodes: list[Node], tmp_path: Path) -> None:
    """The append is committed, and the next store finds out where."""
    a, _ = nodes
    answers: list[Appended] = []
    async with a.leading(tmp_path / "data") as engine:
        store = await RemoteStore.open(a.address, "g", EventReceiver(), CONFIG)
        publish(store, b"1", answers)
        await until(lambda: len(answers) == 1)
        assert [len(answer.positions) for answer in answers] == [1]
        engine.on_commit(lambda _: a.listener._server.abort())  # type: ignore[union-attr]  the answer is never sent
        publish(store, b"2", answers)
        await until(lambda: not store.is_connected)
    async with a.leading(tmp_path / "data") as engine:
        await until(lambda: len(answers) == 2)
        assert answers[1].error is None
        assert [len(answer.positions) for answer in answers] == [1, 1]
        assert answers[1].positions[0] > answers[0].positions[0]
        assert await count(engine) == 2
        publish(store, b"3", answers)
        await until(lambda: len(answers) == 3)
        assert len(answers[2].positions) == 1
        await store.close()


async def test_a_call_that_the_store_cannot_answer_yet_is_answered(nodes: list[Node], tmp_path: Path) -> None:
    """A store that was opened again refuses heartbeats until its gateways have joined: they must hear of it."""
    a, _ = nodes
    async with a.leading(tmp_path / "data"):
        store = await RemoteStore.open(a.address, "g", EventReceiver(), CONFIG)
        async with patience():
            with pytest.raises(StoreClosed, match="the store is stopping"):
                await store.heartbeat(b"g", {})
        await store.close()
