"""One node of a log over many nodes: it follows the shared log, and leads when nobody else does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, Protocol

from store.cluster.history import History
from store.cluster.leadership import Deposed, Leadership, boot_time, write_slot
from store.cluster.shared_log import SharedLog, SharedLogDamaged, SharedLogUnavailable
from store.cluster.slot import Founded, LeaderClaim, Slot, parse_slot
from store.errors import StoreClosed, StoreError

logger = logging.getLogger(__name__)

_MOST_READS: Final = 8  # at a time, by a member that is behind
_READ_BYTES: Final = 16 << 20  # that these bring, if slots are as large as the largest of the last ones
_IDLE_SLOTS: Final = 3  # of an idle leader within the leader timeout
_SURE: Final = 0.9  # of the leader timeout: clocks of nodes may differ in their rates
_DOUBTS: Final = 4  # quarters of the leader timeout in which the end of the log must be seen to fit, or it is damaged


class NotLeading(StoreError):
    """This node does not lead: ask the one that does."""


class NodeNameTaken(StoreError):
    """Another process runs under the name of this node, and leads: give each node a name of its own."""


class NodeRole(Enum):
    FOLLOWER = "follower"
    LEADER = "leader"


class Replica(Protocol):
    """A node's own copy of the log, and what is folded from it."""

    @property
    def history(self) -> History:
        """The log up to and with the last slot that was applied."""

    async def apply(self, slot: Slot, history: History) -> None:
        """Write and fold a BATCH, note any other slot, and have `history`, which is as of this slot."""

    async def lead(self, leadership: Leadership) -> None:
        """Accept appends from now on, and pass each batch to `leadership.decide` before it is written and folded.

        Raises `Deposed` if the leadership ends before that."""

    async def follow(self) -> None:
        """Accept no appends any more. Returns when all that was decided by this leader's calls is folded, and
        `history` says how far that is; slots behind it are applied again."""


@dataclass(slots=True, frozen=True)
class MemberConfig:
    """Who a member is, and its times. `opening` is the random name of this process's opening of the log."""

    node: str
    address: str  # where gateways reach this node's store
    opening: str
    leader_timeout_s: float = 3.0  # without a slot, after which others may claim
    poll_ms: float = 50.0  # between reads at the end of the log
    site: str = ""  # where the node is


Meet = Callable[[LeaderClaim], Awaitable[None]]
OnRole = Callable[[NodeRole, LeaderClaim | None], None]  # this node's role, and who leads, if that is known


def stands_by(history: History, site: str) -> bool:
    """Whether nodes of this site do not claim the log, because another site has it."""
    return history.leader is not None and history.leader.site != site


