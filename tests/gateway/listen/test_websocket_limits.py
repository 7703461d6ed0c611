"""Connections that are to become WebSockets and do not: they are in their own way, and not in that of others."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import aiohttp
import pytest

from gateway.connection.connection import Connection
from gateway.listen import websocket
from gateway.listen.websocket_masking import FRAMES_PER_TURN, MaskedFrames
from gateway.node.node import Node
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode
from tests.gateway.connection.test_hostile import framed, upgraded
from tests.gateway.mqtt import wire
from tests.gateway.net.test_descriptors import is_closed
from tests.waiting import patience, until

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMIT = 8


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_MAX_WAITING", LIMIT)


async def idle(node: Node, host: str = "127.0.0.1") -> Stream:
    """A connection that says nothing, and that the node knows of."""
    front = node._devices.websocket
    before = set(front.waiting)
    stream = await asyncio.open_connection("127.0.0.1", node.ports.ws, local_addr=(host, 0))
    await until(lambda: set(front.waiting) - before)
    return stream


async def upgrades(node: Node) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{node.ports.ws}/mqtt", protocols=("mqtt",)) as socket,
    ):
        assert socket.protocol == "mqtt"


async def test_silent_connections_make_room_for_active_ones(make_node: MakeNode) -> None:
    node = await make_node()
    held = [await idle(node) for _ in range(LIMIT + 3)]
    assert len(node._devices.websocket.waiting) == LIMIT
    await until(lambda: [is_closed(stream) for stream in held] == [True] * 3 + [False] * LIMIT)
    await upgrades(node)
    (admission,) = [admission for admission in node._front.admissions if admission.name == "ws"]
    assert admission.refused_full == 4
    for _, writer in held:
        writer.close()
    await until(lambda: not (admission.opening or admission.open))


async def test_many_connections_from_one_address_displace_each_other_only(make_node: MakeNode) -> None:
    node = await make_node()
    other = await idle(node, "127.0.0.2")
    held = [await idle(node) for _ in range(2 * LIMIT)]
    await until(lambda: sum(map(is_closed, held)) == LIMIT + 1)
    assert not is_closed(other)
    for _, writer in [other, *held]:
        writer.close()


async def test_a_header_that_drips_has_no_longer_than_others(make_node: MakeNode) -> None:
    node = await make_node(mqtt__connect_timeout=1)
    reader, writer = await idle(node)

    async def drip() -> None:
        writer.write(b"GET /mqtt HTTP/1.1\r\nX-Slow: ")
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    async with patience():
        with suppress(ConnectionError):
            assert await reader.read(1) == b""
    dripping.cancel()
    (admission,) = [admission for admission in node._front.admissions if admission.name == "ws"]
    assert (admission.refused_late, admission.opening) == (1, 0)
    writer.close()


async def test_handshakes_of_tls_that_fail_take_no_place(
    make_node: MakeNode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate, key = authority.issue("server", "server", "DNS:localhost")
    certificates = [{"file": str(certificate), "key": str(key)}]
    listener = {"name": "tls", "address": "127.0.0.1:0", "protocol": "wss", "certificates": certificates}
    node = await make_node(mqtt__listeners=[listener])
    port = int(node.ports.addresses["tls"].rpartition(":")[2])
    for _ in range(LIMIT + 1):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"this is not TLS\r\n\r\n")
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()
    assert node._devices.websocket.waiting == {}
    (admission,) = [admission for admission in node._front.admissions if admission.name == "tls"]
    await until(lambda: not admission.opening)
    assert admission.refused_tls == LIMIT + 1


# --- frames that cost the others their turn

PING = framed(0x89, b"")
PONG = b"\x8a\x00"


class Turns:
    """Counts work in each turn of the loop."""

    def __init__(self) -> None:
        self.most = 0
        self.total = 0
        self._current = 0

    def add(self, work: int) -> None:
        if not self._current:
            asyncio.get_running_loop().call_soon(self._next)
        self._current += work
        self.total += work
        self.most = max(self.most, self._current)

    def _next(self) -> None:
        self._current = 0


class _Reader:
    """Counts the frames that aiohttp's reader is given; all of them are pings without content."""

    def __init__(self) -> None:
        self.frames: list[int] = []

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.frames.append(len(data) // len(PING))
        return False, b""

    def feed_eof(self) -> None: ...


def test_a_read_of_frames_is_handed_on_in_parts() -> None:
    reader = _Reader()
    frames = MaskedFrames(reader)
    frames.feed_data(PING * 1000)
    while frames.has_more:
        frames.feed_data(b"")
    assert sum(reader.frames) == 1000
    assert max(reader.frames) == FRAMES_PER_TURN


@contextmanager
def counted_pongs() -> Iterator[Turns]:
    turns = Turns()
    send = aiohttp.web.WebSocketResponse.pong

    async def pong(self: aiohttp.web.WebSocketResponse, message: bytes | str = b"") -> None:
        turns.add(1)
        await send(self, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiohttp.web.WebSocketResponse, "pong", pong)
        yield turns


async def test_pings_of_one_read_are_answered_in_many_turns(node: Node) -> None:
    """A client with a session may send pings, but no more in a turn of the loop than it may send messages."""
    reader, writer = await upgraded(node.ports.ws)
    writer.write(framed(0x82, wire.CONNECT_5))
    (_, size) = await reader.readexactly(2)
    await reader.readexactly(size)
    count = 20_000
    with counted_pongs() as turns:
        writer.write(PING * count)
        async with patience():
            assert await reader.readexactly(2 * count) == PONG * count
    assert turns.total == count
    assert turns.most <= 2 * FRAMES_PER_TURN  # two reads may be handled in one turn
    writer.close()


async def test_pings_before_connect_end_the_connection(node: Node) -> None:
    reader, writer = await upgraded(node.ports.ws)
    with counted_pongs() as turns:
        writer.write(PING * 20_000)
        async with patience():
            with suppress(ConnectionError):
                assert (await reader.read()).endswith(b"\x88\x02" + (1008).to_bytes(2, "big"))
    assert turns.total == websocket._MAX_IDLE_FRAMES
    assert node.counters.protocol_errors == 1
    writer.close()


async def test_few_pings_before_connect_are_answered(node: Node) -> None:
    reader, writer = await upgraded(node.ports.ws)
    writer.write(PING * websocket._MAX_IDLE_FRAMES)
    writer.write(framed(0x82, wire.CONNECT_5))
    async with patience():
        assert await reader.readexactly(2 * websocket._MAX_IDLE_FRAMES) == PONG * websocket._MAX_IDLE_FRAMES
        assert (await reader.readexactly(3))[2] == 0x20
    writer.close()


async def test_messages_of_one_read_are_decoded_in_many_turns(node: Node) -> None:
    """Each is as much work as a turn allows; together they are a single read of the socket."""
    pings, messages = 4000, 24
    turns = Turns()
    receive = Connection.receive

    def counted(self: Connection, data: bytes) -> None:
        turns.add(len(data))
        receive(self, data)

    reader, writer = await upgraded(node.ports.ws)
    writer.write(framed(0x82, wire.CONNECT_5))
    (_, size) = await reader.readexactly(2)
    await reader.readexactly(size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "receive", counted)
        writer.write(framed(0x82, b"\xc0\x00" * pings) * messages)
        got = 0
        async with patience():
            while got < 2 * pings * messages:
                (_, size) = await reader.readexactly(2)
                if size == 126:
                    size = int.from_bytes(await reader.readexactly(2), "big")
                elif size == 127:
                    size = int.from_bytes(await reader.readexactly(8), "big")
                got += len(await reader.readexactly(size))
    assert turns.total == 2 * pings * messages
    assert turns.most <= 6 * pings
    writer.close()
