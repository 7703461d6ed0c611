"""Clients that mean harm, over real sockets: the right answer, the end of the connection, and nothing else happens."""

import asyncio
import logging
import random
from typing import cast

import aiohttp
import pytest

from gateway.broker.sessions import Sessions
from gateway.connection.callbacks import RequestCallbacks
from gateway.connection.connection import Connection
from gateway.listen.websocket_masking import _INVALID_FRAME, MaskedFrames
from gateway.mqtt.decode import MAX_CONNECT_SIZE
from gateway.mqtt.packets import Subscribe
from gateway.net.bounded_http import REQUESTS
from gateway.node.node import Node, Ports
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, DISCONNECT, PUBACK, PUBCOMP, PUBREL, SUBACK, RawClient, ack, connect
from tests.waiting import patience, until

UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def framed(first: int, data: bytes, masked: bool = True) -> bytes:
    """A WebSocket frame; its mask is of zeros."""
    size = len(data)
    if size < 126:
        length = bytes((size,))
    elif size < 1 << 16:
        length = b"\x7e" + size.to_bytes(2, "big")
    else:
        length = b"\x7f" + size.to_bytes(8, "big")
    return bytes((first, length[0] | (0x80 if masked else 0))) + length[1:] + (bytes(4) if masked else b"") + data


