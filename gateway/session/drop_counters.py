"""Messages that a session was not sent, by reason. The node counts them too (`gateway.observe.counters`)."""

from typing import Final

from gateway.observe.counters import Counters

_MAX_KEPT: Final = 65_536  # sessions without a connection


class DropCounters:
    """Messages that one session was not sent since the node started. Made with the first of them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.expired: int = 0  # message expiry passed before delivery
        self.reclaimed: int = 0  # gone from the log; at least so many
        self.oversized: int = 0  # larger than the client's maximum packet size
        self.qos0_congested: int = 0  # the socket was full
        self.qos0_repeated: int = 0  # may have been sent by a node that died: at most once

    def add_expired(self) -> None:
        self.expired += 1
        self._counters.dropped_expired += 1

    def add_reclaimed(self, count: int) -> None:
        self.reclaimed += count
        self._counters.dropped_reclaimed += count

    def add_oversized(self) -> None:
        self.oversized += 1
        self._counters.dropped_oversized += 1

    def add_qos0_congested(self) -> None:
        self.qos0_congested += 1
        self._counters.dropped_qos0 += 1

    def add_qos0_repeated(self) -> None:
        self.qos0_repeated += 1
        self._counters.dropped_repeated += 1


class OfflineDropCounters:
    """The counters of durable sessions without a connection. The oldest ones are dropped first."""

    def __init__(self) -> None:
        self._kept: dict[bytes, DropCounters] = {}

    def keep(self, client_id: bytes, drops: DropCounters) -> None:
        self._kept.pop(client_id, None)
        self._kept[client_id] = drops
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def get(self, client_id: bytes) -> DropCounters | None:
        return self._kept.get(client_id)

    def pop(self, client_id: bytes) -> DropCounters | None:
        """Remove and return the counters of a client that is back, or whose session has ended."""
        return self._kept.pop(client_id, None)
