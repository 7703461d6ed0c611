"""A node's gRPC front over the real engine, which a test can stop and start again on its port."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloud_sdk import Client
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rpc.limits import RpcLimits
from sluice.demo.ports import lasting_ports
from store.config import StoreConfig
from store.engine import Engine

CONFIG = StoreConfig(segment_size=4 << 20)


class Node:
    """One data folder on one port."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = lasting_ports(1)[0]
        self.limits = RpcLimits()
        self.config = CONFIG
        self._engine: Engine | None = None
        self._server: RpcServer | None = None

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._engine = await Engine.open(self.path, self.config)
        self._server = RpcServer(self._engine, Authority(self._engine, 0), self.limits)
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
            await self._engine.close()
            self._server = self._engine = None


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path / "data")
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
