"""Sessions whose node died: what may have been sent comes again with DUP and its packet id, and nothing else does."""

import asyncio
from time import time

import pytest

from gateway.node.node import Node
from gateway.session.queue_cursor import QueueCursor
from gateway.session.session import Session
from store.api import Fetched
from store.engine import Engine
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.device import Device, Publisher
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, PUBACK, Message, RawClient, ack, connect
from tests.gateway.session.test_durable import EVER, durable, numbers, publish
from tests.waiting import until

REACH = 256  # of a small window


def session_of(node: Node, client_id: bytes = b"d") -> Session:
    return node._sessions.open_sessions[client_id][0]


async def recorded(node: Node) -> None:
    """The progress of the session is in the log."""
    session = session_of(node)
    cursors = [s.cursor for s in session.subscriptions.values() if s.cursor is not None]
    await until(lambda: not (session.changed or any(cursor.floor != cursor.durable for cursor in cursors)))


@pytest.mark.mqtt5("3.3.1-1", "4.4.0-1", "4.6.0-1")
@pytest.mark.mqtt311("3.3.1-1", "4.4.0-1", "4.6.0-1")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic_filter", [b"t", b"+"])
async def test_sent_messages_come_again_with_dup_and_their_packet_id(
    make_node: MakeNode, version: int, topic_filter: bytes
) -> None:
    """Also what was acknowledged, but not recorded as such; once it is recorded it does not come."""
    node = await make_node()
    client = await durable(node, version=version)
    await client.subscribe((topic_filter, 1))
    await publish(node, b"t", *numbers(0, 20))
    sent = [await client.message() for _ in range(20)]
    assert not any(message.dup for message in sent)
    client.send(*[ack(PUBACK, message.packet_id) for message in sent[:5]])
    await client.quiet()
    await recorded(node)
    session_of(node).on_change = lambda *_: None  # nothing more is recorded
    client.send(*[ack(PUBACK, message.packet_id) for message in sent[5:8]])
    await client.quiet()
    node = await crashed(make_node, node, "crashed")
    await publish(node, b"t", *numbers(20, 22))
    back = await durable(node, version=version)
    again = [await back.message() for _ in range(17)]
    assert [m.payload for m in again] == numbers(5, 22)
    assert [m.dup for m in again] == [True] * 15 + [False] * 2
    assert [m.packet_id for m in again[:15]] == [m.packet_id for m in sent[5:]]
    await back.drop()
    await client.drop()


@pytest.mark.mqtt5("3.3.1-1")
async def test_a_backlog_that_cannot_have_been_sent_has_no_dup(make_node: MakeNode) -> None:
    """No more than the reach of the connection, which it kept to."""
    node = await make_node()
    client = await durable(node, receive_maximum=3)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", *numbers(0, 1000))
    assert len([await client.message() for _ in range(3)]) == 3
    node = await crashed(make_node, node, "crashed")
    back = await durable(node, receive_maximum=1000)
    again = await back.take(1000)
    assert [m.payload for m in again] == numbers(0, 1000)
    assert [m.dup for m in again] == [number < REACH for number in range(1000)]
    await back.drop()
    await client.drop()


async def test_a_session_keeps_to_its_reach_whatever_is_acknowledged(make_node: MakeNode) -> None:
    """Though nothing can be recorded; and goes on when it can."""
    node = await make_node()
    client = await durable(node, receive_maximum=50)
    await client.subscribe((b"t", 1))
    session = session_of(node)
    note = session.on_change
    session.on_change = lambda *_: None
    node._sessions._checkpoint.forget(session)  # what SUBSCRIBE has changed is on its way to be recorded
    await publish(node, b"t", *numbers(0, 1000))
    got: list[Message] = []
    while len(got) < REACH:
        got += await client.take(1)
    await client.quiet()
    session.on_change = note
    session.changed = session.urgent = False
    session.note_change(False)
    got += await client.take(1000 - REACH)
    assert [m.payload for m in got] == numbers(0, 1000)
    await client.drop()


