"""Where a shared log of a test is, and what can go wrong on the way to it."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import nats

from sluice.demo.engine_servers import NatsServers, SeaweedServers
from store.cluster import jetstream_log
from store.cluster.engines import open_shared_log
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from tests.waiting import patience


@dataclass(frozen=True)
class Engine:
    """The place of one log."""

    url: str
    options: Mapping[str, Any]
    servers: NatsServers | SeaweedServers | None

    async def open(self, **options: Any) -> SharedLog:
        """Open the log. A stream is served a moment after it was created."""
        async with patience():
            while True:
                with suppress(SharedLogUnavailable):
                    log = await open_shared_log(self.url, {**self.options, **options})
                    break
                await asyncio.sleep(0.05)
            while True:
                with suppress(SharedLogUnavailable):
                    await log.read(1 << 40)
                    return log
                await asyncio.sleep(0.05)

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


async def decided(log: SharedLog, slot: int) -> bytes:
    """Wait until a slot is decided. Returns what it has."""
    async with patience():
        while True:
            with suppress(SharedLogUnavailable):
                if (data := await log.read(slot)) is not None:
                    return data
            await asyncio.sleep(0.02)


class Stream:
    """The stream of a log, as somebody else with the same rights can change it."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.url.rpartition("/")[2]
        self._engine = engine

    async def __aenter__(self) -> "Stream":
        self._client = await nats.connect([f"nats://127.0.0.1:{port}" for port in self._engine.servers.ports])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def ask(self, what: str, **request: Any) -> dict[str, Any]:
        subject = f"$JS.API.STREAM.{what}.{self.name}"
        answer = json.loads((await self._client.request(subject, json.dumps(request).encode(), timeout=10)).data)
        assert "error" not in answer, answer
        return answer

    async def make(self, **settings: Any) -> None:
        """Make the stream, with other settings than a log has."""
        config = {"name": self.name, "subjects": [f"{self.name}.slots"], "num_replicas": 3, **jetstream_log._SETTINGS}
        await self.ask("CREATE", **{**config, **settings})
