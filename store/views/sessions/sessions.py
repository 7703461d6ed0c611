"""The sessions view: durable sessions, their subscriptions with cursors, and QoS 2 state in both directions.

The methods that fold control records are named after these (see `store.control`). A record changes nothing if the
view does not have its session, or has it with a newer epoch.
"""

from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from matcher.names import has_wildcard, is_shared
from matcher.reserved import filter_of
from store.api import Outbound, PendingRetained, SessionState, StoredSubscription, subscription_queue
from store.control import (
    CursorsCommitted,
    InboundReleased,
    OutboundChanged,
    RetainedSent,
    SessionClosed,
    SessionEnded,
    SessionLost,
    SessionOpened,
    Subscribed,
    SubscribedFilter,
    Unsubscribed,
    WillSet,
)
from store.views.database.state import State, owned
from store.views.groups.shares import Shares
from store.views.queues.dispatch import Dispatcher
from store.views.queues.wanted import WantedFilters
from store.views.sessions.inbound import Inbound
from store.views.sessions.wills import WillsView

_SESSIONS: Final = b"s"
_OPEN: Final = b"a"  # client → reach of its connection, and its gateway
_EXPIRY: Final = b"x"  # deadline (u64 ms) and client id → epoch
_SUBSCRIPTIONS: Final = b"u"
_OUTBOUND: Final = b"o"
_PENDING: Final = b"R"  # by filter: retained messages still to be sent to the session
_COUNT: Final = b"S"  # one row: how many sessions there are
_OF_USER: Final = b"Y"  # user → number of its sessions (u32)

_SESSION_ROW: Final = Struct(">QIQ")  # epoch, expiry interval, closed at; the user name follows
_SUBSCRIPTION_ROW: Final = Struct(">BIQQ")  # options, identifier, start position, offset
_REPLAYS: Final = 0x40  # an option: the position or offset of the replay follows, u64
_WAS_SENT: Final = 0x80  # an option: a u64 follows; messages below this offset may have been sent
_OUTBOUND_ROW: Final = Struct(">BQ")  # released and QoS, offset; the filter follows
_RELEASED: Final = 1
_INBOX: Final = 2  # options of the implicit subscription to an inbox: QoS 2
_NEVER: Final = 0xFFFF_FFFF


