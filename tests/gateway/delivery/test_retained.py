"""Retained messages (section 3.3.1.3): kept, replaced, cleared, and handed to new subscriptions."""

import asyncio

import pytest

from gateway.node.node import Node, Ports
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, SUBACK, UNSUBACK, RawClient, ack

RETAIN_AS_PUBLISHED, NO_LOCAL = 0x08, 0x04


@pytest.mark.mqtt5("3.3.1-5", "3.3.1-6", "3.3.1-7", "3.3.1-8", "3.3.1-12")
@pytest.mark.mqtt311("3.3.1-5", "3.3.1-6", "3.3.1-7", "3.3.1-8", "3.3.1-9", "3.3.1-10", "3.3.1-11", "3.3.1-12")
@pytest.mark.parametrize("version", [4, 5])
async def test_a_retained_message_is_set_replaced_and_cleared(ports: Ports, version: int) -> None:
    """MQTT-3.3.1-5 to -8: the last one is kept; RETAIN is set on what a new subscription gets, not on live ones."""
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    early = await RawClient.connect(ports.mqtt, b"early", version)
    await early.subscribe((b"t/#", 1))
    await publisher.publish(b"t/a", b"1", retain=True)
    await publisher.publish(b"t/a", b"2", 0, retain=True)
    await publisher.publish(b"t/a", b"not kept", 0)
    live = await early.take(3)
    assert [(m.payload, m.retain) for m in live] == [(b"1", False), (b"2", False), (b"not kept", False)]
    late = await RawClient.connect(ports.mqtt, b"late", version)
    await late.subscribe((b"t/+", 1))
    kept = await late.message()
    assert (kept.payload, kept.qos, kept.retain, kept.dup) == (b"2", 0, True, False)
    await publisher.publish(b"t/a", b"", retain=True)
    assert (await late.take(1))[0].payload == b""
    last = await RawClient.connect(ports.mqtt, b"last", version)
    await last.subscribe((b"t/a", 1))
    await last.quiet()


@pytest.mark.mqtt5("3.3.1-9", "3.3.1-10", "3.3.1-11")
@pytest.mark.parametrize("durable", [False, True])
async def test_retain_handling(ports: Ports, durable: bool) -> None:
    """MQTT-3.3.1-9 to -11: always, only for a new subscription, never."""
    publisher = await RawClient.connect(ports.mqtt, b"p")
    for topic in (b"a", b"b", b"c"):
        await publisher.publish(topic, topic, retain=True)
    client = await RawClient.connect(ports.mqtt, b"c", 5, not durable, expiry=100 if durable else 0)
    filters = [(b"a", 0x01), (b"b", 0x11), (b"c", 0x21)]
    await client.subscribe(*filters)
    assert sorted(m.payload for m in await client.take(2)) == [b"a", b"b"]
    await client.subscribe(*filters)
    assert [m.payload for m in await client.take(1)] == [b"a"]
    await client.quiet()


@pytest.mark.mqtt5("3.3.1-12", "3.3.1-13")
async def test_retain_as_published(ports: Ports) -> None:
    """MQTT-3.3.1-12, -13."""
    client = await RawClient.connect(ports.mqtt, b"c", 5)
    await client.subscribe((b"a", RETAIN_AS_PUBLISHED), (b"b", 0))
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    for topic in (b"a", b"b"):
        for retain in (True, False):
            await publisher.publish(topic, b"x", retain=retain)
    assert [(m.topic, m.retain) for m in await client.take(4)] == [
        *((b"a", True), (b"a", False)),
        *((b"b", False), (b"b", False)),
    ]


async def test_hundreds_of_retained_messages_are_paced_by_the_window(ports: Ports) -> None:
    publisher = await RawClient.connect(ports.mqtt, b"p")
    publisher.send(*[wire.publish(4, b"s/%03d/v" % i, b"%d" % i, 1, i + 1, retain=True) for i in range(500)])
    for _ in range(500):
        await publisher.expect(PUBACK)
    client = await RawClient.connect(ports.mqtt, b"c", 5, receive_maximum=10)
    await client.subscribe((b"s/+/v", 1))
    first = [await client.message() for _ in range(10)]
    await client.quiet()
    client.send(*[ack(PUBACK, m.packet_id) for m in first])
    messages = first + await client.take(490)
    assert sorted(m.topic for m in messages) == [b"s/%03d/v" % i for i in range(500)]
    assert all(m.retain for m in messages)
    await client.quiet()


