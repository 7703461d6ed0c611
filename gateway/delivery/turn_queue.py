"""Turns of sessions that read from the store, in slices of time, so that nothing else on the loop waits for long.

A turn is one read for one session. A slice of turns ends after some milliseconds; then everything else on the loop
runs, and the sessions that have more to read are in line again. Several tasks take turns, since a turn may wait for
the disk.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, cast

from gateway.session.session import Session

_SLICE: Final = 0.002  # seconds
_LONGEST_SLICE: Final = 0.01  # if everything else takes long: a slice is half as long as what ran before it
_TASKS: Final = 16  # turns that may wait for the disk at the same time


class TurnQueue:
    """The line of sessions. `run_turn` returns whether the session stays in line, and raises nothing; `on_left` is
    called when a session has left the line."""

    def __init__(
        self, run_turn: Callable[[Session], Coroutine[Any, Any, bool]], on_left: Callable[[Session], None]
    ) -> None:
        self._run_turn = run_turn
        self._on_left = on_left
        self._line: deque[Session] = deque()  # of this slice
        self._next_line: list[Session] = []  # had a turn in this slice, and stay in line
        self._slice_end = 0.0  # monotonic seconds; 0: the next turn begins a slice
        self._paused_at = 0.0  # when the slice before ended
        self._pause: asyncio.Future[None] | None = None  # between two slices
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy_tasks = 0  # in a turn

    def add(self, session: Session) -> None:
        """Put a session in line. It is not there yet."""
        self._line.append(session)
        if not self._tasks:
            self._slice_end, self._paused_at = 0.0, monotonic()
        self._add_task()

    async def stop(self) -> None:
        """End all turns."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add_task(self) -> None:
        """Start another task if sessions are in line and every task is in a turn."""
        if self._line and self._busy_tasks == len(self._tasks) < _TASKS:
            self._tasks.add(asyncio.get_running_loop().create_task(self._run()))

    async def _run(self) -> None:
        try:
            while self._line or self._next_line:
                if self._is_slice_over():
                    await self._wait_for_next_slice()
                else:
                    await self._serve(self._line.popleft())
        finally:
            # Before anything else runs: `add` has to see that this task serves nobody any more.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _serve(self, session: Session) -> None:
        self._busy_tasks += 1
        self._add_task()
        try:
            stays = await self._run_turn(session)
        finally:
            self._busy_tasks -= 1
        if stays:
            self._next_line.append(session)
        else:
            self._on_left(session)

    def _is_slice_over(self) -> bool:
        now = monotonic()
        if self._slice_end == 0.0:
            self._slice_end = now + min(max(_SLICE, (now - self._paused_at) / 2), _LONGEST_SLICE)
        return not self._line or now >= self._slice_end

    async def _wait_for_next_slice(self) -> None:
        """Let everything else on the loop run, sockets included: afterwards it is known which sockets are full."""
        if self._pause is None:
            self._paused_at = monotonic()
            loop = asyncio.get_running_loop()
            self._pause = loop.create_future()
            loop.call_soon(self._begin_slice, self._pause)
        await self._pause

    def _begin_slice(self, pause: asyncio.Future[None]) -> None:
        self._pause = None
        self._line.extend(self._next_line)
        self._next_line = []
        self._slice_end = 0.0
        if not pause.done():
            pause.set_result(None)
