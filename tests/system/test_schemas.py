"""Schemas in nodes of several processes: each gateway checks payloads, also while the store is away."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cloud_sdk import Client, InvalidArgument
from tests.gateway.eventing.rules import eventually
from tests.gateway.raw import PUBACK, RawClient, publish
from tests.system.clusters import Cluster
from tests.system.conftest import NodeProcess
from tests.system.test_supervised import children
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = 8  # the kernel spreads their connections over the gateways
NUMBER = {"type": "object", "properties": {"t": {"type": "number"}}, "required": ["t"]}
REFUSED = b"\x99"


@pytest.fixture
def schema(tmp_path: Path) -> str:
    """A file with a schema."""
    path = tmp_path / "reading.json"
    path.write_text(json.dumps(NUMBER))
    return str(path)


async def sluice(node: NodeProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "sluice", "schema", *arguments, "--data-dir", str(node.data_dir)]
    done = await asyncio.to_thread(
        subprocess.run, command, check=True, timeout=PATIENCE_S, capture_output=True, text=True
    )
    return str(done.stdout)


async def reasons(clients: list[RawClient], payload: bytes) -> set[bytes]:
    """The reason codes that the clients get for a payload."""
    for client in clients:
        client.send(publish(5, b"fleet/7/temp", payload, 1, 1))
    return {(await client.expect(PUBACK)).body[2:3] for client in clients}


async def all_refuse(clients: list[RawClient]) -> bool:
    return await reasons(clients, b"x") == {REFUSED}


async def none_refuses(clients: list[RawClient]) -> bool:
    return REFUSED not in await reasons(clients, b"x")


async def test_every_gateway_checks_payloads(make_node: Callable[..., NodeProcess], schema: str) -> None:
    node = make_node("node", "--gateways", "2")
    await asyncio.to_thread(node.start)
    clients = [await RawClient.connect(node.mqtt_port, b"c%d" % number, 5) for number in range(CLIENTS)]
    assert await none_refuses(clients)
    await sluice(node, "register", "reading", schema)
    await sluice(node, "bind", "fleet/+/temp", "reading")
    await eventually(lambda: all_refuse(clients))
    assert REFUSED not in await reasons(clients, b'{"t": 1}')
    async with Client(node.endpoint, retry_seconds=PATIENCE_S) as sdk:
        with pytest.raises(InvalidArgument, match="does not match the schema reading"):
            await sdk.send("fleet/7/temp", b"x")
    before = children(node)["store"]
    os.kill(before, signal.SIGKILL)
    assert await all_refuse(clients)  # what is refused needs no store
    await until(lambda: children(node)["store"] != before)
    assert REFUSED not in await reasons(clients, b'{"t": 2}')
    await sluice(node, "unbind", "fleet/+/temp")
    await eventually(lambda: none_refuses(clients))
    assert await asyncio.to_thread(node.stop) == 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster.of_three(tmp_path)
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)


async def test_every_node_of_a_cluster_checks_payloads(cluster: Cluster, schema: str) -> None:
    leader = await asyncio.to_thread(cluster.leader)
    await sluice(leader, "register", "reading", schema)
    await sluice(leader, "bind", "fleet/+/temp", "reading")
    clients = [await RawClient.connect(node.mqtt_port, b"c%d" % number, 5) for number, node in enumerate(cluster.nodes)]
    await eventually(lambda: all_refuse(clients))
    follower = next(node for node in cluster.nodes if node is not leader)
    assert "version 1, id 1" in await sluice(follower, "list")
    leader.kill_all()
    await asyncio.to_thread(cluster.leader, but=leader)
    others = [client for client, node in zip(clients, cluster.nodes, strict=True) if node is not leader]
    assert await all_refuse(others)
    await sluice(follower, "unbind", "fleet/+/temp")
    await eventually(lambda: none_refuses(others))
