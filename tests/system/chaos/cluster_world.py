"""Three nodes with one log as processes. The links of nodes to the engine, and of gateways to the stores of other
nodes, are through proxies."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from cloud_sdk import Client
from sluice.demo.engine_servers import NatsServers, SeaweedServers, Server
from sluice.demo.ports import lasting_ports
from tests.system.chaos.world import Fault, World
from tests.system.clusters import LEADER_TIMEOUT_S, Cluster, ClusterNode
from tests.tcp_proxy import TcpProxy
from tests.waiting import until

LEASE_S: Final = 2
GRACE_S: Final = 10
LONG_S: Final = 2.5 * LEADER_TIMEOUT_S  # another node leads by then
OVER: Final = "takes part in the cluster no more"

SEGMENT: Final = 256 << 10  # so that some go to the tier in each run
SETTINGS: Final = f"""
[tier]
store = "{{tier}}"
retention_local_bytes = {SEGMENT}
[store]
segment_size = {SEGMENT}
lease_ms = {LEASE_S * 1000}
max_wait_ms = 0
[split]
grace_s = {GRACE_S}
[mqtt]
max_packet_size = 65536
shared_ack_timeout = 3
"""


async def _stored(endpoint: str) -> list[tuple[str, bytes]]:
    """All messages of a parent topic, as a node reads them: the old ones from the tier."""
    found: list[tuple[str, bytes]] = []
    async with Client(endpoint) as client:
        for bounds in await client.partitions("load"):
            offset = bounds.begin
            while offset < bounds.end:
                batch = await client.pull("load", bounds.partition, offset, max_records=5000)
                found += [(message.topic, message.payload) for message in batch.messages()]
                offset = batch.next_offset
    return found


class ClusterWorld(World):
    """A cluster over one of the engines: "file", "nats" or "seaweed"."""

    # The servers of SeaweedFS find each other again after up to half a minute.
    stuck_s = 120.0
    patience_s = 180.0

    def __init__(self, folder: Path, seed: int, engine: str) -> None:
        """Raises `ServerMissing`."""
        super().__init__(seed, ["n1", "n2", "n3"])
        self._folder = folder
        self._locks = {name: asyncio.Lock() for name in (*self._names, "engine")}
        self._stack = AsyncExitStack()
        self._stores: dict[str, TcpProxy] = {}  # in front of the store of each node
        self._engines: dict[str, list[TcpProxy]] = {}  # of each node to the engine's servers
        self._watch: asyncio.Task[None] | None = None
        self._unready: set[ClusterNode] = set()  # were started again, and nobody has waited for them
        self._is_closing = False
        self._servers: NatsServers | SeaweedServers | None = None
        if engine != "file":
            make = NatsServers if engine == "nats" else SeaweedServers
            self._servers = make(folder / engine)

    async def open(self) -> None:
        if self._servers is not None:
            await asyncio.to_thread(self._servers.start)
        nodes = [await self._make_node(name) for name in self._names]
        self._cluster = Cluster(nodes)
        self._nodes = dict(zip(self._names, nodes, strict=True))
        await asyncio.to_thread(self._cluster.start)
        await asyncio.to_thread(self._cluster.leader)
        self._watch = asyncio.create_task(self._restart())

    async def close(self) -> None:
        self._is_closing = True
        if self._watch is not None:
            await self._watch
        for node in self._nodes.values():
            if node.process is not None:
                code = await asyncio.to_thread(node.stop)
                if code:
                    self.wrong(f"{node.name} stopped with {code}")
        await self._stack.aclose()
        if self._servers is not None:
            await asyncio.to_thread(self._servers.stop)

    def port(self) -> int:
        return self.rng.choice(self._cluster.nodes).mqtt_port

    @property
    def endpoint(self) -> str:
        return ",".join(node.endpoint for node in self._cluster.nodes)

    def pids(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for node in self._cluster.nodes:
            if node.process is not None:
                found |= {f"{node.name} {name}": pid for name, pid in node.processes().items()}
        return found

    async def check(self) -> None:
        """All nodes are ready and have the same views, and none has stopped to take part."""
        for node in self._unready:
            await self._until_ready(node)
        for node in self._cluster.nodes:
            if OVER in node.log_path.read_text():
                self.wrong(f"{node.name} takes part no more")
        try:
            digests = await asyncio.to_thread(self._cluster.digests)
        except TimeoutError:
            self.wrong(f"nobody leads: {[node.health() for node in self._cluster.nodes]}")
        else:
            if len(set(digests.values())) > 1:
                self.wrong(f"the views differ: {digests}")
        everything = [await _stored(node.endpoint) for node in self._cluster.nodes]
        if any(each != everything[0] for each in everything):
            self.wrong(f"the nodes have other messages: {[len(each) for each in everything]}")

    async def _until_ready(self, node: ClusterNode) -> None:
        """Wait for a node that was started again. It ends if a process of it is killed before all were ready, and then
        begins once more (`_restart`)."""
        while True:
            process = node.process
            try:
                await asyncio.to_thread(node.wait_until_ready)
                return
            except AssertionError:
                if process is not None and process.poll() is None:
                    raise
                await until(lambda process=process: node.process not in (None, process))

    def faults(self) -> list[tuple[int, Fault]]:
        faults: list[tuple[int, Fault]] = [
            (4, self._kill_leader),
            (3, self._kill_node),
            (3, self._kill_store_of_leader),
            (3, self._kill_process),
            (2, self._stop),
            (2, self._hand_over),
            (3, self._pause_leader),
            (2, self._pause_store),
            (3, self._part_from_store),
            (1, self._slow),
        ]
        if self._servers is not None:
            faults += [(4, self._kill_server), (2, self._pause_server), (4, self._part_from_engine)]
        return faults

    # --- what may befall them

    async def _kill_leader(self, _name: str) -> None:
        await self._kill_node(await self._leader())

    async def _kill_node(self, name: str) -> None:
        async with self._own(name) as node:
            if node is not None:
                await asyncio.to_thread(node.kill_all)
                self.kills += 1
                await asyncio.sleep(self.rng.choice((0, 0, 1, LONG_S, LEASE_S * 2)))
                self._launch(node)

    async def _kill_store_of_leader(self, _name: str) -> None:
        await self._kill_child(await self._leader(), "store")

    async def _kill_process(self, name: str) -> None:
        await self._kill_child(name, self.rng.choice(("store", "g1")))

    async def _kill_child(self, name: str, kind: str) -> None:
        async with self._own(name) as node:
            if node is not None and node.signal_process(kind, signal.SIGKILL):
                self.history.append(f"{kind} of {name}")
                self.kills += 1

    async def _stop(self, name: str) -> None:
        async with self._own(name) as node:
            if node is not None:
                code = await asyncio.to_thread(node.stop)
                if code and not (code == -signal.SIGTERM and node in self._unready):  # else it had just begun
                    self.wrong(f"{name} stopped with {code}: {node.log()[-2000:]}")
                self._launch(node)

    async def _hand_over(self, name: str) -> None:
        leader = self._nodes[await self._leader()]
        await asyncio.to_thread(leader.run_command, "cluster", "lead", name)  # it may fail: much else goes on

    async def _pause_leader(self, _name: str) -> None:
        await self._paused(await self._leader(), self.rng.choice((0.5, LONG_S, 2 * LONG_S)))

    async def _paused(self, name: str, seconds: float) -> None:
        async with self._own(name) as node:
            if node is not None:
                node.signal_all(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                node.signal_all(signal.SIGCONT)

    async def _pause_store(self, name: str) -> None:
        name = self.rng.choice((name, await self._leader()))
        async with self._own(name) as node:
            if node is not None:
                node.signal_process("store", signal.SIGSTOP)
                await asyncio.sleep(self.rng.choice((0.3, LONG_S, GRACE_S + 3)))
                node.signal_process("store", signal.SIGCONT)

    async def _part_from_store(self, name: str) -> None:
        """Gateways of other nodes do not reach the store of this node."""
        name = self.rng.choice((name, await self._leader()))
        await self._parted([self._stores[name]])

    async def _part_from_engine(self, name: str) -> None:
        name = self.rng.choice((name, await self._leader()))
        await self._parted(self._engines[name])

    async def _parted(self, links: list[TcpProxy]) -> None:
        how = self.rng.choice((TcpProxy.cut, TcpProxy.silence, TcpProxy.forget))
        for link in links:
            how(link)
        await asyncio.sleep(self.rng.choice((0.5, LONG_S, 6, GRACE_S + 6)))
        for link in links:
            link.heal()

    async def _slow(self, name: str) -> None:
        links = [self._stores[name], *self._engines[name]]
        for link in links:
            link.delay_s = self.rng.choice((0.02, 0.2))
        await asyncio.sleep(2)
        for link in links:
            link.delay_s = 0.0

    async def _kill_server(self, _name: str) -> None:
        async with self._one_server() as server:
            server.kill()
            self.kills += 1
            await asyncio.sleep(self.rng.choice((0, 1, 5)))
            server.start()

    async def _pause_server(self, _name: str) -> None:
        async with self._one_server() as server:
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(self.rng.choice((0.5, 3, 12)))
            server.signal(signal.SIGCONT)

    @asynccontextmanager
    async def _one_server(self) -> AsyncIterator[Server]:
        """A server of the engine. All of them work at the begin, and at the end."""
        async with self._locks["engine"]:
            assert self._servers is not None
            server = self.rng.choice(self._servers.servers)
            self.history.append(f"… {server.name}")
            yield server
            await asyncio.to_thread(self._servers.wait_until_ready)

    # --- the processes

    async def _make_node(self, name: str) -> ClusterNode:
        """A node that reaches the engine, and is reached by gateways, through proxies."""
        (port,) = lasting_ports(1)
        store = self._stores[name] = await self._proxy(port)
        log, options = f"file://{self._folder}/shared", dict[str, str | int | float | bool]()
        links = self._engines[name] = []
        if isinstance(self._servers, NatsServers):
            links += [await self._proxy(port) for port in self._servers.ports]
            log = f"nats://{','.join(f'127.0.0.1:{link.port}' for link in links)}/log"
            options = {**self._servers.options, "request_timeout_s": 2}
        elif self._servers is not None:
            links.append(await self._proxy(self._servers.port))
            log = self._servers.url("log")
            endpoint = f"http://127.0.0.1:{links[0].port}"
            options = {**self._servers.options, "endpoint": endpoint, "request_timeout_s": 4}
        settings = f"advertise = '127.0.0.1:{store.port}'\n"
        if options:
            settings += "[cluster.options]\n"
            settings += "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        tier = f"file://{self._folder}/tier" if log.startswith("nats:") else "cluster"
        return ClusterNode(self._folder / name, log, settings + SETTINGS.format(tier=tier), port)

    def _launch(self, node: ClusterNode) -> None:
        """Start it again. It may be ready late, while other faults go on."""
        node.launch()
        self._unready.add(node)

    async def _proxy(self, port: int) -> TcpProxy:
        return await self._stack.enter_async_context(TcpProxy(port))

    async def _leader(self) -> str:
        """The name of the node that leads as somebody says, or any."""
        for node in self.rng.sample(self._cluster.nodes, len(self._names)):
            leader = (await asyncio.to_thread(node.health, 1.0))["leader"]
            if leader is not None:
                return str(leader)
        return self.rng.choice(self._names)

    @asynccontextmanager
    async def _own(self, name: str) -> AsyncIterator[ClusterNode | None]:
        """While nobody else does anything to it; None: it is over by itself."""
        async with self._locks[name]:
            node = self._nodes[name]
            yield node if node.process is not None and node.process.poll() is None else None

    async def _restart(self) -> None:
        """As an init system does: what ended by itself begins again."""
        while not self._is_closing:
            await asyncio.sleep(0.05)
            for name, node in self._nodes.items():
                if self._locks[name].locked() or node.process is None or node.process.poll() is None:
                    continue
                if node not in self._unready:  # a supervisor gives up if a process is killed before all were ready
                    self.wrong(f"{name} ended with {node.process.returncode}: {node.log()[-2000:]}")
                async with self._locks[name]:
                    self.history.append(f"{name} was over")
                    await asyncio.to_thread(node._wait)
                    self._launch(node)