class SessionsView:
    """Sessions by client id. Also updates the wanted filters and the members of shared subscriptions."""

    __slots__ = ("_dispatcher", "_shares", "_state", "_wanted", "_wills", "count", "inbound")

    def __init__(
        self, state: State, dispatcher: Dispatcher, wanted: WantedFilters, shares: Shares, wills: WillsView
    ) -> None:
        self._state = state
        self._dispatcher = dispatcher
        self._wanted = wanted
        self._shares = shares
        self._wills = wills
        self.count = 0
        self.inbound = Inbound(state)

    def load(self) -> None:
        """Read the number of sessions as of the checkpoint."""
        row = self._state.get(_COUNT, b"")
        self.count = 0 if row is None else int.from_bytes(row, "big")

    def opened(self, client: bytes, event: SessionOpened) -> None:
        row = self._row(client)
        if row is not None:
            if row.epoch > event.epoch:
                return
            if event.clean:
                self._drop(client, True)
            self._unset_expiry(client, row)
        else:
            self._counted(1)
        owner = b"" if row is None else row.user
        if owner != event.user:
            self._counted_of(owner, -1)
            self._counted_of(event.user, 1)
        self._wills.drop(client)
        self.inbound.opened(client)
        self._state.put(_SESSIONS, client, _Session(event.epoch, event.expiry, 0, event.user).packed())
        self._state.put(_OPEN, client, event.reach.to_bytes(4, "big") + event.gateway)

    def lost(self, client: bytes, event: SessionLost) -> None:
        row = self._row(client)
        reach = self._state.get(_OPEN, client)
        if row is not None and row.epoch <= event.epoch and reach is not None:
            self._mark_sent(client, int.from_bytes(reach[:4], "big"))
        self.closed(client, event)

    def closed(self, client: bytes, event: SessionClosed | SessionLost) -> None:
        row = self._row(client)
        if row is None or row.epoch > event.epoch:
            return
        self._wills.closed(client, max(event.at_ms, 1), event.expiry)
        self._unset_expiry(client, row)
        if event.expiry == 0:
            self._end(client, row.user)
            return
        self._state.delete(_OPEN, client)
        at_ms = max(event.at_ms, 1)
        self._state.put(_SESSIONS, client, _Session(event.epoch, event.expiry, at_ms, row.user).packed())
        if event.expiry != _NEVER:
            name = _expiry_name(client, event.expiry, at_ms)
            self._state.put(_EXPIRY, name, event.epoch.to_bytes(8, "big"))

    def ended(self, client: bytes, event: SessionEnded) -> None:
        row = self._row(client)
        if row is None or row.epoch > event.epoch:
            return
        self._unset_expiry(client, row)
        self._end(client, row.user)

    def subscribed(self, client: bytes, event: Subscribed, position: int) -> None:
        if self._row(client) is None:
            return
        table = owned(_SUBSCRIPTIONS, client)
        for asked in event.subscriptions:
            known = self._state.get(table, asked.filter)
            keeps = False
            if known is not None:
                row = _Row.unpack(known)
                keeps = bool(row.options & 3) or asked.qos == 0  # with QoS 0 there was no cursor
            elif is_shared(asked.filter):
                self._shares.joined(asked.filter)
            elif has_wildcard(asked.filter):
                self._wanted.add(asked.filter)
            if not keeps:
                row = self._new(asked, position)
            row = row._replace(options=_options(asked), identifier=asked.identifier)
            self._state.put(table, asked.filter, row.packed())

    def _new(self, asked: SubscribedFilter, position: int) -> "_Row":
        """A new subscription of the record at `position`. It begins there, or at the requested earlier place."""
        end = self._dispatcher.end(subscription_queue(asked.filter))
        if asked.begin < 0 or asked.qos == 0:
            return _Row(0, 0, position, end)
        if has_wildcard(asked.filter):
            return _Row(0, 0, position, end, asked.begin if asked.begin < position else -1)
        return _Row(0, 0, position, min(asked.begin, end), end if asked.begin < end else -1)

    def addressed(self, client: bytes, inbox: bytes, position: int, offset: int) -> StoredSubscription | None:
        """Fold a message that entered the client's inbox. Returns the inbox subscription of its session.

        The subscription is created with this message if there was none. None if there is no session.
        """
        if self._row(client) is None:
            return None
        table = owned(_SUBSCRIPTIONS, client)
        packed = self._state.get(table, inbox)
        if packed is None:
            packed = _Row(_INBOX, 0, position, offset).packed()
            self._state.put(table, inbox, packed)
        return _subscription(inbox, packed)

    def unsubscribed(self, client: bytes, event: Unsubscribed) -> None:
        table = owned(_SUBSCRIPTIONS, client)
        for topic_filter in event.filters:
            if self._state.get(table, topic_filter) is not None:
                self._unsubscribe(table, topic_filter)
                self._finish_retained(client, topic_filter)

    def cursors_committed(self, client: bytes, event: CursorsCommitted) -> None:
        table = owned(_SUBSCRIPTIONS, client)
        for name, offset in event.offsets.items():
            topic_filter = name
            known = self._state.get(table, name)
            if known is not None:
                row = _Row.unpack(known)
                moved = row.acknowledged(name, offset)
            else:
                topic_filter = filter_of(name)
                known = self._state.get(table, topic_filter) if topic_filter else None
                if known is None:
                    continue
                row = _Row.unpack(known)
                moved = row.replayed(topic_filter, offset)
            if moved is not row:
                self._state.put(table, topic_filter, moved.packed())

    def will_set(self, client: bytes, event: WillSet) -> None:
        session = self._row(client)
        if session is None or session.epoch <= event.epoch:
            self._wills.set(client, event)

    def inbound_received(self, client: bytes, packet_id: int) -> None:
        """Add the packet id of a QoS 2 message that is in the log."""
        if not self.inbound.knows(client):
            self.inbound.load(client, self._row(client) is not None)
        self.inbound.received(client, packet_id)

    def inbound_released(self, client: bytes, event: InboundReleased) -> None:
        if not self.inbound.knows(client):
            self.inbound.load(client, self._row(client) is not None)
        self.inbound.released(client, event.packet_ids)

    def outbound_changed(self, client: bytes, event: OutboundChanged) -> None:
        if self._row(client) is None:
            return
        table = owned(_OUTBOUND, client)
        for packet_id, topic_filter, offset, qos in event.sent:
            row = _OUTBOUND_ROW.pack(qos << 1, offset) + topic_filter
            self._state.put(table, packet_id.to_bytes(2, "big"), row)
        for packet_id in event.received:
            known = self._state.get(table, packet_id.to_bytes(2, "big"))
            if known is not None:
                self._state.put(table, packet_id.to_bytes(2, "big"), bytes([known[0] | _RELEASED]) + known[1:])
        for packet_id in event.completed:
            self._state.delete(table, packet_id.to_bytes(2, "big"))

    def retained_sent(self, client: bytes, event: RetainedSent) -> None:
        if self._row(client) is None:
            return
        for packet_id, position, qos in event.sent:
            row = _OUTBOUND_ROW.pack(qos << 1, position)
            self._state.put(owned(_OUTBOUND, client), packet_id.to_bytes(2, "big"), row)
        for pending in event.pending:
            if self._state.get(owned(_SUBSCRIPTIONS, client), pending.topic_filter) is not None:
                self._state.put(owned(_PENDING, client), pending.topic_filter, _pending_row(pending))
        for topic_filter in event.finished:
            self._finish_retained(client, topic_filter)

    def _finish_retained(self, client: bytes, topic_filter: bytes) -> None:
        table = owned(_PENDING, client)
        if self._state.get(table, topic_filter) is not None:
            self._state.delete(table, topic_filter)

    def session(self, client_id: bytes) -> SessionState | None:
        """The session with its subscriptions and its QoS 2 and retained state; None if there is none."""
        found = self.session_row(client_id)
        if found is None:
            return None
        for name, value in self._state.all(owned(_SUBSCRIPTIONS, client_id)):
            found.subscriptions.append(_subscription(name, value))
        found.inbound.extend(self.inbound.packet_ids(client_id))
        size = _OUTBOUND_ROW.size
        for name, value in self._state.all(owned(_OUTBOUND, client_id)):
            marks, offset = _OUTBOUND_ROW.unpack_from(value)
            is_released = bool(marks & _RELEASED)
            sent = Outbound(int.from_bytes(name, "big"), value[size:], offset, is_released, marks >> 1)
            found.outbound.append(sent)
        for name, value in self._state.all(owned(_PENDING, client_id)):
            found.pending_retained.append(_pending(name, value))
        return found

    def session_row(self, client_id: bytes) -> SessionState | None:
        """The session without its subscriptions and other state; None if there is none."""
        row = self._row(client_id)
        if row is None:
            return None
        return SessionState(client_id, row.epoch, row.expiry, row.closed_at, user_name=row.user)

    def page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` client ids in order, from after `after` on."""
        return [client for client, _ in islice(self._state.scan(_SESSIONS, after=after), limit)]

    def of_user(self, user: bytes, after: bytes | None, max_rows: int) -> tuple[list[bytes], bytes | None]:
        """A user's client ids among up to `max_rows` sessions after `after`, and where to continue (None: end)."""
        found: list[bytes] = []
        for client, row in islice(self._state.scan(_SESSIONS, after=after), max_rows):
            if row[_SESSION_ROW.size :] == user:
                found.append(client)
            after, max_rows = client, max_rows - 1
        return found, after if not max_rows else None

    def subscriptions(self, client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, StoredSubscription]:
        """The session's subscriptions to these filters."""
        table = owned(_SUBSCRIPTIONS, client_id)
        rows = [(name, self._state.get(table, name)) for name in filters]
        return {name: _subscription(name, row) for name, row in rows if row is not None}

    def open(self, after: bytes | None, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        """Up to `limit` (client id, epoch, expiry interval, gateway) of open sessions, from after `after` on."""
        found: list[tuple[bytes, int, int, bytes]] = []
        for client_id, place in self._state.scan(_OPEN, after=after):
            if len(found) == limit:
                break
            row = self._row(client_id)
            assert row is not None
            found.append((client_id, row.epoch, row.expiry, place[4:]))
        return found

    def expired(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        """Up to `limit` (client id, epoch) of closed sessions that have expired, the earliest first."""
        found: list[tuple[bytes, int]] = []
        for name, epoch in self._state.scan(_EXPIRY):
            if int.from_bytes(name[:8], "big") > now_ms or len(found) == limit:
                break
            found.append((name[8:], int.from_bytes(epoch, "big")))
        return found

    def _row(self, client_id: bytes) -> "_Session | None":
        row = self._state.get(_SESSIONS, client_id)
        if row is None:
            return None
        epoch, expiry, closed_at = _SESSION_ROW.unpack_from(row)
        return _Session(epoch, expiry, closed_at, row[_SESSION_ROW.size :])

    def _mark_sent(self, client_id: bytes, reach: int) -> None:
        """Mark messages that the session's subscriptions may have sent before the connection was lost."""
        table = owned(_SUBSCRIPTIONS, client_id)
        for name, packed in list(self._state.scan(table)):
            if is_shared(name):
                continue  # leases track the messages of members
            row = _Row.unpack(packed)
            lost = row.lost(name, reach, self._dispatcher.end(subscription_queue(name)))
            if lost != row:
                self._state.put(table, name, lost.packed())

    def _counted(self, change: int) -> None:
        self.count += change
        self._state.put(_COUNT, b"", self.count.to_bytes(8, "big"))

    def _counted_of(self, user: bytes, change: int) -> None:
        if user:
            count = self.count_of(user) + change
            if count > 0:
                self._state.put(_OF_USER, user, count.to_bytes(4, "big"))
            else:
                self._state.delete(_OF_USER, user)

    def count_of(self, user: bytes) -> int:
        """The number of sessions of a user."""
        row = self._state.get(_OF_USER, user)
        return 0 if row is None else int.from_bytes(row, "big")

    def _end(self, client_id: bytes, user: bytes) -> None:
        self._counted(-1)
        self._counted_of(user, -1)
        self._drop(client_id, False)
        self._state.delete(_SESSIONS, client_id)
        self._state.delete(_OPEN, client_id)

    def _drop(self, client_id: bytes, goes_on: bool) -> None:
        """Drop the session's state, but not the session itself."""
        subscriptions = owned(_SUBSCRIPTIONS, client_id)
        for name in [name for name, _ in self._state.scan(subscriptions)]:
            self._unsubscribe(subscriptions, name)
        self.inbound.drop(client_id, goes_on)
        for table in (owned(_OUTBOUND, client_id), owned(_PENDING, client_id)):
            for name in [name for name, _ in self._state.scan(table)]:
                self._state.delete(table, name)

    def _unset_expiry(self, client_id: bytes, row: "_Session") -> None:
        if row.closed_at and row.expiry != _NEVER:
            self._state.delete(_EXPIRY, _expiry_name(client_id, row.expiry, row.closed_at))

    def _unsubscribe(self, table: bytes, topic_filter: bytes) -> None:
        self._state.delete(table, topic_filter)
        if is_shared(topic_filter):
            self._shares.left(topic_filter)
        elif has_wildcard(topic_filter):
            self._wanted.remove(topic_filter)


def _expiry_name(client_id: bytes, expiry: int, closed_at: int) -> bytes:
    return (closed_at + expiry * 1000).to_bytes(8, "big") + client_id


def _pending_row(pending: PendingRetained) -> bytes:
    return pending.since.to_bytes(8, "big") + (pending.after or b"")


def _pending(topic_filter: bytes, row: bytes) -> PendingRetained:
    return PendingRetained(topic_filter, int.from_bytes(row[:8], "big"), row[8:] or None)


def _options(asked: SubscribedFilter) -> int:
    return asked.qos | asked.no_local << 2 | asked.retain_as_published << 3 | asked.retain_handling << 4


def _subscription(topic_filter: bytes, packed: bytes) -> StoredSubscription:
    row = _Row.unpack(packed)
    return StoredSubscription(
        topic_filter,
        row.options & 3,
        bool(row.options & 4),
        bool(row.options & 8),
        row.options >> 4 & 3,
        row.identifier,
        row.start,
        row.offset,
        row.replay,
        row.sent_before,
    )


class _Session(NamedTuple):
    """The row of a session."""

    epoch: int
    expiry: int  # seconds
    closed_at: int  # ms; 0: it is open
    user: bytes

    def packed(self) -> bytes:
        return _SESSION_ROW.pack(self.epoch, self.expiry, self.closed_at) + self.user


class _Row(NamedTuple):
    """The row of a subscription, with its cursor."""

    options: int
    identifier: int
    start: int
    offset: int
    replay: int = -1  # see `store.api.StoredSubscription`
    sent_before: int = -1  # see `store.api.StoredSubscription`

    @classmethod
    def unpack(cls, packed: bytes) -> "_Row":
        options, identifier, start, offset = _SUBSCRIPTION_ROW.unpack_from(packed)
        if not options & (_REPLAYS | _WAS_SENT):
            return cls(options, identifier, start, offset)
        places = [int.from_bytes(packed[at : at + 8], "big") for at in range(_SUBSCRIPTION_ROW.size, len(packed), 8)]
        replay = places.pop(0) if options & _REPLAYS else -1
        sent_before = places.pop(0) if options & _WAS_SENT else -1
        return cls(options & ~(_REPLAYS | _WAS_SENT), identifier, start, offset, replay, sent_before)

    def packed(self) -> bytes:
        options, identifier, start, offset, replay, sent_before = self
        places = b""
        if replay >= 0:
            options |= _REPLAYS
            places += replay.to_bytes(8, "big")
        if sent_before >= 0:
            options |= _WAS_SENT
            places += sent_before.to_bytes(8, "big")
        return _SUBSCRIPTION_ROW.pack(options, identifier, start, offset) + places

    def acknowledged(self, topic_filter: bytes, offset: int) -> "_Row":
        """The row with its cursor at `offset`, if that is further."""
        if offset <= self.offset:
            return self
        is_done = 0 <= self.replay <= offset and not has_wildcard(topic_filter)
        return self._replace(offset=offset, replay=-1 if is_done else self.replay)._unmarked(topic_filter)

    def replayed(self, topic_filter: bytes, position: int) -> "_Row":
        """The row with its replay acknowledged up to `position`."""
        if not 0 <= self.replay < position:
            return self
        return self._replace(replay=position if position < self.start else -1)._unmarked(topic_filter)

    def lost(self, topic_filter: bytes, reach: int, end: int) -> "_Row":
        """The row after a lost connection, with a mark at the end of what may have been sent.

        That is at most `reach` messages behind the cursor, and not beyond `end`, the end of the queue.
        """
        before = min(self.offset + reach, end)
        has_history = self.replay >= 0 and has_wildcard(topic_filter)
        if not self.options & 3 or (before <= self.offset and not has_history):
            return self
        return self._replace(sent_before=max(before, self.sent_before))

    def _unmarked(self, topic_filter: bytes) -> "_Row":
        """The row without its mark if the cursor has passed that."""
        if self.sent_before < 0 or self.offset < self.sent_before or (self.replay >= 0 and has_wildcard(topic_filter)):
            return self
        return self._replace(sent_before=-1)