async def test_a_fast_session_is_not_held_up_by_its_reach(node: Node) -> None:
    """It is recorded before it comes to it: more often, and far less than once a message."""
    client = await durable(node, receive_maximum=20)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    await publish(node, b"t", *numbers(0, 5000))
    assert node._engine is not None
    before = node._engine.stats().records
    client = await durable(node, receive_maximum=20)
    assert [m.payload for m in await client.take(5000)] == numbers(0, 5000)
    await recorded(node)
    assert node._engine.stats().records - before < 5000 / (REACH >> 3)
    await client.disconnect()


@pytest.mark.mqtt5("3.3.1-1", "4.4.0-1")
async def test_the_dup_mark_outlives_connections_that_end_before_it(make_node: MakeNode) -> None:
    node = await make_node()
    client = await durable(node)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", *numbers(0, 10))
    sent = [await client.message() for _ in range(10)]
    for name in ("first", "second"):
        node = await crashed(make_node, node, name)
        back = await durable(node, receive_maximum=2)
        first = await back.message()
        assert (first.payload, first.dup, first.packet_id) == (b"00000", True, sent[0].packet_id)
        await back.drop()
        await until(lambda: not node._sessions.open_sessions)
    await publish(node, b"t", b"new")
    back = await durable(node)
    again = await back.take(11)
    assert [(m.payload, m.dup) for m in again] == [*((m.payload, True) for m in sent), (b"new", False)]
    assert [m.packet_id for m in again[:10]] == [m.packet_id for m in sent]
    await recorded(node)
    assert node._engine is not None
    state = await node._engine.session(b"d")
    assert state is not None
    assert [s.sent_before for s in state.subscriptions] == [-1]
    await back.drop()
    await client.drop()


@pytest.mark.mqtt5("3.3.1-2", "4.3.1-1")
@pytest.mark.mqtt311("3.3.1-2")
async def test_qos_0_is_not_sent_a_second_time(make_node: MakeNode) -> None:
    """At most once: no DUP could tell. It is counted."""
    node = await make_node()
    client = await durable(node)
    await client.subscribe((b"t", 1))
    await recorded(node)  # or what is recorded late would have the first message in it
    session_of(node).on_change = lambda *_: None
    for number, qos in enumerate((0, 1, 0)):
        publisher = await RawClient.connect(node.ports.mqtt, b"p")
        publisher.send(wire.publish(4, b"t", b"%d" % number, qos, 1 if qos else 0))
        assert (await client.message()).payload == b"%d" % number
        await publisher.drop()
    node = await crashed(make_node, node, "crashed")
    back = await durable(node)
    assert [(m.payload, m.dup) for m in await back.take(1)] == [(b"1", True)]
    await back.quiet()
    assert node.counters.dropped_repeated == 2
    drops = session_of(node).drops
    assert drops is not None
    assert drops.qos0_repeated == 2
    await back.drop()
    await client.drop()


@pytest.mark.mqtt5("4.4.0-1")
async def test_the_qos_of_an_exchange_stays_though_its_subscription_changed(node: Node) -> None:
    """A resent message has the QoS with which it was sent before."""
    for first, then in ((2, 1), (1, 2), (2, 0)):
        client_id = b"%d%d" % (first, then)
        client = await durable(node, client_id)
        await client.subscribe((b"t", first))
        await publish(node, b"t", b"x", qos=2)
        sent = await client.message()
        assert sent.qos == first
        await client.subscribe((b"t", then))
        await client.drop()
        client = await durable(node, client_id)
        again = await client.message()
        assert (again.payload, again.qos, again.packet_id, again.dup) == (b"x", first, sent.packet_id, True)
        await client.drop()


