"""A store in its own process, with HTTP and administration. Gateways in other processes serve devices and services."""

from collections.abc import Awaitable, Callable

from gateway.auth.authenticators.links import links_of
from gateway.config.config import Config
from gateway.config.reload import Changes
from gateway.config.store import store_config
from gateway.net.bind import check_host
from gateway.node.ports import Ports
from gateway.node.reloading import SupervisorLink, change_settings
from gateway.node.served_store import ServedStore
from gateway.node.services import Services
from gateway.node.store_tls import store_tls
from gateway.node.tracing import Tracing
from gateway.registry.bound_schemas import BoundSchemas
from store.engine import Engine
from store.remote.config import RemoteConfig
from store.remote.server.listener import StoreListener


class StoreNode:
    """A store. Start it once, and stop it once."""

    def __init__(self, config: Config, supervisor: SupervisorLink | None = None) -> None:
        """supervisor: of this process and its gateways; None: they are started one by one."""
        self.config = config
        self._supervisor = supervisor
        self._engine: Engine | None = None

    async def start(self) -> Ports:
        """Open the store and listen. Raises StoreError, TlsError or OSError, and leaves nothing open then."""
        config = self.config
        settings = store_config(config)
        await check_host(config.host)
        await check_host(config.http_host, "http.host")
        links = links_of(config.auth)
        self._engine = engine = await Engine.open(config.data_dir, settings)
        self._tracing = tracing = Tracing(config, "store")
        tracing.trace_commits(engine)
        self._served = served = ServedStore(engine, config, links)
        self._schemas = BoundSchemas(engine)
        self._services = Services(
            engine,
            served.authority,
            config,
            served.sessions,
            served.services,
            lambda: served.commits,
            served.figures,
            self._reload_all,
            self._schemas,
            tracing=tracing,
        )
        self._listener = StoreListener(RemoteConfig(), manage=self._services.passed_calls.answer)
        try:
            await self._services.admin.start()
            await served.begin()
            await self._schemas.start()
            grpc, http = await self._services.start()
            served.serve(self._listener)
            port = await self._listener.open(config.split.listen, store_tls(config.split))
            place = config.split.listen
            if not place.startswith("unix:"):
                place = f"{place.rpartition(':')[0]}:{port}"
            return Ports(-1, -1, grpc, http, {"store": place})
        except BaseException:
            await self._stop(engine.close_after_failed_start)
            raise

    async def reload(self) -> Changes | None:
        """Read the configuration and the certificates again: see `Node`. Each handshake of gateways looks for new
        certificates."""
        changes = change_settings(self.config)
        if self._engine is not None:
            self._engine.change_retention(store_config(self.config))
        await self._services.reload()
        return changes

    async def _reload_all(self) -> Changes | None:
        """Let all processes of the node do so, if they have a supervisor."""
        return await self.reload() if self._supervisor is None else self._supervisor.reload_all(self.config)

    async def outlive_gateways(self, seconds: float) -> None:
        """Wait until all gateways have left, and have heard that they have: otherwise they would look for the store."""
        if self._engine is not None:
            await self._served.outlive_gateways(seconds)

    async def stop(self) -> None:
        """Stop serving. Accepted messages are committed. Gateways keep their connections for the grace time."""
        if self._engine is not None:
            await self._stop(self._engine.close)

    async def _stop(self, close: Callable[[], Awaitable[None]]) -> None:
        await self._served.stop()
        await self._listener.close()
        await self._services.stop()
        await self._schemas.stop()
        await close()
        await self._tracing.stop()
        self._engine = None
