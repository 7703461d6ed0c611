"""Which servers connectors to NATS connect to."""

import asyncio
import json
from contextlib import suppress

from connect.connectors.nats.settings import connected
from connect.connectors.nats.sink import NatsSink
from tests.connect.connectors.harness import Context, settings_of


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of NATS that names another one of its cluster."""
    info = {"server_id": "a", "version": "2.10.0", "max_payload": 1 << 20, "connect_urls": ["10.0.0.1:4222"]}
    writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
    with suppress(ConnectionError):
        async for line in reader:
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
    writer.close()


async def test_servers_that_a_server_names_are_not_asked() -> None:
    async with await asyncio.start_server(_serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await connected(settings_of(NatsSink(), {"nats.servers": f"nats://127.0.0.1:{port}"}), Context())
        try:
            assert [each.port for each in client.servers] == [port]
        finally:
            await client.close()