class Member:
    """Follows and leads. `run` is its only task; `on_role` is called on each change.

    `meet` is awaited once with the newest claim, before this node takes it for its leader's or claims itself. It raises
    `NodeNameTaken` if another process runs under the name of this node.

    Only nodes of the site of the newest claim claim by themselves. Those of other sites stand by, until one of them is
    told to `promote` its site, or is handed the log.

    `unavailable` says since what time of the loop the engine has not answered, and why; None while it does.
    """

    def __init__(
        self,
        log: SharedLog,
        replica: Replica,
        founded: Founded,
        config: MemberConfig,
        rng: Random,
        meet: Meet,
        on_role: OnRole,
        now: Callable[[], float] = boot_time,
    ) -> None:
        """now: seconds that count on while this node stands still."""
        self.unavailable: tuple[float, SharedLogUnavailable] | None = None
        self._log = log
        self._replica = replica
        self._founded = founded
        self._config = config
        self._rng = rng
        self._meet = meet
        self._on_role = on_role
        self._now = now
        self._has_met = False
        self._told: tuple[NodeRole, LeaderClaim | None] = (NodeRole.FOLLOWER, None)
        self._has_claimed = False
        self._leadership: Leadership | None = None
        self._doubts = 0
        self._is_promoting = False  # another site has the log, and this node is to claim it

    async def run(self) -> None:
        """Follow, and lead when nobody else does, until cancelled. The replica may lead then: close it.

        Raises `SharedLogDamaged`, `SlotRemoved` if the replica needs a slot that is gone, `NodeNameTaken`, and what the
        replica raises.
        """
        while True:
            await self._lead(await self._follow())

    async def hand_over(self, to: str) -> None:
        """Stop leading, so that the node `to` leads at once. If it does not, any node does after the leader timeout.

        Raises `NotLeading`, and what `Leadership.hand_over` does.
        """
        if self._leadership is None:
            raise NotLeading("this node does not lead")
        await self._leadership.hand_over(to)

    @property
    def is_sure(self) -> bool:
        """Whether this node leads, and no other node can have claimed because it heard nothing: each of them has heard
        the newest slot, and since then the leader timeout has not passed. Only an order can be faster, to promote
        another site."""
        leadership = self._leadership
        return leadership is not None and leadership.is_sure(_SURE * self._config.leader_timeout_s)

    def depose(self, epoch: int, why: str) -> None:
        """Lead no more if this node leads in an epoch before this one: another node has claimed it."""
        leadership = self._leadership
        if leadership is not None and leadership.history.epoch < epoch:
            leadership.depose(why)
            self._tell(NodeRole.FOLLOWER, None)

    @property
    def is_promoting(self) -> bool:
        """Whether this node is to claim the log for its site, and has not yet."""
        return self._is_promoting

    def promote(self) -> None:
        """Claim the log for the site of this node, as soon as this node has read all of it, if another site has it."""
        self._is_promoting = stands_by(self._replica.history, self._config.site)

    async def _follow(self) -> Leadership:
        """Apply slots until a claim of this node is one of them."""
        window, silence, patience = 1, 0.0, self._draw_patience()
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                slots, at_end = await self._read(window)
                for slot in slots:
                    await self._apply(slot)
                if not at_end:
                    largest = max(len(slot.data) for slot in slots)
                    window = max(1, min(2 * window, _MOST_READS, _READ_BYTES // largest))
                    silence = 0.0
                    continue
                window = 1
                claim = self._replica.history.leader
                if not self._has_met and claim is not None:
                    await self._meet(claim)
                    self._has_met = True
                self._tell_follower()
                is_silent = not slots and silence >= patience
                if slots:  # the newest may have been decided since the read began
                    silence, begun = 0.0, loop.time()
                if (not slots or self._is_promoting) and self._may_claim(is_silent):
                    if (leadership := await self._claim(is_silent)) is not None:
                        return leadership
                    patience = self._draw_patience()
                    continue
            except SharedLogUnavailable as error:
                self._note_answer(error)
                if self._was_away():
                    silence = 0.0
            await asyncio.sleep(self._config.poll_ms / 1000)
            if self.unavailable is None:  # otherwise it is the engine that is silent
                # A member that was paused has heard nothing because it did not listen.
                silence += min(loop.time() - begun, self._config.leader_timeout_s / 4)

    async def _read(self, count: int) -> tuple[list[Slot], bool]:
        """As many of the next `count` slots as can be read, and whether none is decided behind them.

        Raises what `SharedLog.read` does."""
        first = self._replica.history.slot + 1
        numbers = range(first, first + count)
        answers = await asyncio.gather(*map(self._log.read, numbers), return_exceptions=True)
        slots: list[Slot] = []
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, BaseException):
                if slots:
                    return slots, False
                raise answer
            self._note_answer(None)
            if answer is None:
                return slots, True
            slots.append(parse_slot(number, answer))
        return slots, False

    async def _apply(self, slot: Slot) -> None:
        history = self._replica.history.after(slot)
        await self._replica.apply(slot, history)
        self._doubts = 0
        claim = slot.content
        if isinstance(claim, LeaderClaim) and claim.site == self._config.site:
            self._is_promoting = False  # done, also if another site gets the log again
        is_rival = isinstance(claim, LeaderClaim) and self._is_own(claim) and claim.opening != self._config.opening
        if is_rival and self._has_claimed:  # a claim of an earlier process may be late, but not behind one of this one
            raise NodeNameTaken(f"another process leads under the name of this node, {self._config.node}")

    async def _claim(self, is_silent: bool) -> Leadership | None:
        """Found the log, or claim it. None: somebody else decided the next slot, or the end of the log is in doubt."""
        history, config = self._replica.history, self._config
        if history.slot == 0:
            await write_slot(self._log, history.next(self._founded), self._note_answer)
            return None
        # A leader of another site that writes decides the next slot while this node would look for the end.
        if (is_silent or not self._is_promoting) and not await self._sees_the_end(history):
            await asyncio.sleep(config.leader_timeout_s / _DOUBTS)
            return None
        began = self._now()
        claim = LeaderClaim(config.node, config.address, config.opening, config.site)
        slot = history.next(claim, epoch=history.epoch + 1)
        if await write_slot(self._log, slot, self._note_answer) != slot.data:
            return None
        self._has_claimed = True
        await self._apply(slot)
        return Leadership(self._log, self._replica.history, self._note_answer, began, self._now)

    async def _sees_the_end(self, history: History) -> bool:
        """Whether the newest slot that this node knows is the last one of the engine. Raises `SharedLogDamaged`."""
        newest = await self._log.read(history.slot)
        end = await self._log.end()
        if newest is not None and parse_slot(history.slot, newest).checksum != history.checksum:
            raise SharedLogDamaged(f"slot {history.slot} of the shared log is not what it was")
        if newest is not None and end == history.slot + 1:
            return True
        if await self._log.read(history.slot + 1) is not None:  # another node was faster
            return False
        # An answer may be old. It is not old for long.
        self._doubts += 1
        if self._doubts > _DOUBTS:
            raise SharedLogDamaged(
                f"slot {history.slot} is the last one that can be read, but the shared log ends with slot {end - 1}"
            )
        return False

    async def _lead(self, leadership: Leadership) -> None:
        """Lead until deposed. Raises what ended the leadership unless another node may lead."""
        self._leadership = leadership
        idle = asyncio.ensure_future(self._say_alive(leadership))
        try:
            with suppress(Deposed):
                await self._replica.lead(leadership)
                self._tell(NodeRole.LEADER, leadership.history.leader)
            why = await leadership.wait_until_over()
        finally:
            self._leadership = None
            idle.cancel()
            leadership.close()
        logger.warning("node %s leads no more: %s", self._config.node, why)
        self._tell(NodeRole.FOLLOWER, None)
        await self._replica.follow()
        if not isinstance(why, Deposed | StoreClosed):
            raise why

    async def _say_alive(self, leadership: Leadership) -> None:
        loop, pause = asyncio.get_running_loop(), self._config.leader_timeout_s / _IDLE_SLOTS
        with suppress(Exception):  # the leadership is over, and knows why
            while True:
                newest = leadership.decided_at
                await asyncio.sleep(newest + pause - loop.time())
                await leadership.idle(newest)

    def _was_away(self) -> bool:
        """Whether the engine has not answered for so long that a leader may have had no way to say that it lives.

        A single request that fails says nothing about the leader, however long it took."""
        if self.unavailable is None:
            return False
        return asyncio.get_running_loop().time() - self.unavailable[0] >= self._config.leader_timeout_s / _IDLE_SLOTS

    def _may_claim(self, is_silent: bool) -> bool:
        """Whether this node claims now. is_silent: nobody seems to lead."""
        history = self._replica.history
        if not stands_by(history, self._config.site):
            return is_silent or self._may_claim_at_once()
        return self._is_promoting or history.handed_to == self._config.node

    def _may_claim_at_once(self) -> bool:
        """Whether nobody leads, as far as this node knows, and this one comes next."""
        history = self._replica.history
        if history.handed_to:
            return history.handed_to == self._config.node
        return history.leader is None or self._is_own(history.leader)

    def _is_own(self, claim: LeaderClaim) -> bool:
        return claim.node == self._config.node

    def _draw_patience(self) -> float:
        """Seconds of silence until this node claims. All nodes claim the same slot, so a draw costs only requests."""
        return self._config.leader_timeout_s * (1 + self._rng.random() / 4)

    def _tell_follower(self) -> None:
        history = self._replica.history
        known = history.leader is not None and not history.handed_to and not self._is_own(history.leader)
        # Who led last says which site has the log, whether or not anybody leads there now.
        known |= stands_by(history, self._config.site)
        self._tell(NodeRole.FOLLOWER, history.leader if known else None)

    def _tell(self, role: NodeRole, leader: LeaderClaim | None) -> None:
        if self._told != (role, leader):
            self._told = (role, leader)
            self._on_role(role, leader)

    def _note_answer(self, error: SharedLogUnavailable | None) -> None:
        if error is None:
            if self.unavailable is not None:
                logger.info("the shared log answers again")
            self.unavailable = None
        elif self.unavailable is None:
            logger.warning("the shared log does not answer, and is asked again: %s", error)
            self.unavailable = (asyncio.get_running_loop().time(), error)
