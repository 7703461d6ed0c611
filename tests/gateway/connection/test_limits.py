"""Limits and hostile input: every one has an answer that the client can understand, where the protocol has one."""

import asyncio
import socket
import struct
from time import monotonic

import pytest

from cloud_sdk import Client, InvalidArgument
from gateway.broker import user_limits
from gateway.listen import listener
from gateway.net import admission as gate
from gateway.net import bounded_http
from gateway.node.node import Node, Ports
from store.errors import StoreError
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.people import login, set_user
from tests.gateway.raw import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBREC,
    SUBACK,
    RawClient,
    connect,
)
from tests.waiting import patience, until


@pytest.mark.mqtt5("3.2.2-15")
async def test_a_packet_may_be_as_large_as_announced_and_no_larger(make_node: MakeNode) -> None:
    """MQTT-3.2.2-15, 3.1.2-24: DISCONNECT 0x95."""
    node = await make_node(mqtt__max_packet_size=2000)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    assert b"\x27" + wire.u32(2000) in client.connack.body
    room = 2000 - len(wire.publish(5, b"t", b"x" * 1000, 1)) + 1000
    await client.publish(b"t", b"x" * room)
    client.send(wire.publish(5, b"t", b"x" * (room + 1), 1))
    assert (await client.expect(DISCONNECT)).reason == 0x95
    await client.closed()
    old = await RawClient.connect(node.ports.mqtt, b"c", 4)
    old.send(wire.publish(4, b"t", b"x" * 2100, 1)[:10])
    await old.closed()


@pytest.mark.mqtt5("3.1.2-24", "3.1.2-25")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_messages_beyond_the_maximum_packet_size_are_dropped(node: Node, expiry: int) -> None:
    """MQTT-3.1.2-24, -25: to the byte, live and from the backlog."""
    limit = b"\x27" + wire.u32(100)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, limit, expiry=expiry)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for qos in (0, 1, 2):
        await client.subscribe((b"t", qos))
        fits = 100 - len(wire.publish(5, b"t", b"", qos))
        await publisher.publish(b"t", b"x" * (fits + 1), 2)
        await publisher.publish(b"t", b"x" * fits, 2)
        assert [len(m.payload) for m in await client.take(1)] == [fits]
        await client.settle()
    assert node.counters.dropped_oversized == 3


async def test_subscriptions_are_counted_before_they_are_on_disk(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_subscriptions=10)
    for expiry in (0, 100):
        client = await RawClient.connect(node.ports.mqtt, b"c", 5, expiry=expiry)
        client.send(*[wire.subscribe(5, 1 + number, (b"t/%d" % (number % 12), 1)) for number in range(14)])
        replies = [await client.expect(SUBACK) for _ in range(14)]  # a refusal does not wait for the disk
        reasons = {reply.packet_id: reply.body[-1] for reply in replies}
        assert [reasons[1 + number] for number in range(14)] == [1] * 10 + [0x97] * 2 + [1] * 2
        await client.drop()


@pytest.mark.mqtt5("3.1.2-24", "3.1.2-25")
async def test_a_message_in_flight_that_became_too_large_is_left_out(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    await client.subscribe((b"t", 1))
    await client.publish(b"u", b"")
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"t", b"x" * 500)
    await publisher.publish(b"t", b"small")
    await client.message()
    await client.drop()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, b"\x27" + wire.u32(100), expiry=100)
    assert [m.payload for m in await client.take(1)] == [b"small"]
    await client.quiet()


@pytest.mark.mqtt5("3.3.4-7")
async def test_more_in_flight_than_the_receive_maximum(make_node: MakeNode) -> None:
    """MQTT-3.3.4-9: DISCONNECT 0x93, for QoS 2 until PUBCOMP."""
    node = await make_node(mqtt__receive_maximum=3)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    assert b"\x21" + wire.u16(3) in client.connack.body
    for packet_id in (1, 2, 3):
        client.send(wire.publish(5, b"t", b"x", 2, packet_id))
        await client.expect(PUBREC)
    client.send(wire.publish(5, b"t", b"x", 2, 4))
    assert (await client.expect(DISCONNECT)).reason == 0x93
    await client.closed()


