"""A node that is drained: its clients go to other nodes and lose nothing, and it can be stopped."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloud_sdk import Client
from tests.gateway.mqtt import wire
from tests.gateway.raw import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Packet,
    RawClient,
    ack,
    connect,
    publish,
)
from tests.system.clusters import Cluster, ClusterNode
from tests.waiting import patience, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXPIRY = b"\x11" + wire.u32(3600)
USE_ANOTHER_SERVER = 0x9C
SERVER_REFERENCE = 0x1C


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three nodes, of which the last one has weight 0."""
    cluster = Cluster.of_three(tmp_path)
    for node in cluster.nodes:
        configure(node, 0 if node is cluster.nodes[-1] else 1)
    try:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.leader)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)


def configure(node: ClusterNode, weight: int) -> None:
    path = Path(node.flags[1])
    text = path.read_text().replace("[cluster]\n", f"[cluster]\nweight = {weight}\n")
    path.write_text(f"{text}\n[mqtt]\nadvertise = '127.0.0.1:{node.mqtt_port}'\n")


async def drain(node: ClusterNode, *flags: str, at: ClusterNode | None = None) -> str:
    flags = ("--services-after", "1", *flags)
    return await asyncio.to_thread((at or node).command_output, "cluster", "drain", node.name, *flags)


def reference_of(packet: Packet) -> int:
    """The port that a DISCONNECT or CONNACK names."""
    assert packet.reason == USE_ANOTHER_SERVER
    (reference,) = [value for name, value in packet.properties if name == SERVER_REFERENCE]
    assert isinstance(reference, bytes)
    host, _, port = reference.partition(b":")
    assert host == b"127.0.0.1"
    return int(port)