async def upgraded(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(UPGRADE)
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


# --- dripping


async def test_bytes_that_never_become_connect(ports: Ports) -> None:
    """The time for CONNECT does not begin anew with each byte."""
    client = await RawClient.open(ports.mqtt)
    packet = connect(5, b"c" * 60_000)
    client.send(packet[:100])
    dripping = asyncio.create_task(drip(client))
    await client.closed()
    dripping.cancel()


@pytest.mark.mqtt5("3.1.2-22")
@pytest.mark.mqtt311("3.1.2-24")
@pytest.mark.parametrize("version", [4, 5])
async def test_a_drip_inside_a_message_is_silence(ports: Ports, version: int) -> None:
    """MQTT-3.1.2-22 counts packets: nobody holds a connection, and the start of a packet, with a byte a second."""
    client = await RawClient.connect(ports.mqtt, b"c", version, keep_alive=1)
    client.send(wire.publish(version, b"t", bytes(100_000), 1)[:50])
    dripping = asyncio.create_task(drip(client))
    if version == 5:
        assert (await client.expect(DISCONNECT)).reason == 0x8D
    await client.closed()
    dripping.cancel()


async def drip(client: RawClient) -> None:
    while True:
        client.send(b"\0")
        await asyncio.sleep(0.1)


async def test_a_large_message_over_a_slow_link_is_no_silence(ports: Ports) -> None:
    client = await RawClient.connect(ports.mqtt, b"c", 5, keep_alive=1)
    packet = wire.publish(5, b"t", bytes(8_000), 1)
    for at in range(0, len(packet), 400):  # 2.5 seconds
        client.send(packet[at : at + 400])
        await asyncio.sleep(0.12)
    await client.expect(PUBACK)


# --- too much


async def test_the_same_mistake_is_not_explained_each_time(ports: Ports) -> None:
    """Or the answers would be many times as long as what makes them."""
    client = await RawClient.connect(ports.mqtt, b"c", 5)
    client.send(*[ack(PUBREL, 1 + number) for number in range(200)])
    answers = [await client.expect(PUBCOMP) for _ in range(200)]
    assert {answer.reason for answer in answers} == {0x92}
    assert answers[0].properties
    assert sum(answer.size for answer in answers) < 200 * 16
    client.send(ack(PUBREL, 1))
    assert (await client.expect(PUBCOMP)).properties


class _Watched:
    """A node's sessions, and which clients they served a SUBSCRIBE of."""

    def __init__(self, sessions: Sessions) -> None:
        self.served: list[bytes] = []
        self._sessions = sessions

    def __getattr__(self, name: str) -> object:
        return getattr(self._sessions, name)

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        self.served.append(connection.client_id)
        self._sessions.subscribe(connection, packet)


async def test_many_small_packets_of_one_client_are_served_in_turns(node: Node) -> None:
    """Another client's packet comes between them, though all of them were read before it."""
    greedy = await RawClient.connect(node.ports.mqtt, b"greedy", 5)
    modest = await RawClient.connect(node.ports.mqtt, b"modest", 5)
    watched = _Watched(node._sessions)
    for _, connection in node._sessions.open_sessions.values():
        connection.requests = cast("RequestCallbacks", watched)
    served = watched.served
    count = 3000
    greedy.send(*[wire.subscribe(5, 1 + number, (b"a", 0)) for number in range(count)])
    await greedy.expect(SUBACK)
    assert len(served) < count
    assert (await modest.subscribe((b"b", 0))) == b"\0"
    assert served.index(b"modest") < count
    for number in range(1, count):
        assert (await greedy.expect(SUBACK)).packet_id == 1 + number
    assert len(served) == count + 1


async def test_packets_behind_many_small_ones_keep_their_order(ports: Ports) -> None:
    """Also a DISCONNECT, and a packet that is broken."""
    for last, reason in ((b"\xe0\x00", None), (b"\x00\x00", 0x81)):
        watcher = await RawClient.connect(ports.mqtt, b"watcher")
        await watcher.subscribe((b"t", 1))
        client = await RawClient.connect(ports.mqtt, b"c", 5)
        many = [wire.subscribe(5, 1 + number, (b"a", 0)) for number in range(500)]
        # Of QoS 0, because the connection does not wait for the disk to end.
        client.send(*many, wire.publish(5, b"t", b"behind", 0), *many, last)
        assert {(await client.packet()).kind for _ in range(1000)} == {SUBACK}
        if reason is not None:
            assert (await client.expect(DISCONNECT)).reason == reason
        await client.closed()
        assert (await watcher.take(1))[0].payload == b"behind"
        await watcher.disconnect()


async def test_connect_with_everything_behind_it_at_once(ports: Ports) -> None:
    client = await RawClient.open(ports.mqtt, 5)
    many = [wire.subscribe(5, 1 + number, (b"a/%d" % number, 0)) for number in range(500)]
    client.send(connect(5, b"c"), *many, wire.publish(5, b"a/7", b"x", 0))
    assert (await client.expect(CONNACK)).reason == 0
    assert [(await client.expect(SUBACK)).packet_id for _ in many] == list(range(1, 501))
    assert (await client.message()).topic == b"a/7"


@pytest.mark.mqtt5("3.1.3-10", "3.1.2-7", "3.1.2-8")
async def test_a_will_of_the_greatest_size(ports: Ports) -> None:
    watcher = await RawClient.connect(ports.mqtt, b"watcher", 5)
    await watcher.subscribe((b"w" * 65_535, 1), (b"after", 1))
    client = await RawClient.open(ports.mqtt, 5)
    users = wire.pair(b"n" * 65_535, b"v" * 65_535) * 2
    rest = wire.sized(users) + wire.text(b"w" * 65_535) + wire.text(b"p" * 65_535)
    client.send(wire.connect(5, b"i" * 65_000, 0x0E, 0, rest=rest))
    assert (await client.expect(CONNACK)).reason == 0
    await client.drop()
    (will,) = await watcher.take(1)
    assert (len(will.topic), len(will.payload), will.properties) == (65_535, 65_535, users)


async def test_a_connect_beyond_what_one_can_need_is_not_gathered(ports: Ports) -> None:
    client = await RawClient.open(ports.mqtt, 5)
    client.send(b"\x10" + wire.varint(MAX_CONNECT_SIZE + 1))
    await client.closed()


async def test_aliases_that_change_their_topic_all_the_time(make_node: MakeNode) -> None:
    node = await make_node(mqtt__topic_alias_maximum=3)
    watcher = await RawClient.connect(node.ports.mqtt, b"watcher", 5, receive_maximum=0xFFFF)
    await watcher.subscribe((b"a/#", 0))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    chance = random.Random(1)
    names: dict[int, bytes] = {}
    expected = []
    for number in range(3000):
        alias = chance.randint(1, 3)
        topic = b"" if alias in names and chance.random() < 0.5 else b"a/%d" % number
        names[alias] = topic or names[alias]
        expected.append(names[alias])
        client.send(wire.publish(5, topic, b"", 0, properties=b"\x23" + wire.u16(alias)))
    assert [message.topic for message in await watcher.take(3000)] == expected
    client.send(wire.publish(5, b"a", b"", 0, properties=b"\x23\x00\x04"))
    assert (await client.expect(DISCONNECT)).reason == 0x94
    await client.closed()


# --- WebSocket


BAD_FRAMES = {
    "without a mask": (framed(0x82, wire.CONNECT_5, masked=False), 1002),
    "a ping without a mask": (framed(0x89, b"", masked=False), 1002),
    "reserved bits": (framed(0xF2, b"x"), 1002),
    "a reserved kind": (framed(0x83, b"x"), 1002),
    "a ping of 126 bytes": (framed(0x89, bytes(126)), 1002),
    "half a ping": (framed(0x09, b"x"), 1002),
    "the rest of nothing": (framed(0x80, b"x"), 1002),
    "a message in a message": (framed(0x02, b"\x10") + framed(0x82, b"x"), 1002),
    "more than a message may have": (b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), 1009),
    "a length with its highest bit": (b"\x82\xff" + (1 << 63).to_bytes(8, "big") + bytes(4), 1009),
    "a close with no such reason": (framed(0x88, b"\x00\x01"), 1002),
    "a close of one byte": (framed(0x88, b"\x03"), 1002),
    "a close that is not UTF-8": (framed(0x88, b"\x03\xe8\xff"), 1007),
    "a text": (framed(0x81, b"x"), 1003),
}


