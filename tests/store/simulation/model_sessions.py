"""The part of the model that is about durable sessions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from msgspec.structs import astuple

from matcher.names import has_wildcard, is_shared
from matcher.reserved import filter_of
from record.layout import Kind
from store import control
from store.api import Outbound, PendingRetained, SessionState, StoredSubscription, StoredWill, subscription_queue

NEVER = 0xFFFF_FFFF


@dataclass(slots=True)
class Session:
    """A durable session."""

    epoch: int
    expiry: int
    reach: int
    user: bytes
    gateway: bytes = b""
    closed_at: int = 0
    subscriptions: dict[bytes, StoredSubscription] = field(default_factory=dict)
    inbound: set[int] = field(default_factory=set)
    outbound: dict[int, Outbound] = field(default_factory=dict)
    pending: dict[bytes, PendingRetained] = field(default_factory=dict)


@dataclass(slots=True)
class Waiting:
    """A will, and when it is due."""

    event: control.WillSet
    due: int = 0

    def will(self, client: bytes) -> StoredWill:
        e = self.event
        message = e.topic, e.flags, e.properties, e.payload
        return StoredWill(
            client, e.delay, self.due, *message, e.epoch, e.user, e.is_account, e.is_allowed, e.gateway, e.source
        )


class Wills:
    """Wills by client."""

    def __init__(self) -> None:
        self.by_client: dict[bytes, Waiting] = {}

    def dropped(self, client: bytes, epoch: int) -> None:
        if client in self.by_client and self.by_client[client].event.epoch <= epoch:
            del self.by_client[client]

    def closed(self, client: bytes, at_ms: int, expiry: int) -> None:
        will = self.by_client.get(client)
        if will is not None and not will.due:
            will.due = at_ms + min(will.event.delay, expiry) * 1000

    def all(self) -> list[StoredWill]:
        return [self.by_client[client].will(client) for client in sorted(self.by_client)]

    def waiting(self) -> list[tuple[bytes, int]]:
        return [(c, due) for due, c in sorted((will.due, c) for c, will in self.by_client.items() if will.due)]


class Sessions:
    """Sessions by client. `end_of` says where a queue ends."""

    def __init__(self, end_of: Callable[[bytes], int]) -> None:
        self._end_of = end_of
        self.by_client: dict[bytes, Session] = {}
        self.wills = Wills()
        self.were_any = False

    def fold(self, kind: Kind, client: bytes, payload: bytes, position: int) -> None:
        """Take a record about a session."""
        session = self.by_client.get(client)
        if kind == Kind.SESSION_OPENED:
            self._opened(client, control.SessionOpened.parse(payload))
        elif kind in (Kind.WILL_SET, Kind.WILL_DROPPED):
            self._will(kind, client, payload)
        elif session is not None:
            self._change(session, kind, client, payload, position)

    def _will(self, kind: Kind, client: bytes, payload: bytes) -> None:
        session = self.by_client.get(client)
        if kind == Kind.WILL_DROPPED:
            self.wills.dropped(client, control.WillDropped.parse(payload).epoch)
            return
        will = control.WillSet.parse(payload)
        if session is None or session.epoch <= will.epoch:
            self.wills.by_client[client] = Waiting(will)

    def _change(self, session: Session, kind: Kind, client: bytes, payload: bytes, position: int) -> None:
        if kind == Kind.SESSION_CLOSED:
            self._closed(client, session, control.SessionClosed.parse(payload))
        elif kind == Kind.SESSION_LOST:
            self._lost(client, session, control.SessionClosed.parse(payload))
        elif kind == Kind.SESSION_ENDED:
            if control.SessionEnded.parse(payload).epoch >= session.epoch:
                del self.by_client[client]
        elif kind == Kind.SUBSCRIBED:
            for wish in control.Subscribed.parse(payload).subscriptions:
                self._subscribe(session, wish, position)
        elif kind == Kind.UNSUBSCRIBED:
            for name in control.Unsubscribed.parse(payload).filters:
                session.subscriptions.pop(name, None)
                session.pending.pop(name, None)
        elif kind == Kind.CURSORS_COMMITTED:
            _commit(session, control.CursorsCommitted.parse(payload).offsets)
        elif kind == Kind.INBOUND_RELEASED:
            session.inbound.difference_update(control.InboundReleased.parse(payload).packet_ids)
        elif kind == Kind.OUTBOUND_CHANGED:
            _outbound(session, control.OutboundChanged.parse(payload))
        elif kind == Kind.RETAINED_SENT:
            _retained(session, control.RetainedSent.parse(payload))

    def received(self, client: bytes, packet_id: int) -> None:
        """A message with a tracked packet id came from the client."""
        if client in self.by_client:
            self.by_client[client].inbound.add(packet_id)

    def addressed(self, client: bytes, inbox: bytes, position: int, offset: int) -> StoredSubscription | None:
        """A message entered the client's inbox. The subscription by which its session gets it, as it is now."""
        if client not in self.by_client:
            return None
        subscriptions = self.by_client[client].subscriptions
        if inbox not in subscriptions:
            subscriptions[inbox] = StoredSubscription(inbox, 2, False, False, 0, 0, position, offset)
        return replace(subscriptions[inbox])

    def wanted(self) -> set[bytes]:
        """Wildcard filters that some session subscribes to: only these have queues that grow."""
        names = {name for s in self.by_client.values() for name in s.subscriptions}
        return {name for name in names if has_wildcard(name) and not name.startswith(b"$share/")}

    def sent(self, client: bytes, packet_id: int, name: bytes, offset: int) -> None:
        """A message is on its way to a client."""
        self.by_client[client].outbound[packet_id] = Outbound(packet_id, name, offset, released=False, qos=2)

    def state(self, client: bytes) -> SessionState | None:
        """The session as `Store.session` gives it."""
        s = self.by_client.get(client)
        if s is None:
            return None
        subscriptions = [s.subscriptions[name] for name in sorted(s.subscriptions)]
        outbound = [s.outbound[number] for number in sorted(s.outbound)]
        pending = [s.pending[name] for name in sorted(s.pending)]
        row = s.epoch, s.expiry, s.closed_at
        return SessionState(client, *row, subscriptions, sorted(s.inbound), outbound, s.user, pending)

    def open(self) -> list[tuple[bytes, int, int, bytes]]:
        return sorted((client, s.epoch, s.expiry, s.gateway) for client, s in self.by_client.items() if not s.closed_at)

    def expired(self, now_ms: int) -> list[tuple[bytes, int]]:
        closed = [(c, s) for c, s in self.by_client.items() if s.closed_at and s.expiry != NEVER]
        due = sorted((s.closed_at + s.expiry * 1000, client, s.epoch) for client, s in closed)
        return [(client, epoch) for deadline, client, epoch in due if deadline <= now_ms]

    def _opened(self, client: bytes, event: control.SessionOpened) -> None:
        session = self.by_client.get(client)
        self.were_any = True
        if session is not None and session.epoch > event.epoch:
            return
        self.wills.by_client.pop(client, None)
        if session is None or event.clean:
            session = self.by_client[client] = Session(event.epoch, event.expiry, event.reach, event.user)
        else:
            session.epoch, session.expiry, session.closed_at = event.epoch, event.expiry, 0
            session.reach, session.user = event.reach, event.user
        session.gateway = event.gateway

    def _lost(self, client: bytes, session: Session, event: control.SessionClosed) -> None:
        if event.epoch >= session.epoch and not session.closed_at:
            for name, s in session.subscriptions.items():
                before = min(s.offset + session.reach, self._end_of(subscription_queue(name)))
                if s.qos and not is_shared(name) and (before > s.offset or _has_history(s)):
                    s.sent_before = max(s.sent_before, before)
        self._closed(client, session, event)

    def _closed(self, client: bytes, session: Session, event: control.SessionClosed) -> None:
        if event.epoch < session.epoch:
            return
        self.wills.closed(client, max(event.at_ms, 1), event.expiry)
        if event.expiry == 0:
            del self.by_client[client]
        session.epoch, session.expiry = event.epoch, event.expiry
        session.closed_at = max(event.at_ms, 1)

    def _subscribe(self, session: Session, wish: control.SubscribedFilter, position: int) -> None:
        name = wish.filter
        known = session.subscriptions.get(name)
        end = self._end_of(subscription_queue(name))
        places = (position, end, -1, -1)
        if known is not None and (known.qos > 0 or wish.qos == 0):  # with QoS 0 there was no cursor to keep
            places = (known.start_position, known.offset, known.replay, known.sent_before)
        elif has_wildcard(name) and wish.qos and 0 <= wish.begin < position:
            places = (position, end, wish.begin, -1)
        elif not has_wildcard(name) and wish.qos and 0 <= wish.begin < end:
            places = (position, wish.begin, end, -1)
        session.subscriptions[name] = StoredSubscription(*astuple(wish)[:6], *places)


