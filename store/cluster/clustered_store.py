"""The store of one node of a cluster: it follows a shared log, and leads it when nobody else does."""

import asyncio
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from store.cluster.engines import open_shared_log
from store.cluster.history import History
from store.cluster.joining import take_part
from store.cluster.leadership import FIRST_PAUSE_S, LONGEST_PAUSE_S
from store.cluster.member import Meet, Member, MemberConfig, NodeRole, NotLeading, OnRole
from store.cluster.replica import BeforeClose, Replica
from store.cluster.shared_log import (
    SharedLog,
    SharedLogDamaged,
    SharedLogMisconfigured,
    SharedLogUnavailable,
    SlotRemoved,
)
from store.cluster.slot import Founded, LeaderClaim, parse_slot
from store.cluster.snapshots import Numbered, snapshots_of
from store.cluster.upkeep import CHECK_S, Upkeep
from store.config import StoreConfig
from store.engine import Engine
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from store.local_store import LocalStore
from store.log.disk import Disk
from store.log.writer import Clock, clock_ms
from store.tier.objects import Objects

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOKS: Final = 4  # for the first slot of a log that this node has a copy of


@dataclass(slots=True, frozen=True)
class ClusteredStoreConfig:
    """Who a node is, and where its log is. The names of nodes must differ."""

    node: str
    log: str  # address of the shared log (`engines.open_shared_log`)
    address: str  # where gateways reach the store of this node
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # of the shared log's service
    leader_timeout_s: float = 3.0  # without a slot, after which others may claim
    poll_ms: float = 50.0  # between reads at the end of the log
    snapshot_bytes: int = 512 << 20  # of log between two snapshots
    site: str = ""  # where the node is


@dataclass(slots=True, frozen=True)
class LogState:
    """What the shared log has."""

    begin: int  # the first slot that is there
    snapshot: Numbered | None  # the newest one