@pytest.mark.mqtt5("6.0.0-1")
@pytest.mark.mqtt311("6.0.0-1")
@pytest.mark.parametrize("kind", BAD_FRAMES)
@pytest.mark.parametrize("at_first", [True, False])
async def test_a_bad_frame_ends_the_connection(node: Node, kind: str, at_first: bool) -> None:
    data, code = BAD_FRAMES[kind]
    reader, writer = await upgraded(node.ports.ws)
    if not at_first:
        writer.write(framed(0x82, wire.CONNECT_5))
        (first, size) = await reader.readexactly(2)
        assert first == 0x82
        await reader.readexactly(size)
    writer.write(data)
    async with patience():
        assert (await reader.read())[:4] == b"\x88\x02" + code.to_bytes(2, "big")
    writer.close()
    await until(lambda: not node._front.connections)
    assert not node._sessions.open_sessions


async def test_a_message_in_thousands_of_fragments_with_pings_between_them(ports: Ports) -> None:
    reader, writer = await upgraded(ports.ws)
    writer.write(framed(0x82, wire.CONNECT_5))
    stream = wire.publish(5, b"t", bytes(3000), 1, 9)
    parts = [framed(0x00 if at else 0x02, stream[at : at + 1]) + framed(0x89, b"ping") for at in range(len(stream))]
    writer.write(b"".join(parts) + framed(0x80, b""))
    pongs = 0
    got = b""
    async with patience():
        while b"\x40" not in got[:1] or len(got) < 4:
            first, size = await reader.readexactly(2)
            data = await reader.readexactly(size if size < 126 else int.from_bytes(await reader.readexactly(2), "big"))
            if first == 0x8A:
                assert data == b"ping"
                pongs += 1
            else:
                assert first == 0x82
                got += data
                if got[:1] == b"\x20":
                    got = got[2 + got[1] :]
    assert (pongs, got[:4]) == (len(stream), b"\x40\x02\x00\x09")
    writer.close()


