"""A PUBLISH on its way through the server (section 3.3): properties that are forwarded, and those that are not."""

import pytest

from gateway.node.node import Node, Ports
from matcher.names import MAX_LEVELS
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, SUBACK, RawClient, ack

VERSIONS = pytest.mark.parametrize("version", [4, 5])
BOM = b"\xef\xbb\xbf"


@pytest.mark.mqtt5("3.3.1-3")
@pytest.mark.mqtt311("3.3.1-3")
@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
async def test_dup_is_not_passed_on(ports: Ports, version: int, qos: int) -> None:
    subscriber = await RawClient.connect(ports.mqtt, b"s", version)
    await subscriber.subscribe((b"t", 2))
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    publisher.send(wire.publish(version, b"t", b"x", qos, 7, dup=True))
    await publisher.expect(PUBACK if qos == 1 else PUBREC)
    message = await subscriber.message()
    assert (message.qos, message.dup) == (qos, False)


@pytest.mark.mqtt5("1.5.4-3")
@pytest.mark.mqtt311("1.5.3-3")
@VERSIONS
async def test_a_byte_order_mark_is_a_character(ports: Ports, version: int) -> None:
    """In topics, filters, client ids and properties."""
    plain = await RawClient.connect(ports.mqtt, b"c", version)
    marked = await RawClient.connect(ports.mqtt, BOM + b"c", version)
    assert await plain.subscribe((b"t", 0)) == b"\x00"
    assert await marked.subscribe((BOM + b"t", 0), (b"a/" + BOM + b"/+", 0)) == b"\x00\x00"
    properties = wire.pair(BOM + b"n", b"v" + BOM) if version == 5 else b""
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    for topic in (b"t", BOM + b"t", b"a/" + BOM + b"/x", b"a//x"):
        await publisher.publish(topic, b"", properties=properties)
    assert (await plain.message()).topic == b"t"
    await plain.quiet()
    messages = [await marked.message() for _ in range(2)]
    assert [message.topic for message in messages] == [BOM + b"t", b"a/" + BOM + b"/x"]
    assert {message.properties for message in messages} == {properties}
    await marked.quiet()


NAMES = ["größe", "gro\u0308ße", "A", "a", "/a", "a/", "a//a", " a", "\u212b", "Å"]


@pytest.mark.mqtt5("3.3.2-3", "4.7.3-4")
@pytest.mark.mqtt311("3.3.2-3", "4.7.3-4")
@VERSIONS
async def test_topics_are_matched_and_delivered_without_normalisation(ports: Ports, version: int) -> None:
    """Nothing is normalised, not even what looks the same."""
    topics = [name.encode() for name in NAMES]
    clients = []
    for number, topic in enumerate(topics):
        client = await RawClient.connect(ports.mqtt, b"c%d" % number, version)
        await client.subscribe((topic, 0))
        clients.append(client)
    levels = await RawClient.connect(ports.mqtt, b"levels", version)
    await levels.subscribe((b"+/+", 0))
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    for topic in topics:
        await publisher.publish(topic, topic)
    for topic, client in zip(topics, clients, strict=True):
        message = await client.message()
        assert (message.topic, message.payload) == (topic, topic)
        await client.quiet()
    assert [message.topic for message in await levels.take(2)] == [b"/a", b"a/"]
    await levels.quiet()


PROPERTIES = (
    wire.pair(b"b", b"2")
    + b"\x08"
    + wire.text(b"reply/\xc3\xbc")
    + b"\x01\x01"
    + wire.pair(b"a", b"1")
    + b"\x09"
    + wire.text(b"\0\xff id")
    + b"\x03"
    + wire.text(b"text/plain")
    + wire.pair(b"b", b"2")
    + wire.pair(b"", b"")
)


