"""The HTTP front: `/health` and `/metrics`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.bind import is_local
from gateway.gate import Gate
from gateway.listen import IDLE_SECONDS, REQUESTS, bound_port, listen
from gateway.metrics import Figures, NodeCollector
from store.api import Store

_MAX_CONNECTIONS: Final = 64  # of people and scrapers together


class HttpFront:
    """Serves people and Prometheus."""

    def __init__(
        self, store: Store, sources: Callable[[], Mapping[str, Figures]], gates: Callable[[], Sequence[Gate]] = list
    ) -> None:
        """sources, gates: see `gateway.metrics`."""
        self._store = store
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(store, sources, gates))
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError."""
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app, access_log=None, logger=REQUESTS, shutdown_timeout=1.0, keepalive_timeout=IDLE_SECONDS
        )
        await self._runner.setup()
        self._listener = await listen(self._runner, host, port, self._has_room)
        return bound_port(self._listener)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self._listener is not None and is_local(self._listener.sockets)

    def _has_room(self) -> bool:
        server = self._runner.server if self._runner is not None else None
        return server is not None and len(server.connections) < _MAX_CONNECTIONS

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        """200 while the log takes appends, 503 when it has failed."""
        stats = self._store.stats()
        status = "failed" if stats.failed else "ok"
        body = {"status": status, "log_end": stats.log_end, "checkpoint": stats.checkpoint}
        if stats.damaged_places or stats.damage_met:
            body |= {"damaged_places": stats.damaged_places, "damage_met": stats.damage_met}
        return web.json_response(body, status=503 if stats.failed else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
