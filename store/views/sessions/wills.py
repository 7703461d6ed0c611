"""The wills view: the will of each connection that has one, and its due time once the connection has ended.

A WILL_SET record sets a will. It is removed when a record drops it, when the session is opened again, or with the
will message itself, which has FLAG_WILL. That record both sends and removes the will, so no crash sends it twice.
"""

from struct import Struct
from typing import Final

import record
from record.layout import Kind
from store.api import StoredWill
from store.control import WillDropped, WillSet
from store.views.database.state import State

_WILLS: Final = b"W"
_WAITING: Final = b"V"  # due (u64 ms) and client id
# Epoch, delay in seconds, due in ms or 0, marks, length of the gateway's name and of the user's. The two names and the
# message as an unsealed frame follow.
_ROW: Final = Struct(">QIQBHHH")
_ACCOUNT: Final = 1  # marks
_DENIED: Final = 2


class WillsView:
    """Wills by client id."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def set(self, client: bytes, event: WillSet) -> None:
        """Set the will of a connection."""
        self.drop(client)
        message = record.frame(Kind.MESSAGE, event.flags, 0, event.topic, client, event.properties, event.payload)
        marks = event.is_account * _ACCOUNT | (not event.is_allowed) * _DENIED
        head = _ROW.pack(event.epoch, event.delay, 0, marks, len(event.gateway), len(event.user), len(event.source))
        self._state.put(_WILLS, client, head + event.gateway + event.user + event.source + message)

    def dropped(self, client: bytes, event: WillDropped) -> None:
        """Remove the will of the connection with this epoch or an older one."""
        row = self._state.get(_WILLS, client)
        if row is not None and _ROW.unpack_from(row)[0] <= event.epoch:
            self.drop(client)

    def drop(self, client: bytes) -> None:
        """Remove the will of a client."""
        row = self._state.get(_WILLS, client)
        if row is None:
            return
        due = _ROW.unpack_from(row)[2]
        if due:
            self._state.delete(_WAITING, _waiting_name(client, due))
        self._state.delete(_WILLS, client)

    def closed(self, client: bytes, at_ms: int, expiry_interval: int) -> None:
        """Set the due time when the connection has ended: after the will delay, or at the end of the session."""
        row = self._state.get(_WILLS, client)
        if row is None:
            return
        epoch, delay, due, *sender = _ROW.unpack_from(row)
        if due:
            return
        due = at_ms + min(delay, expiry_interval) * 1000
        self._state.put(_WILLS, client, _ROW.pack(epoch, delay, due, *sender) + row[_ROW.size :])
        self._state.put(_WAITING, _waiting_name(client, due), b"")

    def will(self, client: bytes) -> StoredWill | None:
        row = self._state.get(_WILLS, client)
        return None if row is None else _will(client, row)

    def page(self, after: bytes | None, limit: int) -> list[StoredWill]:
        """Up to `limit` wills in order of client ids, from after the client `after` on."""
        found: list[StoredWill] = []
        for client, row in self._state.scan(_WILLS, after=after):
            if len(found) == limit:
                break
            found.append(_will(client, row))
        return found

    def waiting(self, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` (client id, due in ms) of connections that have ended, in order of due times."""
        found: list[tuple[bytes, int]] = []
        for name, _ in self._state.scan(_WAITING):
            if len(found) == limit:
                break
            found.append((name[8:], int.from_bytes(name[:8], "big")))
        return found


def _will(client: bytes, row: bytes) -> StoredWill:
    epoch, delay, due, marks, gateway_size, user_size, source_size = _ROW.unpack_from(row)
    user_at = _ROW.size + gateway_size
    source_at = user_at + user_size
    start = source_at + source_size
    _, flags, _, topic, _, properties, payload = record.decode(row, start)
    message = topic, flags, properties, payload
    is_account, is_allowed = bool(marks & _ACCOUNT), not marks & _DENIED
    user, gateway, source = row[user_at:source_at], row[_ROW.size : user_at], row[source_at:start]
    return StoredWill(client, delay, due, *message, epoch, user, is_account, is_allowed, gateway, source)


def _waiting_name(client: bytes, due: int) -> bytes:
    return due.to_bytes(8, "big") + client