@pytest.mark.mqtt5("3.3.2-4", "3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_properties_are_forwarded_to_the_byte(ports: Ports, qos: int) -> None:
    """Live, retained, from the backlog of a session that was away, and again after a break."""
    away = await RawClient.connect(ports.mqtt, b"away", 5, False, expiry=100)
    await away.subscribe((b"t", 2))
    await away.disconnect()
    live = await RawClient.connect(ports.mqtt, b"live", 5)
    await live.subscribe((b"t", qos))
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    await publisher.publish(b"t", b"x", 2, retain=True, properties=PROPERTIES)
    late = await RawClient.connect(ports.mqtt, b"late", 5)
    await late.subscribe((b"t", qos))
    for client in (live, late):
        assert (await client.message()).properties == PROPERTIES
    away = await RawClient.connect(ports.mqtt, b"away", 5, False, expiry=100)
    assert (await away.message()).properties == PROPERTIES
    await away.drop()
    away = await RawClient.connect(ports.mqtt, b"away", 5, False, expiry=100)
    again = await away.message()
    assert (again.properties, again.dup) == (PROPERTIES, True)
    old = await RawClient.connect(ports.mqtt, b"old", 4)
    await old.subscribe((b"t", 0))
    assert (await old.message()).payload == b"x"


async def test_a_payload_declared_as_utf_8_must_be_utf_8(node: Node) -> None:
    """Section 3.3.2.3.2: 0x99; what does not say so may be anything."""
    watcher = await RawClient.connect(node.ports.mqtt, b"w", 5)
    await watcher.subscribe((b"t", 0))
    client = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await client.publish(b"t", "ü\0".encode(), properties=b"\x01\x01")
    await client.publish(b"t", b"\xff", properties=b"\x01\x00")
    await client.publish(b"t", b"\xfe")
    for qos, answer in ((1, PUBACK), (2, PUBREC), (1, PUBACK)):
        client.send(wire.publish(5, b"t", b"\xff", qos, 7, b"\x01\x01"))
        assert (await client.expect(answer)).reason == 0x99
    client.send(wire.publish(5, b"t", b"\xed\xa0\x80", properties=b"\x01\x01"))
    await client.quiet()
    assert [m.payload for m in await watcher.take(3)] == ["ü\0".encode(), b"\xff", b"\xfe"]
    await watcher.quiet()
    assert node.counters.messages_refused == 4


@pytest.mark.mqtt5("4.3.2-5")
@pytest.mark.mqtt311("4.3.2-2")
@VERSIONS
async def test_a_packet_id_of_qos_1_is_new_after_puback(ports: Ports, version: int) -> None:
    """Whatever DUP says."""
    subscriber = await RawClient.connect(ports.mqtt, b"s", version)
    await subscriber.subscribe((b"t", 0))
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    for payload, dup in ((b"1", False), (b"2", True), (b"3", False)):
        publisher.send(wire.publish(version, b"t", payload, 1, 7, dup=dup))
        assert (await publisher.expect(PUBACK)).packet_id == 7
    assert [m.payload for m in await subscriber.take(3)] == [b"1", b"2", b"3"]


@pytest.mark.mqtt5("4.3.3-9")
async def test_a_packet_id_of_qos_2_is_new_after_a_refusal(ports: Ports) -> None:
    subscriber = await RawClient.connect(ports.mqtt, b"s", 5)
    await subscriber.subscribe((b"t", 0))
    publisher = await RawClient.connect(ports.mqtt, b"p", 5)
    publisher.send(wire.publish(5, b"$SYS/t", b"no", 2, 7))
    assert (await publisher.expect(PUBREC)).reason == 0x87
    await publisher.publish(b"t", b"yes", 2, 7)
    assert (await subscriber.message()).payload == b"yes"
    await subscriber.quiet()


@pytest.mark.mqtt5("4.3.3-13", "3.3.2-5")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_the_exchange_with_the_publisher_continues_though_its_message_has_expired(
    node: Node, expiry: int
) -> None:
    """An expiry interval of 0 has always passed."""
    subscriber = await RawClient.connect(node.ports.mqtt, b"s", 5, False, expiry=expiry)
    await subscriber.subscribe((b"t", 2))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for qos in (0, 1, 2):
        await publisher.publish(b"t", b"x", qos, 7, properties=b"\x02" + wire.u32(0))
    await publisher.publish(b"t", b"end", 1)
    assert [m.payload for m in await subscriber.take(1)] == [b"end"]
    assert node.counters.dropped_expired == 3


@pytest.mark.mqtt5("4.7.3-3")
@pytest.mark.mqtt311("4.7.3-3")
@VERSIONS
async def test_the_longest_names_there_are(make_node: MakeNode, version: int) -> None:
    ports = (await make_node(mqtt__max_topic_levels=MAX_LEVELS)).ports
    longest, deepest = b"a" * 65_535, b"/" * (MAX_LEVELS - 1)
    client = await RawClient.connect(ports.mqtt, b"c", version)
    assert await client.subscribe((longest, 0), (deepest, 0)) == b"\x00\x00"
    publisher = await RawClient.connect(ports.mqtt, b"p", version)
    for topic in (longest, deepest):
        await publisher.publish(topic, b"x")
        assert (await client.message()).topic == topic
    assert len(await client.unsubscribe(longest, deepest)) == (2 if version == 5 else 0)


@pytest.mark.mqtt5("3.3.4-2")
@pytest.mark.mqtt311("3.3.5-1")
@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
async def test_overlapping_filters_give_one_copy_at_the_highest_qos(ports: Ports, version: int, clean: bool) -> None:
    expiry = 0 if clean else 100
    client = await RawClient.connect(ports.mqtt, b"c", version, clean, expiry=expiry)
    await client.subscribe((b"t/#", 0), (b"t/a", 2), (b"+/a", 1))
    publisher = await RawClient.connect(ports.mqtt, b"p")
    for qos in (0, 1, 2):
        await publisher.publish(b"t/a", b"%d" % qos, qos)
        assert [(m.payload, m.qos) for m in await client.take(1)] == [(b"%d" % qos, qos)]
        await client.settle()


@pytest.mark.mqtt5("3.3.4-5", "3.3.4-3")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_each_retained_copy_has_the_identifier_of_its_subscription(ports: Ports, expiry: int) -> None:
    publisher = await RawClient.connect(ports.mqtt, b"p")
    await publisher.publish(b"t/a", b"x", retain=True)
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, expiry=expiry)
    for topic_filter, identifier in ((b"t/#", 1), (b"t/a", 2), (b"+/a", 268_435_455)):
        properties = b"\x0b" + wire.varint(identifier)
        client.send(wire.subscribe(5, 1, (topic_filter, 1), properties=properties))
        await client.expect(SUBACK)
        message = (await client.take(1))[0]
        assert message.retain
        assert wire.properties(message.properties) == [(0x0B, identifier)]
    await client.quiet()


