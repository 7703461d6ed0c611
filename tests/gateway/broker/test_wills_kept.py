"""Wills are state of the log: what is recorded of them, and what becomes of them when the node stops or dies."""

import asyncio
from collections.abc import Callable
from time import time

import pytest

import record
from gateway.mqtt.reasons import ReasonCode
from gateway.node.node import Node
from gateway.topics.destination import MAX_DELAY
from record.layout import FLAG_WILL, Kind
from store.api import Appended, StoredWill
from store.errors import StoreBusy
from tests.gateway.broker.test_wills import WILL, delayed, device
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.mqtt import wire
from tests.gateway.raw import RawClient, connect
from tests.waiting import until

Fields = tuple[int, int, int, bytes, bytes, bytes, bytes]  # of `record.decode`


async def rows(node: Node, position: int = 0) -> list[Fields]:
    """The records of the log from a position on."""
    assert node._engine is not None
    found: list[Fields] = []
    while position < node._engine.stats().log_end:
        chunk = await node._engine.read(position, 1 << 20)
        found += [record.decode(chunk.data, at) for at in record.split(chunk.data)]
        position = chunk.next_position
    return found


async def records(node: Node, position: int) -> list[tuple[Kind, int]]:
    """(kind, flags) of the records from a position on."""
    return [(Kind(row[0]), row[1]) for row in await rows(node, position)]


def end(node: Node) -> int:
    assert node._engine is not None
    return node._engine.stats().log_end


async def wills(node: Node) -> list[StoredWill]:
    assert node._engine is not None
    return await node._engine.wills(None, 9)


async def sent(node: Node) -> list[bytes]:
    """Payloads of wills in the log."""
    return [row[6] for row in await rows(node) if row[0] == Kind.MESSAGE and row[1] & FLAG_WILL]


@pytest.mark.mqtt5("4.1.0-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_a_clean_session_without_a_will_writes_nothing(node: Node, version: int) -> None:
    """Whatever it does but publish, and however it ends."""
    before = end(node)
    for ends_well in (True, False):
        client = await RawClient.connect(node.ports.mqtt, b"d", version)
        await client.subscribe((b"a/#", 2), (b"b", 1))
        await client.unsubscribe(b"b")
        other = await RawClient.connect(node.ports.mqtt, b"d", version)
        await other.subscribe((b"a/#", 2))
        await (other.disconnect() if ends_well else other.drop())
        await until(lambda: not node._sessions.open_sessions)
    assert end(node) == before


@pytest.mark.parametrize("ends_well", [True, False])
async def test_a_clean_session_with_a_will_writes_that(node: Node, ends_well: bool) -> None:
    before = end(node)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, will=WILL)
    assert await records(node, before) == [(Kind.WILL_SET, 0)]
    before = end(node)
    await (client.disconnect() if ends_well else client.drop())
    await until(lambda: end(node) > before)
    assert await records(node, before) == [(Kind.WILL_DROPPED, 0) if ends_well else (Kind.MESSAGE, FLAG_WILL | 1)]
    assert await wills(node) == []


async def test_a_will_keeps_its_properties(make_node: MakeNode) -> None:
    node = await make_node()
    block = b"\x01\x01\x02" + wire.u32(9) + b"\x03" + wire.text(b"text/plain") + b"\x08" + wire.text(b"reply")
    block += b"\x09" + wire.text(b"\0id") + wire.pair(b"b", b"2") + wire.pair(b"a", b"1") + wire.pair(b"b", b"2")
    rest = wire.sized(block[:7] + b"\x18" + wire.u32(77) + block[7:]) + wire.text(WILL[0]) + wire.text(b"\xc3\xbc")
    client = await device(node.ports, wire.connect(5, b"d", flags=0x36, rest=rest))
    node = await crashed(make_node, node, "crashed")
    assert await sent(node) == ["ü".encode()], "its session ended with the node"
    assert (await rows(node))[-1] == (1, FLAG_WILL | 4 | 2, 0, WILL[0], b"d", block, "ü".encode())
    await client.drop()


