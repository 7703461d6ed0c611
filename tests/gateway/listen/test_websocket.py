"""MQTT over WebSocket (section 6)."""

import asyncio

import aiohttp
import pytest

from gateway.node.node import Node, Ports
from tests.gateway.mqtt import wire
from tests.gateway.raw import RawClient
from tests.waiting import patience, until

CONNECT = wire.connect_packet(4)


class Peer:
    """A WebSocket whose frames are glued to the packets they carry."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.data = b""

    async def packet(self) -> tuple[int, bytes]:
        """The kind of the next packet and what is behind its length."""
        while True:
            for size in range(2, 6):
                if len(self.data) >= size and self.data[size - 1] < 0x80:
                    length = sum((self.data[1 + i] & 0x7F) << 7 * i for i in range(size - 1))
                    if len(self.data) >= size + length:
                        kind, body = self.data[0] >> 4, self.data[size : size + length]
                        self.data = self.data[size + length :]
                        return kind, body
                    break
            async with patience():
                self.data += await self.socket.receive_bytes()


@pytest.mark.mqtt5("6.0.0-2", "6.0.0-4")
@pytest.mark.mqtt311("6.0.0-2", "6.0.0-4")
@pytest.mark.parametrize("path", ["/mqtt", "/"])
async def test_packets_may_be_split_over_websocket_frames_anywhere(ports: Ports, path: str) -> None:
    """MQTT-6.0.0-2, -4: a frame is a piece of the stream, no packet; the subprotocol is `mqtt`."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{ports.ws}{path}", protocols=("mqtt",)) as socket,
    ):
        assert socket.protocol == "mqtt"
        peer = Peer(socket)
        stream = CONNECT + wire.subscribe(4, 1, (b"t", 1)) + wire.publish(4, b"t", b"x", 1, 2)
        for i in range(len(stream)):
            await socket.send_bytes(stream[i : i + 1])
        kinds = sorted([(await peer.packet())[0] for _ in range(4)])
        assert kinds == [2, 3, 4, 9]
        await socket.send_bytes(b"\x40\x02\x00\x01" + b"\xc0\x00" * 3 + wire.publish(4, b"t", b"y", 0))
        assert [(await peer.packet())[0] for _ in range(3)] == [13, 13, 13]
        assert (await peer.packet())[1] == wire.text(b"t") + b"y"
        await socket.send_bytes(b"\xe0\x00")
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.mqtt5("6.0.0-1")
@pytest.mark.mqtt311("6.0.0-1")
async def test_a_text_frame_ends_the_connection(node: Node) -> None:
    """MQTT-6.0.0-1."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{node.ports.ws}/mqtt", protocols=("mqtt",)) as socket,
    ):
        await socket.send_bytes(CONNECT)
        await socket.receive_bytes()
        await socket.send_str("hello")
        closing = await socket.receive()
        assert (closing.type, closing.data) == (aiohttp.WSMsgType.CLOSE, 1003)
    await until(lambda: not node._front.connections)
    assert not node._sessions.open_sessions


@pytest.mark.mqtt5("6.0.0-3")
@pytest.mark.mqtt311("6.0.0-3")
async def test_another_subprotocol_is_refused(ports: Ports) -> None:
    """MQTT-6.0.0-3; and plain HTTP hears what is served here."""
    async with aiohttp.ClientSession() as session:
        for protocols in ((), ("amqp",)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"http://127.0.0.1:{ports.ws}/mqtt", protocols=protocols)
            assert refused.value.status == 400
        async with session.get(f"http://127.0.0.1:{ports.ws}/mqtt") as answer:
            assert answer.status == 426
            assert "WebSocket" in await answer.text()


async def test_large_messages_pass_through_a_websocket(ports: Ports) -> None:
    payload = bytes(range(256)) * 4000
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{ports.ws}/mqtt", protocols=("mqtt",), max_msg_size=0) as socket,
    ):
        peer = Peer(socket)
        await socket.send_bytes(CONNECT + wire.subscribe(4, 1, (b"t", 0)))
        await socket.send_bytes(wire.publish(4, b"t", payload, 1, 2))
        bodies = [await peer.packet() for _ in range(4)]
        assert wire.text(b"t") + payload in [body for _, body in bodies]


async def test_a_congested_websocket_drops_qos_0_and_continues(node: Node) -> None:
    """Design section 5.4, as over TCP."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{node.ports.ws}/mqtt", protocols=("mqtt",), max_msg_size=0) as socket,
    ):
        peer = Peer(socket)
        await socket.send_bytes(CONNECT + wire.subscribe(4, 1, (b"t", 0)))
        assert [(await peer.packet())[0] for _ in range(2)] == [2, 9]
        publisher = await RawClient.connect(node.ports.mqtt, b"p")
        number = 0
        while not node.counters.dropped_qos0:
            await publisher.publish(b"t", b"%06d" % number + b"." * 100_000, 1)
            number += 1
            assert number < 5000
        sent = node.counters.messages_sent
        numbers = [int((await peer.packet())[1][3:9]) for _ in range(sent)]
        assert numbers == sorted(numbers)
        await publisher.publish(b"t", b"999999", 1)
        assert (await peer.packet())[1][3:9] == b"999999"


async def test_a_websocket_that_takes_nothing_is_let_go(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.ports.ws)
    writer.write(
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    for packet in (CONNECT, wire.subscribe(4, 1, (b"t", 0))):
        writer.write(bytes((0x82, 0x80 | len(packet), 0, 0, 0, 0)) + packet)
    answers = b""
    while len(answers) < 4 + 5:  # CONNACK and SUBACK, in one frame or in two
        _, length = await reader.readexactly(2)
        answers += await reader.readexactly(length)
    writer.transport.pause_reading()
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    while not node.counters.dropped_qos0:
        await publisher.publish(b"t", b"." * 100_000, 1)
    old = node._sessions.open_sessions[b"c"][1]
    new = await RawClient.connect(node.ports.mqtt, b"c")
    assert old in node._front.connections
    await until(lambda: old not in node._front.connections)
    await new.quiet()
    writer.close()
