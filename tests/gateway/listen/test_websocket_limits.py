"""Connections that are to become WebSockets and do not: they are in their own way, and not in that of others."""

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from gateway.listen import websocket
from gateway.node.node import Node
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode

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
    async with asyncio.timeout(10):
        while not set(front.waiting) - before:  # noqa: ASYNC110  nobody tells of it
            await asyncio.sleep(0)
    return stream


async def is_closed(stream: Stream) -> bool:
    """Whether the node has closed it by now. It never says anything."""
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(0.2):
            return await stream[0].read(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def upgrades(node: Node) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{node.ports.ws}/mqtt", protocols=("mqtt",)) as socket,
    ):
        assert socket.protocol == "mqtt"


async def test_who_says_nothing_makes_room_for_who_does(make_node: MakeNode) -> None:
    node = await make_node()
    held = [await idle(node) for _ in range(LIMIT + 3)]
    assert len(node._devices.websocket.waiting) == LIMIT
    assert [await is_closed(stream) for stream in held] == [True] * 3 + [False] * LIMIT
    await upgrades(node)
    (admission,) = [admission for admission in node._front.admissions if admission.name == "ws"]
    assert admission.refused_full == 4
    for _, writer in held:
        writer.close()
    async with asyncio.timeout(10):
        while admission.opening or admission.open:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_who_opens_many_is_in_his_own_way_only(make_node: MakeNode) -> None:
    node = await make_node()
    other = await idle(node, "127.0.0.2")
    held = [await idle(node) for _ in range(2 * LIMIT)]
    assert not await is_closed(other)
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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(10):
        while admission.opening:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert admission.refused_tls == LIMIT + 1