@pytest.mark.mqtt5("3.1.2-8", "3.1.2-10")
@pytest.mark.mqtt311("3.1.2-8")
@pytest.mark.parametrize("expiry", [0, 1000])
async def test_the_death_of_the_node_sends_wills_once(make_node: MakeNode, expiry: int) -> None:
    """Of the connections that were open, and of no others; a second death sends nothing."""
    node = await make_node()
    options = {"expiry": expiry, "will": WILL}
    held = [await RawClient.connect(node.ports.mqtt, b"open %d" % n, n, expiry == 0, **options) for n in (4, 5)]
    gone = await RawClient.connect(node.ports.mqtt, b"gone", 5, expiry == 0, expiry=expiry, will=(b"w", b"earlier"))
    await gone.drop()
    left = await RawClient.connect(node.ports.mqtt, b"left", 5, expiry == 0, expiry=expiry, will=(b"w", b"never"))
    await left.disconnect()
    await until(lambda: len(node._sessions.open_sessions) == 2 and not list(node._sessions._ending.all()))
    for name in ("first", "second"):
        node = await crashed(make_node, node, name)
        of_node = 2 if name == "first" else 0
        await until(lambda: node.counters.wills_sent == of_node)
        assert await sent(node) == [b"earlier", b"gone", b"gone"]
        assert await wills(node) == []
    for client in held:
        await client.drop()


@pytest.mark.mqtt5("3.1.3-9")
async def test_the_delay_counts_from_the_start_of_the_next_node(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client has its chance to be back."""
    node = await make_node()
    clients = [await device(node.ports, delayed(client_id, 1000, 2000)) for client_id in (b"away", b"back")]
    monkeypatch.setattr("gateway.broker.wills.time", lambda: time() + 5000)
    monkeypatch.setattr("gateway.broker.maintenance.time", lambda: time() + 5000)
    node = await crashed(make_node, node, "crashed")
    assert await sent(node) == []
    clients.append(await device(node.ports, connect(5, b"back", False, expiry=1000)))
    assert [will.client_id for will in await wills(node)] == [b"away"]
    node = await crashed(make_node, node, "again")
    assert await sent(node) == []
    monkeypatch.setattr("gateway.broker.wills.time", lambda: time() + 6001)
    node._sessions.wills.waits()  # a look at the clock
    await until(lambda: node.counters.wills_sent == 1)
    assert await sent(node) == [b"gone"]
    assert await wills(node) == []
    for client in clients:
        await client.drop()


@pytest.mark.mqtt5("3.1.3-9")
@pytest.mark.parametrize("dies", [True, False])
async def test_a_delay_continues_over_a_restart(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Of a connection that had ended before."""
    node = await make_node()
    client = await device(node.ports, delayed(b"d", 1000, 2000))
    await client.drop()
    await until(lambda: not node._sessions.open_sessions and not list(node._sessions._ending.all()))
    monkeypatch.setattr("gateway.broker.wills.time", lambda: time() + 999)
    if dies:
        node = await crashed(make_node, node, "next")
    else:
        await node.stop()
        node = await make_node()
    assert await sent(node) == []
    monkeypatch.setattr("gateway.broker.wills.time", lambda: time() + 1001)
    node._sessions.wills.waits()
    await until(lambda: node.counters.wills_sent == 1)
    assert await sent(node) == [b"gone"]


async def test_a_node_that_stops_sends_wills_and_leaves_those_that_wait(make_node: MakeNode) -> None:
    """Its clients did not ask for the end (MQTT-3.1.2-8)."""
    node = await make_node()
    clients = [await device(node.ports, delayed(b"waits", 1000, 2000))]
    clients.append(await RawClient.connect(node.ports.mqtt, b"d", 5, will=(b"w", b"stopped")))
    await node.stop()
    for client in clients:
        await client.drop()
    node = await make_node()
    assert await sent(node) == [b"stopped"]
    assert [(will.client_id, will.due_ms > 0) for will in await wills(node)] == [(b"waits", True)]


async def test_a_will_that_the_store_has_no_room_for_is_sent_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is what else ends a connection."""
    assert node._engine is not None
    append, refused = node._engine.append, 0

    def busy(frames: list[bytes], done: Callable[[Appended], None]) -> None:
        nonlocal refused
        refused += 1
        if refused < 4:
            asyncio.get_running_loop().call_soon(done, Appended(error=StoreBusy("no room")))
        else:
            append(frames, done)

    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=1000, will=WILL)
    monkeypatch.setattr(node._engine, "append", busy)
    await client.drop()
    next_one = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=1000)
    assert next_one.session_present
    assert refused >= 4
    assert await sent(node) == [b"gone"]
    assert node.counters.wills_sent == 1


async def test_a_connection_lost_before_connack_has_no_will(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was never accepted (MQTT-3.1.2-7)."""
    assert node._engine is not None
    before = end(node)
    engine = node._engine
    append, gate = engine.append, asyncio.Event()

    def late(frames: list[bytes], done: Callable[[Appended], None]) -> None:
        def told(appended: Appended) -> None:
            task = asyncio.ensure_future(gate.wait())
            task.add_done_callback(lambda _: done(appended))

        append(frames, told)

    monkeypatch.setattr(engine, "append", late)
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"d", will=WILL))
    await until(lambda: end(node) > before)
    (connection,) = node._front.connections
    connection.close(ReasonCode.SERVER_SHUTTING_DOWN)
    monkeypatch.setattr(engine, "append", append)
    gate.set()
    while await wills(node):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await sent(node) == []


