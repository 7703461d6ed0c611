"""Which gateway holds which leases of groups that several gateways share.

This is live state, for the end of a gateway. A store that is opened anew does not know it: those leases end by their
time.
"""

from collections.abc import Iterable

from store.api import Run

_Place = tuple[bytes, bytes]  # group, queue


class LeaseOwners:
    """The leases of gateways."""

    def __init__(self) -> None:
        self._leases: dict[bytes, dict[_Place, set[int]]] = {}  # by gateway
        self.is_empty = True  # no gateway has asked for messages

    @property
    def names(self) -> list[bytes]:
        return list(self._leases)

    def add(self, owner: bytes, group: bytes, leases: Iterable[Run]) -> None:
        """A gateway gets these leases."""
        self.is_empty = False
        own = self._leases.setdefault(owner, {})
        for lease in leases:
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
        own = self._leases.pop(owner, {})
        self.is_empty = not self._leases
        return own

    def _discard(self, places: dict[_Place, set[int]], place: _Place, offsets: range) -> None:
        places[place].difference_update(offsets)
        if not places[place]:
            del places[place]
