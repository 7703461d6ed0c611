"""Two sites over one log: one has it, the other one stands by and can be promoted."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloud_sdk import Client, Unavailable
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, DISCONNECT, RawClient, connect
from tests.system.clusters import LEADER_TIMEOUT_S, Cluster, ClusterNode
from tests.waiting import patience, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXPIRY = b"\x11" + wire.u32(3600)
REFERENCE = b"devices.example:1883"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[ClusterNode]]:
    """n1 and n2 of site a, which has the log, and n3 of site b."""
    cluster = Cluster.of_three(tmp_path)
    for node, site in zip(cluster.nodes, "aab", strict=True):
        configure(node, site)
    try:
        for node in cluster.nodes:
            await asyncio.to_thread(node.start)
        yield cluster.nodes
    finally:
        await asyncio.to_thread(cluster.stop)


def configure(node: ClusterNode, site: str) -> None:
    path = Path(node.flags[1])
    text = path.read_text().replace("[cluster]\n", f"[cluster]\nsite = '{site}'\n")
    path.write_text(f"{text}\n[mqtt]\nserver_reference = '{REFERENCE.decode()}'\n")


def rename_site(node: ClusterNode, old: str, new: str) -> None:
    path = Path(node.flags[1])
    path.write_text(path.read_text().replace(f"site = '{old}'", f"site = '{new}'"))


async def is_refused(node: ClusterNode) -> bool:
    """Whether devices are sent elsewhere. False if they are served, or the gateway starts again."""
    try:
        client = await RawClient.open(node.mqtt_port, 5)
        client.send(connect(5, b"c"))
        answer = await client.expect(CONNACK)
    except (OSError, asyncio.IncompleteReadError):
        return False
    return answer.reason == 0x9C and (0x1C, REFERENCE) in answer.properties


async def served(node: ClusterNode, name: bytes) -> RawClient:
    """Connect to a node, as soon as its gateway serves devices."""
    async with patience():
        while True:
            try:
                client = await RawClient.open(node.mqtt_port, 5)
                client.send(connect(5, name, False, EXPIRY))
                client.connack = await client.expect(CONNACK)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
            else:
                if client.connack.reason == 0:
                    return client
                await asyncio.sleep(0.05)


def silence_of(node: ClusterNode) -> float:
    """Seconds since the node got a slot."""
    found = re.search(r"(?m)^sluice_cluster_silence_seconds (\S+)$", node.get("/metrics"))
    assert found is not None
    return float(found[1])


async def stands_by(node: ClusterNode, site: str) -> None:
    await until(lambda: node.health().get("standby", "").startswith(f"site {site} has the log"))
    async with patience():
        while not await is_refused(node):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_site_is_promoted_and_the_old_one_finds_itself_deposed(nodes: list[ClusterNode]) -> None:
    n1, n2, n3 = nodes
    device = await served(n1, b"device")
    await device.subscribe((b"to/device", 1))
    publisher = await RawClient.connect(n2.mqtt_port, b"p", 5)
    await publisher.publish(b"work/1", b"1", 1)
    await device.drop()
    await publisher.publish(b"to/device", b"1", 1)
    await stands_by(n3, "a")
    await until(lambda: n3.health()["position"] == n1.health()["position"])
    epoch = n3.health()["epoch"]
    for node in (n1, n2):
        node.kill_all()
    await until(lambda: silence_of(n3) > 3 * LEADER_TIMEOUT_S)
    assert await asyncio.to_thread(n3.command_output, "cluster", "promote") == "node n3 leads\n"
    assert n3.health()["epoch"] == epoch + 1, "it did not claim by itself"
    device = await served(n3, b"device")
    assert device.session_present
    assert [message.payload for message in await device.take(1)] == [b"1"]
    publisher = await served(n3, b"p")
    await publisher.publish(b"to/device", b"2", 1)
    assert [message.payload for message in await device.take(1)] == [b"2"]
    await asyncio.gather(*(asyncio.to_thread(node.start) for node in (n1, n2)))
    for node in (n1, n2):
        await stands_by(node, "b")
    assert await asyncio.to_thread(n1.command_output, "cluster", "promote") in {"node n1 leads\n", "node n2 leads\n"}
    goodbye = await device.expect(DISCONNECT)
    assert goodbye.reason == 0x9C
    assert (0x1C, REFERENCE) in goodbye.properties
    back = await served(n2, b"device")
    assert back.session_present
    publisher = await served(n1, b"p")
    await publisher.publish(b"to/device", b"3", 1)
    assert [message.payload for message in await back.take(1)] == [b"3"]
    await stands_by(n3, "a")


async def test_a_site_that_stands_by_serves_reads(nodes: list[ClusterNode]) -> None:
    n1, _, n3 = nodes
    await stands_by(n3, "a")
    async with Client(n1.endpoint) as writer, Client(n3.endpoint, retry_seconds=1) as reader:
        for number in range(100):
            await writer.send("work/1", b"%d" % number)
        bounds = await writer.partitions("work")
        (place,) = [each for each in bounds if each.end]

        async def pull(offset: int, wait: float = 0.0) -> list[bytes]:
            batch = await reader.pull("work", place.partition, offset, wait_seconds=wait)
            return [message.payload for message in batch]

        async with patience():
            while len(found := await pull(0)) < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert found == [b"%d" % number for number in range(100)]
        waiting = asyncio.create_task(pull(100, 30))
        await writer.send("work/1", b"next")
        assert await waiting == [b"next"]
        with pytest.raises(Unavailable, match="site a has the log, and site b stands by"):
            await reader.send("work/1", b"x")
        assert await reader.topics("work/") == ["work/1"]
        device = await RawClient.open(n3.mqtt_port, 4)
        device.send(connect(4, b"c"))
        assert (await device.expect(CONNACK)).body == b"\x00\x03"
    status = await asyncio.to_thread(n3.command_output, "cluster", "status")
    assert "site a has the log, and site b stands by" in status
    drained = await asyncio.to_thread(n3.command_output, "cluster", "drain", "n3")
    assert drained == "node n3 is drained, and can be stopped\n", "it has no devices that anybody would wait for"
    shown = await asyncio.to_thread(n3.command_output, "show", "topics")
    assert "work" in shown


async def test_a_node_whose_site_has_another_name_stands_by_and_is_promoted(tmp_path: Path) -> None:
    """The newest claim is its own."""
    node = ClusterNode(tmp_path / "n1", f"file://{tmp_path}/shared", "")
    configure(node, "a")
    await asyncio.to_thread(node.start)
    try:
        await asyncio.to_thread(node.stop)
        rename_site(node, "a", "c")
        await asyncio.to_thread(node.start)
        await stands_by(node, "a")
        assert await asyncio.to_thread(node.command_output, "cluster", "promote") == "node n1 leads\n"
    finally:
        if node.process is not None:
            node.kill_all()


async def test_a_replica_of_the_engine_is_promoted(tmp_path: Path) -> None:
    """What was replicated is there. The slots refuse a node of the old site that comes to the replica."""
    shared, copy = tmp_path / "shared", tmp_path / "copy"
    n1 = ClusterNode(tmp_path / "n1", f"file://{shared}", "")
    n3 = ClusterNode(tmp_path / "n3", f"file://{copy}", "")
    cluster = Cluster([n1, n3])
    configure(n1, "a")
    configure(n3, "b")
    replicating = asyncio.create_task(replicate(shared, copy))
    try:
        await asyncio.to_thread(n1.start)
        device = await served(n1, b"device")
        await device.subscribe((b"to/device", 1))
        await until(lambda: list(copy.rglob("*1")))
        await asyncio.to_thread(n3.start)
        await stands_by(n3, "a")
        await device.drop()
        publisher = await RawClient.connect(n1.mqtt_port, b"p", 5)
        await publisher.publish(b"to/device", b"1", 1)
        position = n1.health()["position"]
        await until(lambda: n3.health()["position"] >= position)
        replicating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replicating
        await publisher.publish(b"to/device", b"lost", 1)
        await asyncio.to_thread(n1.stop)
        assert await asyncio.to_thread(n3.command_output, "cluster", "promote") == "node n3 leads\n"
        device = await served(n3, b"device")
        assert device.session_present
        publisher = await served(n3, b"p")
        await publisher.publish(b"to/device", b"2", 1)
        assert [message.payload for message in await device.take(2)] == [b"1", b"2"]
        move(n1, shared, copy)
        n1.launch()
        await until(lambda: "the shared log" in n1.health().get("status", ""))
        assert "takes part in the cluster no more" in n1.log()
    finally:
        replicating.cancel()
        for node in cluster.nodes:
            if node.process is not None:
                node.kill_all()


def move(node: ClusterNode, old: Path, new: Path) -> None:
    """Give a node another address of the shared log."""
    path = Path(node.flags[1])
    path.write_text(path.read_text().replace(str(old), str(new)))


async def replicate(source: Path, target: Path) -> None:
    while True:
        copy_new(source, target)
        await asyncio.sleep(0.05)


def copy_new(source: Path, target: Path) -> None:
    """Copy new objects in the order of their names, as whole files."""
    staged = target.with_name("staged")
    last = max(objects_of(source), default=source)
    # A listing may lack a slot that is written meanwhile, and have the next one. All before `last` are there by now.
    for path in sorted(objects_of(source)):
        place = target / path.relative_to(source)
        if path <= last and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # it was removed meanwhile
                shutil.copy(path, staged)
                staged.rename(place)


def objects_of(folder: Path) -> list[Path]:
    """All objects, without files that are being written: these have a "#" in their names, and vanish."""
    return [path for path in folder.rglob("*") if "#" not in path.name and path.is_file()]