async def test_the_receive_maximum_is_free_again_with_each_acknowledgement(make_node: MakeNode) -> None:
    node = await make_node(mqtt__receive_maximum=1)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    for i in range(30):
        await client.publish(b"t", b"x", 1 + i % 2, i + 1)
    for i in range(3):
        client.send(wire.publish(5, b"$SYS/x", b"x", 1 + i % 2, i + 1))
        assert (await client.packet()).reason == 0x87
    await client.quiet()


@pytest.mark.parametrize(("version", "reason"), [(4, 3), (5, 0x97)])
async def test_connections_beyond_the_maximum_are_refused_with_a_reason(
    make_node: MakeNode, version: int, reason: int
) -> None:
    node = await make_node(mqtt__max_connections=2)
    first = await RawClient.connect(node.ports.mqtt, b"1")
    second = await RawClient.connect(node.ports.mqtt, b"2")
    refused = await RawClient.open(node.ports.mqtt, version)
    refused.send(connect(version, b"1"))
    assert (await refused.expect(CONNACK)).body[1] == reason
    await refused.closed()
    assert node.counters.connections_refused == 1
    await first.quiet()
    await first.disconnect()
    await until(lambda: len(node._front.connections) != 2)
    third = await RawClient.connect(node.ports.mqtt, b"3")
    await second.quiet()
    await third.quiet()


async def test_connections_that_wait_for_a_refusal_are_bounded(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_connections=1)
    first = await RawClient.connect(node.ports.mqtt, b"1")
    silent = [await RawClient.open(node.ports.mqtt) for _ in range(64)]
    await until(lambda: len(node._front.connections) >= 65)
    with pytest.raises((ConnectionError, EOFError)):
        await (await RawClient.open(node.ports.mqtt)).packet()
    for client in silent:
        await client.drop()
    await first.quiet()


@pytest.mark.parametrize("said", [b"", b"\x10", connect(4, b"c")[:-1]])
async def test_connect_has_to_come_in_time(ports: Ports, said: bytes) -> None:
    client = await RawClient.open(ports.mqtt)
    client.send(said)
    await client.closed()


@pytest.mark.mqtt5("3.1.2-22", "3.2.2-22")
@pytest.mark.mqtt311("3.1.2-24")
async def test_keep_alive_is_one_and_a_half_periods_of_silence(ports: Ports) -> None:
    """MQTT-3.1.2-22: what comes in between, of any kind, keeps the connection."""
    clients = [await RawClient.connect(ports.mqtt, b"c%d" % version, version, keep_alive=1) for version in (4, 5)]
    loop = asyncio.get_running_loop()
    start = loop.time()
    while loop.time() < start + 2.2:
        for client in clients:
            client.send(wire.publish(client.version, b"t", b"x"))
        await asyncio.sleep(0.1)
    for client in clients:
        await client.quiet()
    assert (await clients[1].expect(DISCONNECT)).reason == 0x8D
    for client in clients:
        await client.closed()
    assert loop.time() > start + 3.5


async def test_connack_has_the_keep_alive_of_the_node(make_node: MakeNode) -> None:
    """MQTT-3.2.2-21, -22."""
    node = await make_node(mqtt__max_keep_alive=30, mqtt__max_session_expiry=60)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, keep_alive=100, expiry=100)
    assert b"\x13" + wire.u16(30) in client.connack.body
    assert b"\x11" + wire.u32(60) in client.connack.body


@pytest.mark.mqtt5("3.1.0-2", "3.2.0-2")
@pytest.mark.mqtt311("3.1.0-2")
@pytest.mark.parametrize(("version", "says_so"), [(4, False), (5, True)])
async def test_a_second_connect_is_a_protocol_error(ports: Ports, version: int, says_so: bool) -> None:
    """MQTT-3.1.0-2."""
    client = await RawClient.connect(ports.mqtt, b"c", version)
    client.send(connect(version, b"c"))
    if says_so:
        assert (await client.expect(DISCONNECT)).reason == 0x82
    await client.closed()


@pytest.mark.mqtt5("3.1.0-1", "3.14.0-1")
@pytest.mark.mqtt311("3.1.0-1")
@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xc0\x00", wire.publish(4, b"t", b"x", 1), b"\x10\xff\xff\xff\xff\x7f", b"\0"],
)
async def test_anything_but_connect_at_first_is_met_with_silence(ports: Ports, garbage: bytes) -> None:
    """MQTT-3.1.0-1."""
    client = await RawClient.open(ports.mqtt)
    client.send(garbage)
    await client.closed()


