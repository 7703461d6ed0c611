"""The gRPC port limits connections and reports the number of calls in progress."""

import asyncio

import aiohttp
import pytest

from cloud_sdk import Client, Unavailable
from gateway.net import descriptors
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connection(port: int) -> Stream:
    """A connection that starts HTTP/2 and that the node accepts and answers."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        try:
            if await reader.read(1):
                return reader, writer
        except ConnectionResetError:
            pass
        writer.close()
        await asyncio.sleep(0.01)


async def is_refused(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()


@pytest.mark.parametrize("by", ["setting", "descriptors"])
async def test_connections_beyond_the_limit_are_refused(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "descriptors":
        monkeypatch.setattr(descriptors, "_limit", lambda: 16)
    node = await make_node(grpc__max_connections=2 if by == "setting" else 1000)
    port = node.ports.grpc
    held = [await connection(port) for _ in range(2)]
    assert await is_refused(port)
    async with Client(f"127.0.0.1:{port}", retry_seconds=0.5) as late:
        with pytest.raises(Unavailable):
            await late.partitions("home")
    held[0][1].close()
    held.append(await connection(port))
    while not await is_refused(port):
        pass


async def calls_of(node: Node) -> float:
    url = f"http://127.0.0.1:{node.ports.http}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        (line,) = [each for each in (await answer.text()).splitlines() if each.startswith("sluice_service_calls ")]
        return float(line.rpartition(" ")[2])


async def test_metrics_have_the_calls_in_progress(node: Node) -> None:
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        await client.partitions("home")
        while await calls_of(node):  # the count may change after the reply
            pass
        waiting = asyncio.create_task(client.pull("home", 0, 0, wait_seconds=60))
        while await calls_of(node) != 1:
            assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while await calls_of(node):
            pass
