"""A limit on the memory of all packets whose end has not come.

One packet may be as long as `mqtt.max_packet_size`, and its client may stop before its end. With very many
connections that would fill the memory of the node. Small packets are not counted: they cost about what connections
cost.
"""

from collections.abc import Callable

from gateway.connection.connection import Connection


class PartialPackets:
    """The large partial packets, in the order in which they began."""

    __slots__ = ("_end", "_limit", "_sizes", "_total")

    def __init__(self, limit: int, end: Callable[[Connection], None]) -> None:
        """limit: bytes. end: closes a connection."""
        self._limit = limit
        self._end = end
        self._sizes: dict[Connection, int] = {}
        self._total = 0

    def update(self, connection: Connection, size: int, is_new: bool) -> None:
        """Count `size` bytes of a partial packet. Beyond the limit, end the connection whose packet began first.

        is_new: this is another packet than the one counted before.
        """
        if is_new:
            self.remove(connection)
        self._total += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while self._total > self._limit:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            self._end(oldest)

    def remove(self, connection: Connection) -> None:
        """Forget the connection's partial packet: its end has come, or never will."""
        self._total -= self._sizes.pop(connection, 0)
