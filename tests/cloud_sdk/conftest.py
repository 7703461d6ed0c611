"""A node's gRPC front over the real engine, which a test can stop and start again on its port."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cloud_sdk import Client
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rpc.limits import RpcLimits
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from sluice.demo.ports import lasting_ports
from store.api import Store
from store.config import StoreConfig
from store.engine import Engine
from store.remote import RemoteConfig, RemoteStore, StoreServer

CONFIG = StoreConfig(segment_size=4 << 20)
AT_A_GATEWAY = pytest.mark.parametrize("node", [False, True], indirect=True, ids=["node", "gateway"])
_SOCKETS = TemporaryDirectory(prefix="sluice-")  # short: paths of sockets have 107 bytes at the most


class Node:
    """One data folder on one port. is_split: its port belongs to a gateway, and the store is behind a socket."""

    def __init__(self, path: Path, is_split: bool = False) -> None:
        self.is_split = is_split
        self.path = path
        self.port = lasting_ports(1)[0]
        self.limits = RpcLimits()
        self.config = CONFIG
        self._engine: Engine | None = None
        self._server: RpcServer | None = None
        self._store_server: StoreServer | None = None
        self._remote: RemoteStore | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._engine = engine = await Engine.open(self.path, self.config)
        store: Store = engine
        if self.is_split:
            address = f"unix:{_SOCKETS.name}/{id(engine)}"
            self._store_server = StoreServer(engine, Hub(engine), RemoteConfig(grace_s=5))
            await self._store_server.start(address)
            store = self._remote = await RemoteStore.open(address, "g1", EventReceiver(), RemoteConfig(grace_s=5))
        self._server = RpcServer(store, Authority(store, 0), self.limits)
        self.port = await self._server.start("127.0.0.1", self.port)

    async def restart(self, **counts: int) -> None:
        """Restart with numbers of partitions by parent topic."""
        await self.stop()
        parents = {parent.encode(): count for parent, count in counts.items()}
        self.config = replace(self.config, parent_partitions=parents)
        await self.start()

    async def stop(self) -> None:
        if self._server is not None and self._engine is not None:
            await self._server.stop(0.2)
            if self._remote is not None and self._store_server is not None:
                await self._remote.close()
                await self._store_server.stop()
            await self._engine.close()
            self._server = self._engine = None


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """Tests with `AT_A_GATEWAY` have two of them."""
    node = Node(tmp_path / "data", getattr(request, "param", False))
    await node.start()
    yield node
    await node.stop()


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.endpoint, name="tester", retry_seconds=20) as client:
        yield client


@pytest.fixture
def free_port() -> int:
    return lasting_ports(1)[0]