@pytest.mark.mqtt5("4.2.0-1")
@pytest.mark.mqtt311("7.1.1-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_bytes_that_come_one_at_a_time(ports: Ports, version: int) -> None:
    client = await RawClient.open(ports.mqtt, version)
    everything = (
        connect(version, b"drip")
        + wire.subscribe(version, 1, (b"t", 1))
        + wire.publish(version, b"t", b"payload", 1, 2)
        + b"\xc0\x00"
    )
    for i in range(len(everything)):
        client.send(everything[i : i + 1])
        await asyncio.sleep(0)
    kinds = [(await client.packet()).kind for _ in range(5)]
    assert sorted(kinds) == sorted([CONNACK, SUBACK, PUBACK, PINGRESP, 3])


@pytest.mark.parametrize("clean", [True, False])
async def test_packets_behind_connect_in_one_write(ports: Ports, clean: bool) -> None:
    """Section 3.1.4: a client need not wait for CONNACK."""
    client = await RawClient.open(ports.mqtt)
    client.send(
        connect(4, b"c", clean)
        + wire.subscribe(4, 1, (b"t", 1))
        + b"".join(wire.publish(4, b"u", b"x", 1, i) for i in range(1, 200))
        + b"\xe0\x00"
    )
    assert (await client.packet()).kind == CONNACK
    await _end(client)
    client = await RawClient.connect(ports.mqtt, b"c", 4, False)
    assert client.session_present != clean


async def _end(client: RawClient) -> None:
    """Read all packets up to the node's closing."""
    async with patience():
        await client.reader.read()


@pytest.mark.mqtt5("3.1.2-2", "3.2.2-7")
@pytest.mark.mqtt311("3.1.2-2", "3.1.3-8", "3.1.3-9", "3.2.2-5")
@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (wire.connect(3), b"\x00\x01"),
        (wire.connect(4, b"", 0x00), b"\x00\x02"),
        (wire.connect(6, b"c"), b"\x00\x84"),
    ],
)
async def test_refusals_of_connect(ports: Ports, packet: bytes, answer: bytes) -> None:
    """Table 3.1 of 3.1.1 (MQTT-3.1.3-8, 3.1.2-2) and section 3.2.2.2 of 5.0."""
    client = await RawClient.open(ports.mqtt)
    client.send(packet)
    assert (await client.expect(CONNACK)).body[:2] == answer
    await client.closed()


@pytest.mark.mqtt5("3.1.3-6", "3.2.2-16")
@pytest.mark.mqtt311("3.1.3-6")
async def test_an_empty_client_id_is_assigned(ports: Ports) -> None:
    """MQTT-3.1.3-6, -7, 3.2.2-16; 3.1.1 does not tell it."""
    names = set()
    for _ in range(2):
        client = await RawClient.connect(ports.mqtt, b"", 5)
        at = client.connack.body.index(b"\x12")
        size = int.from_bytes(client.connack.body[at + 1 : at + 3], "big")
        names.add(client.connack.body[at + 3 : at + 3 + size])
    assert len(names) == 2
    assert all(name.startswith(b"sluice-") for name in names)
    await RawClient.connect(ports.mqtt, b"", 4)


@pytest.mark.mqtt5("4.12.0-1", "4.12.0-4")
async def test_extended_authentication_is_refused(ports: Ports) -> None:
    """Section 4.12: CONNACK 0x8C."""
    client = await RawClient.open(ports.mqtt, 5)
    client.send(connect(5, b"c", properties=b"\x15" + wire.text(b"SCRAM")))
    assert (await client.expect(CONNACK)).reason == 0x8C
    await client.closed()


