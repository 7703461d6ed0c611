"""A whole node in the test's own loop."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.config.config import load
from gateway.node.node import Node, Ports

MakeNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def make_node(tmp_path: Path) -> AsyncIterator[MakeNode]:
    """Starts nodes on free ports, by default on the same data folder; keywords are settings with `__` for the dot."""
    nodes: list[Node] = []

    async def make(name: str = "data", **settings: object) -> Node:
        free = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
        given = {key.replace("__", "."): value for key, value in settings.items()}
        small = {"data_dir": tmp_path / name, "store.segment_size": 4 << 20}
        node = Node(load(None, {**free, **small, **given}, {}))
        nodes.append(node)
        await node.start()
        return node

    yield make
    for node in nodes:
        await node.stop()


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """A running node; `node.ports` says where."""
    return await make_node()


@pytest.fixture
def ports(node: Node) -> Ports:
    return node.ports