@pytest.mark.parametrize("expiry", [0, 1000])
async def test_a_node_that_stops_before_connack_sends_no_will(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    """It has recorded what it did not come to say (MQTT-3.1.2-7)."""
    node = await make_node()
    assert node._engine is not None
    append, seen, gate = node._engine.append, asyncio.Event(), asyncio.Event()

    def late(frames: list[bytes], done: Callable[[Appended], None]) -> None:
        def told(appended: Appended) -> None:
            task = asyncio.ensure_future(gate.wait())
            task.add_done_callback(lambda _: done(appended))

        append(frames, told)
        seen.set()

    monkeypatch.setattr(node._engine, "append", late)
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"d", expiry=expiry, will=WILL))
    await seen.wait()
    stopping = asyncio.ensure_future(node.stop())
    await client.closed()  # and only then the session is there
    gate.set()
    await stopping
    node = await make_node()
    assert await sent(node) == []
    assert await wills(node) == []
    assert node._engine is not None
    assert node._engine.session_count() == (1 if expiry else 0)


async def test_a_delayed_address_counts_from_when_the_will_is_sent(make_node: MakeNode) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, will=(b"$delayed/1000/later", b"x"))
    node = await crashed(make_node, node, "crashed")
    assert node._engine is not None
    (held,) = (await node._engine.timers(None, 9)).messages
    assert held.topic == b"later"
    assert held.due_ms is not None
    assert 990 < held.due_ms / 1000 - time() <= 1000
    assert await wills(node) == []
    await client.drop()


async def test_a_clock_that_was_set_back_does_not_keep_a_will(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an absolute time that was taken at CONNECT and is too far away since: neither the live node's nor the next."""
    node = await make_node()
    topic = b"$delayed/%d/later" % (int(time()) + MAX_DELAY - 10)
    live = await RawClient.connect(node.ports.mqtt, b"live", 5, expiry=1000, will=(topic, b"x"))
    held = await RawClient.connect(node.ports.mqtt, b"held", 5, will=(topic, b"y"))
    monkeypatch.setattr("gateway.broker.wills.time", lambda: time() - 3600)
    await live.drop()
    await until(lambda: len(node._sessions.open_sessions) == 1 and not list(node._sessions._ending.all()))
    node = await crashed(make_node, node, "crashed")
    assert node._engine is not None
    messages = (await node._engine.timers(None, 9)).messages
    assert sorted(m.publisher for m in messages) == [b"held", b"live"]
    for message in messages:
        assert message.due_ms is not None
        assert -3610 <= message.due_ms / 1000 - time() - MAX_DELAY <= -3600
    assert await wills(node) == []
    await held.drop()


@pytest.mark.mqtt5("3.3.1-3")
@pytest.mark.mqtt311("3.3.1-3")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_a_will_of_a_killed_node_comes_without_dup(node: Node, make_node: MakeNode, expiry: int) -> None:
    """It was not in the queue when the node died. What was there may have been sent, and comes with DUP."""
    watcher = await RawClient.connect(node.ports.mqtt, b"watcher", 5, False, expiry=100)
    await watcher.subscribe((b"w/#", 1))
    client = await RawClient.open(node.ports.mqtt, 5)
    properties = b"\x11" + wire.u32(expiry)
    client.send(
        wire.connect(5, b"d", 0x0E, properties=properties, rest=b"\x00" + wire.text(b"w/d") + wire.text(b"lost"))
    )
    await client.packet()
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await publisher.publish(b"w/p", b"before")
    await watcher.message()
    again = await RawClient.connect(
        (await crashed(make_node, node, "killed")).ports.mqtt, b"watcher", 5, False, expiry=100
    )
    messages = sorted([await again.message() for _ in range(2)], key=lambda message: message.payload)
    assert [(message.payload, message.dup) for message in messages] == [(b"before", True), (b"lost", False)]
