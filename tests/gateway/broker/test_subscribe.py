"""Subscriptions and their options (section 3.8): No Local, identifiers, what a filter does not match, refusals."""

import asyncio

import pytest

from gateway.node.node import Node, Ports
from gateway.session.queue_cursor import QueueCursor
from store.api import Bounds, topic_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.device import Device, Publisher, check_delivery
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, RawClient, ack
from tests.gateway.session.pending import pending

NO_LOCAL = 0x04


@pytest.mark.mqtt5("3.8.3-3")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_no_local(ports: Ports, expiry: int) -> None:
    """MQTT-3.8.3-3: not to the connection that published, unless another filter asks for it."""
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, expiry=expiry)
    await client.subscribe((b"t/#", 1 | NO_LOCAL), (b"t/both", 1))
    other = await RawClient.connect(ports.mqtt, b"o", 5)
    client.send(wire.publish(5, b"t/mine", b"1", 1, 1))
    assert (await client.expect(PUBACK)).packet_id == 1
    await other.publish(b"t/mine", b"2")
    assert [m.payload for m in await client.take(1)] == [b"2"]
    client.send(wire.publish(5, b"t/both", b"3", 0))
    assert [m.payload for m in await client.take(1)] == [b"3"]


@pytest.mark.mqtt5("3.3.4-3", "3.3.4-4", "3.8.4-3")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_every_matching_identifier_comes_along(ports: Ports, expiry: int) -> None:
    """MQTT-3.3.4-3 to -5: one copy with all of them; a replaced subscription has its new one."""
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, expiry=expiry)
    for packet_id, (topic_filter, identifier) in enumerate([(b"t/#", 1), (b"t/+", 200), (b"t/a", 3), (b"+/a", 0)], 1):
        properties = b"\x0b" + wire.varint(identifier) if identifier else b""
        client.send(wire.subscribe(5, packet_id, (topic_filter, 1), properties=properties))
        await client.expect(SUBACK)
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    await publisher.publish(b"t/a", b"x")
    properties = (await client.take(1))[0].properties
    assert len(properties) == 7
    assert {b"\x0b\x01", b"\x0b\x03", b"\x0b\xc8\x01"} == {properties[i:j] for i, j in _spans(properties)}
    client.send(wire.subscribe(5, 9, (b"t/#", 1), properties=b"\x0b\x09"))
    await client.expect(SUBACK)
    await publisher.publish(b"t/b/c", b"x")
    assert (await client.take(1))[0].properties == b"\x0b\x09"
    await client.quiet()


def _spans(properties: bytes) -> list[tuple[int, int]]:
    """Where each subscription identifier begins and ends."""
    spans, at = [], 0
    while at < len(properties):
        end = at + 2
        while properties[end - 1] >= 0x80:
            end += 1
        spans.append((at, end))
        at = end
    return spans