class Taken:
    """A reader that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""
        self.has_refused = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        self.has_refused = data is _INVALID_FRAME
        return False, b""

    def feed_eof(self) -> None:
        self.data += b"eof"


@pytest.mark.parametrize("seed", range(20))
def test_masked_frames_pass_in_any_pieces_and_others_do_not(seed: int) -> None:
    chance = random.Random(seed)
    good = b"".join(framed(0x82, chance.randbytes(chance.choice((0, 1, 125, 126, 300, 70_000)))) for _ in range(6))
    for tail, expected in ((b"", good), (framed(0x82, b"bad", masked=False) + b"more", good + b"\xf0\x80")):
        taken = Taken()
        frames = MaskedFrames(taken)
        data = good + tail
        size = chance.choice((1, 2, 3, 7, 1000, 1 << 20))
        for at in range(0, len(data), size):
            frames.feed_data(data[at : at + size])
            while frames.has_more:
                frames.feed_data(b"")
            if taken.has_refused:
                break
        assert taken.data == expected
    frames.feed_eof()
    assert taken.data.endswith(b"eof")


# --- what is no HTTP


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /mqtt \x80TTP/1.1\r\n\r\n",
        UPGRADE.replace(b"Version: 13", b"Version: \x8a"),
        UPGRADE.replace(b"AAAA", b"\xff\xff\xff\xff"),
        UPGRADE.replace(b"Protocol: mqtt", b"Protocol: amqp"),
        UPGRADE.replace(b"Protocol: mqtt", b"Protocol: \xc3\xa4"),
    ],
)
async def test_a_broken_request_fills_no_log(ports: Ports, caplog: pytest.LogCaptureFixture, request_: bytes) -> None:
    """It is answered with 400; a line or a traceback for each would be a way to fill the disk."""
    for port in (ports.ws, ports.http):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        status = (await reader.readuntil(b"\r\n")).split()[1]
        assert status == b"400" or (port == ports.http and status == b"404")
        writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("error", "is_told"), [(ConnectionError("Connection lost"), False), (ValueError("ours"), True)]
)
def test_a_client_that_resets_before_its_answer_logs_nothing(
    caplog: pytest.LogCaptureFixture, error: Exception, is_told: bool
) -> None:
    """Such as one that sends pings, takes no pongs and resets."""
    REQUESTS.error("Error handling request", exc_info=error)
    assert bool(caplog.records) == is_told


async def test_a_closed_connection_has_no_address(node: Node) -> None:
    """uvloop fails where others say that they do not know; what is told of the connection is told all the same."""

    class LetGo:
        def get_extra_info(self, _name: str) -> object:
            raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    (connection,) = node._front.connections
    transport, connection.transport = connection.transport, LetGo()  # type: ignore[assignment]
    assert connection.peer() == "a connection that is gone"
    connection.transport = transport
    await client.disconnect()


# --- packets that do not end


LARGE = wire.publish(5, b"t", bytes(900_000), 1, 1)


async def test_packets_that_never_end_take_a_bounded_memory(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Of all together the one that has taken the longest goes, and who ends its packets is served."""
    node = await make_node(mqtt__max_partial_bytes=3_000_000)
    partials = node._front._partial_packets
    clients = []
    for number in range(3):
        clients.append(await RawClient.connect(node.ports.mqtt, b"c%d" % number, 5))
        clients[number].send(LARGE[:-1])
        await until(lambda: partials._total >= (number + 1) * (len(LARGE) - 1))
    clients[0].send(LARGE[-1:] + LARGE[:-1])  # another one, and so the youngest
    await clients[0].expect(PUBACK)
    late = await RawClient.connect(node.ports.mqtt, b"late", 5)
    late.send(LARGE[:-1])
    assert (await clients[1].expect(DISCONNECT)).reason == 0x97
    await clients[1].closed()
    for client in (clients[0], clients[2], late):
        client.send(LARGE[-1:])
        assert (await client.expect(PUBACK)).reason == 0
    assert (partials._total, partials._sizes) == (0, {})
    assert len([each for each in caplog.records if "max_partial_bytes" in each.getMessage()]) == 1


@pytest.mark.parametrize("ends", ["drop", "bad"])
async def test_the_bytes_of_a_partial_packet_are_freed_with_its_connection(node: Node, ends: str) -> None:
    partials = node._front._partial_packets
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(LARGE[:-1])
    await until(lambda: partials._total)
    if ends == "drop":
        await client.drop()
    else:
        client.send(LARGE[-1:], b"\x00\x00")
        await client.reader.read()
    await until(lambda: not node._front.connections)
    assert (partials._total, partials._sizes) == (0, {})


@pytest.mark.parametrize("frames", [1, 3])
async def test_unfinished_websocket_messages_are_counted(make_node: MakeNode, frames: int) -> None:
    """A message that has not ended is handed on to nobody."""
    node = await make_node(mqtt__max_partial_bytes=3_000_000)
    partials = node._front._partial_packets
    async with aiohttp.ClientSession() as session:
        sockets = []
        for number in range(4):
            url = f"http://127.0.0.1:{node.ports.ws}/mqtt"
            socket = await session.ws_connect(url, protocols=("mqtt",))
            await socket.send_bytes(connect(5, b"c%d" % number))
            await socket.receive()
            size = -(-len(LARGE) // frames)
            parts = [LARGE[at : at + size] for at in range(0, len(LARGE), size)]
            kinds = [2, *[0] * (frames - 1)]
            kinds[-1] |= 0x80  # the last one
            whole = b""
            for kind, part in zip(kinds, parts, strict=True):
                whole += bytes((kind, 0xFF)) + len(part).to_bytes(8, "big") + bytes(4) + part
            before = partials._total
            socket._writer.transport.write(whole[:-1])
            sockets.append(socket)
            await until(lambda: partials._total >= min(before + len(LARGE) - 1, 3 * (len(LARGE) - 1)))
        await until(lambda: len(node._front.connections) != 4)
        told = await sockets[0].receive()
        assert told.data[:1] == b"\xe0"
        assert told.data[2] == 0x97
        for socket in sockets[1:]:
            socket._writer.transport.write(LARGE[-1:])
            assert (await socket.receive()).data[:1] == b"\x40"
        assert (partials._total, partials._sizes) == (0, {})


async def test_small_packets_of_a_large_read_are_not_counted(node: Node) -> None:
    """Bytes that wait for the next turn of the loop do not count as an unfinished packet."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(*[b"\xc0\x00"] * 100_000)
    for _ in range(100_000):
        await client.packet()
        assert not node._front._partial_packets._total
