"""Webhooks whose endpoints hang, trickle, flood, hang up, or speak something else: no event is lost, and no other rule
waits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.gateway.conftest import MakeNode
from tests.gateway.eventing.rules import LOOPBACK, arrived, eventually, letters_of, publish, rule, set_rule
from tests.waiting import until

Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def hangs(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def trickles(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A header that never ends, a byte at a time."""
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def floods(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A refusal with a body that never ends."""
    writer.write(b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def floods_with_headers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def resets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def hangs_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    writer.close()


async def speaks_something_else(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    writer.close()


@asynccontextmanager
async def endpoint(behaviour: list[Streams]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Behaves so once a request is there; without a behaviour it answers 200. Yields its URL and the requests."""
    got: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                got.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(1)
                if behaviour:
                    await behaviour[0](reader, writer)
                    return
                writer.write(OK)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", got
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (hangs, "has not answered within 1 s"),
        (trickles, "has not answered within 1 s"),
        (floods, "status 400: xxx"),
        (floods_with_headers, "failed: "),
        (resets, "failed: "),
        (hangs_up, "failed: "),
        (speaks_something_else, "failed: "),
    ],
)
async def test_an_endpoint_that_misbehaves_gets_the_event_again(
    make_node: MakeNode, behaviour: Streams, error: str
) -> None:
    node = await make_node(events__webhook_networks=LOOPBACK, store__retry_delays_s=[1])
    behaviours = [behaviour]
    async with endpoint(behaviours) as (url, got):
        await set_rule(node, "hook", topics=["in"], webhook={"url": url, "timeout_s": 1})
        await set_rule(node, "other", topics=["in"], topic={"topic": "out"})
        await publish(node, "in", "1")
        assert await arrived(node, "out", 1) == ["1"], "another rule does not wait for it"

        async def failed() -> bool:
            return (await rule(node, "hook")).figures.failed > 0

        await eventually(failed)
        assert error in (await rule(node, "hook")).figures.error
        behaviours.clear()

        async def delivered() -> bool:
            return (await rule(node, "hook")).figures.delivered == 1

        await eventually(delivered)
        assert len(got) >= 2
        assert await letters_of(node, "hook") == []


async def test_a_node_stops_while_endpoints_hang(make_node: MakeNode) -> None:
    node = await make_node(events__webhook_networks=LOOPBACK)
    async with endpoint([hangs]) as (url, got):
        await set_rule(node, "hook", topics=["in"], webhook={"url": url, "timeout_s": 60, "in_flight": 8})
        await publish(node, "in", *map(str, range(20)))
        await until(lambda: len(got) == 8)
        await node.stop()