def _commit(session: Session, offsets: Mapping[bytes, int]) -> None:
    for name, offset in offsets.items():
        replayed = filter_of(name)
        s = session.subscriptions.get(replayed or name)
        if s is None:
            continue
        if not replayed and offset > s.offset:
            s.offset = offset
            if not has_wildcard(name) and offset >= s.replay:
                s.replay = -1
        elif replayed and 0 <= s.replay < offset:
            s.replay = offset if offset < s.start_position else -1
        else:
            continue
        if s.offset >= s.sent_before and not _has_history(s):
            s.sent_before = -1


def _has_history(subscription: StoredSubscription) -> bool:
    return subscription.replay >= 0 and has_wildcard(subscription.topic_filter)


def _outbound(session: Session, change: control.OutboundChanged) -> None:
    for number, name, offset, qos in change.sent:
        session.outbound[number] = Outbound(number, name, offset, False, qos)
    for number in change.received:
        if number in session.outbound:
            session.outbound[number].released = True
    for number in change.completed:
        session.outbound.pop(number, None)


def _retained(session: Session, change: control.RetainedSent) -> None:
    for number, position, qos in change.sent:
        session.outbound[number] = Outbound(number, b"", position, False, qos)
    for pending in change.pending:
        if pending.topic_filter in session.subscriptions:
            session.pending[pending.topic_filter] = pending
    for name in change.finished:
        session.pending.pop(name, None)
