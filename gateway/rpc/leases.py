"""Leases: which messages of a group are out, until when.

One lease covers what one Receive took. A record's lease id is the lease's base plus the record's index, so
ids cost nothing until they come back. Bounded: an expired lease leaves the heap by itself, and the heap is
rebuilt when leases that ended early make up more than half of it.
"""

import time
from heapq import heapify, heappop, heappush
from typing import Final

from gateway.rpc.cursor import Cursor
from gateway.rpc.limits import RECORDS_PER_LEASE

_SLACK: Final = 256  # stale heap entries that are not worth a rebuild


class Lease:
    """What one Receive took: per record its place, None once it is acknowledged or given back."""

    __slots__ = ("base", "deadline", "left", "places")

    def __init__(self, base: int, deadline: float, places: list[tuple[Cursor, int] | None]) -> None:
        self.base = base  # lease id of places[0]
        self.deadline = deadline  # loop time, seconds
        self.places = places
        self.left = len(places)  # places that are not None


class Leases:
    """The leases of one group."""

    __slots__ = ("_by_deadline", "_leases", "_serial", "count")

    def __init__(self) -> None:
        # Ids of an earlier run of the node must not name leases of this one: the clock is ahead of any
        # serial that an earlier run can have reached (fewer than 64 Receives a millisecond).
        self._serial = int(time.time() * 1_000) * 64
        self._leases: dict[int, Lease] = {}  # by serial
        self._by_deadline: list[tuple[float, int]] = []  # heap of (deadline, serial)
        self.count = 0  # messages that are out

    def add(self, deadline: float, places: list[tuple[Cursor, int] | None]) -> Lease:
        self._serial += 1
        lease = Lease(self._serial * RECORDS_PER_LEASE, deadline, places)
        self._leases[self._serial] = lease
        self.count += len(places)
        if len(self._by_deadline) > 2 * len(self._leases) + _SLACK:
            self._by_deadline = [(each.deadline, serial) for serial, each in self._leases.items()]
            heapify(self._by_deadline)
        else:
            heappush(self._by_deadline, (deadline, self._serial))
        return lease

    def take(self, lease_id: int) -> tuple[Cursor, int] | None:
        """End the lease of one record and say where it is from; None when it is not leased (any more)."""
        serial, index = divmod(lease_id, RECORDS_PER_LEASE)
        lease = self._leases.get(serial)
        if lease is None or index >= len(lease.places):
            return None
        place = lease.places[index]
        if place is None:
            return None
        lease.places[index] = None
        lease.left -= 1
        self.count -= 1
        if not lease.left:
            del self._leases[serial]
        return place

    def next_deadline(self) -> float | None:
        """When the next lease runs out."""
        heap = self._by_deadline
        while heap and heap[0][1] not in self._leases:
            heappop(heap)
        return heap[0][0] if heap else None

    def expire(self, now: float) -> list[tuple[Cursor, int]]:
        """End the leases whose time is up and return the places that were still out."""
        places: list[tuple[Cursor, int]] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            lease = self._leases.pop(heappop(self._by_deadline)[1])
            places.extend(place for place in lease.places if place is not None)
            self.count -= lease.left
        return places