@pytest.mark.mqtt5("3.1.2-23", "4.1.0-2")
@pytest.mark.parametrize("dies", [True, False])
async def test_session_expiry_continues_over_restarts(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Of sessions that had no connection; one that was open when its node died has all its time from the next start."""
    node = await make_node()
    clients = [await durable(node, name, expiry=1000) for name in (b"away", b"open")]
    for client in clients:
        await client.subscribe((b"t", 1))
    await clients[0].disconnect()
    await until(lambda: b"away" not in node._sessions.open_sessions and node._sessions._ending.get(b"away") is None)
    for module in ("maintenance", "session_checkpoint"):
        monkeypatch.setattr(f"gateway.broker.{module}.time", lambda: time() + 999)
    if dies:
        node = await crashed(make_node, node, "next")
    else:
        await node.stop()
        node = await make_node()
    monkeypatch.setattr("gateway.broker.sessions.time", lambda: time() + 1001)
    for name, present in ((b"away", False), (b"open", True)):
        client = await durable(node, name, expiry=1000)
        assert client.session_present == present
        await client.disconnect()
    for client in clients:
        await client.drop()


@pytest.mark.mqtt5("4.3.3-3")
@pytest.mark.mqtt311("4.3.3-1")
async def test_an_exchange_that_ends_before_its_queue_is_read_is_over(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packet id is forgotten with the connection, and its message does not come another time."""
    node = await make_node()
    device = Device(node.ports.mqtt, b"d", 4, 10)
    await device.connect()
    await device.subscribe(b"t", 2)
    await Publisher(node.ports.mqtt, b"p").burst([b"t"], [2])
    await device.read()
    device.acknowledge(1)
    await device.read()  # PUBREL, which follows its record
    node = await crashed(make_node, node, "next")
    await device.killed()
    device.port = node.ports.mqtt
    fetch, go_on = Engine.fetch, asyncio.Event()

    async def slow(engine: Engine, queue: bytes, *range_: int) -> Fetched:
        await go_on.wait()
        return await fetch(engine, queue, *range_)

    monkeypatch.setattr(Engine, "fetch", slow)
    await device.connect()
    await device.read()
    device.acknowledge(1)
    await device.disconnect()
    go_on.set()
    await device.connect()
    await Publisher(node.ports.mqtt, b"q").burst([b"t"], [1])
    while len(device.seen) < 2:
        await device.read()
        device.acknowledge(1)
    assert [qos for _, _, qos in device.seen] == [2, 1]


async def test_as_many_sessions_as_there_may_be(make_node: MakeNode) -> None:
    """CONNACK 0x97, 3.1.1: 3. Those that are there go on, others need no place; also after a restart."""
    for life in range(2):
        node = await make_node(mqtt__max_sessions=2)
        for name in (b"a", b"b"):
            client = await durable(node, name)
            assert client.session_present == (life == 1)
            await client.disconnect()
        for version, reason in ((4, 3), (5, 0x97)):
            client = await RawClient.open(node.ports.mqtt, version)
            client.send(connect(version, b"c", False, expiry=EVER))
            assert (await client.expect(CONNACK)).body[1] == reason
            await client.closed()
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, True)
        await client.disconnect()
        assert node._engine is not None
        assert node._engine.stats().sessions == 2
        await node.stop()
    node = await make_node(mqtt__max_sessions=2)
    client = await durable(node, b"a", expiry=0)
    await client.disconnect()
    assert node._engine is not None
    await until(lambda: node._engine.stats().sessions != 2)
    client = await durable(node, b"c")  # there is room again
    await client.disconnect()


async def test_sessions_that_begin_at_once_do_not_go_beyond_the_limit(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_sessions=3)
    clients = [await RawClient.open(node.ports.mqtt, 5) for _ in range(10)]
    for number, client in enumerate(clients):
        client.send(connect(5, b"%d" % number, False, expiry=EVER))
    reasons = sorted([(await client.expect(CONNACK)).reason for client in clients])
    assert reasons == [0] * 3 + [0x97] * 7
    for client in clients:
        await client.drop()


@pytest.mark.mqtt5("3.1.4-3")
async def test_a_connection_that_was_taken_over_records_nothing_any_more(node: Node) -> None:
    """Its epoch is old: what it still says of the session changes nothing (fencing)."""
    old = await durable(node)
    await old.subscribe((b"t", 1))
    held, connection = node._sessions.open_sessions[b"d"]
    new = await durable(node)
    assert node._engine is not None
    state = await node._engine.session(b"d")
    assert state is not None
    assert state.epoch == held.epoch + 1
    held.expiry_interval = 0
    node._sessions._close_session(held, None, is_sent=False)  # as if its end were recorded late
    await until(lambda: node._sessions._ending.get(b"d") is None)
    after = await node._engine.session(b"d")
    assert after is not None
    assert (after.epoch, after.closed_at, len(after.subscriptions)) == (state.epoch, 0, 1)
    await publish(node, b"t", b"x")
    assert (await new.message()).payload == b"x"
    assert connection.closed
    await old.drop()


