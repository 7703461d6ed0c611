"""What the views have to say, folded from the records in the plainest way: lists and dicts, for reading.

Nothing here knows of files, batches or checkpoints. Meanings are those of `store.control` and `docs/format.md`.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import record
from matcher.names import has_wildcard, matches, parent_of
from record.layout import FLAG_RETAIN, FLAG_TRACK_ID, Kind
from store import control
from store.api import Outbound, SessionState, Subscription, filter_queue, partition_queue, topic_queue

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


class Model:
    """The state after some sealed records."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.queues: defaultdict[bytes, list[bytes]] = defaultdict(list)  # name → sealed frames
        self.topics: set[bytes] = set()
        self.keys: defaultdict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)  # (parent, key) → sealed frames
        self.retained: dict[bytes, bytes] = {}
        self.sessions: dict[bytes, Session] = {}
        self.groups: defaultdict[tuple[bytes, bytes], dict[int, int]] = defaultdict(dict)

    def fold(self, frame: bytes) -> None:
        """Take the next record of the log."""
        kind, flags, packet_id, topic, publisher, properties, payload = record.decode(frame, 0)
        if kind == Kind.MESSAGE:
            for key in set(record.keys_of(properties)) - {b""}:
                self.keys[parent_of(topic), key].append(frame)
            self._message(frame, flags, packet_id, topic, publisher, payload)
        elif kind == Kind.GROUP_OFFSETS_COMMITTED:
            parent, offsets = control.parse_group_offsets_committed(payload)
            self.groups[topic, parent].update(offsets)
        elif kind == Kind.SESSION_OPENED:
            self._opened(topic, control.parse_session_opened(payload))
        elif topic in self.sessions:
            self._session_record(Kind(kind), topic, payload, record.position_of(frame, 0))

    def wanted(self) -> set[bytes]:
        """Wildcard filters that some session subscribes to: only these have queues that grow."""
        return {name for s in self.sessions.values() for name in s.subscriptions if has_wildcard(name)}

    def state(self, client: bytes) -> SessionState | None:
        """The session as `Store.session` gives it."""
        s = self.sessions.get(client)
        if s is None:
            return None
        subscriptions = [s.subscriptions[name] for name in sorted(s.subscriptions)]
        outbound = [s.outbound[number] for number in sorted(s.outbound)]
        return SessionState(client, s.epoch, s.expiry, s.closed_at, subscriptions, sorted(s.inbound), outbound)

    def open(self) -> list[tuple[bytes, int, int]]:
        return sorted((client, s.epoch, s.expiry) for client, s in self.sessions.items() if not s.closed_at)

    def expired(self, now_ms: int) -> list[tuple[bytes, int]]:
        closed = [(c, s) for c, s in self.sessions.items() if s.closed_at and s.expiry != NEVER]
        due = sorted((s.closed_at + s.expiry * 1000, client, s.epoch) for client, s in closed)
        return [(client, epoch) for deadline, client, epoch in due if deadline <= now_ms]

    def _message(
        self, frame: bytes, flags: int, packet_id: int, topic: bytes, publisher: bytes, payload: bytes
    ) -> None:
        self.topics.add(topic)
        self.queues[topic_queue(topic)].append(frame)
        self.queues[partition_queue(parent_of(topic), record.crc32c(topic) % self.partitions)].append(frame)
        for name in self.wanted():
            if matches(name, topic):
                self.queues[filter_queue(name)].append(frame)
        if flags & FLAG_RETAIN:
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = frame
        if flags & FLAG_TRACK_ID and publisher in self.sessions:
            self.sessions[publisher].inbound.add(packet_id)

    def _opened(self, client: bytes, event: control.Opened) -> None:
        session = self.sessions.get(client)
        if session is None or (event.clean and session.epoch <= event.epoch):
            self.sessions[client] = Session(event.epoch, event.expiry_interval)
        elif session.epoch <= event.epoch:
            session.epoch, session.expiry, session.closed_at = event.epoch, event.expiry_interval, 0

    def _session_record(self, kind: Kind, client: bytes, payload: bytes, position: int) -> None:
        session = self.sessions[client]
        if kind == Kind.SESSION_CLOSED:
            self._closed(client, session, control.parse_session_closed(payload))
        elif kind == Kind.SESSION_ENDED:
            if control.parse_session_ended(payload) >= session.epoch:
                del self.sessions[client]
        elif kind == Kind.SUBSCRIBED:
            for wish in control.parse_subscribed(payload):
                self._subscribe(session, wish, position)
        elif kind == Kind.UNSUBSCRIBED:
            for name in control.parse_unsubscribed(payload):
                session.subscriptions.pop(name, None)
        elif kind == Kind.CURSORS_COMMITTED:
            for name, offset in control.parse_cursors_committed(payload).items():
                if name in session.subscriptions:
                    session.subscriptions[name].offset = max(session.subscriptions[name].offset, offset)
        elif kind == Kind.INBOUND_RELEASED:
            session.inbound.difference_update(control.parse_inbound_released(payload))
        elif kind == Kind.OUTBOUND_CHANGED:
            self._outbound(session, control.parse_outbound_changed(payload))

    def _closed(self, client: bytes, session: Session, event: control.Closed) -> None:
        if event.epoch < session.epoch:
            return
        if event.expiry_interval == 0:
            del self.sessions[client]
        session.epoch, session.expiry = event.epoch, event.expiry_interval
        session.closed_at = max(event.at_ms, 1)

    def _outbound(self, session: Session, change: control.OutboundChange) -> None:
        for number, name, offset in change.sent:
            session.outbound[number] = Outbound(number, name, offset, released=False)
        for number in change.received:
            if number in session.outbound:
                session.outbound[number].released = True
        for number in change.completed:
            session.outbound.pop(number, None)

    def _subscribe(self, session: Session, wish: control.Subscribed, position: int) -> None:
        name = wish.topic_filter
        known = session.subscriptions.get(name)
        queue = filter_queue(name) if has_wildcard(name) else topic_queue(name)
        start, offset = position, len(self.queues.get(queue, ()))
        if known is not None and (known.qos > 0 or wish.qos == 0):  # with QoS 0 there was no cursor to keep
            start, offset = known.start_position, known.offset
        session.subscriptions[name] = Subscription(*wish, start, offset)
