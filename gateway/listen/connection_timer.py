"""Timeouts of connections: one timer for all of them, however many there are.

A connection is in the slot of the tick at which it is due, and moves to another slot when that is put off. What is
timed (CONNECT, keep-alive) is the caller's affair.
"""

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic
from typing import Final

from gateway.connection.connection import Connection

log = logging.getLogger(__name__)

TICK: Final = 0.25  # seconds: nothing is due early, and nothing more than a tick late
_SLICE: Final = 1024  # connections handled in one turn of the loop


class ConnectionTimer:
    """Calls `on_due` with each connection that is due, and by how many seconds it is late."""

    __slots__ = ("_due", "_loop", "_on_due", "_order", "_slots", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[Connection, float], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._slots: dict[int, set[Connection]] = {}  # by tick; an empty one stays until its time
        self._order: list[int] = []  # heap of those ticks
        self._due: list[tuple[Connection, int]] = []  # out of their slots, with the tick, and not handled yet
        self._timer: asyncio.TimerHandle | None = None  # for the first slot

    def set(self, connection: Connection, seconds: float) -> None:
        """Have the connection due in so many seconds, and not at an earlier setting."""
        self.cancel(connection)
        tick = int((monotonic() + seconds) / TICK) + 1
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = set()
            heappush(self._order, tick)
            if self._order[0] == tick:
                self._wait()
        slot.add(connection)
        connection.tick = tick

    def cancel(self, connection: Connection) -> None:
        """Do not have the connection due."""
        if connection.tick:
            slot = self._slots.get(connection.tick)
            if slot is not None:
                slot.discard(connection)
            connection.tick = 0

    def _wait(self) -> None:
        """Start the timer for the first slot."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, self._order[0] * TICK - monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = monotonic()
        order = self._order
        while order and order[0] * TICK <= now:
            tick = heappop(order)
            self._due += [(connection, tick) for connection in self._slots.pop(tick)]
        if order:
            self._wait()
        self._check_due()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_due(self) -> None:
        due = self._due
        for _ in range(min(_SLICE, len(due))):
            connection, tick = due.pop()
            if connection.tick == tick:
                connection.tick = 0
                try:
                    self._on_due(connection, monotonic() - tick * TICK)
                except Exception:
                    log.exception("checking a connection failed")  # the others must still be handled
        if due:
            self._loop.call_soon(self._check_due)
