"""Quality of service, in and out: what is acknowledged when, and at which QoS it is delivered."""

import asyncio

import pytest

from gateway.node.node import Node, Ports
from store.api import Appended, Done
from store.errors import StoreFailed
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, UNSUBACK, RawClient, ack
from tests.waiting import until

VERSIONS = [4, 5]


@pytest.mark.mqtt5("3.8.4-7", "3.8.4-8", "2.2.1-5", "3.3.4-1", "4.3.1-1", "4.3.2-2", "4.3.3-2", "4.3.3-4", "4.3.3-11")
@pytest.mark.mqtt311("3.8.4-5", "3.8.4-6", "2.3.1-6", "3.3.4-1", "4.3.1-1")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("granted", [0, 1, 2])
async def test_the_delivered_qos_is_the_minimum_of_both(ports: Ports, version: int, granted: int) -> None:
    """MQTT-3.8.4-8."""
    subscriber = await RawClient.connect(ports.mqtt, b"s", version)
    assert await subscriber.subscribe((b"t/#", granted)) == bytes([granted])
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    for qos in (0, 1, 2):
        await publisher.publish(b"t/x", b"%d" % qos, qos, 7)
        message = await subscriber.message()
        assert (message.payload, message.qos, message.dup, message.retain) == (
            b"%d" % qos,
            min(qos, granted),
            False,
            False,
        )
        if message.qos == 1:
            subscriber.send(ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            subscriber.send(ack(PUBREC, message.packet_id))
            assert (await subscriber.expect(PUBREL)).packet_id == message.packet_id
            subscriber.send(ack(PUBCOMP, message.packet_id))
    await subscriber.quiet()


class HeldStore:
    """Stands before a node's store and keeps appends back until told."""

    def __init__(self, node: Node) -> None:
        self.real = node._engine.append  # type: ignore[union-attr]
        self.held: list[tuple[list[bytes], Done]] = []
        node._engine.append = self.append  # type: ignore[union-attr, method-assign]

    def append(self, frames: list[bytes], done: Done) -> None:
        self.held.append((frames, done))

    async def wait(self, count: int) -> None:
        await until(lambda: len(self.held) >= count)

    def release(self) -> None:
        held, self.held = self.held, []
        for frames, done in held:
            self.real(frames, done)

    def fail(self) -> None:
        held, self.held = self.held, []
        for _, done in held:
            done(Appended(error=StoreFailed("the disk is gone")))


@pytest.mark.mqtt5("4.3.2-4", "4.3.3-8")
@pytest.mark.mqtt311("4.3.2-2", "4.3.3-2")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("qos", "answer"), [(1, PUBACK), (2, PUBREC)])
async def test_nothing_is_acknowledged_before_the_commit(node: Node, version: int, qos: int, answer: int) -> None:
    """Design section 5.1: an acknowledgement means that the message is on disk."""
    client = await RawClient.connect(node.ports.mqtt, b"p", version)
    held = HeldStore(node)
    client.send(wire.publish(version, b"t", b"x", qos, 9))
    await held.wait(1)
    await client.quiet()
    held.release()
    assert (await client.expect(answer)).packet_id == 9


@pytest.mark.mqtt5("4.13.2-1")
@pytest.mark.mqtt311("4.8.0-2")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_failed_append_acknowledges_nothing_and_closes(node: Node, version: int, qos: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"p", version)
    held = HeldStore(node)
    client.send(wire.publish(version, b"t", b"x", qos, 9))
    await held.wait(1)
    held.fail()
    if version == 5:
        assert (await client.expect(DISCONNECT)).reason == 0x83
    await client.closed()
    held.release()


@pytest.mark.mqtt311("4.6.0-2", "4.6.0-3")
@pytest.mark.parametrize("version", VERSIONS)
async def test_acknowledgements_come_in_the_order_of_the_messages(ports: Ports, version: int) -> None:
    """MQTT-4.6.0-2, -3."""
    client = await RawClient.connect(ports.mqtt, b"p", version)
    client.send(*[wire.publish(version, b"t/%d" % (i % 3), b"x", 1 + i % 2, i) for i in range(1, 201)])
    for i in range(1, 201):
        assert (await client.expect(PUBACK if i % 2 == 0 else PUBREC)).packet_id == i


@pytest.mark.mqtt5("4.3.3-10", "4.3.3-11", "4.3.3-12")
@pytest.mark.mqtt311("4.3.3-2")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_qos_2_message_sent_again_is_stored_once(node: Node, version: int) -> None:
    """MQTT-4.3.3-10: until PUBREL the packet id stands for the same message."""
    client = await RawClient.connect(node.ports.mqtt, b"p", version)
    subscriber = await RawClient.connect(node.ports.mqtt, b"s")
    await subscriber.subscribe((b"t", 0))
    for dup in (False, True, True):
        client.send(wire.publish(version, b"t", b"x", 2, 5, dup=dup))
        assert (await client.expect(PUBREC)).packet_id == 5
    for _ in range(2):
        client.send(ack(PUBREL, 5))
        assert (await client.expect(PUBCOMP)).packet_id == 5
    await client.publish(b"t", b"y", 2, 5)
    assert [(await subscriber.message()).payload for _ in range(2)] == [b"x", b"y"]
    await subscriber.quiet()


