"""A node: the store and the fronts of one process, put together, started and stopped."""

from collections.abc import Awaitable, Callable
from functools import partial

from gateway.auth.audit import AuditLog
from gateway.auth.authenticators.links import links_of
from gateway.auth.authority import Authority
from gateway.broker.maintenance import Maintenance
from gateway.broker.service_directory import LocalServices
from gateway.config.config import Config
from gateway.config.reload import Changes
from gateway.config.store import store_config
from gateway.net.bind import check_host
from gateway.node.devices import Devices
from gateway.node.ports import Ports as Ports  # noqa: PLC0414  part of this face
from gateway.node.reloading import change_settings
from gateway.node.services import Services
from gateway.node.tracing import Tracing
from gateway.observe.counters import Counters, device_messages
from gateway.observe.service_clients import ServiceClients
from gateway.registry.bound_schemas import BoundSchemas
from store.engine import Engine


class Node:
    """A node with devices, services and the store in one process. Start it once, and stop it once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self._engine: Engine | None = None

    async def start(self) -> Ports:
        """Open the store and listen. Raises StoreError, TlsError or OSError, and leaves nothing open then."""
        config = self.config
        settings = store_config(config)
        await check_host(config.host)
        await check_host(config.http_host, "http.host")
        links = links_of(config.auth)
        self._engine = engine = await Engine.open(config.data_dir, settings)
        self._tracing = tracing = Tracing(config, "node")
        tracing.trace_commits(engine)
        audit = AuditLog(config.audit, "node", engine)
        wrong = config.mqtt.max_wrong_passwords
        self._authority = authority = Authority(engine, wrong, audit, config.auth, links)
        self._schemas = schemas = BoundSchemas(engine)
        checks = schemas.checks
        self._devices = devices = Devices(
            engine, authority, config, self.counters, tracing=tracing, payload_checks=checks
        )
        self._router, self._sessions, self._front = devices.router, devices.sessions, devices.front
        self._maintenance = Maintenance(engine, self._sessions.wills, self._sessions.open_sessions.__contains__)
        self._services = services = Services(
            engine,
            authority,
            config,
            self._sessions,
            LocalServices(ServiceClients(), self._sessions),
            partial(device_messages, self.counters),
            lambda: {"": devices.figures()},
            self.reload,
            schemas,
            lambda: devices.front.admissions,
            tracing,
        )
        try:
            await services.admin.start()
            await self._maintenance.clean_up_after(_everybody)
            self._maintenance.start()
            await schemas.start()
            await devices.start(_never)
            self.ports = await devices.listen(*await services.start())
            return self.ports
        except BaseException:
            await self._stop(engine.close_after_failed_start)
            raise

    async def reload(self) -> Changes | None:
        """Read the configuration and the certificates again. Returns what has changed; None if the configuration was
        not read from anywhere. Raises ConfigError, and changes nothing then."""
        changes = change_settings(self.config)
        self._devices.set_limits()
        if self._engine is not None:
            self._engine.change_retention(store_config(self.config))
        await self._devices.reload()
        await self._services.reload()
        return changes

    async def stop(self) -> None:
        """Stop the fronts, the sessions, and the store. Accepted messages are committed."""
        if self._engine is not None:
            await self._stop(self._engine.close)

    async def _stop(self, close: Callable[[], Awaitable[None]]) -> None:
        await self._maintenance.stop()
        await self._devices.stop()
        await self._services.stop()
        await self._schemas.stop()
        await self._authority.stop()
        await close()
        await self._tracing.stop()
        self._engine = None


def _never() -> None:
    """Do nothing: a single node is never declared dead."""


def _everybody(_: bytes) -> bool:
    """Return True: all connections of an earlier run are gone."""
    return True
