"""What groups have done since the log was opened, counted while their records are folded. No state of the log.

A record has many messages, so that counting costs little. The groups with counts of their own are bounded: beyond the
limit the oldest entry goes, and begins again at zero when the group does something. The totals have everything.
"""

from collections.abc import Set
from typing import Final

from store.histogram import HANDLING_MS, Histogram
from store.recent_rate import RecentRate

_RECENT: Final = 16  # acknowledgements that the recent handling time is about
_LIMIT: Final = 4096  # groups with counts of their own


class GroupCount:
    """Messages of a group."""

    __slots__ = (
        "acknowledged",
        "acknowledged_rate",
        "dead_lettered",
        "delivered_rate",
        "deliveries",
        "handled",
        "handled_ms",
        "recent_ms",
        "redeliveries",
    )

    def __init__(self) -> None:
        self.deliveries: int = 0  # times that a message was leased
        self.redeliveries: int = 0  # of these, of messages that had been delivered before
        self.acknowledged: int = 0
        self.dead_lettered: int = 0
        self.handled: int = 0  # acknowledgements whose time was taken: of one message in each record
        self.handled_ms: int = 0  # from their leases to their acknowledgements
        self.recent_ms: float = 0.0  # the mean of the last ones of these, the newest counting most
        self.delivered_rate = RecentRate()
        self.acknowledged_rate = RecentRate()


class GroupCounts:
    """Counts by group, and those of all groups together."""

    __slots__ = ("_counts", "handling", "kept", "total")

    def __init__(self) -> None:
        self.total = GroupCount()
        self.handling = Histogram(HANDLING_MS)  # ms from a lease to its acknowledgement, of one message in each record
        self.kept: Set[bytes] = frozenset()  # groups whose entries stay; fewer than the limit
        self._counts: dict[bytes, GroupCount] = {}

    def delivered(self, group: bytes, count: int, again: int, now: int) -> None:
        """Messages were leased at `now` (ms); `again` of them had been delivered before."""
        each, total = self._of(group), self.total
        each.deliveries += count
        each.redeliveries += again
        total.deliveries += count
        total.redeliveries += again
        each.delivered_rate.add(count, now)

    def acknowledged(self, group: bytes, count: int, handled_ms: int, now: int) -> None:
        """Messages are finished, at `now` (ms). handled_ms: how long one of them was leased; -1: that is not known."""
        each, total = self._of(group), self.total
        each.acknowledged += count
        total.acknowledged += count
        each.acknowledged_rate.add(count, now)
        if handled_ms >= 0:
            each.handled += 1
            each.recent_ms += (handled_ms - each.recent_ms) / min(each.handled, _RECENT)
            each.handled_ms += handled_ms
            total.handled += 1
            total.handled_ms += handled_ms
            self.handling.add(handled_ms)

    def dead_lettered(self, group: bytes, count: int) -> None:
        self._of(group).dead_lettered += count
        self.total.dead_lettered += count

    def find(self, group: bytes) -> GroupCount | None:
        """The counts of a group; None if it has none of its own."""
        return self._counts.get(group)

    def all(self) -> list[tuple[bytes, GroupCount]]:
        """The groups with counts of their own."""
        return list(self._counts.items())

    def _of(self, group: bytes) -> GroupCount:
        found = self._counts.get(group)
        if found is None:
            while len(self._counts) >= _LIMIT:
                oldest = next(iter(self._counts))
                dropped = self._counts.pop(oldest)
                if oldest in self.kept:
                    self._counts[oldest] = dropped
            found = self._counts[group] = GroupCount()
        return found
