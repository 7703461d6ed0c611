"""A store in this process that is used through a socket: an engine, its server and a client, as one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from notify.event_receiver import EventReceiver
from notify.hub import Hub
from store.api import StoreStats
from store.config import StoreConfig
from store.engine import Engine
from store.log.disk import Disk
from store.log.writer import Clock, clock_ms
from store.remote import RemoteConfig, RemoteStore, StoreServer

_SOCKETS = TemporaryDirectory(prefix="sluice-")  # short: paths of sockets have 107 bytes at the most


class Linked(RemoteStore):
    """The client; what is not of `store.api.Store` is the engine's."""

    engine: Engine
    server: StoreServer

    @classmethod
    async def open(  # type: ignore[override]
        cls, path: Path, config: StoreConfig, disk: Disk | None = None, clock: Clock = clock_ms
    ) -> "Linked":
        engine = await Engine.open(path, config, disk, clock)
        server = StoreServer(engine, Hub(engine), RemoteConfig(grace_s=5))
        address = f"unix:{_SOCKETS.name}/{id(engine)}"
        await server.start(address)
        store = await super().open(address, "g1", EventReceiver(), RemoteConfig(grace_s=5), routed=False)
        store.engine, store.server = engine, server
        return store

    def __getattr__(self, name: str) -> Any:
        if name in ("engine", "server"):
            raise AttributeError(name)
        return getattr(self.engine, name)

    def stats(self) -> StoreStats:
        """As of now: that the client's are those of the last heartbeat is a test of its own."""
        return self.engine.stats()

    def may_hold(self) -> bool:
        return self.engine.may_hold()

    def session_count(self) -> int:
        return self.engine.session_count()

    async def close(self) -> None:
        await super().close()
        if "server" in self.__dict__:
            await self.server.stop()
            await self.engine.close()
