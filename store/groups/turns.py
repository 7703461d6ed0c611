"""Gateways that share a group take turns, so that none gets all messages because it is quicker.

This is live state of the store's process.
"""

import asyncio
from typing import Final

_TURN_SECONDS: Final = 0.002  # how long the gateway that was served last lets waiting ones go first
_INTEREST_SECONDS: Final = 5.0  # how long a gateway that got less than it asked for is taken to want more
_MAX_GROUPS: Final = 65_536
_MAX_WAITING: Final = 64  # gateways of a group, before those that ask no more are forgotten


class _Group:
    """The gateways that ask for messages of a group."""

    __slots__ = ("last", "waiting")

    def __init__(self) -> None:
        self.last = b""  # the gateway that was served last
        self.waiting: dict[bytes, float] = {}  # gateways that got less than they asked for, until a loop time


class Turns:
    """The turns of gateways, by group. A gateway has a name; b"" is the process of the store itself."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._groups: dict[bytes, _Group] = {}
        self.are_taken = False  # a gateway in a process of its own has asked for messages

    async def wait(self, gateway: bytes, group: bytes) -> None:
        """Let another gateway that waits for messages of the group go first, if this one was served last."""
        turns = self._groups.get(group)
        if turns is None or turns.last != gateway:
            return
        now = self._loop.time()
        if any(until > now for name, until in turns.waiting.items() if name != gateway):
            await asyncio.sleep(_TURN_SECONDS)

    def served(self, gateway: bytes, group: bytes, has_some: bool, is_full: bool) -> None:
        """A gateway was answered. has_some: it got messages. is_full: there may be more."""
        self.are_taken = True
        turns = self._groups.get(group)
        if turns is None:
            if len(self._groups) >= _MAX_GROUPS:
                self._groups.clear()
            turns = self._groups[group] = _Group()
        now = self._loop.time()
        if is_full:
            turns.waiting.pop(gateway, None)
        else:
            if len(turns.waiting) >= _MAX_WAITING:
                turns.waiting = {name: until for name, until in turns.waiting.items() if until > now}
            turns.waiting[gateway] = now + _INTEREST_SECONDS
        if has_some:
            turns.last = gateway
