"""Three nodes with one log, real clients at each, and the leader killed, paused and asked to hand over: nothing that
was acknowledged is lost, QoS 2 comes once, order is kept, and connections at other nodes stay."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from cloud_sdk import Client, OutgoingMessage
from sluice.demo.engine_servers import NatsServers, SeaweedServers, ServerMissing
from tests.gateway.authority import Authority
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RawClient, ack
from tests.system.clusters import Cluster, ClusterNode, rows_of_tasks
from tests.tcp_proxy import TcpProxy
from tests.waiting import PATIENCE_S, block_until, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_IN_FLIGHT = 20
_numbers = count()  # of flows: each has sessions of its own
EXPIRY = b"\x11" + wire.u32(3600)


class Flow:
    """A publisher at one node and a subscriber at another one. Neither may lose its connection."""

    def __init__(self, name: bytes, qos: int) -> None:
        self.topic = b"flows/" + name
        self.qos = qos
        self.sent = 0
        self.acknowledged: list[int] = []
        self.received: list[int] = []
        self.stops = False
        self._acked = asyncio.Event()

    async def open(self, publisher: ClusterNode, subscriber: ClusterNode) -> None:
        self._in = await RawClient.connect(subscriber.mqtt_port, b"to " + self.topic, 5, False, EXPIRY)
        await self._in.subscribe((self.topic, self.qos))
        self._out = await RawClient.connect(publisher.mqtt_port, b"from " + self.topic, 5, False, EXPIRY)
        self._tasks = [asyncio.create_task(each) for each in (self._publish(), self._take_acks(), self._receive())]

    async def finish(self) -> None:
        """Stop publishing, wait until all is acknowledged and received, and check it."""
        self.stops = True
        self._acked.set()
        await self._tasks[0]
        await until(lambda: self._has_ended() or len(self.acknowledged) == self.sent)
        await until(lambda: self._has_ended() or len(self.received) >= self.sent)
        for task in self._tasks:
            if task.done():
                task.result()  # raises what ended it
        assert self.acknowledged == list(range(self.sent))
        assert self.received == list(range(self.sent))
        await self.drop()

    async def drop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in (self._in, self._out):
            await each.drop()

    def _has_ended(self) -> bool:
        return any(task.done() for task in self._tasks[1:])

    async def _publish(self) -> None:
        while not self.stops:
            while self.sent - len(self.acknowledged) >= _IN_FLIGHT and not self.stops:
                self._acked.clear()
                await self._acked.wait()
            if not self.stops:
                packet_id = self.sent % 60_000 + 1
                self._out.send(wire.publish(5, self.topic, b"%d" % self.sent, self.qos, packet_id))
                self.sent += 1
                await asyncio.sleep(0.01)

    async def _take_acks(self) -> None:
        while True:
            packet = await self._packet(self._out)
            if packet.kind == PUBREC:
                assert packet.reason == 0
                self._out.send(ack(PUBREL, packet.packet_id))
            else:
                assert packet.kind in {PUBACK, PUBCOMP}, packet
                assert packet.reason == 0
                self.acknowledged.append(self._number(packet.packet_id))
                self._acked.set()

    def _number(self, packet_id: int) -> int:
        return len(self.acknowledged) // 60_000 * 60_000 + packet_id - 1

    async def _receive(self) -> None:
        while True:
            packet = await self._packet(self._in)
            if packet.kind == PUBREL:
                self._in.send(ack(PUBCOMP, packet.packet_id))
                continue
            assert packet.kind == PUBLISH, packet
            message = self._in.parse(packet)
            self.received.append(int(message.payload))
            self._in.send(ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))

    @staticmethod
    async def _packet(client: RawClient):
        while True:
            with suppress(TimeoutError):  # it may be quiet for as long as nobody leads
                return await client.packet()


@asynccontextmanager
async def flowing(*pairs: tuple[ClusterNode, ClusterNode]) -> AsyncIterator[list[Flow]]:
    """Flows of both QoS between these nodes. At the end of the block everything has come."""
    flows: list[Flow] = []
    try:
        for publisher, subscriber in pairs:
            for qos in (1, 2):
                flow = Flow(b"%d" % next(_numbers), qos)
                await flow.open(publisher, subscriber)
                flows.append(flow)
        await progress(flows)
        yield flows
        await progress(flows)
        await asyncio.gather(*(flow.finish() for flow in flows))
    finally:
        for flow in flows:
            await flow.drop()


async def progress(flows: list[Flow]) -> None:
    """Wait until more messages of each flow have come."""
    goals = [len(flow.received) + _IN_FLIGHT + 1 for flow in flows]
    ended = lambda: any(flow._has_ended() for flow in flows)  # noqa: E731
    await until(lambda: ended() or all(len(f.received) >= goal for f, goal in zip(flows, goals, strict=True)))
    for flow in flows:
        for task in flow._tasks:
            if task.done():
                task.result()


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[Cluster]:
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(Cluster.of_three(tmp_path)) as found:
        yield found


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster.of_three(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def lasting(started: Cluster) -> Iterator[Cluster]:
    """One cluster for the tests at the end of this file, each of which leaves it whole."""
    yield started
    for node in started.nodes:
        if node.process is None:
            node.start()


async def leader(cluster: Cluster, but: ClusterNode | None = None) -> ClusterNode:
    return await asyncio.to_thread(cluster.leader, but=but)


def ring(cluster: Cluster) -> list[tuple[ClusterNode, ClusterNode]]:
    return list(zip(cluster.nodes, [*cluster.nodes[1:], cluster.nodes[0]], strict=True))


async def test_a_node_whose_disk_was_lost_begins_with_a_snapshot(tmp_path: Path) -> None:
    async with running(Cluster.of_three(tmp_path, settings="snapshot_bytes = 1048576\n")) as cluster:
        first = await leader(cluster)
        lost, other = (node for node in cluster.nodes if node is not first)
        client = await RawClient.connect(other.mqtt_port, b"c", 5)

        async def publish() -> None:
            for _ in range(20):
                await client.publish(b"large", bytes(20_000), 1)

        async with asyncio.timeout(PATIENCE_S):
            while (await asyncio.to_thread(other.status))["shared_log"]["snapshot"] is None:
                await publish()
        await asyncio.to_thread(lost.stop)
        shutil.rmtree(lost.data_dir)
        await publish()
        await asyncio.to_thread(lost.start)
        await publish()
        await equal_views(cluster)
        assert "this node begins with snapshot" in lost.log()
        assert "its newest snapshot is number" in await asyncio.to_thread(lost.command_output, "cluster", "status")
        await client.disconnect()


@pytest.mark.parametrize("whole", [False, True])
async def test_cloud_services_at_followers_outlive_the_leader(cluster: Cluster, whole: bool) -> None:
    """A producer at one follower, an ordered group at both: all that is acknowledged comes, in the order of its key."""
    first = await leader(cluster)
    places = [node.endpoint for node in cluster.nodes if node is not first]
    sent: dict[str, list[int]] = defaultdict(list)  # acknowledged, by key
    received: dict[str, list[int]] = defaultdict(list)  # each number when it came first, by key
    positions: list[int] = []
    stops = False

    async def send(client: Client, key: str) -> None:
        while not stops:
            number = len(sent[key])
            receipt = await client.send(f"shop/{key}", b"%d" % number, ordering_key=key)
            positions.append(receipt.position)
            sent[key].append(number)

    async def consume(client: Client) -> None:
        async with client.consumer("orders", "shop", ordered=True, invisible_seconds=5, max_records=16) as consumer:
            async for message in consumer:
                numbers, number = received[message.topic], int(message.payload)
                assert number <= len(numbers), f"{message.topic}: {number} came before {len(numbers)}"
                if number == len(numbers):
                    numbers.append(number)
                await message.ack()

    def come() -> int:
        return sum(map(len, received.values()))

    async with Client(places[0], retry_seconds=60) as producer, Client(places[1], retry_seconds=60) as other:
        senders = [asyncio.create_task(send(producer, f"k{number}")) for number in range(8)]
        members = [asyncio.create_task(consume(client)) for client in (producer, other)]
        tasks = [*senders, *members]
        try:
            for number in range(3):
                goal = come() + 200
                await until(lambda goal=goal: come() >= goal or any(task.done() for task in tasks))
                assert not [task.result() for task in tasks if task.done()]
                if number == 0:
                    first.kill_all() if whole else first.signal_store(signal.SIGKILL)
                    await leader(cluster, but=first)
            stops = True
            await asyncio.gather(*senders)
            await until(lambda: come() >= len(positions) or any(task.done() for task in members))
            assert not [task.result() for task in members if task.done()]
            assert received == {f"shop/{key}": numbers for key, numbers in sent.items()}
            assert -1 not in positions
            stored = sum(each.end - each.begin for each in await other.partitions("shop"))
            assert stored == len(set(positions)) == len(positions), "each once"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_of_all_nodes_goes_on_when_its_node_is_killed(cluster: Cluster) -> None:
    await leader(cluster)
    sent = 0
    async with Client([node.endpoint for node in cluster.nodes], retry_seconds=60) as client:

        async def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                await client.send("work/1", b"%d" % sent)
                sent += 1

        await send(100)
        for _ in range(2):
            sending = asyncio.create_task(send(300))
            goal = sent + 100
            await until(lambda goal=goal: sent >= goal or sending.done())
            connection = client._connection
            place = connection._endpoints[connection._at]
            next(node for node in cluster.nodes if node.endpoint == place).kill_all()
            await sending
        stored: list[bytes] = []
        for partition in await client.partitions("work"):
            offset = partition.begin
            while offset < partition.end:
                batch = await client.pull("work", partition.partition, offset)
                stored += (message.payload for message in batch)
                offset = batch.next_offset
        assert stored == [b"%d" % number for number in range(700)]


async def test_scans_at_followers_are_of_their_copies(cluster: Cluster) -> None:
    """By the SDK and by Spark's tasks, which get what the leader has, while more is published."""
    first = await leader(cluster)
    others = [node for node in cluster.nodes if node is not first]
    async with Client(first.endpoint) as client, Client(others[0].endpoint) as other:
        await client.send_many([OutgoingMessage(f"scan/{each % 9}", b"%d" % each * 50) for each in range(20_000)])

        async def publish() -> None:
            while True:
                await client.send("scan/x", b"more")

        publishing = asyncio.create_task(publish())
        try:
            planned = await client.partitions("scan")
            assert sum(each.end for each in planned) >= 20_000
            for place in (others[0], others[1]):
                rows = await asyncio.to_thread(rows_of_tasks, place.endpoint, "scan", planned)
                assert rows == await asyncio.to_thread(rows_of_tasks, first.endpoint, "scan", planned)
            for each in planned:
                offset = each.begin
                while offset < each.end:
                    batch = await other.pull("scan", each.partition, offset, max_records=500, until=each.end)
                    same = await client.pull("scan", each.partition, offset, max_records=batch.count)
                    assert (same.offset, same.frames) == (batch.offset, batch.frames)
                    offset = batch.next_offset
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    def counts() -> dict[str, float]:
        found = re.findall(r'gateway_copy_reads_total{gateway="(\w+)\.g1"} (\S+)', first.get("/metrics"))
        return {name: float(count) for name, count in found}

    await asyncio.to_thread(block_until, lambda: all(counts().get(each.name, 0) > 5 for each in others))
    assert counts()[first.name] == 0


