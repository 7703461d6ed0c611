"""An open store and what serves it to gateways in other processes."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from gateway.auth.audit import AuditLog
from gateway.auth.authenticators.authenticator import Link
from gateway.auth.authority import Authority
from gateway.broker.maintenance import SplitMaintenance
from gateway.broker.remote_sessions import RemoteServices, RemoteSessions
from gateway.config.config import Config
from gateway.http.metrics import Figures
from gateway.observe.counters import Counters
from gateway.observe.service_clients import ServiceClients
from notify.hub import Hub
from store.api import Commit
from store.commit_listeners import MESSAGES
from store.engine import Engine
from store.remote.config import RemoteConfig
from store.remote.server.attached import Confirm
from store.remote.server.listener import StoreListener
from store.remote.server.store_server import StoreServer

_CHECK_SECONDS: Final = 0.05


class ServedStore:
    """A store with its server, users and maintenance. Create it on the loop, `begin` and `serve` it, and `stop` it."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        links: Iterable[Link],
        confirm: Confirm = lambda: None,
        clients: ServiceClients | None = None,
    ) -> None:
        """links: see `Authority`. confirm: see `StoreServer`. clients: services that call this process."""
        self.engine = engine
        wrong, audit = config.mqtt.max_wrong_passwords, AuditLog(config.audit, "store", engine)
        self.authority = Authority(engine, wrong, audit, config.auth, links)
        self._maintenance = SplitMaintenance(engine, self.authority, Counters())
        self._server = StoreServer(engine, Hub(engine), RemoteConfig(grace_s=config.split.grace_s), confirm)
        engine.gateway_registry.on_ended = self._end
        self._server.on_gone(lambda name, _producer: engine.gateway_registry.expire(name.encode()))
        self.services = RemoteServices(clients or ServiceClients(), engine.gateway_registry)
        self.commits = 0  # with messages
        engine.on_commit(self._on_messages, MESSAGES)
        self.sessions = RemoteSessions(engine, engine.gateway_registry, self._maintenance.wills)

    async def begin(self) -> None:
        """Accept gateways, and clean up after earlier ones. Raises StoreError."""
        await self._maintenance.serve()

    def serve(self, listener: StoreListener) -> None:
        """Serve the gateways that come to the listener."""
        self._server.begin()
        listener.serve(self._server)

    async def outlive_gateways(self, seconds: float, node: str = "") -> None:
        """Wait until all gateways have left, or those of one node of a cluster, and have heard that they have:
        otherwise they would look for the store."""

        def counts(gateway: str) -> bool:
            """Its name is `node.place/random` (`gateway.node.supervisor`)."""
            return not node or gateway.partition("/")[0].rpartition(".")[0] == node

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(map(counts, self._attached())):  # noqa: ASYNC110  once in the life of a process
                    await asyncio.sleep(_CHECK_SECONDS)

    def abort(self) -> None:
        """End the streams of all gateways in this turn of the loop. What is not sent yet is never sent."""
        self._server.abort()

    async def stop(self) -> None:
        """Stop serving. Gateways keep their connections for the grace time."""
        await self._maintenance.stop()
        await self._server.stop()
        await self.authority.stop()

    @property
    def nodes(self) -> list[str]:
        """Addresses of the stores of all nodes that have a gateway attached."""
        return self._server.nodes

    def figures(self) -> dict[str, Figures]:
        """The figures of all gateways."""
        figures = self.engine.gateway_registry.figures
        return {name.partition(b"/")[0].decode(): each for name, each in figures.items()}

    def _attached(self) -> set[str]:
        """The names of the gateways that have not left, or have not heard that they have."""
        return {name.decode() for name in self.engine.gateway_registry.figures} | self._server.connected

    def _on_messages(self, _: Commit) -> None:
        self.commits += 1

    def _end(self, gateway: bytes) -> None:
        """Reject all further messages of a gateway that is declared dead."""
        self._server.end(gateway.decode())
