"""Which gateway holds which leases of groups that several gateways share.

This is live state, for the end of a gateway and for fair turns. A store that is opened anew does not know it: those
leases end by their time.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from store.api import Run

_TURN_SECONDS: Final = 0.002  # how long the gateway that was served last lets waiting ones go first
_INTEREST_SECONDS: Final = 5.0  # how long a gateway that got less than it asked for is taken to want more
_MAX_TURNS: Final = 65_536  # groups

_Place = tuple[bytes, bytes]  # group, queue


class _Turns:
    """The gateways that ask for messages of a group."""

    __slots__ = ("last", "waiting")

    def __init__(self) -> None:
        self.last = b""  # the gateway that was served last
        self.waiting: dict[bytes, float] = {}  # gateways that got less than they asked for, until a loop time


class LeaseOwners:
    """The leases of gateways."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leases: dict[bytes, dict[_Place, set[int]]] = {}  # by gateway
        self._turns: dict[bytes, _Turns] = {}  # by group
        self.is_empty = True  # no gateway has asked for messages

    @property
    def names(self) -> list[bytes]:
        return list(self._leases)

    async def turn(self, owner: bytes, group: bytes) -> None:
        """Let another gateway that waits for messages of the group go first, if this one was served last."""
        turns = self._turns.get(group)
        if turns is None or turns.last != owner:
            return
        now = self._loop.time()
        if any(until > now for name, until in turns.waiting.items() if name != owner):
            await asyncio.sleep(_TURN_SECONDS)

    def add(self, owner: bytes, group: bytes, leases: Iterable[Run], is_full: bool) -> None:
        """A gateway gets these leases. `is_full`: there may be more."""
        self.is_empty = False
        own = self._leases.setdefault(owner, {})
        if len(self._turns) >= _MAX_TURNS and group not in self._turns:
            self._turns.clear()
        turns = self._turns.setdefault(group, _Turns())
        if is_full:
            turns.waiting.pop(owner, None)
        else:
            turns.waiting[owner] = self._loop.time() + _INTEREST_SECONDS
        for lease in leases:
            turns.last = owner
            place = (group, lease.queue)
            offsets = range(lease.offset, lease.offset + lease.count)
            for name, places in self._leases.items():
                if name != owner and place in places:
                    self._discard(places, place, offsets)  # that lease had run out
            own.setdefault(place, set()).update(offsets)

    def remove(self, group: bytes, queue: bytes, first: int, end: int) -> None:
        """The leases of [first, end) have ended."""
        place = (group, queue)
        for places in self._leases.values():
            if place in places:
                self._discard(places, place, range(first, end))

    def offsets(self, group: bytes, queue: bytes) -> set[int]:
        """The offsets that gateways have leased."""
        found: set[int] = set()
        for places in self._leases.values():
            found |= places.get((group, queue), set())
        return found

    def remove_owner(self, owner: bytes) -> dict[_Place, set[int]]:
        """A gateway has ended. Returns the offsets it had leased, by group and queue."""
        for turns in self._turns.values():
            turns.waiting.pop(owner, None)
        own = self._leases.pop(owner, {})
        self.is_empty = not self._leases
        return own

    def _discard(self, places: dict[_Place, set[int]], place: _Place, offsets: range) -> None:
        places[place].difference_update(offsets)
        if not places[place]:
            del places[place]
