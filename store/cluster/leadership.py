"""The right to write the shared log, from a claim until another node claims.

A leader has one slot under way at a time. So whoever writes a slot knows all slots before it, and nothing that lands
late can be out of place: it is decided where it was meant to be, or not at all.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from store.cluster.history import History
from store.cluster.shared_log import SharedLog, SharedLogDamaged, SharedLogUnavailable
from store.cluster.slot import HEADER_SIZE, HandedOver, LeaderClaim, Slot, parse_slot
from store.errors import StoreClosed, StoreError

FIRST_PAUSE_S: Final = 0.02  # before the engine is asked again; doubled each time
LONGEST_PAUSE_S: Final = 1.0
_CONTRADICTIONS: Final = 10  # answers that a slot is decided and that there is nothing in it, until it is damage

Reached = Callable[[SharedLogUnavailable | None], None]  # told of each try: why the engine was not reached, or None


def boot_time() -> float:
    """Seconds that count on while the process stands still, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Deposed(StoreError):
    """This node does not lead any more, and whether its last slot was decided is for the log to say: go to the new
    leader."""


async def write_slot(log: SharedLog, slot: Slot, reached: Reached) -> bytes:
    """Try to decide the slot until it is decided, by whomever, and return what it holds.

    A lost answer is settled by repeating the same bytes. Raises `SharedLogDamaged`.
    """
    pause, contradictions = FIRST_PAUSE_S, 0
    while True:
        try:
            if await log.create(slot.number, slot.data):
                reached(None)
                return slot.data
            found = await log.read(slot.number)
            reached(None)
            if found is not None:
                return found
            contradictions += 1
            if contradictions == _CONTRADICTIONS:
                raise SharedLogDamaged(f"slot {slot.number} of the shared log is decided, and nothing is in it")
        except SharedLogUnavailable as error:
            reached(error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


class Leadership:
    """Decides slots, one at a time and in the order of the calls, until another node claims.

    `history` is as of the newest slot that is decided, at the loop's time `decided_at`. `max_batch` is the most bytes
    of a batch.
    """

    def __init__(
        self,
        log: SharedLog,
        history: History,
        reached: Reached,
        began: float,
        now: Callable[[], float] = boot_time,
    ) -> None:
        """began: when the write of the newest slot began, as `now` said."""
        self.history = history
        self.max_batch = log.max_slot_bytes - HEADER_SIZE
        self._log = log
        self._reached = reached
        self._now = now
        self._began = began
        self._hands_over = False
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self.decided_at = self._loop.time()
        self._over: asyncio.Future[Exception] = self._loop.create_future()

    async def decide(self, position: int, batch: bytes) -> History:
        """Decide that the log goes on with this sealed batch at `position`, and return the history with it.

        Waits while the engine is unavailable. Raises `Deposed`, from then on in each call; `SharedLogDamaged`; and
        `StoreClosed` after `close`. Cancelling a call ends the leadership, since its outcome is unknown.
        """
        async with self._lock:
            return await self._write(self._next(batch=batch, position=position))

    async def idle(self, since: float) -> None:
        """Say that the leader lives, unless a slot was decided after this time of the loop. Raises like `decide`."""
        async with self._lock:
            if self.decided_at <= since:
                await self._write(self._next())

    async def hand_over(self, to: str) -> None:
        """Let the node `to` lead, when the calls of before are done. Raises like `decide`."""
        async with self._lock:
            self._hands_over = True
            await self._write(self._next(HandedOver(to)))
            self._end(Deposed(f"this node handed over to {to}"))

    def close(self) -> None:
        """End the leadership. The outcome of a call under way is unknown."""
        self._end(StoreClosed("the leadership is closed"))

    def is_sure(self, seconds: float) -> bool:
        """Whether nobody can lead who claims when there was no slot for these seconds, or by a hand-over."""
        return not self._over.done() and not self._hands_over and self._now() - self._began < seconds

    def depose(self, why: str) -> None:
        """End the leadership, since another node claimed."""
        self._end(Deposed(why))

    async def wait_until_over(self) -> Exception:
        """Wait until the leadership has ended. Returns what calls raise since then."""
        return await asyncio.shield(self._over)

    def _next(self, content: HandedOver | None = None, batch: bytes = b"", position: int = -1) -> Slot:
        if self._over.done():
            raise self._over.result().with_traceback(None)
        return self.history.next(content, batch, position)

    async def _write(self, slot: Slot) -> History:
        history, began = self.history.after(slot), self._now()
        writing = asyncio.ensure_future(self._settle(slot))
        try:
            await asyncio.wait((writing, self._over), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                raise self._over.result().with_traceback(None)
            writing.result()
        except BaseException as error:
            writing.cancel()
            given_up = StoreClosed("a call was given up, and whether its slot was decided is unknown")
            self._end(error if isinstance(error, Exception) else given_up)
            raise
        self.history, self.decided_at, self._began = history, self._loop.time(), began
        return history

    async def _settle(self, slot: Slot) -> None:
        """Write the slot. Raises `Deposed` and `SharedLogDamaged`."""
        found = await write_slot(self._log, slot, self._reached)
        if found != slot.data:
            other = parse_slot(slot.number, found)
            self.history.after(other)
            who = f"node {other.content.node}" if isinstance(other.content, LeaderClaim) else "another process"
            raise Deposed(f"{who} leads from slot {slot.number} of the shared log on, in epoch {other.epoch}")

    def _end(self, why: Exception) -> None:
        if not self._over.done():
            self._over.set_result(why)