@pytest.mark.mqtt5("4.7.2-1")
@pytest.mark.mqtt311("4.7.2-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_leading_wildcards_leave_dollar_topics_out(ports: Ports, version: int) -> None:
    """MQTT-4.7.2-1."""
    client = await RawClient.connect(ports.mqtt, b"c", version)
    await client.subscribe((b"#", 0), (b"+/x", 0))
    named = await RawClient.connect(ports.mqtt, b"n", version)
    await named.subscribe((b"$own/+", 0))
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    await publisher.publish(b"$own/x", b"1")
    assert (await named.message()).payload == b"1"
    await client.quiet()


@pytest.mark.mqtt5("3.4.2-1", "3.5.2-1")
@pytest.mark.mqtt311("3.3.5-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("version", "reason"), [(4, 0), (5, 0x87)])
async def test_the_nodes_own_topics_cannot_be_published(ports: Ports, version: int, reason: int, qos: int) -> None:
    """Section 4.7.2: `$SYS/` is the node's. 3.1.1 has no other answer than the usual one (MQTT-3.3.5-2)."""
    client = await RawClient.connect(ports.mqtt, b"c", version)
    await client.subscribe((b"$SYS/mine/#", 0))
    client.send(wire.publish(version, b"$SYS/mine/version", b"mine", qos, 5))
    if qos:
        answer = await client.expect(PUBACK if qos == 1 else PUBREC)
        assert (answer.packet_id, answer.reason) == (5, reason)
    if qos == 2 and version == 4:
        client.send(ack(PUBREL, 5))
        assert (await client.expect(PUBCOMP)).packet_id == 5
    await client.quiet()


@pytest.mark.mqtt5("3.8.4-6", "3.8.4-7", "3.9.3-1", "3.9.3-2")
@pytest.mark.mqtt311("3.8.4-5", "3.9.3-1", "3.9.3-2")
@pytest.mark.parametrize(("version", "reason"), [(4, 0x80), (5, 0x97)])
@pytest.mark.parametrize("clean", [True, False])
async def test_too_many_subscriptions_are_refused(make_node: MakeNode, version: int, reason: int, clean: bool) -> None:
    node = await make_node(mqtt__max_subscriptions=3)
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean)
    assert await client.subscribe((b"a", 0), (b"b", 1)) == b"\x00\x01"
    assert await client.subscribe((b"c", 0), (b"d", 0), (b"a", 2)) == bytes([0, reason, 2])
    client.send(wire.unsubscribe(version, 2, b"a"))
    await client.expect(11)
    assert await client.subscribe((b"d", 0)) == b"\x00"


@pytest.mark.mqtt5("3.8.4-3", "3.8.4-5")
@pytest.mark.mqtt311("3.8.4-3", "3.8.4-4")
@pytest.mark.parametrize("version", [4, 5])
async def test_the_last_of_the_same_filters_counts(ports: Ports, version: int) -> None:
    """MQTT-3.8.4-3, -5."""
    client = await RawClient.connect(ports.mqtt, b"c", version, False)
    assert await client.subscribe((b"t", 2), (b"t", 0), (b"t", 1)) == b"\x02\x00\x01"
    await client.publish(b"u", b"x")
    publisher = await RawClient.connect(ports.mqtt, b"p")
    await publisher.publish(b"t", b"x", 2)
    assert [m.qos for m in await client.take(1)] == [1]
    await client.quiet()


@pytest.mark.mqtt5("4.3.3-3")
@pytest.mark.mqtt311("4.3.3-1")
async def test_another_subscription_continues_where_one_ends(node: Node) -> None:
    device = Device(node.ports.mqtt, b"d", 4, 100)
    await device.connect()
    await device.subscribe(b"n/b", 2)
    await device.subscribe(b"n/#", 2)
    publisher = Publisher(node.ports.mqtt, b"p")
    await publisher.burst([b"n/c"], [2])
    await device.poll()
    await device.disconnect()  # with a message open, which is sent again before all others
    await publisher.burst([b"n/b"] * 7 + [b"n/c"] * 3, [2] * 10)
    await device.connect()
    device.may_repeat = await pending(node, b"d", b"n/b")
    await device.unsubscribe(b"n/b")
    await check_delivery(device, publisher.sent, {b"n/b": 2, b"n/c": 2})
    await device.disconnect()


async def test_shared_subscriptions_of_a_session_are_bounded(make_node: MakeNode) -> None:
    """A message costs a lease for each that matches it, so one client may not have thousands of them."""
    node = await make_node(mqtt__max_shared_subscriptions=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    filters = [b"$share/g%d/t/#" % number for number in range(4)]
    assert await client.subscribe((filters[0], 0), (b"t", 0), (filters[1], 0), (filters[2], 0)) == b"\0\0\0\x97"
    assert await client.subscribe((filters[0], 1), (filters[3], 0)) == b"\x01\x97"
    assert await client.unsubscribe(filters[0]) == b"\0"
    assert await client.subscribe((filters[3], 0)) == b"\0"


async def test_the_ends_of_many_queues_are_asked_for_in_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=1000)
    turn, asked = 0, []

    class Counted:
        async def bounds(self, _queue: bytes) -> Bounds:
            asked.append(turn)
            return Bounds(0, 7)

    session = node._sessions.open_sessions[b"d"][0]
    cursors = [QueueCursor(b"t/%d" % number, topic_queue(b"t/%d" % number), 7, 0) for number in range(1000)]
    handler = node._sessions._subscriptions
    monkeypatch.setattr(handler, "_store", Counted())
    asking = asyncio.create_task(handler.learn_ends(session, cursors))
    while not asking.done():
        await asyncio.sleep(0)
        turn += 1
    assert len(asked) == 1000
    assert max(asked.count(each) for each in set(asked)) <= 128
    assert {cursor.end for cursor in cursors} == {7}
    await client.disconnect()