@pytest.mark.mqtt5("3.3.2-5", "3.3.2-6")
async def test_an_expired_message_is_not_delivered_and_a_running_one_counts_down(ports: Ports) -> None:
    """MQTT-3.3.2-5, -6."""
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    for packet_id, topic, seconds in ((1, b"t/short", 1), (2, b"t/long", 100)):
        publisher.send(wire.publish(5, topic, b"x", 1, packet_id, b"\x02" + wire.u32(seconds), retain=True))
        await publisher.expect(PUBACK)
    left = 100
    while left > 98:
        client = await RawClient.connect(ports.mqtt, b"c", 5)
        await client.subscribe((b"t/long", 1))
        message = (await client.take(1))[0]
        assert message.properties[:1] == b"\x02"
        left = int.from_bytes(message.properties[1:5], "big")
        await client.disconnect()
        await asyncio.sleep(0.05)
    client = await RawClient.connect(ports.mqtt, b"c", 5)
    await client.subscribe((b"t/#", 1))
    assert [m.topic for m in await client.take(1)] == [b"t/long"]
    await client.quiet()


@pytest.mark.mqtt5("3.8.3-3")
async def test_retained_messages_come_behind_suback_with_identifiers_and_without_the_own(ports: Ports) -> None:
    """MQTT-3.8.3-3 for No Local, 3.3.4-3 for the identifier."""
    client = await RawClient.connect(ports.mqtt, b"c", 5)
    await client.publish(b"t", b"mine", retain=True)
    other = await RawClient.connect(ports.mqtt, b"o", 5)
    await other.publish(b"u", b"other's", retain=True)
    client.send(wire.subscribe(5, 1, (b"t", 1 | NO_LOCAL), (b"u", 1 | NO_LOCAL), properties=b"\x0b\x07"))
    await client.expect(SUBACK)
    message = (await client.take(1))[0]
    assert (message.payload, message.properties) == (b"other's", b"\x0b\x07")
    await client.quiet()


@pytest.mark.mqtt311("4.7.2-1")
async def test_wildcards_leave_dollar_topics_out(ports: Ports) -> None:
    """MQTT-4.7.2-1, for retained values too."""
    publisher = await RawClient.connect(ports.mqtt, b"p")
    for topic in (b"$own/a", b"x/a"):
        await publisher.publish(topic, b"v", retain=True)
    client = await RawClient.connect(ports.mqtt, b"c")
    await client.subscribe((b"#", 1), (b"+/a", 1))
    assert {m.topic for m in await client.take(2)} == {b"x/a"}
    await client.quiet()
    await client.subscribe((b"$own/#", 1))
    assert [m.topic for m in await client.take(1)] == [b"$own/a"]


@pytest.mark.mqtt5("3.10.4-2")
async def test_after_unsubscribe_no_retained_message_follows(node: Node) -> None:
    """MQTT-3.10.4-2."""
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for number in range(3):
        await publisher.publish(b"r/%d" % number, b"x", retain=True)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=1)
    await client.subscribe((b"r/#", 1))
    first = await client.message()
    client.send(wire.unsubscribe(5, 2, b"r/#"))
    await client.expect(UNSUBACK)
    client.send(ack(PUBACK, first.packet_id))
    await client.subscribe((b"r/2", 1))
    assert (await client.message()).topic == b"r/2"


@pytest.mark.mqtt5("3.8.4-4")
@pytest.mark.mqtt311("3.8.4-3")
@pytest.mark.parametrize("version", [4, 5])
async def test_a_renewed_subscription_gets_all_retained_messages_again(make_node: MakeNode, version: int) -> None:
    """MQTT-3.8.4-3, in the middle of the first round."""
    node = await make_node(mqtt__max_in_flight=1)
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for number in range(3):
        await publisher.publish(b"r/%d" % number, b"x", retain=True)
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    await client.subscribe((b"r/#", 1))
    first = await client.message()
    await client.subscribe((b"r/#", 1))
    client.send(ack(PUBACK, first.packet_id))
    assert [message.topic for message in await client.take(3)] == [b"r/0", b"r/1", b"r/2"]
