"""Nodes of a cluster in one process, over a shared log in a folder."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import record
from record.layout import Kind
from store.api import Appended
from store.cluster import clustered_store
from store.cluster.clustered_store import ClusteredStore, ClusteredStoreConfig
from store.cluster.engines import open_shared_log
from store.cluster.member import NodeRole
from store.cluster.object_log import ObjectLog
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from store.cluster.slot import LeaderClaim
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError
from tests.store.filled import BEGIN_MS, NEVER_MS, SMALL
from tests.store.images import copy_image
from tests.store.simulation.checks import read_log
from tests.store.simulation.records import Records
from tests.waiting import until

TIMEOUT_S = 1.0
CONFIG = SMALL


class Port:
    """The shared log as one node reaches it."""

    def __init__(self, log: SharedLog, max_slot_bytes: int) -> None:
        self.max_slot_bytes = max_slot_bytes
        self.max_object_bytes = 10_000
        self.loses_answers = False  # of `create`, which has its effect
        self.waiting = 0  # requests that are on their way
        self.reads: set[int] = set()  # slots that were read
        self._log = log
        self._is_whole = asyncio.Event()
        self._is_whole.set()

    def cut(self) -> None:
        """No request arrives until `mend`: the node is paused, or gone."""
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    async def create(self, slot: int, data: bytes) -> bool:
        await self._arrive()
        created = await self._log.create(slot, data)
        if created and self.loses_answers:
            raise SharedLogUnavailable("no answer")
        return created

    async def read(self, slot: int) -> bytes | None:
        await self._arrive()
        self.reads.add(slot)
        return await self._log.read(slot)

    async def end(self) -> int:
        await self._arrive()
        return await self._log.end()

    async def begin(self) -> int:
        await self._arrive()
        return await self._log.begin()

    async def trim(self, before: int) -> None:
        await self._arrive()
        await self._log.trim(before)

    async def put_object(self, name: str, data: bytes) -> None:
        await self._arrive()
        await self._log.put_object(name, data)

    async def create_object(self, name: str, data: bytes) -> bool:
        await self._arrive()
        return await self._log.create_object(name, data)

    async def get_object(self, name: str) -> bytes | None:
        await self._arrive()
        return await self._log.get_object(name)

    async def list_objects(self, folder: str) -> list[str]:
        await self._arrive()
        return await self._log.list_objects(folder)

    async def delete_objects(self, names: Sequence[str]) -> None:
        await self._arrive()
        await self._log.delete_objects(names)

    async def close(self) -> None:
        await self._log.close()

    async def _arrive(self) -> None:
        self.waiting += 1
        await self._is_whole.wait()
        self.waiting -= 1


class Node:
    """One process of a node. `roles` are those that it was told of."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.store: ClusteredStore
        self.running: asyncio.Task[None]
        self.port: Port
        self.prepare: Callable[[Port], None] | None = None
        self.roles: list[tuple[NodeRole, LeaderClaim | None]] = []

    @property
    def leads(self) -> bool:
        return self.store.engine is not None

    @property
    def engine(self) -> Engine:
        assert self.store.engine is not None
        return self.store.engine

    async def stop(self) -> None:
        """Stop it as SIGTERM does. Raises what `run` had raised."""
        self.running.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self.running
        finally:
            await self.store.close()