def alike(name: bytes, prefix: bytes) -> bytes:
    """A topic whose messages would have the packet ids of those of `name`."""
    wanted = QueueCursor(name, b"t" + name, 0, 0).packet_id(0)
    topics = (prefix + b"%d" % number for number in range(1 << 21))
    return next(topic for topic in topics if QueueCursor(topic, b"t" + topic, 0, 0).packet_id(0) == wanted)


@pytest.mark.mqtt5("2.2.1-3", "4.4.0-1")
@pytest.mark.mqtt311("4.4.0-1")
async def test_two_filters_that_hash_to_the_same_packet_id_share_none(make_node: MakeNode) -> None:
    """Who came second has another one, which the log knows: afterwards each has its own, whoever comes first then."""
    first, second = b"z", alike(b"z", b"a")
    node = await make_node()
    client = await durable(node)
    await client.subscribe((first, 1), (second, 1))
    await publish(node, first, *numbers(0, 5))
    await publish(node, second, *numbers(5, 10))
    sent = [await client.message() for _ in range(10)]
    ids = {message.payload: message.packet_id for message in sent}
    assert len(set(ids.values())) == 10
    assert [m.payload for m in sent] == numbers(0, 10)
    await client.quiet()
    node = await crashed(make_node, node, "crashed")
    back = await durable(node)
    again = [await back.message() for _ in range(10)]
    assert {message.payload: message.packet_id for message in again} == ids
    assert all(message.dup for message in again)
    assert await back.take(0) == []
    back.send(*[ack(PUBACK, message.packet_id) for message in again])
    await back.quiet()
    session = session_of(node)
    await until(lambda: not session.exchanges.inflight)
    await publish(node, second, b"new")
    assert [message.dup for message in await back.take(1)] == [False]


@pytest.mark.mqtt5("4.4.0-1")
@pytest.mark.mqtt311("4.4.0-1")
async def test_new_messages_use_no_packet_id_that_may_be_in_use(make_node: MakeNode) -> None:
    first, second = b"z", alike(b"z", b"a")
    node = await make_node()
    client = await durable(node)
    await client.subscribe((first, 1), (second, 1))
    await publish(node, first, *numbers(0, 5))
    ids = {message.payload: message.packet_id for message in [await client.message() for _ in range(5)]}
    await client.quiet()
    node = await crashed(make_node, node, "crashed")
    await publish(node, second, *numbers(5, 10))  # whose queue is read first
    back = await durable(node)
    again = [await back.message() for _ in range(10)]
    assert {message.payload: message.packet_id for message in again if message.dup} == ids
    assert len({message.packet_id for message in again}) == 10


@pytest.mark.mqtt5("3.8.4-4", "4.1.0-1", "4.4.0-1")
@pytest.mark.parametrize("then", [[0], [0, 1]])
@pytest.mark.parametrize("topic_filter", [b"t", b"+"])
async def test_messages_in_flight_come_again_though_the_subscription_is_now_qos_0(
    make_node: MakeNode, topic_filter: bytes, then: list[int]
) -> None:
    """There is no cursor any more that would come by it."""
    node = await make_node()
    client = await durable(node)
    await client.subscribe((topic_filter, 1))
    await publish(node, b"t", *numbers(0, 3))
    sent = [await client.message() for _ in range(3)]
    for qos in then:
        await client.subscribe((topic_filter, qos), packet_id=2)
    node = await crashed(make_node, node, "crashed")
    await publish(node, b"t", *numbers(3, 4))
    back = await durable(node)
    again = await back.take(3 + sum(then))
    assert [(m.packet_id, m.payload, m.dup) for m in again[:3]] == [(m.packet_id, m.payload, True) for m in sent]
    assert [m.payload for m in again[3:]] == numbers(3, 3 + sum(then))
    await back.drop()
    await client.drop()
