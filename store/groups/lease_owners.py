"""Which gateway has leased what, of groups that several gateways share: live state, for the end of a gateway, and for
turns. A store that is opened anew does not know it: those leases run out by their time."""

import asyncio
from collections.abc import Iterable
from typing import Final

from store.groups.pop_decision import Lease

_TURN_SECONDS: Final = 0.002  # that who was served last waits for those who have waited longer
_INTEREST_SECONDS: Final = 5.0  # for which who had room is taken to have some still
_MAX_TURNS: Final = 65_536  # groups

_Place = tuple[bytes, bytes]  # group, queue


class _Line:
    """Who asks for messages of a group."""

    __slots__ = ("last", "wants")

    def __init__(self) -> None:
        self.last = b""  # who was served last
        self.wants: dict[bytes, float] = {}  # by gateway: until when, loop time; those who got less than they asked for


class Owners:
    """What gateways have out."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._out: dict[bytes, dict[_Place, set[int]]] = {}
        self._lines: dict[bytes, _Line] = {}

    @property
    def are_any(self) -> bool:
        """Whether gateways have asked for messages."""
        return bool(self._out)

    @property
    def names(self) -> list[bytes]:
        return list(self._out)

    async def turn(self, owner: bytes, group: bytes) -> None:
        """Let another gateway that waits for messages of the group come first, if this one had the last."""
        line = self._lines.get(group)
        if line is None or line.last != owner:
            return
        now = self._loop.time()
        if any(until > now for name, until in line.wants.items() if name != owner):
            await asyncio.sleep(_TURN_SECONDS)

    def took(self, owner: bytes, group: bytes, leases: Iterable[Lease], is_full: bool) -> None:
        """A gateway is leased these; `is_full`: there may be more."""
        out = self._out.setdefault(owner, {})
        if len(self._lines) >= _MAX_TURNS and group not in self._lines:
            self._lines.clear()
        line = self._lines.setdefault(group, _Line())
        if is_full:
            line.wants.pop(owner, None)
        else:
            line.wants[owner] = self._loop.time() + _INTEREST_SECONDS
        for lease in leases:
            line.last = owner
            place = (group, lease.queue)
            offsets = range(lease.offset, lease.offset + lease.count)
            for name, places in self._out.items():
                if name != owner and place in places:
                    self._take_out(places, place, offsets)  # its lease had run out
            out.setdefault(place, set()).update(offsets)

    def settled(self, group: bytes, queue: bytes, first: int, end: int) -> None:
        """Nobody has [first, end) any more."""
        place = (group, queue)
        for places in self._out.values():
            if place in places:
                self._take_out(places, place, range(first, end))

    def of(self, group: bytes, queue: bytes) -> set[int]:
        """The offsets that gateways are known to have."""
        found: set[int] = set()
        for places in self._out.values():
            found |= places.get((group, queue), set())
        return found

    def ended(self, owner: bytes) -> dict[_Place, set[int]]:
        """What a gateway has, which has it no more."""
        for line in self._lines.values():
            line.wants.pop(owner, None)
        return self._out.pop(owner, {})

    def _take_out(self, places: dict[_Place, set[int]], place: _Place, offsets: range) -> None:
        places[place].difference_update(offsets)
        if not places[place]:
            del places[place]