async def test_a_leader_hands_over_on_command_and_nodes_trust_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    authority.issue("node", "node", "IP:127.0.0.1")
    files = {"certificate": authority.folder / "node.pem", "key": authority.folder / "node.key", "ca": authority.file}
    settings = "[split]\n" + "".join(f"{name} = '{path}'\n" for name, path in files.items())
    async with running(Cluster.of_three(tmp_path, settings=settings)) as cluster:
        first = await leader(cluster)
        second = next(node for node in cluster.nodes if node is not first)
        async with flowing(*ring(cluster)) as flows:
            said = await asyncio.to_thread(first.command_output, "cluster", "lead", second.name)
            assert said == f"node {second.name} leads\n"
            assert await leader(cluster) is second
            await progress(flows)
            for node in cluster.nodes:
                status = await asyncio.to_thread(node.status)
                assert not status["trouble"]
                others = {other["node"] for other in status["others"]}
                assert others == {each.name for each in cluster.nodes if each is not node}
                backup = tmp_path / f"{node.name}-backup"
                said = await asyncio.to_thread(node.command_output, "backup", str(backup))
                assert f"{backup}: the log from 0 to " in said
        await equal_views(cluster)


def test_a_log_that_cannot_be_is_told_at_the_start(tmp_path: Path) -> None:
    node = ClusterNode(tmp_path / "n1", "file://elsewhere/shared", "")
    ran = subprocess.run(node.command(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 1
    assert "this node takes part in the cluster no more: " in ran.stderr
    assert "store ended with exit code 3: the node cannot start" in ran.stderr


@contextmanager
def need_server() -> Iterator[None]:
    """Skip the test if the server is not installed, which it is where all tests run."""
    try:
        yield
    except ServerMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("engine", ["nats", "seaweed"])
async def test_the_leader_is_killed_over_a_real_engine(tmp_path: Path, engine: str) -> None:
    with need_server():
        servers = NatsServers(tmp_path / "nats") if engine == "nats" else SeaweedServers(tmp_path / "seaweed")
    await asyncio.to_thread(servers.start)
    try:
        options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in servers.options.items())
        over = Cluster.of_three(tmp_path, servers.url("log"), f"[cluster.options]\n{options}")
        async with running(over) as cluster:
            first = await leader(cluster)
            others = [node for node in cluster.nodes if node is not first]
            async with flowing((others[0], others[1]), (others[1], others[0])) as flows:
                first.kill_all()
                await leader(cluster, but=first)
                await progress(flows)
    finally:
        await asyncio.to_thread(servers.stop)


async def test_a_leader_that_does_not_reach_the_shared_log_leads_no_more(tmp_path: Path) -> None:
    """Its links to all gateways are good, and so it is asked, before it answers, whether others know of another one."""
    with need_server():
        servers = NatsServers(tmp_path / "nats", 1)
    await asyncio.to_thread(servers.start)
    try:
        async with (
            TcpProxy(servers.ports[0]) as to_n1,
            TcpProxy(servers.ports[0]) as to_n2,
            TcpProxy(servers.ports[0]) as to_n3,
        ):
            links = {"n1": to_n1, "n2": to_n2, "n3": to_n3}
            options = "[cluster.options]\nreplicas = 1\n"
            nodes = [
                ClusterNode(tmp_path / name, f"nats://127.0.0.1:{link.port}/log", options)
                for name, link in links.items()
            ]
            async with running(Cluster(nodes)) as cluster:
                first = await leader(cluster)
                async with flowing(*ring(cluster)) as flows:
                    links[first.name].silence()
                    second = await leader(cluster, but=first)
                    await progress(flows)
                    assert "leads no more: node " in first.log()
                    links[first.name].heal()
                    await until(lambda: first.health()["leader"] == second.name)
                await equal_views(cluster)
    finally:
        await asyncio.to_thread(servers.stop)


async def test_the_store_of_the_leader_is_killed(lasting: Cluster) -> None:
    first = await leader(lasting)
    async with flowing(*ring(lasting)) as flows:
        first.signal_store(signal.SIGKILL)
        await leader(lasting, but=first)
        await progress(flows)
        second = await leader(lasting)
        second.signal_store(signal.SIGKILL)
        await progress(flows)
    await equal_views(lasting)


async def test_the_node_that_leads_is_killed_and_comes_back(lasting: Cluster) -> None:
    first = await leader(lasting)
    others = [node for node in lasting.nodes if node is not first]
    moved = await RawClient.connect(first.mqtt_port, b"moves", 5, False, EXPIRY)
    await moved.subscribe((b"to/moves", 1))
    async with flowing((others[0], others[1]), (others[1], others[0])) as flows:
        first.kill_all()
        second = await leader(lasting, but=first)
        assert second is not first
        await progress(flows)
        again = await RawClient.connect(others[0].mqtt_port, b"moves", 5, False, EXPIRY)
        assert again.session_present
        publisher = await RawClient.connect(others[1].mqtt_port, b"p", 5)
        await publisher.publish(b"to/moves", b"1", 1)
        assert [message.payload for message in await again.take(1)] == [b"1"]
        await asyncio.to_thread(first.start)
        await leader(lasting)
        await progress(flows)
        for each in (again, publisher):
            await each.disconnect()
    await equal_views(lasting)


@pytest.mark.parametrize("whole", [False, True])
async def test_a_leader_that_stood_still_leads_no_more(lasting: Cluster, whole: bool) -> None:
    first = await leader(lasting)
    others = [node for node in lasting.nodes if node is not first]
    pairs = [(others[0], others[1]), (others[1], others[0])] if whole else ring(lasting)
    async with flowing(*pairs) as flows:
        stop = first.signal_all if whole else first.signal_store
        stop(signal.SIGSTOP)
        second = await leader(lasting, but=first)
        await progress(flows) if whole else await asyncio.sleep(1)
        stop(signal.SIGCONT)
        await until(lambda: first.health()["leader"] == second.name)
        await progress(flows)
    await equal_views(lasting)


async def test_nodes_are_restarted_one_after_the_other(lasting: Cluster) -> None:
    for _ in range(2):
        first = await leader(lasting)
        others = [node for node in lasting.nodes if node is not first]
        async with flowing((others[0], others[1]), (others[1], others[0])) as flows:
            await asyncio.to_thread(first.stop)
            assert "this node handed over to" in first.log()
            await progress(flows)
            await asyncio.to_thread(first.start)
    await equal_views(lasting)


async def test_nothing_is_acknowledged_while_the_shared_log_is_away(lasting: Cluster) -> None:
    first = await leader(lasting)
    folder = lasting.nodes[0].data_dir.parent
    slots, hidden = folder / "shared" / "slots", folder / "hidden"
    async with flowing(*ring(lasting)) as flows:
        slots.rename(hidden)
        slots.touch()
        await until(lambda: all(node.health().get("unreached_s", 0) > 0.2 for node in lasting.nodes))
        before = [len(flow.acknowledged) for flow in flows]
        assert {node.health()["status"] for node in lasting.nodes} == {"the shared log does not answer"}
        for node in lasting.nodes:
            unreached = re.search(r"(?m)^sluice_cluster_unreached_seconds (\S+)$", node.get("/metrics"))
            assert unreached is not None
            assert float(unreached[1]) > 0
        assert [len(flow.acknowledged) for flow in flows] == before
        slots.unlink()
        hidden.rename(slots)
        await progress(flows)
        assert await leader(lasting) is first
        assert "sluice_cluster_leads 1.0" in first.get("/metrics")
    await equal_views(lasting)


async def equal_views(cluster: Cluster) -> None:
    """The views of all nodes are equal at one position."""
    assert len(set((await asyncio.to_thread(cluster.digests)).values())) == 1