@pytest.mark.parametrize(("version", "reason"), [(4, 3), (5, 0x9F)])
async def test_connections_that_come_too_fast(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, version: int, reason: int
) -> None:
    """Up to the rate they are served, up to twice that they hear why not, and the others wait for their turn."""
    now = [1000.0]
    for module in (gate, listener):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    node = await make_node(mqtt__connect_rate=3)
    served = [await RawClient.connect(node.ports.mqtt, b"%d" % i, version) for i in range(3)]
    for _ in range(3):
        refused = await RawClient.open(node.ports.mqtt, version)
        refused.send(connect(version, b"c"))
        assert (await refused.expect(CONNACK)).body[1] == reason
        await refused.closed()
    waiting = await RawClient.open(node.ports.mqtt, version)
    waiting.send(connect(version, b"c"))
    for client in served:
        await client.quiet()
    (own,) = [each for each in node._front.admissions if each.name == "mqtt"]
    assert (own.accepted, own.refused_rate) == (6, 3)
    now[0] += 0.34
    assert (await waiting.expect(CONNACK)).body[1] == 0
    assert (own.accepted, own.refused_rate) == (7, 3)


async def test_a_listener_has_limits_of_its_own(make_node: MakeNode) -> None:
    small = {"name": "small", "address": "127.0.0.1:0", "max_connections": 1, "connect_timeout": 1}
    node = await make_node(mqtt__listeners=[small])
    port = int(node.ports.addresses["small"].rpartition(":")[2])
    first = await RawClient.connect(port, b"1", 5)
    second = await RawClient.open(port, 5)
    second.send(connect(5, b"2"))
    assert (await second.expect(CONNACK)).reason == 0x97
    await RawClient.connect(node.ports.mqtt, b"3", 5)
    silent = await RawClient.open(port, 5)
    await silent.closed()
    await first.quiet()


async def test_a_publisher_above_its_rate_is_read_later(make_node: MakeNode) -> None:
    """Back-pressure: nothing is lost, and nothing is said."""
    node = await make_node(mqtt__publish_rate=100)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, keep_alive=1)
    client.send(*[wire.publish(5, b"t", b"x") for _ in range(150)])
    await until(lambda: node.counters.publishers_paced)
    assert node._sessions.open_sessions[b"c"][1].reading_paused
    client.send(wire.publish(5, b"t", b"x", 1, 1), b"\xc0\x00")
    assert {(await client.packet()).kind, (await client.packet()).kind} == {PUBACK, PINGRESP}
    assert node.counters.messages_received == 151


async def test_a_publisher_above_its_rate_that_resets_is_closed(make_node: MakeNode) -> None:
    """A reset ends the connection, though its debt of messages would keep it from being read for a long time."""
    node = await make_node(mqtt__publish_rate=1)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(*[wire.publish(5, b"t", b"x") for _ in range(5000)])
    await until(lambda: node.counters.publishers_paced > 0)
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()
    await until(lambda: not node._sessions.open_sessions)


