"""A node: the store and the fronts of one process, put together, started and stopped."""

import logging

from gateway.admin.socket import AdminFront
from gateway.broker.maintenance import Maintenance
from gateway.config.config import Config
from gateway.config.store import store_config
from gateway.net.bind import check_host
from gateway.node.devices import Devices
from gateway.node.ports import Ports as Ports  # noqa: PLC0414  part of this face
from gateway.node.services import make_authority, make_http, make_rpc, warn_of_open_ports
from gateway.observe.counters import Counters
from store.engine import Engine

log = logging.getLogger(__name__)

_STOP_GRACE = 2.0  # seconds for gRPC calls to end


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
        self._engine = engine = await Engine.open(config.data_dir, settings)
        self._authority = authority = make_authority(engine, config)
        self._devices = devices = Devices(engine, authority, config, self.counters)
        self._router, self._sessions, self._front = devices.router, devices.sessions, devices.front
        self._maintenance = Maintenance(engine, self._sessions.wills, self._sessions.held.__contains__)
        self._rpc = make_rpc(engine, authority, config, settings)
        self._http = make_http(
            engine, authority, config, lambda: {"": devices.figures()}, lambda: devices.front.admissions, self._rpc
        )
        self._admin = AdminFront(engine, self._sessions, config.data_dir)
        try:
            await self._admin.start()
            await self._maintenance.clean_up_after(_everybody)
            self._maintenance.start()
            await devices.start(_never)
            grpc = await self._rpc.start(config.host, config.grpc.port)
            http = await self._http.start(config.host, config.http.port)
            if not self._http.is_local:
                warn_of_open_ports(config, grpc, http)
            addresses = await devices.listen()
            mqtt, ws = (int(addresses.pop(name, "-1").rpartition(":")[2]) for name in ("mqtt", "ws"))
            self.ports = Ports(mqtt, ws, grpc, http, addresses)
            return self.ports
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> None:
        """Read the certificates again."""
        await self._devices.reload()

    async def stop(self) -> None:
        """Stop the fronts, the sessions, and the store. Accepted messages are committed."""
        if self._engine is None:
            return
        await self._maintenance.stop()
        await self._devices.stop()
        await self._rpc.stop(_STOP_GRACE)
        await self._http.stop()
        await self._admin.stop()
        self._authority.stop()
        await self._engine.close()
        self._engine = None


def _never() -> None:
    """Do nothing: a single node is never declared dead."""


def _everybody(_: bytes) -> bool:
    """Return True: all connections of an earlier run are gone."""
    return True
