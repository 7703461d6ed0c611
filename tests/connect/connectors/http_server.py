"""A small HTTP server that notes what it is sent, and answers as a test says."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Got:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    url: str = ""
    port: int = 0
    got: list[Got] = field(default_factory=list)
    answer: Callable[[Got], web.Response] = lambda got: web.Response()
    most_at_once: int = 0
    gate: asyncio.Event | None = None  # answers wait for it
    _at_once: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        if "gzip" in request.headers.get("Content-Encoding", "") and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        names = {name.lower(): value for name, value in request.headers.items()}
        got = Got(request.method, request.raw_path.partition("?")[0], dict(request.query), names, body)
        self.got.append(got)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            return self.answer(got)
        finally:
            self._at_once -= 1


@asynccontextmanager
async def http_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server.port = runner.addresses[0][1]
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.port}"
    try:
        yield server
    finally:
        await runner.cleanup()
