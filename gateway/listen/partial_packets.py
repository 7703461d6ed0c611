"""Packets that have begun and not ended, of all connections: how much memory they may take together.

One packet may be as long as `mqtt.max_packet_size`, and who sends it may stop before its end: with very many
connections that would be the memory of the node. Small ones are not looked at: they cost about what connections cost.
"""

from collections.abc import Callable

from gateway.connection.connection import Connection


class PartialPackets:
    """The large ones, in the order in which they began."""

    __slots__ = ("_end", "_limit", "_sizes", "_total")

    def __init__(self, limit: int, end: Callable[[Connection], None]) -> None:
        """limit: bytes. end: closes a connection."""
        self._limit = limit
        self._end = end
        self._sizes: dict[Connection, int] = {}
        self._total = 0

    def update(self, connection: Connection, size: int, is_new: bool) -> None:
        """So much has come of a packet that has not ended; `is_new`: it is another one than before. Of too much, the
        packet that has taken the longest goes, with its connection."""
        if is_new:
            self.remove(connection)
        self._total += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while self._total > self._limit:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            self._end(oldest)

    def remove(self, connection: Connection) -> None:
        """It has ended, or it never will."""
        self._total -= self._sizes.pop(connection, 0)
