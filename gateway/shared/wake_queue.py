"""Shared subscriptions that a commit woke, a few in each turn of the loop.

A message may match thousands of groups, and each of them leases it for itself. The first few groups are woken at once;
the rest wait here, first come first served, while the loop serves everything else.
"""

import asyncio
from collections import deque
from typing import Final

from gateway.shared.group import SharedGroup

_GROUPS: Final = 32  # woken in one turn: about half a millisecond of work


class WakeQueue:
    """Groups to be woken, each at most once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[SharedGroup] = deque()
        self._woken: int = 0  # in this turn
        self._is_scheduled: bool = False  # `_begin_turn` is about to run

    def add(self, group: SharedGroup) -> None:
        """Wake a group, now or in a later turn. A group that waits already keeps its place."""
        if group.is_queued:
            return
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_turn)
        if self._woken < _GROUPS and not self._waiting:
            self._woken += 1
            group.wake()
        else:
            group.is_queued = True
            self._waiting.append(group)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._woken = 0
        while self._waiting and self._woken < _GROUPS:
            group = self._waiting.popleft()
            group.is_queued = False
            self._woken += 1
            group.wake()
        if self._waiting:
            self._is_scheduled = True
            self._loop.call_soon(self._begin_turn)