class ClusteredStore:
    """A data folder with a copy of a shared log. Create it with `open`, let `run` run, and `close` it at last.

    `engine` is there while this node leads. A listener of `on_role` is called on each change of `role` and `leader`;
    when a leadership ends, before any append that was not decided is answered.
    """

    def __init__(self, path: Path, config: StoreConfig, cluster: ClusteredStoreConfig) -> None:
        self.path = path
        self.role = NodeRole.FOLLOWER
        # Who leads, if that is known; while another site has the log, who led last.
        self.leader: LeaderClaim | None = None
        self._config = config
        self._cluster = cluster
        self._listeners: list[OnRole] = []
        self._meet: Meet | None = None
        self._replica: Replica
        self._member: Member | None = None
        self._log: SharedLog | None = None  # while `run` runs, and has reached it
        self._clock: Clock = clock_ms
        self._unreached: tuple[float, SharedLogUnavailable] | None = None  # as `unavailable`, until there is a member

    @classmethod
    async def open(
        cls,
        path: Path,
        config: StoreConfig,
        cluster: ClusteredStoreConfig,
        disk: Disk | None = None,
        clock: Clock = clock_ms,
        objects: Objects | None = None,
    ) -> "ClusteredStore":
        """Open the folder. Create it if it does not exist. The shared log is not asked yet.

        objects: the object store of the tier, in place of the configured one.

        Raises `StoreError` if the folder has a log of its own, or another process has it open, and OSError.
        """
        store = cls(path, config, cluster)
        store._clock = clock
        store._replica = await Replica.open(path, config, disk or Disk(), clock, store._on_leadership_over, objects)
        return store

    def change_retention(self, config: StoreConfig) -> None:
        """Take the limits of retention from this configuration, now and while this node leads later."""
        self._config = self._config.with_retention_of(config)
        self._replica.change_retention(config)

    async def run(self) -> None:
        """Follow, and lead when nobody else does, until cancelled. Waits for the shared log's service.

        The node leads no more when this ends, whatever the reason.

        A folder without a copy is filled from a snapshot, if there is one, and so is one whose copy lacks slots that
        were removed.

        Raises `SharedLogMisconfigured`, `SharedLogDamaged`, `NodeNameTaken`, `StoreFailed` when the folder's disk has
        failed, and OSError. The node has to restart then.
        """
        log = await self._reach(lambda: open_shared_log(self._cluster.log, self._cluster.options))
        try:
            self._log = log
            await self._check_log(log)
            keeping = asyncio.ensure_future(self._keep_up(log))
            try:
                opening = secrets.token_hex(16)
                await take_part(log, self._replica, self._reach, lambda: self._take_part(log, opening))
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
        finally:
            self._log = None
            self._on_role(NodeRole.FOLLOWER, None)
            await log.close()

    async def close(self) -> None:
        """Checkpoint the views and unlock the folder. `run` must have ended."""
        await self._replica.close()

    @property
    def engine(self) -> Engine | None:
        """The store, while this node leads."""
        return self._replica.engine if self.role is NodeRole.LEADER else None

    @property
    def is_sure(self) -> bool:
        """Whether this node leads, and knows without a question that no other node does (`Member.is_sure`)."""
        return self._member is not None and self._member.is_sure

    def depose(self, epoch: int, why: str) -> None:
        """Lead no more if this node leads in an epoch before this one: another node says that it has claimed it."""
        if self._member is not None:
            self._member.depose(epoch, why)

    @property
    def local(self) -> LocalStore | None:
        """This node's copy, for reads; None before the log is founded, and while another copy takes its place."""
        return self._replica.local

    @property
    def history(self) -> History:
        """What the slots say up to the last one that this node has folded."""
        return self._replica.history

    @property
    def unavailable(self) -> tuple[float, SharedLogUnavailable] | None:
        """Since what time of the loop the shared log's service has not answered, and why; None while it does."""
        return self._unreached if self._member is None else self._member.unavailable

    def on_role(self, listener: OnRole) -> None:
        """Call `listener` with the role and the leader on each change."""
        self._listeners.append(listener)

    def meet(self, meet: Meet) -> None:
        """Await `meet` once with the newest claim, before this node takes part. It may raise `NodeNameTaken`."""
        self._meet = meet

    def before_close(self, wait: BeforeClose) -> None:
        """Await `wait` before `engine` is closed because this node leads no more, and before `local` is closed because
        another copy takes its place; `local` is None by then."""
        self._replica.before_close = wait

    async def hand_over(self, to: str) -> None:
        """Stop leading, so that the node `to` leads at once. If it does not, any node does after the leader timeout.

        Raises `NotLeading`, and what `Leadership.hand_over` does.
        """
        if self._member is None:
            raise NotLeading("this node does not lead")
        await self._member.hand_over(to)

    def promote(self) -> None:
        """Let this node claim the log for its site, if another site has it. Raises `NotLeading` while this node does
        not take part."""
        if self._member is None:
            raise NotLeading("this node does not reach the shared log yet")
        self._member.promote()

    @property
    def is_promoting(self) -> bool:
        """Whether `promote` is still to take effect."""
        return self._member is not None and self._member.is_promoting

    async def digest(self, position: int | None = None) -> tuple[int, bytes]:
        """A position of the log, and the digest of the views there (`store.views.digest`): by default this node's end.

        Slow: a copy of the views is made, folded up to there and read. Raises `StoreError` and OSError.
        """
        snapshot = await Snapshot.open(self.path, Until(self.history.end if position is None else position))
        try:
            return snapshot.position, await snapshot.digest()
        finally:
            await snapshot.close()

    async def log_state(self) -> LogState:
        """What the shared log has now. Raises `SharedLogUnavailable`."""
        log, founded = self._log, self._replica.history.founded
        if log is None or founded is None:
            raise SharedLogUnavailable("the shared log was not reached yet")
        snapshots = await snapshots_of(log, founded.log_id)
        return LogState(await log.begin(), snapshots[0] if snapshots else None)

    async def _keep_up(self, log: SharedLog) -> None:
        cluster = self._cluster
        node, size, site = cluster.node, cluster.snapshot_bytes, cluster.site
        await Upkeep(log, self._replica, self.path, node, size, self._clock, Random(), CHECK_S, site).run()

    async def _take_part(self, log: SharedLog, opening: str) -> None:
        cluster, config = self._cluster, self._config
        founded = Founded(uuid.uuid4().hex, config.segment_size, config.partitions, config.generation_segments)
        timeout_s, poll_ms = cluster.leader_timeout_s, cluster.poll_ms
        member_config = MemberConfig(cluster.node, cluster.address, opening, timeout_s, poll_ms, cluster.site)
        self._member = Member(log, self._replica, founded, member_config, Random(), self._greet, self._on_role)
        try:
            await self._member.run()
        finally:
            self._member = None
            self._on_role(NodeRole.FOLLOWER, None)

    async def _check_log(self, log: SharedLog) -> None:
        """Raise `SharedLogMisconfigured` if this node's copy is of another log, and `SharedLogDamaged` if the log is
        gone: the copy may be all that is left of it."""
        founded = self._replica.history.founded
        if founded is None:
            return
        for _ in range(_LOOKS):
            log_id = ""
            try:
                first = await self._reach(lambda: log.read(1))
            except SlotRemoved:
                snapshots = await self._reach(lambda: snapshots_of(log))
                log_id = snapshots[0].manifest.log_id if snapshots else founded.log_id
            else:
                content = None if first is None else parse_slot(1, first).content
                log_id = content.log_id if isinstance(content, Founded) else ""
            if log_id:
                if log_id != founded.log_id:
                    slot = self._replica.history.slot
                    raise SharedLogMisconfigured(
                        f"{self.path} has a copy of the log {founded.log_id} up to slot {slot}, and cluster.log is the "
                        f"log {log_id}. If that is right, move the folder away: the node fills an empty one"
                    )
                return
            await asyncio.sleep(self._cluster.leader_timeout_s / _LOOKS)  # an answer may be old
        text = f"the shared log is empty, but {self.path} has a copy of it up to slot {self._replica.history.slot}"
        raise SharedLogDamaged(text)

    async def _reach(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the service answers."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                answer = await ask()
            except SharedLogUnavailable as error:
                if self._unreached is None:
                    logger.warning("the shared log does not answer, and is asked again: %s", error)
                    self._unreached = (asyncio.get_running_loop().time(), error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self._unreached = None
                return answer

    async def _greet(self, claim: LeaderClaim) -> None:
        if self._meet is not None:
            await self._meet(claim)

    def _on_leadership_over(self) -> None:
        self._on_role(NodeRole.FOLLOWER, None)

    def _on_role(self, role: NodeRole, leader: LeaderClaim | None) -> None:
        if (role, leader) != (self.role, self.leader):
            self.role, self.leader = role, leader
            for listener in self._listeners:
                listener(role, leader)
