"""A store in its own process, with HTTP and administration. Gateways in other processes serve devices and services."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from gateway.auth.authority import Authority
from gateway.broker.maintenance import SplitMaintenance
from gateway.broker.remote_sessions import RemoteSessions
from gateway.config.config import Config
from gateway.config.store import store_config
from gateway.http.metrics import Figures
from gateway.net.bind import check_host
from gateway.node.ports import Ports
from gateway.node.services import Services
from gateway.node.store_tls import store_credentials
from gateway.observe.counters import Counters
from notify.hub import Hub
from store.api import Commit
from store.commit_listeners import MESSAGES
from store.engine import Engine
from store.remote.config import RemoteConfig
from store.remote.server import StoreServer

_CHECK_SECONDS: Final = 0.05


class StoreNode:
    """A store. Start it once, and stop it once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self._engine: Engine | None = None
        self._commits = 0  # with messages

    async def start(self) -> Ports:
        """Open the store and listen. Raises StoreError, TlsError or OSError, and leaves nothing open then."""
        config = self.config
        settings = store_config(config)
        await check_host(config.host)
        await check_host(config.http_host, "http.host")
        self._engine = engine = await Engine.open(config.data_dir, settings)
        self._authority = authority = Authority(engine, config.mqtt.max_wrong_passwords)
        self._maintenance = SplitMaintenance(engine, authority, self.counters)
        self._server = StoreServer(engine, Hub(engine), RemoteConfig(grace_s=config.split.grace_s))
        engine.gateway_registry.on_ended = self._end
        self._server.on_gone(lambda name, _producer: engine.gateway_registry.expire(name.encode()))
        sessions = RemoteSessions(engine, engine.gateway_registry, self._maintenance.wills)
        engine.on_commit(self._on_messages, MESSAGES)
        self._services = Services(engine, authority, config, sessions, lambda: self._commits, self._figures)
        try:
            await self._services.admin.start()
            await self._maintenance.serve()
            grpc, http = await self._services.start()
            port = await self._server.start(config.split.listen, store_credentials(config.split))
            place = config.split.listen
            if not place.startswith("unix:"):
                place = f"{place.rpartition(':')[0]}:{port}"
            return Ports(-1, -1, grpc, http, {"store": place})
        except BaseException:
            await self._stop(engine.close_after_failed_start)
            raise

    async def reload(self) -> None:
        """Read the certificates again. Each handshake of gateways looks for new ones."""
        await self._services.reload()

    async def outlive_gateways(self, seconds: float) -> None:
        """Wait until all gateways have left, and have heard that they have: otherwise they would look for the store."""
        if self._engine is None:
            return
        registry = self._engine.gateway_registry
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while registry.figures or self._server.has_streams:  # noqa: ASYNC110  once in the life of a process
                    await asyncio.sleep(_CHECK_SECONDS)

    async def stop(self) -> None:
        """Stop serving. Accepted messages are committed. Gateways keep their connections for the grace time."""
        if self._engine is not None:
            await self._stop(self._engine.close)

    async def _stop(self, close: Callable[[], Awaitable[None]]) -> None:
        await self._maintenance.stop()
        await self._server.stop()
        await self._services.stop()
        self._authority.stop()
        await close()
        self._engine = None

    def _on_messages(self, _: Commit) -> None:
        self._commits += 1

    def _end(self, gateway: bytes) -> None:
        """Reject all further messages of a gateway that is declared dead."""
        self._server.end(gateway.decode())

    def _figures(self) -> dict[str, Figures]:
        engine = self._engine
        if engine is None:
            return {}
        return {name.partition(b"/")[0].decode(): each for name, each in engine.gateway_registry.figures.items()}
