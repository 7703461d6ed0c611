"""Acknowledgements of the server: packet ids, reason codes, reason strings."""

import asyncio

import pytest

from gateway.node.node import Node, Ports
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import (
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Packet,
    RawClient,
    ack,
)

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@pytest.mark.mqtt5("2.2.1-6", "3.8.4-1", "3.8.4-2", "3.10.4-4", "3.10.4-5")
@pytest.mark.mqtt311("2.3.1-7", "3.8.4-1", "3.8.4-2", "3.10.4-4", "3.10.4-5")
@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
async def test_suback_and_unsuback_carry_the_packet_id(ports: Ports, version: int, clean: bool) -> None:
    """Also when nothing was removed, and when several are under way."""
    client = await RawClient.connect(ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    for packet_id in (1, 0x1234, 0xFFFF):
        client.send(wire.subscribe(version, packet_id, (b"t", 1)))
        assert (await client.expect(SUBACK)).packet_id == packet_id
        client.send(wire.unsubscribe(version, packet_id, b"t"))
        assert (await client.expect(UNSUBACK)).packet_id == packet_id
        client.send(wire.unsubscribe(version, packet_id, b"t"))
        assert (await client.expect(UNSUBACK)).packet_id == packet_id
    client.send(*[wire.subscribe(version, 100 + i, (b"t/%d" % i, 1)) for i in range(20)])
    assert sorted([(await client.expect(SUBACK)).packet_id for _ in range(20)]) == list(range(100, 120))


@pytest.mark.mqtt5("3.12.4-1")
@pytest.mark.mqtt311("3.12.4-1")
@VERSIONS
async def test_every_ping_is_answered(ports: Ports, version: int) -> None:
    client = await RawClient.connect(ports.mqtt, b"c", version)
    client.send(b"\xc0\x00" * 3)
    for _ in range(3):
        answer = await client.packet()
        assert (answer.first, answer.body) == (0xD0, b"")


async def failures(client: RawClient) -> list[Packet]:
    """One answer that says no, of each kind that has a reason code."""
    client.send(wire.publish(5, b"$SYS/x", b"", 1, 1))
    found = [await client.expect(PUBACK)]
    client.send(wire.publish(5, b"$SYS/x", b"", 2, 1))
    found.append(await client.expect(PUBREC))
    client.send(ack(PUBREL, 9))
    found.append(await client.expect(PUBCOMP))
    client.send(wire.subscribe(5, 1, (b"too/many/levels", 0)))
    found.append(await client.expect(SUBACK))
    client.send(wire.unsubscribe(5, 1, b"t"))
    found.append(await client.expect(UNSUBACK))
    client.send(ack(PUBREC, 9))
    found.append(await client.expect(PUBREL))
    return found


@pytest.mark.mqtt5("3.1.2-29", "3.4.2-1", "3.5.2-1", "3.6.2-1", "3.7.2-1", "3.9.3-2", "3.11.3-2")
@pytest.mark.parametrize("asked", [b"", b"\x17\x01", b"\x17\x00"])
async def test_reason_strings_need_request_problem_information(make_node: MakeNode, asked: bytes) -> None:
    """Without problem information only CONNACK and DISCONNECT may explain themselves."""
    node = await make_node(mqtt__max_topic_levels=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=asked)
    answers = await failures(client)
    wanted = asked != b"\x17\x00"
    assert [0x1F in dict(answer.properties) for answer in answers[:5]] == [wanted] * 5
    assert wanted or not any(answer.properties for answer in answers)
    assert [answer.body[2] for answer in answers[:3]] == [0x87, 0x87, 0x92]
    assert [answer.body[-1] for answer in answers[3:]] == [0x8F, 0x11, 0x92]
    client.send(wire.publish(5, b"#", b""))
    goodbye = await client.expect(DISCONNECT)
    assert goodbye.reason == 0x90
    assert 0x1F in dict(goodbye.properties)


@pytest.mark.mqtt5("3.4.2-2", "3.5.2-2", "3.7.2-2", "3.9.2-1", "3.11.2-1", "3.14.2-3", "3.1.2-24")
async def test_properties_that_make_an_answer_too_large_are_left_out(make_node: MakeNode) -> None:
    """To the byte: a limit at the size of an answer leaves that one whole."""
    node = await make_node(mqtt__max_topic_levels=2)
    whole = await failures(await RawClient.connect(node.ports.mqtt, b"c", 5))
    for limit in {answer.size - less for answer in whole[:5] for less in (0, 1)}:
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=b"\x27" + wire.u32(limit))
        answers = await failures(client)
        assert [answer.size for answer in answers if answer.size > limit] == []
        for answer, before in zip(answers, whole, strict=True):
            assert answer.properties == (before.properties if before.size <= limit else [])
        client.send(wire.publish(5, b"#", b""))
        goodbye = await client.expect(DISCONNECT)
        assert (goodbye.reason, goodbye.size <= limit) == (0x90, True)


