"""The part of the model that is about durable sessions."""

from collections.abc import Callable
from dataclasses import dataclass, field

from matcher.names import has_wildcard
from record.layout import Kind
from store import control
from store.api import Outbound, SessionState, Subscription, subscription_queue

NEVER = 0xFFFF_FFFF


@dataclass(slots=True)
class Session:
    """A durable session."""

    epoch: int
    expiry: int
    closed_at: int = 0
    subscriptions: dict[bytes, Subscription] = field(default_factory=dict)
    inbound: set[int] = field(default_factory=set)
    outbound: dict[int, Outbound] = field(default_factory=dict)


class Sessions:
    """Sessions by client. `end_of` says where a queue ends."""

    def __init__(self, end_of: Callable[[bytes], int]) -> None:
        self._end_of = end_of
        self.by_client: dict[bytes, Session] = {}

    def fold(self, kind: Kind, client: bytes, payload: bytes, position: int) -> None:
        """Take a record about a session."""
        session = self.by_client.get(client)
        if kind == Kind.SESSION_OPENED:
            self._opened(client, control.parse_session_opened(payload))
        elif session is None:
            pass
        elif kind == Kind.SESSION_CLOSED:
            self._closed(client, session, control.parse_session_closed(payload))
        elif kind == Kind.SESSION_ENDED:
            if control.parse_session_ended(payload) >= session.epoch:
                del self.by_client[client]
        elif kind == Kind.SUBSCRIBED:
            for wish in control.parse_subscribed(payload):
                self._subscribe(session, wish, position)
        elif kind == Kind.UNSUBSCRIBED:
            for name in control.parse_unsubscribed(payload):
                session.subscriptions.pop(name, None)
        elif kind == Kind.CURSORS_COMMITTED:
            for name, offset in control.parse_cursors_committed(payload).items():
                _acknowledge(session, name, offset)
        elif kind == Kind.INBOUND_RELEASED:
            session.inbound.difference_update(control.parse_inbound_released(payload))
        elif kind == Kind.OUTBOUND_CHANGED:
            _outbound(session, control.parse_outbound_changed(payload))

    def received(self, client: bytes, packet_id: int) -> None:
        """A message with a tracked packet id came from the client."""
        if client in self.by_client:
            self.by_client[client].inbound.add(packet_id)

    def wanted(self) -> set[bytes]:
        """Wildcard filters that some session subscribes to: only these have queues that grow."""
        names = {name for s in self.by_client.values() for name in s.subscriptions}
        return {name for name in names if has_wildcard(name) and not name.startswith(b"$share/")}

    def sent(self, client: bytes, packet_id: int, name: bytes, offset: int) -> None:
        """A message is on its way to a client."""
        self.by_client[client].outbound[packet_id] = Outbound(packet_id, name, offset, released=False)

    def state(self, client: bytes) -> SessionState | None:
        """The session as `Store.session` gives it."""
        s = self.by_client.get(client)
        if s is None:
            return None
        subscriptions = [s.subscriptions[name] for name in sorted(s.subscriptions)]
        outbound = [s.outbound[number] for number in sorted(s.outbound)]
        return SessionState(client, s.epoch, s.expiry, s.closed_at, subscriptions, sorted(s.inbound), outbound)

    def open(self) -> list[tuple[bytes, int, int]]:
        return sorted((client, s.epoch, s.expiry) for client, s in self.by_client.items() if not s.closed_at)

    def expired(self, now_ms: int) -> list[tuple[bytes, int]]:
        closed = [(c, s) for c, s in self.by_client.items() if s.closed_at and s.expiry != NEVER]
        due = sorted((s.closed_at + s.expiry * 1000, client, s.epoch) for client, s in closed)
        return [(client, epoch) for deadline, client, epoch in due if deadline <= now_ms]

    def _opened(self, client: bytes, event: control.Opened) -> None:
        session = self.by_client.get(client)
        if session is None or (event.clean and session.epoch <= event.epoch):
            self.by_client[client] = Session(event.epoch, event.expiry_interval)
        elif session.epoch <= event.epoch:
            session.epoch, session.expiry, session.closed_at = event.epoch, event.expiry_interval, 0

    def _closed(self, client: bytes, session: Session, event: control.Closed) -> None:
        if event.epoch < session.epoch:
            return
        if event.expiry_interval == 0:
            del self.by_client[client]
        session.epoch, session.expiry = event.epoch, event.expiry_interval
        session.closed_at = max(event.at_ms, 1)

    def _subscribe(self, session: Session, wish: control.Subscribed, position: int) -> None:
        name = wish.topic_filter
        known = session.subscriptions.get(name)
        if known is not None and (known.qos > 0 or wish.qos == 0):  # with QoS 0 there was no cursor to keep
            start, offset, replay = known.start_position, known.offset, known.replay
        else:
            start, offset, replay = self._begin(wish, position)
        session.subscriptions[name] = Subscription(*wish[:-1], start, offset, replay)

    def _begin(self, wish: control.Subscribed, position: int) -> tuple[int, int, int]:
        """Start, cursor and replay of a subscription that a record at `position` makes."""
        name = wish.topic_filter
        end = self._end_of(subscription_queue(name))
        if wish.replay < 0 or wish.qos == 0:
            return position, end, -1
        if has_wildcard(name):
            return position, end, wish.replay if wish.replay < position else -1
        return position, min(wish.replay, end), end if wish.replay < end else -1


def _acknowledge(session: Session, name: bytes, place: int) -> None:
    """A cursor moves on, or the place in a history; the history ends where the subscription began."""
    is_history = name.startswith(b"$replay/")
    subscription = session.subscriptions.get(name.removeprefix(b"$replay/"))
    if subscription is None:
        return
    if is_history:
        if 0 <= subscription.replay < place:
            subscription.replay = place if place < subscription.start_position else -1
    elif place > subscription.offset:
        subscription.offset = place
        if not has_wildcard(name) and place >= subscription.replay:
            subscription.replay = -1


def _outbound(session: Session, change: control.OutboundChange) -> None:
    for number, name, offset in change.sent:
        session.outbound[number] = Outbound(number, name, offset, released=False)
    for number in change.received:
        if number in session.outbound:
            session.outbound[number].released = True
    for number in change.completed:
        session.outbound.pop(number, None)