class Device:
    """A client of MQTT 5 that follows the references of nodes. Its session stays."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.moves = 0
        self.client: RawClient

    async def open(self, port: int, *, is_new: bool = True) -> None:
        self.client = await RawClient.connect(port, self.name, 5, False, EXPIRY)
        assert self.client.session_present is not is_new

    async def packet(self) -> Packet | None:
        """The next one; None after a move."""
        packet = await self.client.packet()
        if packet.kind != DISCONNECT:
            return packet
        await self.client.closed()
        self.moves += 1
        await self.open(reference_of(packet), is_new=False)
        return None


def again(packet: bytes) -> bytes:
    """A PUBLISH with DUP, or a PUBREL."""
    return bytes((packet[0] | 8,)) + packet[1:] if packet[0] >> 4 == PUBLISH else packet


class Publisher(Device):
    """Publishes one message after the other, and sends the last one again after a move."""

    def __init__(self, name: bytes, topic: bytes, qos: int) -> None:
        super().__init__(name)
        self.topic, self.qos = topic, qos
        self.sent = 0

    async def run(self) -> None:
        while True:
            packet_id = self.sent % 60_000 + 1
            message = publish(5, self.topic, b"%d" % self.sent, self.qos, packet_id)
            self.client.send(message)
            while True:
                packet = await self.packet()
                if packet is None:
                    self.client.send(again(message))
                elif packet.kind == PUBREC:
                    message = ack(PUBREL, packet_id)
                    self.client.send(message)
                else:
                    assert packet.kind in {PUBACK, PUBCOMP}
                    assert packet.packet_id == packet_id
                    break
            self.sent += 1
            await asyncio.sleep(0.005)


class Subscriber(Device):
    """Notes what comes, with QoS 2 each message once."""

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self.received: list[int] = []
        self._unreleased: set[int] = set()

    async def run(self) -> None:
        while True:
            packet = await self.packet()
            if packet is None:
                continue
            if packet.kind == PUBREL:
                self._unreleased.discard(packet.packet_id)
                self.client.send(ack(PUBCOMP, packet.packet_id))
                continue
            assert packet.kind == PUBLISH
            message = self.client.parse(packet)
            if message.qos == 1:
                if not message.dup or int(message.payload) not in self.received:
                    self.received.append(int(message.payload))
                self.client.send(ack(PUBACK, message.packet_id))
                continue
            if message.packet_id not in self._unreleased:
                self.received.append(int(message.payload))
            self._unreleased.add(message.packet_id)
            self.client.send(ack(PUBREC, message.packet_id))


async def test_devices_move_and_lose_nothing_and_the_node_is_stopped(cluster: Cluster) -> None:
    """The node leads at first. The command is given at another one."""
    n1, n2, _ = cluster.nodes
    if await asyncio.to_thread(cluster.leader) is not n1:
        first = await asyncio.to_thread(cluster.leader)
        await asyncio.to_thread(first.command_output, "cluster", "lead", "n1")
    publishers: list[Publisher] = []
    subscribers: list[Subscriber] = []
    for qos in (1, 2):
        subscriber = Subscriber(b"to %d" % qos)
        await subscriber.open(n1.mqtt_port)
        await subscriber.client.subscribe((b"flow/%d" % qos, qos))
        publisher = Publisher(b"from %d" % qos, b"flow/%d" % qos, qos)
        await publisher.open(n1.mqtt_port)
        subscribers.append(subscriber)
        publishers.append(publisher)
    tasks = [asyncio.create_task(publisher.run()) for publisher in publishers]
    tasks += [asyncio.create_task(subscriber.run()) for subscriber in subscribers]
    try:
        await come(subscribers, tasks)
        said = await drain(n1, at=n2)
        assert said == "node n1 is drained, and can be stopped\n"
        assert [each.moves for each in (*publishers, *subscribers)] == [1, 1, 1, 1]
        assert await asyncio.to_thread(cluster.leader) is not n1
        assert (await asyncio.to_thread(n1.health))["status"] == "the node is drained"
        async with patience():  # what a node has told others of its clients is as old as its last heartbeat
            while True:
                clients = await clients_at(n2)
                if clients["n2"]["devices"] == 4:  # n3 has weight 0
                    break
                await asyncio.sleep(0.05)
        assert clients["n1"] == {"node": "n1", "is_known": True, "devices": 0, "service_calls": 0}
        await come(subscribers, tasks)
        assert not await asyncio.to_thread(n1.stop)
        await come(subscribers, tasks)
        await asyncio.to_thread(n1.start)
        await RawClient.connect(n1.mqtt_port, b"again", 5)  # a node that is started serves clients
        for task in tasks[: len(publishers)]:
            task.cancel()
        pairs = list(zip(subscribers, publishers, strict=True))
        await until(lambda: all(len(each.received) >= one.sent for each, one in pairs))
        for each in subscribers:
            assert each.received == list(range(len(each.received)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def come(subscribers: list[Subscriber], tasks: list[asyncio.Task[None]]) -> None:
    """Wait until each subscriber has more."""
    goals = [len(each.received) + 20 for each in subscribers]
    ended: Callable[[], list[asyncio.Task[None]]] = lambda: [task for task in tasks if task.done()]  # noqa: E731
    await until(lambda: ended() or all(len(s.received) >= g for s, g in zip(subscribers, goals, strict=True)))
    for task in ended():
        task.result()


async def clients_at(node: ClusterNode) -> dict[str, dict[str, Any]]:
    """The clients of each node, as the leader knows them, by the node's name."""
    known = next(facts["clients"] for facts in await facts_of(node) if facts["clients"])
    return {each["node"]: each for each in known}


async def facts_of(node: ClusterNode) -> list[dict[str, Any]]:
    status = await asyncio.to_thread(node.status)
    return [status, *status["others"]]


async def test_clients_of_a_drained_node_are_refused_in_their_terms(cluster: Cluster) -> None:
    """Wills with a delay are not sent, those without are; a session of 3.1.1 stays."""
    n1, n2, n3 = cluster.nodes
    witness = await RawClient.connect(n2.mqtt_port, b"witness", 5)
    await witness.subscribe((b"will/+", 1))
    patient = connect(5, b"patient", False, EXPIRY, will=(b"will/patient", b"gone"))
    # A will delay of an hour, in front of the topic.
    at = patient.index(wire.text(b"will/patient")) - 1
    body = patient[2:at] + wire.sized(b"\x18" + wire.u32(3600)) + patient[at + 1 :]
    moved = await RawClient.open(n1.mqtt_port, 5)
    moved.send(wire.packet(0x10, body))
    assert (await moved.expect(CONNACK)).reason == 0
    old = await RawClient.connect(n1.mqtt_port, b"old", 4, False, will=(b"will/old", b"gone"))
    await old.subscribe((b"to/old", 1))
    await drain(n1)
    await old.closed()
    goodbye = await moved.expect(DISCONNECT)
    assert reference_of(goodbye) == n2.mqtt_port
    assert [message.topic for message in await witness.take(1)] == [b"will/old"]
    refused = await RawClient.open(n1.mqtt_port, 5)
    refused.send(connect(5, b"patient", False, EXPIRY))
    assert reference_of(await refused.expect(CONNACK)) == n2.mqtt_port
    await refused.closed()
    refused = await RawClient.open(n1.mqtt_port, 4)
    refused.send(connect(4, b"old", False))
    assert (await refused.expect(CONNACK)).body == b"\x00\x03"
    await refused.closed()
    for name, version in ((b"old", 4), (b"patient", 5)):
        back = await RawClient.connect(n3.mqtt_port, name, version, False, EXPIRY if version == 5 else b"")
        assert back.session_present
    assert await asyncio.to_thread(n2.command_output, "cluster", "undrain", "n1") == "node n1 serves clients\n"
    again = await RawClient.connect(n1.mqtt_port, b"patient", 5, False, EXPIRY)
    assert again.session_present
    await witness.quiet()


