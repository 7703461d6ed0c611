"""Where a shared log of a test is, and what can go wrong on the way to it."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from sluice.demo.engine_servers import NatsServers, SeaweedServers
from store.cluster.engines import open_shared_log
from store.cluster.shared_log import SharedLog, SharedLogUnavailable


@dataclass(frozen=True)
class Engine:
    """The place of one log."""

    url: str
    options: Mapping[str, Any]
    servers: NatsServers | SeaweedServers | None

    async def open(self, **options: Any) -> SharedLog:
        return await open_shared_log(self.url, {**self.options, **options})

    def port(self) -> int:
        """Of a server that serves the log."""
        return urlsplit(str(self.options["endpoint"])).port if "endpoint" in self.options else self.servers.ports[0]

    def through(self, port: int) -> "Engine":
        """The same log, reached by way of this port."""
        if "endpoint" in self.options:
            return replace(self, options={**self.options, "endpoint": f"http://127.0.0.1:{port}"})
        return replace(self, url=f"nats://127.0.0.1:{port}{urlsplit(self.url).path}")


async def settle(log: SharedLog, slot: int, data: bytes) -> bytes:
    """Repeat a write until the slot is decided, as a leader does. Returns what the slot has."""
    async with asyncio.timeout(200):  # servers may have to start again meanwhile
        while True:
            with suppress(SharedLogUnavailable):
                if await log.create(slot, data):
                    return data
                found = await log.read(slot)
                assert found is not None
                return found
            await asyncio.sleep(0.05)


class Proxy:
    """Passes bytes on between clients and one server. While `loses_answers`, an answer cuts its connection instead."""

    def __init__(self, port: int) -> None:
        self.loses_answers = False
        self.lost = 0  # answers
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        asks = asyncio.ensure_future(self._pass(reader, back, False))
        answers = asyncio.ensure_future(self._pass(there, writer, True))
        try:
            await asyncio.wait((asks, answers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (asks, answers):
                each.cancel()
            writer.close()
            back.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_answer and self.loses_answers:
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()
