"""Turns of calls that read old messages. While devices are served, these calls get a share of the event loop's time.

A few services that read from the beginning keep the loop busy, and each reply delays the devices by a fraction of a
millisecond. So the loop's work for such a call is timed, and the next one begins a multiple of that later: ten times as
much for a share of 10 %. No call waits while no device sends or receives messages.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from sys import maxsize
from time import thread_time
from types import coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_SLICE: Final = 64 << 10  # bytes of records in the reply of a turn
_BUSY_S: Final = 0.1  # since the last message of a device
_LATE_S: Final = 0.002  # a timer that fires late by as much takes nothing from the share


class LoopTurns:
    """The line of calls of one kind that wait for their turns, first come, first served."""

    def __init__(
        self,
        share: float,
        longest_wait_s: float,
        traffic: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        cpu_time: Callable[[], float] = thread_time,
    ) -> None:
        """share: of the loop's time, above 0; 1: no call waits. longest_wait_s: of one call. traffic: a number that
        grows with each message of a device. cpu_time: of the loop's thread, in seconds."""
        self.loop = loop
        self.cpu_time = cpu_time
        self._per_second = 1 / share  # seconds from a turn to the next one, for a second of work
        self._longest_wait_s = longest_wait_s
        self._traffic = traffic
        self._seen = 0  # of the traffic
        self._busy_until = 0.0
        self._free_at = 0.0  # the next turn does not begin before
        self._expected = 0.0  # seconds of work in a turn: those of the last one
        self._line: deque[tuple[float, asyncio.Future[float | None]]] = deque()  # since when each waits
        self._timer: asyncio.TimerHandle | None = None

    def most_bytes(self) -> int:
        """How many bytes of records a call may return now: few if calls take turns."""
        now = self.loop.time()
        return _SLICE if self._is_busy(now) and now < self._free_at + self._longest_wait_s else maxsize

    async def wait(self) -> float | None:
        """Wait for a turn. Returns the seconds of work that are charged for it in advance; None: nothing is charged."""
        now = self.loop.time()
        if not self._is_busy(now):
            return None
        if not self._line and now >= self._free_at:
            return self._begin(now)
        place: asyncio.Future[float | None] = self.loop.create_future()
        self._line.append((now, place))
        self._set_timer(now)
        return await place

    def charge(self, seconds: float, paid: float) -> None:
        """Charge the work of a turn that has ended. paid: in advance."""
        self._expected = seconds
        self._free_at += (seconds - paid) * self._per_second
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._set_timer(self.loop.time())

    def _begin(self, now: float) -> float:
        self._free_at = max(self._free_at, now - _LATE_S) + self._expected * self._per_second
        return self._expected

    def _is_busy(self, now: float) -> bool:
        if self._per_second == 1:
            return False
        traffic = self._traffic()
        if traffic != self._seen:
            self._seen = traffic
            self._busy_until = now + _BUSY_S
        return now < self._busy_until

    def _set_timer(self, now: float) -> None:
        if self._line and self._timer is None:
            at = min(self._free_at, self._line[0][0] + self._longest_wait_s)
            self._timer = self.loop.call_later(max(at - now, 0.0), self._go_on)

    def _go_on(self) -> None:
        """Let the next call have its turn, or all of them if there is no traffic any more."""
        self._timer = None
        now = self.loop.time()
        is_busy = self._is_busy(now)
        while self._line:
            since, place = self._line[0]
            if is_busy and now < min(self._free_at, since + self._longest_wait_s):
                break
            self._line.popleft()
            if not place.done():  # its call was not cancelled
                place.set_result(self._begin(now) if is_busy else None)
                if is_busy:
                    break
        self._set_timer(now)


class Turn:
    """The work of the loop for one call."""

    __slots__ = ("_paid", "_seconds", "_turns")

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self._seconds = 0.0
        self._paid: float | None = None  # None: the work is not charged

    async def wait(self) -> None:
        """Wait for the turn."""
        self._paid = await self._turns.wait()

    @coroutine
    def timed(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work`, and count what it does on the loop, without the time in which it waits."""
        cpu_time = self._turns.cpu_time
        step: Callable[[], Any] = partial(work.send, None)
        while True:
            began = cpu_time()
            try:
                awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._seconds += cpu_time() - began
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  it is for `work`
                step = partial(work.throw, error)
            else:
                step = partial(work.send, None)

    def end_soon(self) -> None:
        """End the turn. What the loop does from now on until it turns to something else counts as well."""
        if self._paid is not None:
            self._turns.loop.call_soon(self._end, self._paid, self._turns.cpu_time())

    def _end(self, paid: float, began: float) -> None:
        self._turns.charge(self._seconds + self._turns.cpu_time() - began, paid)
