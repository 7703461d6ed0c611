"""Several gateways over one store, all in the test's own loop. What would be processes talk to the engine itself, or
over a socket where the store is `far`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, cast

from gateway.auth.audit import AuditLog
from gateway.auth.authority import Authority
from gateway.broker.client_ownership import gateway_name
from gateway.broker.maintenance import SplitMaintenance
from gateway.config.config import load
from gateway.config.store import store_config
from gateway.node.devices import Devices
from gateway.observe.counters import Counters
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from store.api import Commit, Done, Listening, Store
from store.commit_listeners import EVERY_COMMIT
from store.engine import Engine
from store.remote import RemoteConfig, RemoteStore, StoreServer

LEASE_MS = 4000  # a busy machine keeps gateways waiting for seconds
REMOTE = RemoteConfig(heartbeat_s=0.1, silence_s=5, grace_s=30)


class Way:
    """A gateway's way to the store, which can be cut for good: nothing goes over it in either direction any more."""

    def __init__(self, engine: Engine | RemoteStore) -> None:
        self._engine = engine
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        if isinstance(self._engine, RemoteStore):
            self._engine._closing = True
            assert self._engine._running is not None
            self._engine._running.cancel()

    async def close(self) -> None:
        if isinstance(self._engine, RemoteStore):
            await self._engine.close()

    def append(self, frames: list[bytes], done: Done) -> None:
        if not self.is_cut:
            self._engine.append(frames, lambda appended: None if self.is_cut else done(appended))

    def on_commit(self, listener: Callable[[Commit], None], parts: int = EVERY_COMMIT) -> Listening:
        return self._engine.on_commit(lambda commit: None if self.is_cut else listener(commit), parts)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def ask(*arguments: Any, **more: Any) -> Any:
            answer = None if self.is_cut else await found(*arguments, **more)
            if self.is_cut:
                await asyncio.get_running_loop().create_future()
            return answer

        return ask


class Several:
    """A store and its gateways, by name."""

    def __init__(self, folder: Path, far: bool = False, routed: bool = False, **settings: object) -> None:
        self.far = far
        self.routed = routed
        self.remote: dict[str, RemoteStore] = {}
        given = {key.replace("__", "."): value for key, value in settings.items()}
        small = {"data_dir": folder, "store.segment_size": 4 << 20, "mqtt.port": 0, "mqtt.ws_port": -1}
        self.config = load(None, {**small, "store.lease_ms": LEASE_MS, **given}, {})
        self.gateways: dict[str, Devices] = {}
        self.ports: dict[str, int] = {}
        self.counters: dict[str, Counters] = {}
        self.authorities: dict[str, Authority] = {}
        self.ended: dict[str, asyncio.Event] = {}
        self._ways: dict[str, Way] = {}
        self._dead: list[Devices] = []

    async def open(self) -> "Several":
        if self.far:
            self._sockets = Path(mkdtemp(prefix="sluice-"))  # short: paths of sockets have 107 bytes at the most
            self.address = f"unix:{self._sockets / 'store'}"
        await self._serve()
        return self

    async def _serve(self) -> None:
        self.engine = await Engine.open(self.config.data_dir, store_config(self.config))
        self.keeping = SplitMaintenance(
            self.engine, Authority(self.engine, self.config.mqtt.max_wrong_passwords), Counters()
        )
        await self.keeping.serve()
        if self.far:
            self.server = StoreServer(self.engine, Hub(self.engine), REMOTE)
            await self.server.start(self.address)

    async def restart(self) -> None:
        """The store is another process now, where gateways are far from it."""
        await self.keeping.stop()
        if self.far:
            await self.server.stop()
        await self.engine.close()
        await self._serve()

    async def join(self, *names: str) -> None:
        """Have gateways begin, each at a place of its own."""
        for name in names:
            counters = self.counters[name] = Counters()
            own = gateway_name(name.partition("-")[0])
            way = self._ways[name] = Way(await self._store(name, own))
            store = cast("Store", way)
            audit = AuditLog(self.config.audit, name, store)
            authority = self.authorities[name] = Authority(store, self.config.mqtt.max_wrong_passwords, audit)
            gateway = self.gateways[name] = Devices(store, authority, self.config, counters, own)
            ended = self.ended[name] = asyncio.Event()
            await gateway.start(ended.set)
            self.ports[name] = (await gateway.listen(-1, -1)).mqtt

    async def _store(self, name: str, own: bytes) -> Engine | RemoteStore:
        if not self.far:
            return self.engine
        self.remote[name] = await RemoteStore.open(self.address, own.decode(), self.receiver(), REMOTE, self.routed)
        return self.remote[name]

    def receiver(self) -> EventReceiver:
        return EventReceiver()

    async def leave(self, name: str) -> None:
        await self.gateways.pop(name).stop()
        await self._ways[name].close()

    def die(self, name: str) -> None:
        """A gateway stops in the middle of what it does: nothing that it would say comes any more."""
        self._ways[name].cut()
        self._dead.append(self.gateways.pop(name))

    async def close(self) -> None:
        for name in list(self.gateways):
            await self.leave(name)
        await self.keeping.stop()
        for authority in self.authorities.values():
            await authority.stop()
        for gateway in self._dead:  # what waits for an answer of the store waits for ever
            await _ended(gateway)
        for way in self._ways.values():
            await way.close()
        if self.far:
            await self.server.stop()
            rmtree(self._sockets)
        await self.engine.close()


async def _ended(gateway: Devices) -> None:
    stopping = asyncio.ensure_future(gateway.stop())
    await asyncio.wait([stopping], timeout=1.0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
