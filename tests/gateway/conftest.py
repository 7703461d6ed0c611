"""A whole node in the test's own loop."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import load
from gateway.node import Node, Ports


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A running node on free ports; `node.ports` says which."""
    free = {f"{front}": 0 for front in ("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port")}
    started = Node(load(None, {**free, "data_dir": tmp_path / "data", "mqtt.connect_timeout": 1}, {}))
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
def ports(node: Node) -> Ports:
    return node.ports