async def test_a_drained_node_stays_drained_when_its_processes_end(cluster: Cluster) -> None:
    n1, n2, _ = cluster.nodes
    await drain(n1)
    for kind in ("g1", "store"):
        pid = n1.processes()[kind]
        assert n1.signal_process(kind, signal.SIGKILL)
        await until(partial(is_new, n1, kind, pid))
        async with patience():
            while not await is_refused(n1):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert "n1" in str([facts["node"] for facts in await facts_of(n2) if facts["drained"]])


def is_new(node: ClusterNode, kind: str, pid: int) -> bool:
    return node.processes().get(kind, pid) != pid


async def is_refused(node: ClusterNode) -> bool:
    try:
        client = await RawClient.open(node.mqtt_port, 5)
        client.send(connect(5, b"c"))
        return (await client.packet()).reason == USE_ANOTHER_SERVER
    except (OSError, asyncio.IncompleteReadError):
        return False


async def test_cloud_services_move_to_other_nodes(cluster: Cluster) -> None:
    n1, n2, n3 = cluster.nodes
    sent = 0
    async with Client(n1.endpoint, retry_seconds=60) as client, Client(n2.endpoint) as other:
        await client.send("work/1", b"x")
        await until(lambda: len(client._connection._endpoints) == 3)

        async def send() -> None:
            nonlocal sent
            while True:
                await client.send("work/2", b"%d" % sent)
                sent += 1

        sending = asyncio.create_task(send())
        try:
            await until(lambda: sent > 20 or sending.done())
            await drain(n1)
            assert client._connection._endpoints[client._connection._at] != n1.endpoint
            goal = sent + 20
            await until(lambda: sent > goal or sending.done())
            assert not sending.done()
            newcomer = Client(n2.endpoint)
            async with newcomer:
                await newcomer.parents()
                await until(lambda: len(newcomer._connection._endpoints) == 2)
                assert newcomer._connection._endpoints == [n2.endpoint, n3.endpoint]
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        stored = sum(each.end - each.begin for each in await other.partitions("work"))
        assert stored in {sent + 1, sent + 2}, "each once, and perhaps the one that was cancelled"
        await asyncio.to_thread(n1.command_output, "cluster", "undrain", "n1")
        async with Client(n1.endpoint, retry_seconds=60) as back:
            await back.send("work/1", b"x")


async def test_a_node_that_no_other_could_replace_is_not_drained(cluster: Cluster) -> None:
    n1, n2, n3 = cluster.nodes
    for node in (n2, n3):
        await asyncio.to_thread(node.stop)
    ran = await asyncio.to_thread(n1.run_command, "cluster", "drain", "n1")
    assert ran.returncode == 1
    assert "no other node could serve the clients" in ran.stderr
    await RawClient.connect(n1.mqtt_port, b"c", 5)


async def test_a_drained_node_serves_while_no_other_node_does(cluster: Cluster) -> None:
    n1, n2, n3 = cluster.nodes
    await drain(n1)
    for node in (n2, n3):
        node.kill_all()
    async with patience():
        while await is_refused(n1):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    device = Device(b"device")
    await until(lambda: n1.health().get("status") == "ok")
    await device.open(n1.mqtt_port)
    assert "it serves while no other node does" in await asyncio.to_thread(n1.command_output, "cluster", "status")
    async with Client(n1.endpoint, retry_seconds=60) as service:
        await service.send("work/1", b"x")
    await asyncio.to_thread(n2.start)
    async with patience():
        assert await device.packet() is None
    assert device.moves == 1
    assert (await asyncio.to_thread(n1.status))["trouble"] == "the node is drained"
