"""The inbound view: packet ids of QoS 2 messages from clients that are not released yet, one row for each.

Most of them are released before the next checkpoint. So the current ids of active sessions are in memory beside
those in RocksDB, and a checkpoint writes only the difference.
"""

from collections.abc import Sequence
from typing import Final

from store.views.database.state import State, owned

_VIEW: Final = b"i"
_MAX_SESSIONS: Final = 4096  # kept in memory after a checkpoint
_MAX_IDS: Final = 1 << 16  # of all these sessions


class _Ids:
    """The packet ids of one session."""

    __slots__ = ("exists", "now", "stored")

    def __init__(self, exists: bool, stored: set[int]) -> None:
        self.exists = exists  # the session exists
        self.stored = stored  # rows as of the last checkpoint
        self.now = set(stored)


class Inbound:
    """Packet ids by client. The caller passes whether the client has a session."""

    __slots__ = ("_ids", "_state", "changed")

    def __init__(self, state: State) -> None:
        self._state = state
        self._ids: dict[bytes, _Ids] = {}
        self.changed: int = 0  # rows that the next checkpoint puts or deletes

    def knows(self, client: bytes) -> bool:
        """Whether the client's ids are in memory. If not, the caller has to call `load` first."""
        return client in self._ids

    def load(self, client: bytes, exists: bool) -> None:
        self._ids[client] = _Ids(exists, set(self._stored(client)))

    def received(self, client: bytes, packet_id: int) -> None:
        """Add the packet id of a message that is in the log, if the client has a session."""
        ids = self._ids[client]
        if ids.exists and packet_id not in ids.now:
            ids.now.add(packet_id)
            self.changed += -1 if packet_id in ids.stored else 1

    def released(self, client: bytes, packet_ids: Sequence[int]) -> None:
        ids = self._ids[client]
        for packet_id in packet_ids:
            self._release(ids, packet_id)

    def opened(self, client: bytes) -> None:
        """Note that the client has a session."""
        if client in self._ids:
            self._ids[client].exists = True

    def drop(self, client: bytes, exists: bool) -> None:
        """Release all ids. `exists` tells whether the session continues."""
        ids = self._ids.get(client)
        if ids is None:
            table = owned(_VIEW, client)
            for packet_id in self._stored(client):
                self._state.delete(table, packet_id.to_bytes(2, "big"))
            return
        ids.exists = exists
        for packet_id in list(ids.now):
            self._release(ids, packet_id)

    def packet_ids(self, client: bytes) -> list[int]:
        """The session's packet ids, sorted."""
        ids = self._ids.get(client)
        return self._stored(client) if ids is None else sorted(ids.now)

    def checkpoint(self) -> None:
        """Pass the changed rows to `State`."""
        kept = 0
        for client, ids in self._ids.items():
            if ids.now != ids.stored:
                table = owned(_VIEW, client)
                for packet_id in ids.now - ids.stored:
                    self._state.put(table, packet_id.to_bytes(2, "big"), b"")
                for packet_id in ids.stored - ids.now:
                    self._state.delete(table, packet_id.to_bytes(2, "big"))
                ids.stored = set(ids.now)
            kept += len(ids.now)
        self.changed = 0
        if len(self._ids) > _MAX_SESSIONS or kept > _MAX_IDS:
            self._ids = {}

    def _release(self, ids: _Ids, packet_id: int) -> None:
        if packet_id in ids.now:
            ids.now.discard(packet_id)
            self.changed += 1 if packet_id in ids.stored else -1

    def _stored(self, client: bytes) -> list[int]:
        return [int.from_bytes(name, "big") for name, _ in self._state.all(owned(_VIEW, client))]
