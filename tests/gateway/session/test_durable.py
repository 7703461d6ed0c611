"""Persistent sessions: what survives a connection, a clean stop and an absence, and how it comes back."""

import asyncio
from collections.abc import Callable
from time import time

import pytest

from gateway.node.node import Node
from store.api import Appended
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack, connect
from tests.waiting import until

EVER = 0xFFFF_FFFF


async def durable(node: Node, client_id: bytes = b"d", version: int = 5, **options: int) -> RawClient:
    if version == 5:
        options.setdefault("expiry", EVER)
    return await RawClient.connect(node.ports.mqtt, client_id, version, False, **options)


async def publish(node: Node, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"publisher")
    for start in range(0, len(payloads), 500):
        part = payloads[start : start + 500]
        client.send(*[wire.publish(4, topic, payload, qos, i + 1) for i, payload in enumerate(part)])
        for _ in part:
            await client.expect(PUBACK if qos == 1 else PUBREC)
        if qos == 2:
            client.send(*[ack(PUBREL, i + 1) for i in range(len(part))])
            for _ in part:
                await client.expect(PUBCOMP)
    await client.disconnect()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%05d" % i for i in range(first, last)]


@pytest.mark.mqtt5("3.1.2-5", "3.1.2-6", "3.1.2-23", "3.1.3-2", "3.2.2-3", "4.5.0-1")
@pytest.mark.mqtt311("3.1.2-4", "3.1.2-5", "3.1.3-2", "3.2.2-2", "3.2.2-3", "4.1.0-1", "4.5.0-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_session_present_and_subscriptions_survive_a_restart(make_node: MakeNode, version: int) -> None:
    """MQTT-3.1.2-4 to -6, 3.2.2-2, -3."""
    node = await make_node()
    client = await durable(node, version=version)
    assert not client.session_present
    assert await client.subscribe((b"a/+", 1), (b"b", 2)) == b"\x01\x02"
    await node.stop()
    node = await make_node()
    await publish(node, b"a/x", b"1")
    await publish(node, b"b", b"2", qos=2)
    client = await durable(node, version=version)
    assert client.session_present
    assert sorted(m.payload for m in await client.take(2)) == [b"1", b"2"]
    await client.settle()


@pytest.mark.mqtt5("3.3.1-1", "4.3.2-3", "4.4.0-1")
@pytest.mark.mqtt311("2.3.1-4", "3.3.1-1", "4.4.0-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_unacknowledged_messages_are_resent_with_packet_id_and_dup(node: Node, version: int) -> None:
    """MQTT-4.4.0-1, 3.3.1-1; what is acknowledged does not; acknowledgements may come in any order."""
    client = await durable(node, version=version)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", *numbers(0, 6))
    messages = [await client.message() for _ in range(6)]
    for i in (4, 1, 0):
        client.send(ack(PUBACK, messages[i].packet_id))
    await client.quiet()
    await client.drop()
    await publish(node, b"t", *numbers(6, 8))
    client = await durable(node, version=version)
    again = await client.take(5)
    assert [(m.payload, m.dup) for m in again] == [
        (messages[2].payload, True),
        (messages[3].payload, True),
        (messages[5].payload, True),
        (b"00006", False),
        (b"00007", False),
    ]
    assert [m.packet_id for m in again[:3]] == [messages[i].packet_id for i in (2, 3, 5)]
    await client.quiet()
    await client.disconnect()
    client = await durable(node, version=version)
    await client.quiet()


@pytest.mark.mqtt5("4.4.0-1")
@pytest.mark.mqtt311("4.6.0-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_open_exchanges_come_in_their_first_order_over_many_connections(node: Node, version: int) -> None:
    """MQTT-4.6.0-1: not in the order of packet ids, which begin anew with each connection."""
    client = await durable(node, version=version)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", *numbers(0, 4))
    messages = [await client.message() for _ in range(4)]
    client.send(ack(PUBACK, messages[0].packet_id), ack(PUBACK, messages[1].packet_id))
    await client.quiet()
    await client.drop()
    client = await durable(node, version=version)
    assert [(await client.message()).payload for _ in range(2)] == numbers(2, 4)
    await publish(node, b"t", *numbers(4, 6))
    assert [(await client.message()).payload for _ in range(2)] == numbers(4, 6)
    await client.drop()
    client = await durable(node, version=version)
    assert [m.payload for m in await client.take(4)] == numbers(2, 6)


@pytest.mark.mqtt5("3.3.4-9", "4.9.0-1", "4.9.0-2")
@pytest.mark.parametrize("window", [1, 5])
async def test_the_receive_maximum_paces_a_backlog(node: Node, window: int) -> None:
    """MQTT-3.3.4-9 towards the client: never more in flight than it takes."""
    client = await durable(node, receive_maximum=window)
    await client.subscribe((b"t/#", 1))
    await publish(node, b"t/x", *numbers(0, 40))
    got = []
    while len(got) < 40:
        batch = [await client.message()]
        client.send(b"\xc0\x00")
        while (packet := await client.packet()).kind != 13:
            batch.append(client.parse(packet))
        assert len(batch) <= window
        got += [m.payload for m in batch]
        client.send(*[ack(PUBACK, m.packet_id) for m in batch])
    assert got == numbers(0, 40)


@pytest.mark.mqtt5("3.3.4-2", "4.5.0-1", "4.6.0-5")
async def test_a_long_absence_over_overlapping_filters(make_node: MakeNode) -> None:
    """MQTT-3.3.4-2 and 4.6.0-5: once each, at the highest QoS, in order; live messages join behind."""
    node = await make_node()
    client = await durable(node, receive_maximum=50)
    await client.subscribe((b"t/a", 1), (b"t/+", 2), (b"#", 1), (b"u/b", 2))
    await client.disconnect()
    await publish(node, b"t/a", *numbers(0, 1500), qos=2)
    await publish(node, b"u/b", *numbers(0, 1000))
    await node.stop()
    node = await make_node()
    client = await durable(node, receive_maximum=50)
    first = await client.take(700)
    await publish(node, b"t/a", *numbers(1500, 1800), qos=2)
    messages = first + await client.take(2800 - 700)
    await client.settle()
    assert [m.payload for m in messages if m.topic == b"t/a"] == numbers(0, 1800)
    assert [m.payload for m in messages if m.topic == b"u/b"] == numbers(0, 1000)
    assert {(m.topic, m.qos) for m in messages} == {(b"t/a", 2), (b"u/b", 1)}


@pytest.mark.mqtt5("4.6.0-5")
async def test_backlog_and_live_traffic_make_one_order(node: Node) -> None:
    client = await durable(node, receive_maximum=10)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    await publish(node, b"t", *numbers(0, 300))
    client = await durable(node, receive_maximum=10)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    got = []
    for i in range(300, 500):
        publisher.send(wire.publish(4, b"t", b"%05d" % i, 1, i))
        got += [m.payload for m in await client.take(2)]
    got += [m.payload for m in await client.take(500 - len(got))]
    assert got == numbers(0, 500)
    await client.quiet()


@pytest.mark.mqtt5("3.10.4-1", "3.10.4-2", "3.10.4-3", "3.10.4-6", "3.11.3-1", "3.11.3-2")
@pytest.mark.mqtt311("3.10.4-1", "3.10.4-2", "3.10.4-3", "3.10.4-6")
@pytest.mark.parametrize("version", [4, 5])
async def test_unsubscribing_leaves_what_is_on_its_way(node: Node, version: int) -> None:
    """MQTT-3.10.4-1 and -3: nothing new, and what was sent is delivered to its end, over a reconnect too."""
    client = await durable(node, version=version)
    await client.subscribe((b"t", 1), (b"u/#", 1))
    await publish(node, b"t", b"1")
    await publish(node, b"u/x", b"2")
    sent = [await client.message() for _ in range(2)]
    assert await client.unsubscribe(b"t", b"u/#", b"never") == (b"\x00\x00\x11" if version == 5 else b"")
    await publish(node, b"t", b"3")
    await publish(node, b"u/x", b"4")
    await client.quiet()
    await client.drop()
    client = await durable(node, version=version)
    again = sorted(await client.take(2), key=lambda m: m.payload)
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in sent]
    await client.quiet()


async def test_another_subscription_delivers_what_the_removed_one_had_not_sent(node: Node) -> None:
    """MQTT-3.10.4: only one filter is gone, the other still matches the waiting messages."""
    client = await durable(node, receive_maximum=1)
    await client.subscribe((b"t/#", 1))
    await client.subscribe((b"t/a", 1))
    await publish(node, b"t/a", *numbers(0, 5))
    first = await client.message()
    client.send(wire.unsubscribe(5, 3, b"t/#"))
    await client.expect(11)
    client.send(ack(PUBACK, first.packet_id))
    assert [m.payload for m in [first, *await client.take(4)]] == numbers(0, 5)
    await client.quiet()


@pytest.mark.mqtt5("3.8.4-3", "3.8.4-4")
@pytest.mark.mqtt311("3.8.4-3")
@pytest.mark.parametrize("version", [4, 5])
async def test_subscribing_again_keeps_the_cursor(make_node: MakeNode, version: int) -> None:
    """MQTT-3.8.4-3 and -4: the options change, no message is lost and none comes twice."""
    node = await make_node(mqtt__max_in_flight=2)
    client = await durable(node, version=version)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", *numbers(0, 6))
    first = [await client.message() for _ in range(2)]
    assert await client.subscribe((b"t", 2)) == b"\x02"
    client.send(*[ack(PUBACK, m.packet_id) for m in first])
    assert [m.payload for m in first + await client.take(4)] == numbers(0, 6)
    await client.quiet()


async def test_down_to_qos_0_and_up_again_brings_nothing_twice(node: Node) -> None:
    client = await durable(node)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", b"1")
    await client.take(1)
    await client.subscribe((b"t", 0))
    await publish(node, b"t", b"2")
    assert (await client.message()).qos == 0
    await client.disconnect()
    client = await durable(node)
    await publish(node, b"t", b"3")
    assert (await client.message()).payload == b"3"
    await client.subscribe((b"t", 1))
    await client.quiet()
    await publish(node, b"t", b"4")
    assert [(m.payload, m.qos) for m in await client.take(1)] == [(b"4", 1)]


@pytest.mark.mqtt5("3.1.2-4", "3.1.4-4", "3.2.2-2")
@pytest.mark.mqtt311("3.1.2-6", "3.1.4-3", "3.2.2-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_clean_start_drops_the_session(node: Node, version: int) -> None:
    """MQTT-3.1.2-4."""
    client = await durable(node, version=version)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    await publish(node, b"t", b"1")
    client = await RawClient.connect(node.ports.mqtt, b"d", version, True, expiry=EVER)
    assert not client.session_present
    await publish(node, b"t", b"2")
    await client.quiet()
    await client.disconnect()
    client = await durable(node, version=version)
    assert client.session_present == (version == 5), "Clean Session of 3.1.1 is for one connection"
    await publish(node, b"t", b"3")
    await client.quiet()


@pytest.mark.mqtt5("4.1.0-2")
async def test_the_expiry_interval_ends_a_session(node: Node) -> None:
    """MQTT-3.1.2-23: also before the sweep has come by; the sweep removes what nobody asks for."""
    client = await durable(node, expiry=1)
    other = await durable(node, b"other", expiry=1)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    await other.disconnect()
    engine = node._engine
    assert engine is not None
    while not await engine.sessions_expired(int(time() * 1000), 10):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    client = await durable(node, expiry=1)
    assert not client.session_present
    await publish(node, b"t", b"1")
    await client.quiet()
    while await engine.session(b"other") is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.mqtt5("4.1.0-2")
async def test_disconnect_may_change_the_expiry(node: Node) -> None:
    """Section 3.14.2.2.2: here to 0, which ends the session; beginning at 0 it is a protocol error."""
    client = await durable(node)
    await client.subscribe((b"t", 1))
    client.send(wire.packet(0xE0, b"\x00" + wire.sized(b"\x11" + wire.u32(0))))
    await client.closed()
    client = await durable(node)
    assert not client.session_present
    await client.disconnect()
    client = await durable(node, expiry=0)
    assert client.session_present
    client.send(wire.packet(0xE0, b"\x00" + wire.sized(b"\x11" + wire.u32(5))))
    assert (await client.expect(DISCONNECT)).reason == 0x82
    await client.closed()


async def test_a_durable_session_becomes_transient(node: Node) -> None:
    """Expiry 0 goes on with the old session, and ends it with the connection (section 3.1.2.11.2)."""
    client = await durable(node)
    await client.subscribe((b"t", 1))
    await client.disconnect()
    await publish(node, b"t", b"1")
    client = await durable(node, expiry=0)
    assert client.session_present
    assert [m.payload for m in await client.take(1)] == [b"1"]
    await client.disconnect()
    client = await durable(node)
    assert not client.session_present


@pytest.mark.mqtt5("3.1.4-3", "4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
async def test_taking_over_with_messages_in_flight(node: Node, qos: int) -> None:
    """MQTT-3.1.4-3: the old connection hears 0x8E, the new one gets what is open."""
    old = await durable(node)
    await old.subscribe((b"t", qos))
    await publish(node, b"t", *numbers(0, 5), qos=qos)
    sent = [await old.message() for _ in range(5)]
    new = await durable(node)
    assert new.session_present
    assert (await old.expect(DISCONNECT)).reason == 0x8E
    await old.closed()
    again = await new.take(5)
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in sent]
    await new.settle()


async def test_many_takeovers_at_once_leave_one_connection(node: Node) -> None:
    clients = [await RawClient.open(node.ports.mqtt, 5) for _ in range(20)]
    for client in clients:
        client.send(connect(5, b"d", False, expiry=EVER))
    ended = 0
    for client in clients:
        await client.packet()
        client.send(b"\xc0\x00")
        ended += (await client.packet()).kind == DISCONNECT
    assert ended == 19
    assert len(node._sessions.open_sessions) == 1
    assert not node._sessions.client_locks


@pytest.mark.mqtt5("4.4.0-1")
async def test_a_retained_message_in_flight_comes_again_as_retained(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"p")
    await client.publish(b"t", b"kept", 1, retain=True)
    client = await durable(node)
    await client.subscribe((b"t", 1))
    sent = await client.message()
    assert sent.retain
    await client.drop()
    client = await durable(node)
    again = await client.message()
    assert (again.payload, again.packet_id, again.dup, again.retain) == (b"kept", sent.packet_id, True, True)


async def test_qos_0_messages_in_between_do_not_delay_the_cursor(node: Node) -> None:
    """More messages than a cursor may be ahead of what the log knows; with QoS 0 it hears of none."""
    client = await durable(node, receive_maximum=4)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", b"first")
    assert [m.qos for m in await client.take(1)] == [1]
    await client.subscribe((b"t", 0))
    await publish(node, b"t", *numbers(0, 300))
    assert [m.payload for m in await client.take(300)] == numbers(0, 300)
    session = node._sessions.open_sessions[b"d"][0]
    await until(lambda: not session.changed)
    await client.subscribe((b"t", 1))
    await publish(node, b"t", *numbers(300, 310))
    assert [(m.payload, m.qos) for m in await client.take(10)] == [(number, 1) for number in numbers(300, 310)]


async def test_a_cursor_may_be_ahead_of_the_log_by_the_recorded_window(node: Node) -> None:
    """However much of its window the session may use at the moment."""
    client = await durable(node, receive_maximum=1000)
    session = node._sessions.open_sessions[b"d"][0]
    session.exchanges.window = 16  # as while many have a backlog
    await client.subscribe((b"t", 1))
    cursor = session.subscriptions[b"t"].cursor
    assert cursor is not None
    assert cursor.reach == 4000


async def test_the_end_of_a_connection_says_what_has_moved_and_no_more(make_node: MakeNode) -> None:
    """In no append more than a bound, however long the filters are."""
    node = await make_node(store__segment_size=64 << 20)
    engine = node._engine
    assert engine is not None
    client = await durable(node)
    topics = [b"%02d/" % number + b"x" * 65_000 for number in range(40)]
    for number in range(0, 40, 10):
        await client.subscribe(*[(topic, 1) for topic in topics[number : number + 10]])
    session = node._sessions.open_sessions[b"d"][0]
    while session.retained:  # there are none, but nobody has looked  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await client.disconnect()
    appends: list[list[bytes]] = []
    append = engine.append

    def seen(frames: list[bytes], done: Callable[[Appended], None]) -> None:
        appends.append(frames)
        append(frames, done)

    node._sessions._store.append = seen  # type: ignore[method-assign]
    client = await durable(node)
    await client.disconnect()
    await until(lambda: not list(node._sessions._ending.all()))
    assert sum(len(frame) for frames in appends for frame in frames) < 500, "nothing has moved"
    client = await durable(node)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for topic in topics:
        await publisher.publish(topic, b"x")
    for _ in topics:
        await client.message()
    appends.clear()
    await client.drop()
    await until(lambda: not (node._sessions.open_sessions.keys() - {b"p"} or list(node._sessions._ending.all())))
    assert len(appends) > 4
    assert max(sum(map(len, frames)) for frames in appends) <= 1 << 20
    state = await engine.session(b"d")
    assert state is not None
    assert state.closed_at
    assert [s.offset for s in state.subscriptions] == [1] * 40
    client = await durable(node)
    assert sorted((m.topic, m.dup) for m in await client.take(40)) == [(topic, True) for topic in topics]
