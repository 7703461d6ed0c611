"""Nodes over a folder, and a cluster on a simulated loop for tests that think of their own faults."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.store.cluster.nodes import Nodes
from tests.store.cluster.simulation.cluster import Cluster
from tests.store.cluster.simulation.loop import ClusterLoop

Scenario = Callable[[Cluster], Awaitable[None]]


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path, monkeypatch)
    yield nodes
    await nodes.close()


@pytest.fixture
def play() -> Iterator[Callable[[Scenario], None]]:
    """Runs a scenario with three nodes, none of which is started."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=lambda: ClusterLoop(Random(1))) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, ClusterLoop)
            cluster = Cluster(loop, 1, lies=False, size=3)
            runner.run(cluster.play(lambda: scenario(cluster)))

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield run
    logging.disable(level)