@pytest.mark.mqtt5("2.2.1-3")
async def test_a_packet_id_that_is_in_use_stands_for_nothing_else(node: Node) -> None:
    """A message of QoS 2 has it until PUBREL: reason 0x91 for whatever else comes with it (sections 3.4.2.1, 3.9.3)."""
    client = await RawClient.connect(node.ports.mqtt, b"p", 5)
    subscriber = await RawClient.connect(node.ports.mqtt, b"s")
    await subscriber.subscribe((b"#", 0))
    client.send(wire.publish(5, b"t", b"x", 2, 5))
    await client.expect(PUBREC)
    client.send(wire.publish(5, b"t", b"another", 1, 5))
    assert (await client.expect(PUBACK)).reason == 0x91
    client.send(wire.subscribe(5, 5, (b"a", 1), (b"b", 0)))
    assert (await client.expect(SUBACK)).body[-2:] == b"\x91\x91"
    client.send(wire.unsubscribe(5, 5, b"a"))
    assert (await client.expect(UNSUBACK)).body[-1:] == b"\x91"
    client.send(ack(PUBREL, 5))
    assert (await client.expect(PUBCOMP)).reason == 0
    client.send(wire.publish(5, b"t", b"y", 1, 5))
    assert (await client.expect(PUBACK)).reason == 0
    client.send(wire.subscribe(5, 5, (b"a", 1)))
    assert (await client.expect(SUBACK)).body[-1:] == b"\x01"
    assert [(await subscriber.message()).payload for _ in range(2)] == [b"x", b"y"]


async def test_a_3_1_1_message_with_a_packet_id_in_use_is_not_lost(node: Node) -> None:
    """It has no way to be told: the message is taken."""
    client = await RawClient.connect(node.ports.mqtt, b"p")
    subscriber = await RawClient.connect(node.ports.mqtt, b"s")
    await subscriber.subscribe((b"#", 0))
    client.send(wire.publish(4, b"t", b"x", 2, 5))
    await client.expect(PUBREC)
    client.send(wire.publish(4, b"t", b"another", 1, 5))
    await client.expect(PUBACK)
    assert [(await subscriber.message()).payload for _ in range(2)] == [b"x", b"another"]


@pytest.mark.mqtt5("3.6.2-1", "3.7.2-1")
async def test_an_unknown_packet_id_is_said_to_be_unknown(ports: Ports) -> None:
    """Sections 3.6.2.1 and 3.7.2.1: reason 0x92."""
    client = await RawClient.connect(ports.mqtt, b"p", 5)
    client.send(ack(PUBREL, 77))
    assert (await client.expect(PUBCOMP)).reason == 0x92
    client.send(ack(PUBREC, 78))
    assert (await client.expect(PUBREL)).reason == 0x92
    client.send(ack(PUBACK, 79), ack(PUBCOMP, 80))
    await client.quiet()


async def test_a_refusing_pubrec_ends_the_exchange(ports: Ports) -> None:
    """Section 4.3.3: PUBREC of 0x80 or more, and the packet id is free."""
    subscriber = await RawClient.connect(ports.mqtt, b"s", 5, receive_maximum=1)
    await subscriber.subscribe((b"t", 2))
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    await publisher.publish(b"t", b"1", 2)
    await publisher.publish(b"t", b"2", 2)
    first = await subscriber.message()
    subscriber.send(wire.packet(0x50, wire.u16(first.packet_id) + b"\x97"))
    assert (await subscriber.message()).payload == b"2"


@pytest.mark.mqtt5("4.6.0-5", "4.6.0-6")
@pytest.mark.mqtt311("4.6.0-5", "4.6.0-6")
async def test_order_holds_per_topic_for_a_mix_of_subscribers(ports: Ports) -> None:
    """MQTT-4.6.0-6."""
    subscribers = []
    for number, (topic_filter, qos) in enumerate([(b"t/a", 0), (b"t/+", 1), (b"#", 2), (b"t/b", 2)]):
        client = await RawClient.connect(ports.mqtt, b"s%d" % number, 4 + number % 2)
        await client.subscribe((topic_filter, qos))
        subscribers.append((client, topic_filter))
    publisher = await RawClient.connect(ports.mqtt, b"p")
    publisher.send(*[wire.publish(4, b"t/" + b"ab"[i % 2 : i % 2 + 1], b"%d" % i, 1, i) for i in range(1, 301)])
    for client, topic_filter in subscribers:
        wanted = [b"%d" % i for i in range(1, 301) if topic_filter[-1:] in b"+#" or b"ab"[i % 2] == topic_filter[-1]]
        assert [message.payload for message in await client.take(len(wanted))] == wanted


@pytest.mark.mqtt5("4.3.3-11", "4.3.3-12")
async def test_a_repeated_pubrel_does_not_release_the_next_message_with_its_packet_id(node: Node) -> None:
    """MQTT-4.3.3-11: the record of the repetition would come between PUBLISH and its commit."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    client.send(wire.publish(5, b"t", b"1", 2, packet_id=7))
    await client.expect(PUBREC)
    session, connection = node._sessions.open_sessions[b"c"]
    connection.receive(ack(PUBREL, 7))
    await asyncio.sleep(0)  # its record is on its way, a second one would go with the next flush
    connection.receive(ack(PUBREL, 7))
    await until(lambda: not session.inbound)
    connection.receive(wire.publish(5, b"t", b"2", 2, packet_id=7))
    await client.expect(PUBCOMP)
    await client.expect(PUBREC)
    assert list(session.inbound) == [7]
    await client.drop()