async def test_a_limit_that_was_reached_is_a_user_property(make_node: MakeNode) -> None:
    """For programs; the reason string is for people."""
    node = await make_node(mqtt__max_packet_size=2000, mqtt__receive_maximum=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(wire.publish(5, b"t", bytes(3000)))
    assert (0x26, (b"limit", b"2000")) in (await client.expect(DISCONNECT)).properties
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(*[wire.publish(5, b"t", b"", 2, packet_id) for packet_id in (1, 2, 3)])
    while (packet := await client.packet()).kind == PUBREC:
        pass
    assert packet.reason == 0x93
    assert (0x26, (b"limit", b"2")) in packet.properties


@pytest.mark.mqtt5("3.1.2-24")
@pytest.mark.parametrize("count", [40, 300])
async def test_a_suback_that_would_be_too_large_is_never_owed(node: Node, count: int) -> None:
    """There is no smaller one: the connection ends, and nothing was subscribed to."""
    filters = [b"t/%d" % i for i in range(count)]
    size = 1 + len(wire.varint(3 + count)) + 3 + count
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=b"\x27" + wire.u32(size))
    assert await client.subscribe(*[(each, 0) for each in filters]) == bytes(count)
    assert await client.unsubscribe(*filters) == bytes(count)
    client.send(wire.subscribe(5, 1, (b"more", 0), *[(each, 0) for each in filters]))
    assert (await client.expect(DISCONNECT)).reason == 0x95
    await client.closed()
    assert not len(node._router.trie)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=b"\x27" + wire.u32(size))
    client.send(wire.unsubscribe(5, 1, b"more", *filters))
    assert (await client.expect(DISCONNECT)).reason == 0x95
    await client.closed()


@pytest.mark.mqtt5("3.14.4-1", "3.14.4-2", "3.1.4-3")
async def test_disconnect_is_the_servers_last_word(node: Node) -> None:
    """In the middle of a stream of messages."""
    old = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await old.subscribe((b"t", 0))
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    publishing = asyncio.create_task(_publish_until_taken_over(node, publisher))
    while (await old.packet()).kind != DISCONNECT:
        pass
    assert await old.reader.read() == b""
    await publishing


async def _publish_until_taken_over(node: Node, publisher: RawClient) -> None:
    for number in range(300):
        publisher.send(wire.publish(4, b"t", b"%d" % number, 1, number + 1))
        await publisher.expect(PUBACK)
        if number == 150:
            await RawClient.connect(node.ports.mqtt, b"c", 5)


@pytest.mark.mqtt5("3.3.4-10", "4.9.0-3")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_a_full_window_delays_nothing_but_messages(ports: Ports, expiry: int) -> None:
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, receive_maximum=1, expiry=expiry)
    await client.subscribe((b"t", 2))
    publisher = await RawClient.connect(ports.mqtt, b"p")
    for payload in (b"1", b"2", b"3"):
        await publisher.publish(b"t", payload, 2)
    first = await client.message()
    assert await client.subscribe((b"u", 0)) == b"\x00"
    assert await client.unsubscribe(b"u") == b"\x00"
    await client.publish(b"v", b"x", 1)
    await client.publish(b"v", b"x", 2)
    client.send(b"\xc0\x00")
    await client.expect(PINGRESP)
    client.send(ack(PUBREC, first.packet_id))
    assert (await client.expect(PUBREL)).packet_id == first.packet_id
    await client.quiet()
    client.send(ack(PUBCOMP, first.packet_id))
    assert (await client.message()).payload == b"2"


@pytest.mark.mqtt5("4.13.1-1")
@pytest.mark.mqtt311("4.8.0-1")
@VERSIONS
@pytest.mark.parametrize("clean", [True, False])
async def test_pubcomp_in_place_of_pubrec_is_a_protocol_error(node: Node, version: int, clean: bool) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    await client.subscribe((b"t", 2))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", version)
    await publisher.publish(b"t", b"x", 2)
    client.send(ack(PUBCOMP, (await client.message()).packet_id))
    if version == 5:
        assert (await client.expect(DISCONNECT)).reason == 0x82
    await client.closed()


async def test_an_unsolicited_pubrec_that_fails_is_not_answered(ports: Ports) -> None:
    """A PUBREL would belong to an exchange that neither side has (MQTT 5, section 4.3.3)."""
    client = await RawClient.connect(ports.mqtt, b"c", 5)
    client.send(wire.packet(PUBREC << 4, b"\x00\x09\x97"))
    await client.quiet()
    client.send(ack(PUBREC, 9))
    assert (await client.expect(PUBREL)).reason == 0x92