@pytest.mark.parametrize("said", [b"", b"GET /mqtt HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_a_connection_that_does_not_upgrade_is_closed(make_node: MakeNode, said: bytes) -> None:
    """When its time is over, or at once after an answer."""
    asked = said.endswith(b"\r\n\r\n")
    node = await make_node(mqtt__connect_timeout=3600 if asked else 1)
    client = await RawClient.open(node.ports.ws)
    client.send(said)
    async with patience():
        answer = await client.reader.read()
    assert (b"HTTP/1.1 426" in answer) == asked
    await until(lambda: not node._devices.websocket.waiting)
    assert [each.opening for each in node._front.admissions] == [0, 0]


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_an_idle_http_connection_is_closed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(bounded_http, "_IDLE_SECONDS", 0.2)
    node = await make_node()
    client = await RawClient.open(node.ports.http)
    client.send(said)
    async with patience():
        answer = await client.reader.read()
    assert answer.startswith(b"HTTP/1.1 200") == said.endswith(b"\r\n\r\n")


@pytest.mark.mqtt5("4.13.1-1", "4.13.2-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_topics_and_filters_have_a_length_and_levels(make_node: MakeNode, version: int) -> None:
    """DISCONNECT 0x90 and SUBACK 0x8F; a will's topic is refused in CONNACK."""
    node = await make_node(mqtt__max_topic_length=10, mqtt__max_topic_levels=3)
    fits = (b"a/b/c", b"0123456789", b"+/b/#")
    beyond = (b"a/b/c/d", b"01234567890", b"+/b/c/#")
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    refused = 0x8F if version == 5 else 0x80
    asked = [*fits, *beyond, b"+/////////"]
    assert await client.subscribe(*[(name, 0) for name in asked]) == bytes([0] * 3 + [refused] * 4)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", version)
    await publisher.publish(b"0123456789", b"x")
    assert [m.topic for m in await client.take(1)] == [b"0123456789"]
    for name in (b"a/b/c/d", b"01234567890"):
        client = await RawClient.connect(node.ports.mqtt, b"p", version)
        client.send(wire.publish(version, name, b"x", 1, 1))
        if version == 5:
            gone = await client.expect(DISCONNECT)
            assert gone.reason == 0x90
        await client.closed()
        willing = await RawClient.open(node.ports.mqtt, version)
        willing.send(connect(version, b"w", will=(name, b"x")))
        if version == 5:
            assert (await willing.expect(CONNACK)).reason == 0x90
        await willing.closed()


async def test_topics_of_cloud_services_have_the_same_length_and_levels(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_topic_length=10, mqtt__max_topic_levels=3)
    async with Client(f"127.0.0.1:{node.ports.grpc}") as service:
        await service.send("a/b/c", b"x")
        for name, fault in (("a/b/c/d", "4 levels, the limit is 3"), ("01234567890", "11 bytes, the limit is 10")):
            with pytest.raises(InvalidArgument, match=fault):
                await service.send(name, b"x")


async def test_a_connection_that_waits_for_the_store_is_not_read(node: Node) -> None:
    """Whatever else would have it read: what is held is one read a connection."""
    queue = node._front._append_queue
    queue._limit, limit = -1, queue._limit
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(wire.publish(5, b"t", b"x", 1, 1))
    connection = node._sessions.open_sessions[b"c"][1]
    await until(lambda: connection.reading_paused)
    connection.resume_reading()
    connection.uncongested()
    assert connection.reading_paused
    queue._limit = limit
    queue.committed(0)
    await client.expect(PUBACK)
    assert not connection.reading_paused


async def test_a_publisher_above_its_rate_of_bytes_is_read_later(make_node: MakeNode) -> None:
    node = await make_node(mqtt__publish_rate_bytes=20_000)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(wire.publish(5, b"t", b"x" * 1000, 1, 1))
    await client.expect(PUBACK)
    assert not node.counters.publishers_paced
    client.send(wire.publish(5, b"t", b"x" * 25_000, 1, 2))
    await client.expect(PUBACK)
    assert node.counters.publishers_paced == 1
    assert node._sessions.open_sessions[b"c"][1].rate_limited
    client.send(wire.publish(5, b"t", b"x", 1, 3))
    await client.expect(PUBACK)


# --- limits of a user


async def users_node(make_node: MakeNode, **settings: object) -> Node:
    node = await make_node(mqtt__auth=["anonymous", "password"], mqtt__acl_default="allow", **settings)
    for name in ("alice", "bob"):
        await set_user(node, name, b"x")
    return node


async def test_connections_of_a_user_are_limited(make_node: MakeNode) -> None:
    node = await users_node(make_node, mqtt__max_user_connections=2)
    limits = node._sessions._user_limits
    first, connack = await login(node.ports.mqtt, b"alice", b"x", client_id=b"1")
    second, connack = await login(node.ports.mqtt, b"alice", b"x", client_id=b"2")
    assert connack.reason == 0
    for version, reason in ((4, 3), (5, 0x97)):
        third, connack = await login(node.ports.mqtt, b"alice", b"x", version, b"3")
        assert connack.body[1] == reason
        await third.closed()
    assert node.counters.users_full == 2
    for name, client_id in ((b"bob", b"b"), (None, b"n1"), (None, b"n2"), (None, b"n3")):
        assert (await login(node.ports.mqtt, name, b"x" if name else None, client_id=client_id))[1].reason == 0
    # Whoever takes over its own session is no further connection.
    again, connack = await login(node.ports.mqtt, b"alice", b"x", client_id=b"2")
    assert connack.reason == 0
    await second.expect(DISCONNECT)
    await first.disconnect()
    await until(lambda: limits._users[b"alice"].connections == 1)
    third, connack = await login(node.ports.mqtt, b"alice", b"x", client_id=b"3")
    assert connack.reason == 0
    again.writer.transport.abort()
    await until(lambda: limits._users[b"alice"].connections == 1)
    await third.disconnect()


async def test_a_user_without_connections_is_forgotten(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await users_node(make_node, mqtt__max_user_connections=1)
    limits = node._sessions._user_limits
    client, _ = await login(node.ports.mqtt, b"alice", b"x")
    assert set(limits._users) == {b"alice"}
    await client.disconnect()
    await until(lambda: not limits._users)

    async def fail(_client_id: bytes) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(node._engine, "session_row", fail)
    refused, connack = await login(node.ports.mqtt, b"alice", b"x")
    assert connack.reason == 0x88
    await refused.closed()
    assert not limits._users


async def test_what_all_connections_of_a_user_publish_is_limited(make_node: MakeNode) -> None:
    node = await users_node(make_node, mqtt__user_publish_rate=100)
    alice = [(await login(node.ports.mqtt, b"alice", b"x", client_id=b"%d" % number))[0] for number in range(3)]
    bob, _ = await login(node.ports.mqtt, b"bob", b"x", client_id=b"b")
    for client in alice:
        client.send(*[wire.publish(5, b"t", b"x") for _ in range(70)])
    await until(lambda: node.counters.publishers_paced)
    await until(lambda: node.counters.messages_received == 210)
    bob.send(*[wire.publish(5, b"t", b"x") for _ in range(90)])
    await until(lambda: node.counters.messages_received == 300)
    assert not node._sessions.open_sessions[b"b"][1].rate_limited
    for client in alice:
        client.send(wire.publish(5, b"t", b"x", 1, 1))
        await client.expect(PUBACK)


async def test_bytes_of_a_user_are_limited(make_node: MakeNode) -> None:
    node = await users_node(make_node, mqtt__user_publish_rate_bytes=20_000)
    client, _ = await login(node.ports.mqtt, b"alice", b"x")
    client.send(wire.publish(5, b"t", b"x" * 25_000, 1, 1))
    await client.expect(PUBACK)
    assert node.counters.publishers_paced == 1


async def test_how_often_a_client_connects_is_limited(make_node: MakeNode) -> None:
    """Only a client that has authenticated counts: nobody can use up the connects of another one."""
    node = await users_node(make_node, mqtt__client_connect_rate=3)
    for _ in range(4):
        assert (await login(node.ports.mqtt, b"alice", b"guess", client_id=b"2"))[1].reason == 0x86
    client, connack = await login(node.ports.mqtt, b"bob", b"x", client_id=b"2")
    await client.disconnect()
    for _ in range(3):
        client, connack = await login(node.ports.mqtt, b"alice", b"x", client_id=b"2")
        assert connack.reason == 0
        await client.disconnect()
    for version, reason in ((5, 0x9F), (4, 3)):
        refused, connack = await login(node.ports.mqtt, b"alice", b"x", version, b"2")
        assert connack.body[1] == reason
        await refused.closed()
    assert node.counters.connects_too_fast == 2
    assert (await login(node.ports.mqtt, b"alice", b"x", client_id=b"3"))[1].reason == 0
    assert (await login(node.ports.mqtt, None, None, client_id=b"4"))[1].reason == 0


async def test_how_often_a_user_connects_is_limited(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await users_node(make_node, mqtt__user_connect_rate=60)
    now = monotonic()
    monkeypatch.setattr("gateway.broker.user_limits.monotonic", lambda: now)
    for number in range(60):
        assert (await login(node.ports.mqtt, b"alice", b"x", client_id=b"%d" % number))[1].reason == 0
    assert (await login(node.ports.mqtt, b"alice", b"x", client_id=b"more"))[1].reason == 0x9F
    assert (await login(node.ports.mqtt, b"bob", b"x", client_id=b"b"))[1].reason == 0
    assert (await login(node.ports.mqtt, None, None, client_id=b"n"))[1].reason == 0
    now += 1.01
    assert (await login(node.ports.mqtt, b"alice", b"x", client_id=b"more"))[1].reason == 0
    assert (await login(node.ports.mqtt, b"alice", b"x", client_id=b"more"))[1].reason == 0x9F


def test_clients_that_were_away_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_limits, "_MAX_KNOWN", 2)
    rates = user_limits._ConnectRates(1)
    assert [rates.may_connect(who) for who in (b"a", b"b", b"a", b"c", b"a")] == [True, True, False, True, False]
    assert len(rates._buckets) == 2
    assert rates.may_connect(b"b")
    assert rates.may_connect(b"c" * 65_535)
    assert sum(map(len, rates._buckets)) < 100, "long client ids are kept"


async def test_sessions_of_a_user_are_limited(make_node: MakeNode) -> None:
    node = await users_node(make_node, mqtt__max_user_sessions=2)

    async def reason(name: bytes | None, client_id: bytes, expiry: int = 3600, version: int = 5) -> int:
        password = b"x" if name else None
        client, connack = await login(node.ports.mqtt, name, password, version, client_id, clean=False, expiry=expiry)
        await client.disconnect()
        return connack.body[1]

    assert [await reason(b"alice", each) for each in (b"1", b"2", b"3", b"1")] == [0, 0, 0x97, 0]
    assert await reason(b"alice", b"3", version=4) == 3
    assert await reason(b"alice", b"4", expiry=0) == 0
    assert [await reason(b"bob", b"b"), await reason(None, b"n")] == [0, 0]
    assert node.counters.sessions_full == 2
    await node._sessions.remove(b"1")
    assert await reason(b"alice", b"3") == 0
    assert await node._engine.session_count_of(b"alice") == 2  # type: ignore[union-attr]


async def test_subscriptions_of_a_user_are_limited(make_node: MakeNode) -> None:
    node = await users_node(make_node, mqtt__max_user_subscriptions=3)
    limits = node._sessions._user_limits
    first, _ = await login(node.ports.mqtt, b"alice", b"x", client_id=b"1", clean=False, expiry=3600)
    second, _ = await login(node.ports.mqtt, b"alice", b"x", client_id=b"2")
    assert await first.subscribe((b"a", 1), (b"b", 0)) == bytes([1, 0])
    assert await second.subscribe((b"a", 1), (b"b", 0), (b"$share/g/c", 0)) == bytes([1, 0x97, 0x97])
    assert await second.subscribe((b"a", 0)) == bytes([0])
    assert node.counters.subscriptions_full == 2
    other, _ = await login(node.ports.mqtt, b"bob", b"x", client_id=b"3")
    assert await other.subscribe((b"a", 0), (b"b", 0), (b"c", 0)) == bytes([0, 0, 0])
    await first.unsubscribe(b"b")
    assert await second.subscribe((b"b", 0)) == bytes([0])
    await second.disconnect()
    await until(lambda: limits._users[b"alice"].subscriptions == 1)
    await first.disconnect()
    await until(lambda: b"alice" not in limits._users)
    first, _ = await login(node.ports.mqtt, b"alice", b"x", client_id=b"1", clean=False, expiry=3600)
    assert limits._users[b"alice"].subscriptions == 1
    assert await first.subscribe((b"c", 0), (b"d", 0), (b"e", 0)) == bytes([0, 0, 0x97])


async def test_replays_that_have_ended_do_not_count_for_other_clients(make_node: MakeNode) -> None:
    node = await users_node(make_node, mqtt__max_user_subscriptions=2)
    first, _ = await login(node.ports.mqtt, b"alice", b"x", client_id=b"1")
    second, _ = await login(node.ports.mqtt, b"alice", b"x", client_id=b"2")
    assert await first.subscribe((b"$replay/0..1/a", 0), (b"$replay/0..1/b", 0)) == bytes([0, 0])
    session = node._sessions.open_sessions[b"1"][0]
    await until(lambda: not session.bounded_replays and not session.subscribing.names)
    assert await second.subscribe((b"a", 0), (b"b", 0), (b"c", 0)) == bytes([0, 0, 0x97])


async def test_limits_of_a_listener_count_before_those_of_all(make_node: MakeNode) -> None:
    public = {"name": "public", "address": "127.0.0.1:0", "max_subscriptions": 1, "max_in_flight": 2}
    node = await make_node(mqtt__listeners=[public], mqtt__max_subscriptions=2, mqtt__max_in_flight=5)
    port = int(node.ports.addresses["public"].rpartition(":")[2])
    for where, most, window in ((port, 1, 2), (node.ports.mqtt, 2, 5)):
        client = await RawClient.connect(where, b"c%d" % most, 5)
        reasons = await client.subscribe((b"a", 1), (b"b", 1), (b"c", 1))
        assert reasons == b"\1" * most + b"\x97" * (3 - most)
        assert node._sessions.open_sessions[b"c%d" % most][0].exchanges.window == window
        await client.disconnect()
