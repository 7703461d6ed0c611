"""A node of a simulated cluster: processes, one after the other, on what is left of the disk."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

from store.cluster.history import History
from store.cluster.joining import take_part
from store.cluster.member import Member, MemberConfig, NodeRole
from store.cluster.shared_log import SharedLogUnavailable
from store.cluster.slot import Founded, LeaderClaim
from store.cluster.upkeep import Upkeep
from store.errors import StoreError
from tests.store.cluster.simulation.engine import Port
from tests.store.cluster.simulation.loop import Process
from tests.store.cluster.simulation.replica import Disk, MemoryReplica
from tests.store.cluster.simulation.stores import CHECK_S, SNAPSHOT_BYTES, StoreDisk, StoreReplica, clock_of

if TYPE_CHECKING:
    from tests.store.cluster.simulation.cluster import Cluster

T = TypeVar("T")

LEADER_TIMEOUT_S = 1.0
FOUNDED = {"segment_size": 4096, "partitions": 4, "generation_segments": 16}


class Node:
    """`name` is the node's own name, which a twin shares. `stopped_by` is what its member raised."""

    def __init__(self, cluster: "Cluster", name: str, site: str = "") -> None:
        self.name = name
        self.site = site
        self.disk = Disk()
        self.kept: StoreDisk | None = None  # of the real store, if the cluster has those
        self.alive = False
        self.role = NodeRole.FOLLOWER
        self.leader: LeaderClaim | None = None  # as it was told
        self.stopped_by: StoreError | None = None
        self.process: Process
        self.member: Member
        self.replica: MemoryReplica | StoreReplica
        self.is_open = False
        self.port = Port(cluster.engine, lambda: cluster.on_request(self))
        self._cluster = cluster
        if cluster.folder is not None:
            self.get_disk(cluster.folder)

    def get_disk(self, folder: Path) -> None:
        """Have an empty folder from now on."""
        disks = self._cluster.disks
        self.kept = StoreDisk(folder / f"{len(disks)}", self._cluster.rng)
        disks.append(self.kept)

    def start(self) -> None:
        cluster = self._cluster
        self.alive, self.role, self.stopped_by = True, NodeRole.FOLLOWER, None
        self.process = Process(cluster.loop)
        cluster.processes.append(self.process)
        self.is_open = self.kept is None
        if self.kept is None:
            self._begin(MemoryReplica(self.disk, cluster.rng, cluster.on_folded, self._on_acknowledged))
        else:
            self.kept.start()
        self._run = self.process.spawn(self._live())

    def kill(self) -> None:
        """The process is gone in this moment: nothing of it runs any more."""
        self.process.stopped = True
        self.alive, self.role = False, NodeRole.FOLLOWER

    def stop(self) -> None:
        """Close it, whatever is under way."""
        self._run.cancel()
        self.alive, self.role = False, NodeRole.FOLLOWER

    def promote(self) -> None:
        """Let the node's site have the log."""
        self._cluster.promoted[self.member._config.opening] = self.replica.history.slot
        self.member.promote()

    async def append(self, payloads: list[bytes]) -> bool:
        """Whether the messages are committed, as far as somebody hears who waits for as long as clients do."""
        answer: asyncio.Future[bool] = self._cluster.loop.create_future()

        async def ask() -> None:
            try:
                await self.replica.append(payloads)
            except StoreError:
                if not answer.done():
                    answer.set_result(False)
            else:
                if not answer.done():
                    answer.set_result(True)

        self.process.spawn(ask())
        try:
            return await asyncio.wait_for(answer, 2 * LEADER_TIMEOUT_S)
        except TimeoutError:
            return False

    def _begin(self, replica: MemoryReplica | StoreReplica) -> None:
        cluster = self._cluster
        self.replica = replica
        opening = cluster.rng.randbytes(8).hex()
        founded = Founded(log_id=opening, **FOUNDED)
        config = MemberConfig(self.name, f"{self.name}:1", opening, LEADER_TIMEOUT_S, poll_ms=100, site=self.site)
        rng = Random(cluster.rng.random())
        now = cluster.loop.time
        self.member = Member(self.port, self.replica, founded, config, rng, self._meet, self._on_role, now)

    async def _live(self) -> None:
        kept, cluster = self.kept, self._cluster
        disk = None if kept is None else kept.disk
        try:
            if kept is not None:
                replica = await StoreReplica.start(
                    kept,
                    cluster.loop,
                    cluster.on_folded,
                    self._on_acknowledged,
                    cluster.digest_at,
                    cluster.stores,
                    cluster.objects,
                )
                self._begin(replica)
                self.is_open = True
                self._keep_up(replica, kept)
                await take_part(self.port, replica, self._reach, self._take_part)
            else:
                await self.member.run()
        except StoreError as error:
            if disk is not None and disk.dead:
                return
            self._cluster.on_stopped(self, error)
            self.stopped_by = error
            self.alive, self.role = False, NodeRole.FOLLOWER
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  nothing else may happen, and a task hides it
            if disk is not None and disk.dead:
                return
            self._cluster.violate(f"{self.name}: {error!r}")

    def _keep_up(self, replica: StoreReplica, kept: StoreDisk) -> None:
        cluster = self._cluster
        rng, clock = Random(cluster.rng.random()), clock_of(cluster.loop)
        upkeep = Upkeep(self.port, replica, kept.path, self.name, SNAPSHOT_BYTES, clock, rng, CHECK_S, self.site)
        self.process.spawn(upkeep.run())

    async def _take_part(self) -> None:
        self._begin(self.replica)
        await self.member.run()

    async def _reach(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except SharedLogUnavailable:
                await asyncio.sleep(0.1)

    async def _meet(self, claim: LeaderClaim) -> None:
        """A process does not see others of its name."""

    def _on_role(self, role: NodeRole, leader: LeaderClaim | None) -> None:
        self.role, self.leader = role, leader
        if role is NodeRole.LEADER:
            self._cluster.counts["leaders"] += 1
            assert leader is not None and leader.node == self.name
            self._cluster.check_sure(self, self.replica.history.epoch)

    def _on_acknowledged(self, history: History, batch: bytes) -> None:
        self._cluster.on_acknowledged(self, history, batch)