class Nodes:
    """Makes nodes whose folders and log are in `folder`, and closes them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, config: StoreConfig = CONFIG) -> None:
        self.log = f"file://{folder}/log"
        self.config = config
        self.max_slot_bytes = 1 << 20
        self.snapshot_bytes = 1 << 40
        self.running: list[Node] = []
        self._folder = folder
        self._killed: list[Node] = []
        self._opening: Node
        monkeypatch.setattr(clustered_store, "open_shared_log", self._open_port)
        monkeypatch.setattr(clustered_store, "CHECK_S", 0.05)

    async def start(
        self,
        name: str,
        folder: Path | None = None,
        config: StoreConfig | None = None,
        prepare: Callable[[Port], None] | None = None,
    ) -> Node:
        """prepare: called with the node's port before its first request."""
        node = Node(name, folder or self._folder / name)
        node.prepare = prepare
        cluster = ClusteredStoreConfig(name, f"{self.log}#{name}", f"{name}:1", {}, TIMEOUT_S, 5, self.snapshot_bytes)
        node.store = await ClusteredStore.open(node.folder, config or self.config, cluster)
        node.store.on_role(lambda role, leader: node.roles.append((role, leader)))
        node.running = asyncio.create_task(node.store.run())
        self.running.append(node)
        await until(lambda: hasattr(node, "port") or node.running.done())
        return node

    async def start_leader(self, name: str = "a") -> Node:
        node = await self.start(name)
        await until(lambda: node.leads)
        return node

    async def leader(self) -> Node:
        """Wait until one of the nodes leads."""
        await until(lambda: any(node.leads for node in self.running))
        return next(node for node in self.running if node.leads)

    async def stop(self, node: Node) -> None:
        self.running.remove(node)
        await node.stop()

    def kill(self, node: Node, copy: Path) -> None:
        """Nothing of the node reaches the log any more. `copy` gets its folder as a kill leaves it."""
        copy_image(node.folder, copy)
        node.port.cut()
        self.running.remove(node)
        self._killed.append(node)

    async def settle(self) -> int:
        """Wait until all nodes have folded the same slots. Returns the end of the log."""

        def are_equal() -> bool:
            return len({(node.store.history.end, node.store.history.epoch) for node in self.running}) == 1

        await self.leader()
        await until(are_equal)
        return self.running[0].store.history.end

    async def check_equal(self) -> None:
        """All nodes have the same log and the same views, and know the same openings of the log."""
        position = -1
        while position != await self.settle():  # retention may append at any time
            position = self.running[0].store.history.end
            digests = {await node.store.digest() for node in self.running}
        assert len(digests) == 1
        assert digests.pop()[0] == position
        locals_ = [node.store.local for node in self.running]
        metas = [local.meta for local in locals_ if local is not None]
        assert metas.count(metas[0]) == len(self.running)

    async def close(self) -> None:
        for node in self.running:
            await node.stop()
        for node in self._killed:
            with suppress(StoreError):
                await node.stop()

    async def _open_port(self, url: str, options: Mapping[str, str | int | float | bool]) -> SharedLog:
        log, _, name = url.partition("#")
        opened = await open_shared_log(log, options)
        assert isinstance(opened, ObjectLog)
        opened._begin_fresh = opened._trim_delay = 0
        port = Port(opened, self.max_slot_bytes)
        node = next(node for node in reversed(self.running) if node.name == name)
        if node.prepare is not None:
            node.prepare(port)
        node.port = port
        return port


class Writer:
    """Appends random records of all kinds to whoever leads, and knows what was acknowledged."""

    def __init__(self, nodes: Nodes, seed: int = 1) -> None:
        self.acknowledged: dict[int, bytes] = {}  # unsealed frames by position
        self._refused: set[bytes] = set()  # topics and what follows
        self._nodes = nodes
        self._now = BEGIN_MS
        self._records = Records(Random(seed), 2500, moves=False, reclaims=True, delays=(NEVER_MS,))

    async def append(self, count: int, leader: Node | None = None) -> None:
        """Append that many times, one after the other, again where that is refused; to `leader` only once."""
        done = 0
        while done < count:
            node = leader or await self._nodes.leader()
            self._now += 1000
            frames = self._records.append(self._now)
            appended = await append(node.engine, frames)
            if appended.error is not None:
                self._refused |= {frame[48:] for frame in frames}
                if leader is not None:
                    raise appended.error
                await asyncio.sleep(0.01)
                continue
            done += 1
            self.acknowledged |= dict(zip(appended.positions, frames, strict=True))
            self._records.learn(dict(zip(appended.positions, frames, strict=True)))

    async def check_log(self, node: Node) -> None:
        """The node's log has what was acknowledged, and of other messages only some that got an error: an append may
        take two slots, of which the leader decided the first."""
        assert node.store.local is not None
        frames = {record.position_of(frame, 0): frame for frame in await read_log(node.store.local)}
        for position, unsealed in self.acknowledged.items():
            frame = frames.pop(position)
            assert (frame[4:12], frame[48:]) == (unsealed[4:12], unsealed[48:]), "another record"
        others = {frame[48:] for frame in frames.values() if record.decode(frame, 0)[0] == Kind.MESSAGE}
        assert others <= self._refused


async def append(engine: Engine, frames: Sequence[bytes]) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), answer.set_result)
    return await answer
