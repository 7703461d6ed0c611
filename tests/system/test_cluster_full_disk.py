"""A node of a cluster whose disk is full, with a tier: the others go on, and it comes back when there is room."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.gateway.raw import RawClient
from tests.system.clusters import Cluster, ClusterNode
from tests.system.test_cluster_tier import SETTINGS
from tests.system.test_full_disk import SmallDisk, fill
from tests.system.test_kill import stored
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class DiskNode(ClusterNode):
    """A node whose data folder is on a small disk."""

    def __init__(self, disk: SmallDisk, log: str, settings: str) -> None:
        super().__init__(disk.inside, log, settings)
        self._disk = disk

    def command(self) -> list[str]:
        return [*self._disk.command(), *super().command()]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    (tmp_path / "n1").mkdir()
    disk = SmallDisk(tmp_path / "n1")
    yield disk
    disk.close()


@pytest.fixture
async def cluster(disk: SmallDisk, tmp_path: Path) -> AsyncIterator[Cluster]:
    log, settings = f"file://{tmp_path}/shared", SETTINGS.format(options="")
    nodes = [DiskNode(disk, log, settings), *(ClusterNode(tmp_path / name, log, settings) for name in ("n2", "n3"))]
    cluster = Cluster(nodes)
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)


async def publish(node: ClusterNode, numbers: range) -> None:
    client = await RawClient.connect(node.mqtt_port, b"filler")
    for number in numbers:
        await client.publish(b"load/x", b"%d " % number + bytes(50_000))
    await client.disconnect()


@pytest.mark.parametrize("leads", [False, True])
async def test_other_nodes_go_on_and_it_comes_back(cluster: Cluster, disk: SmallDisk, leads: bool) -> None:
    """Also if it leads. Its gateway serves clients meanwhile."""
    small, *others = cluster.nodes
    leader = await asyncio.to_thread(cluster.leader)
    if leads and leader is not small:
        await asyncio.to_thread(leader.command_output, "cluster", "lead", small.name)
        await until(lambda: others[0].health()["leader"] == small.name)
    elif leader is small and not leads:
        await publish(others[0], range(20))  # which makes them known to it
        await asyncio.to_thread(small.stop)
        await asyncio.to_thread(small.start)
        await until(lambda: small.health()["leader"] in {"n2", "n3"})
    await publish(others[1], range(20))
    file = fill(disk)
    await publish(small, range(20, 200))
    await until(lambda: "No space left on device" in small.log() and small.health()["leader"] is None)
    assert others[0].health()["leader"] in {"n2", "n3"}
    await publish(small, range(200, 220))
    file.unlink()
    position = others[0].health()["position"]
    await until(lambda: small.health()["position"] >= position)
    for node in cluster.nodes:
        found = (await stored(node.endpoint))["load/x"]
        assert list(dict.fromkeys(found))[-220:] == list(range(220))