@pytest.mark.mqtt5("2.2.1-4", "4.3.2-1", "4.3.3-1")
@pytest.mark.mqtt311("2.3.1-4", "4.3.2-1", "4.3.3-1")
@VERSIONS
@pytest.mark.parametrize("expiry", [0, 100])
async def test_packet_ids_begin_again_and_leave_out_those_in_use(node: Node, version: int, expiry: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version, not expiry, expiry=expiry)
    await client.subscribe((b"t", 2))
    session = node._sessions.open_sessions[b"c"][0]
    cursor = session.subscriptions[b"t"].cursor
    if cursor is not None:
        cursor._first_id = 0  # by the filter, so that a message has the same one whenever it is sent
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"t", b"held 1", 1)
    await publisher.publish(b"t", b"held 2", 2)
    assert [(await client.message()).packet_id for _ in range(2)] == [1, 2]
    session.exchanges._next_packet_id = 65_533
    if cursor is not None:
        cursor._first_id = 65_531
    for qos in (1, 2, 1, 2):
        await publisher.publish(b"t", b"x", qos)
    assert [(await client.message()).packet_id for _ in range(4)] == [65_534, 65_535, 3, 4]


@pytest.mark.mqtt311("3.1.2-7")
@VERSIONS
async def test_retained_messages_outlive_the_session_that_published_them(make_node: MakeNode, version: int) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", version, False, expiry=100)
    await client.publish(b"t", b"kept", retain=True)
    await client.disconnect()
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    assert not client.session_present
    await client.disconnect()
    client = await RawClient.connect(node.ports.mqtt, b"late", version)
    await client.subscribe((b"t", 0))
    assert (await client.message()).payload == b"kept"


@pytest.mark.mqtt5("2.2.1-5", "3.3.4-1", "4.3.3-11")
@pytest.mark.mqtt311("2.3.1-6", "3.3.4-1")
@VERSIONS
async def test_acknowledgements_carry_the_packet_id_of_the_message(ports: Ports, version: int) -> None:
    """QoS 0 has no answer."""
    client = await RawClient.connect(ports.mqtt, b"c", version)
    client.send(wire.publish(version, b"t", b"x", 0))
    await client.quiet()
    for packet_id in (1, 0x1234, 0xFFFF):
        client.send(wire.publish(version, b"t", b"x", 1, packet_id))
        assert (await client.expect(PUBACK)).body == wire.u16(packet_id)
        client.send(wire.publish(version, b"t", b"x", 2, packet_id))
        assert (await client.expect(PUBREC)).body == wire.u16(packet_id)
        client.send(ack(PUBREL, packet_id))
        assert (await client.expect(PUBCOMP)).body == wire.u16(packet_id)


@pytest.mark.mqtt5("3.3.2-7", "3.3.2-12", "3.2.2-18")
async def test_every_alias_up_to_the_maximum_for_this_connection_only(make_node: MakeNode) -> None:
    node = await make_node(mqtt__topic_alias_maximum=7)
    watcher = await RawClient.connect(node.ports.mqtt, b"w")
    await watcher.subscribe((b"#", 0))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    assert (0x22, 7) in client.connack.properties
    for alias in range(1, 8):
        client.send(wire.publish(5, b"t/%d" % alias, b"", properties=b"\x23" + wire.u16(alias)))
    client.send(*[wire.publish(5, b"", b"again", properties=b"\x23" + wire.u16(alias)) for alias in range(7, 0, -1)])
    topics = [message.topic for message in await watcher.take(14)]
    assert topics == [b"t/%d" % alias for alias in (*range(1, 8), *range(7, 0, -1))]
    await client.disconnect()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    client.send(wire.publish(5, b"", b"again", properties=b"\x23\x00\x01"))
    assert (await client.expect(DISCONNECT)).reason == 0x82
    node = await make_node("none", mqtt__topic_alias_maximum=0)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(wire.publish(5, b"t", b"", properties=b"\x23\x00\x01"))
    assert (await client.expect(DISCONNECT)).reason == 0x94
