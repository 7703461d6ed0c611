"""Three nodes whose old segments are in an object store: each of them reads all messages, also when the node that wrote
them is gone, and a node with an empty disk copies only the new ones."""

import asyncio
import json
import os
import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_sdk import Client
from sluice.demo.engine_servers import SeaweedServers, ServerMissing
from tests.gateway.raw import RawClient
from tests.system.clusters import Cluster, ClusterNode, rows_of_tasks
from tests.system.test_kill import stored
from tests.waiting import until

SEGMENT = 2 << 20
OLD = 100  # messages that are in the tier when they are read
SETTINGS = f"""
snapshot_bytes = {2 * SEGMENT}
{{options}}
[store]
segment_size = {SEGMENT}
tail_cache_bytes = 0
[tier]
store = 'cluster'
retention_local_bytes = {SEGMENT}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=["folder", "seaweedfs"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    servers, log, options = None, "", ""
    if request.param == "seaweedfs":
        try:
            servers = SeaweedServers(tmp_path / "seaweedfs")
        except ServerMissing as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        await asyncio.to_thread(servers.start)
        log = servers.url("log")
        lines = [f"{name} = {json.dumps(value)}" for name, value in servers.options.items()]
        options = "\n".join(["[cluster.options]", *lines])
    cluster = Cluster.of_three(tmp_path, log, SETTINGS.format(options=options))
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)
        if servers is not None:
            await asyncio.to_thread(servers.stop)


def figure(node: ClusterNode, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", node.get("/metrics"), re.MULTILINE)
    return -1.0 if found is None else float(found[1])


async def fill(node: ClusterNode, size: int) -> None:
    client = await RawClient.connect(node.mqtt_port, b"filler")
    chance = random.Random(size)
    for _ in range(size // 50_000 + 1):
        await client.publish(b"filler", chance.randbytes(50_000))
    await client.disconnect()


async def publish(node: ClusterNode, numbers: range) -> None:
    device = await RawClient.connect(node.mqtt_port, b"device")
    for number in numbers:
        await device.publish(b"load/old", b"%d" % number)
    await device.disconnect()


async def until_away(nodes: list[ClusterNode], position: int) -> None:
    """Wait until no node has a file of a segment before the position."""
    for node in nodes:
        await until(lambda node=node: figure(node, "sluice_tier_local_begin") >= position)


async def test_every_node_reads_what_left_the_disks(cluster: Cluster) -> None:
    leader = await asyncio.to_thread(cluster.leader)
    others = [node for node in cluster.nodes if node is not leader]
    await publish(others[0], range(OLD))
    await fill(others[0], 6 * SEGMENT)
    await until_away(cluster.nodes, 2 * SEGMENT)
    async with Client(others[0].endpoint) as client:
        planned = await client.partitions("load")
    acknowledged = 0

    async def publish_on() -> None:
        nonlocal acknowledged
        device = await RawClient.connect(leader.mqtt_port, b"hot")
        while True:
            await device.publish(b"hot/x", b"new")
            acknowledged += 1

    publishing = asyncio.create_task(publish_on())
    try:
        await until(lambda: acknowledged)
        for node in cluster.nodes:  # by tasks of Spark, beside a device that publishes
            before = acknowledged
            rows = await asyncio.to_thread(rows_of_tasks, node.endpoint, "load", planned)
            assert [int(row["payload"]) for each in rows.values() for row in each] == list(range(OLD))
            await until(lambda before=before: acknowledged > before)
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    for node in others:
        assert figure(node, "sluice_tier_reads_total") > 0, "a follower reads the tier by itself"
        assert "segments are in the tier" in await asyncio.to_thread(node.command_output, "cluster", "status")

    leader.kill_all()
    second = await asyncio.to_thread(lambda: cluster.leader(but=leader))
    await publish(others[0], range(OLD, OLD + 20))
    await fill(others[0], 6 * SEGMENT)
    await until_away(others, 8 * SEGMENT)
    assert figure(second, "sluice_tier_failing") == 0
    for node in others:
        assert (await stored(node.endpoint))["load/old"] == list(range(OLD + 20))

    await asyncio.to_thread(shutil.rmtree, leader.data_dir)
    await asyncio.to_thread(leader.start)
    position = second.health()["position"]
    await until(lambda: leader.health()["position"] >= position)
    assert "this node begins with snapshot" in leader.log()
    assert figure(leader, "sluice_tier_local_begin") >= 2 * SEGMENT, "it copied what the tier has"
    assert (await stored(leader.endpoint))["load/old"] == list(range(OLD + 20))
    assert figure(leader, "sluice_tier_reads_total") > 0
    digests = await asyncio.to_thread(cluster.digests)
    assert len(set(digests.values())) == 1, digests
    for node in cluster.nodes:
        assert "Traceback" not in node.log()
