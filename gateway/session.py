"""One client's session while a node holds it: subscriptions, the window of messages in flight, acknowledgements.

Two kinds. A *transient* session ends with its connection and writes nothing to the log; when its window
or socket is full it remembers one log position (`behind`) and reads on from there later. A *durable* one
has a cursor per subscription, and what it needs after a crash is in the log before it is relied on.
Neither queues messages: the backlog of a slow client is the log (design section 5.4).

This file decides; it performs no I/O. `gateway.pump` reads backlogs, `gateway.sessions` writes records.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.counters import Counters
from gateway.cursor import Cursor
from gateway.drops import Drops
from gateway.history import History
from gateway.message import Message
from gateway.mqtt.aliases import TopicAliases
from gateway.mqtt.encode import pubrel
from gateway.mqtt.reasons import ReasonCode
from gateway.outlet import Outlet
from matcher.names import is_shared, matches
from matcher.reserved import filter_of
from matcher.trie import Trie
from store.api import Moved

SENT: Final = 0  # PUBLISH is out (or staged), PUBACK or PUBREC is awaited
RELEASED: Final = 1  # PUBREC came, PUBCOMP is awaited
COMPLETED: Final = 2  # done, but the cursor has not passed it: its packet id stays taken
WAITING: Final = 3  # from an earlier connection, to be sent again once there is room
RESERVED: Final = 4  # it has a packet id, and waits for a record before it is sent

# Where a QoS 2 message from the client stands, by its packet id.
ARRIVING: Final = 0  # its append is under way
ARRIVED: Final = 1  # committed
RESTORED: Final = 2  # committed, and received on an earlier connection

MAX_STAGED: Final = 1024  # messages of a session that wait for a record
MAX_HELD: Final = 30_000  # packet ids of a durable session: with its window fewer than there are (MQTT-2.2.1-3)
_MAX_ROUTES: Final = 1024  # cached per session
_FEW: Final = 16  # subscriptions that are looked at one by one
_ALIAS_ROOM: Final = 5  # bytes that naming an alias may add: the property, and a byte more of two lengths
_PACKET_IDS: Final = [i.to_bytes(2, "big") for i in range(65_536)]


class Subscription:
    """One filter of a session."""

    __slots__ = (
        "cursor",
        "history",
        "identifier",
        "is_live",
        "no_local",
        "qos",
        "retain_as_published",
        "route",
        "session",
        "start",
        "topic_filter",
    )

    def __init__(
        self,
        session: "Session",
        topic_filter: bytes,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        identifier: int,
        cursor: Cursor | None,
        start: int,
    ) -> None:
        self.session = session
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier  # 0: none
        self.cursor = cursor  # durable sessions with QoS > 0
        self.start = start  # log position from which on it gets messages
        self.history: History | None = None  # of what is older than itself, while it is replayed
        self.is_live: bool = True  # it gets what is committed; not so while it follows the log to the present
        self.route = Route(session, [self])

    def replace(self, old: "Subscription") -> None:
        """Go on where the subscription with the same filter was: none of its messages is lost (MQTT-3.8.4-4)."""
        self.start = old.start
        if old.cursor is not None:
            new = self.cursor
            self.cursor = old.cursor
            self.cursor.reach = 0 if new is None else new.reach
            if new is not None and old.qos == 0:
                # Meanwhile nothing was recorded, and the log has the cursor begin anew.
                self.cursor.committed = self.cursor.durable = new.floor
        self.history = old.history
        self.is_live = old.is_live
        self.route = Route(self.session, [self])


class Route:
    """How a message on some topic reaches one session: its matching subscriptions, merged.

    A message is delivered once, at the highest QoS, with every identifier (MQTT-3.3.4-2, -4). The first
    cursor is the *owner*: the one that sends; the others pass over the message once the owner has read it. It
    is the oldest, so that a further subscription changes neither what was sent already nor the order.
    """

    __slots__ = ("cursors", "identifiers", "no_local", "qos", "retain_as_published", "session", "start")

    def __init__(self, session: "Session", subscriptions: list[Subscription]) -> None:
        self.session = session
        self.qos = max([s.qos for s in subscriptions])
        self.no_local = True
        self.retain_as_published = False
        identifiers: list[int] = []
        self.cursors: list[Cursor] = []
        self.start = min([s.start for s in subscriptions])
        for subscription in subscriptions:
            # No Local withholds a message only where every subscription that matches asks for it.
            self.no_local = self.no_local and subscription.no_local
            self.retain_as_published = self.retain_as_published or subscription.retain_as_published
            if subscription.identifier:
                identifiers.append(subscription.identifier)
            if subscription.cursor is not None:
                self.cursors.append(subscription.cursor)
        self.cursors.sort(key=_age)
        self.identifiers: tuple[int, ...] = tuple(identifiers)


def _age(cursor: Cursor) -> tuple[int, bytes]:
    return cursor.start_position, cursor.topic_filter


class Inflight:
    """A message with a packet id. `offset` is in the cursor's queue, or a log position without a cursor."""

    __slots__ = ("cursor", "leased", "offset", "phase", "qos", "recorded", "released", "topic_filter")

    def __init__(self, cursor: Cursor | None, topic_filter: bytes, offset: int, qos: int) -> None:
        self.cursor = cursor
        self.topic_filter = topic_filter  # b"": no queue, the offset is a log position
        self.offset = offset
        self.qos = qos
        self.phase = SENT
        self.recorded = False  # the log knows of this packet id
        self.released = False  # PUBREC came on an earlier connection
        self.leased = False  # by a shared subscription (`gateway.share`): the session has it for this connection only

    def acknowledged(self) -> None:
        """Its exchange is over."""
        if self.cursor is not None:
            self.cursor.ack(self.offset)


class Membership:
    """A shared subscription of a session (`gateway.share`)."""

    __slots__ = ("identifiers", "qos", "retain_as_published")

    def __init__(self) -> None:
        self.qos = 0  # granted
        self.identifiers: tuple[int, ...] = ()
        self.retain_as_published = False

    def look(self) -> None:
        """The session may have room again."""
        raise NotImplementedError


class Staged:
    """A message that waits for a record: of its own packet id (QoS 2, durable session), or of one before it."""

    __slots__ = ("data", "entry", "packet_id")

    def __init__(self, packet_id: int, entry: Inflight | None, data: bytes) -> None:
        self.packet_id = packet_id
        self.entry = entry  # None: there is nothing to record
        self.data = data


class RetainedRequest:
    """Retained values that a new subscription is still to get, beginning behind topic `after`, in the order of levels.

    What is published meanwhile does not wait for all of them, but never overtakes the value of its own topic."""

    __slots__ = ("after", "ahead", "page", "since", "subscription")

    def __init__(self, subscription: Subscription, since: int) -> None:
        self.subscription = subscription
        self.since = since  # log position: younger values come, or came, as what they are: messages
        self.after: bytes | None = None
        self.ahead: set[bytes] = set()  # topics whose values went before their turn
        self.page: int = 8  # values to be read next

    def awaits(self, topic: bytes) -> bool:
        """Whether the value of the topic, if it has one, is still to be sent."""
        if topic in self.ahead or not matches(self.subscription.topic_filter, topic):
            return False
        return self.after is None or topic.replace(b"/", b"\0") > self.after.replace(b"/", b"\0")


class Unfinished:
    """What a session has to do besides handing on what comes."""

    __slots__ = (
        "is_paged",
        "late",
        "late_time",
        "received",
        "resends",
        "retained",
        "staged",
        "subscribing",
        "waiting",
    )

    def __init__(self) -> None:
        self.subscribing: set[bytes] = set()  # filters that were granted, and whose record is on its way to disk
        self.retained: dict[bytes, RetainedRequest] = {}  # by filter, in the order they are served
        self.waiting: bytes = b""  # topic of a message that waits for its retained value
        self.is_paged: bool = False  # retained values had the last turn
        self.resends: deque[int] = deque()  # packet ids of an earlier connection; bounded by its window
        self.staged: list[Staged] = []
        self.received: list[int] = []  # PUBREC came: recorded before PUBREL goes out
        self.late: set[int] = set()  # positions of messages that were held, entered at `late_time` and were read
        self.late_time: int = 0

    def __bool__(self) -> bool:
        return bool(self.subscribing or self.retained or self.resends or self.staged or self.received or self.late_time)


class Session:
    """A client's session, held by this node."""

    def __init__(
        self,
        client_id: bytes,
        epoch: int,
        expiry_interval: int,
        window: int,
        outlet: Outlet,
        counters: Counters,
        on_change: Callable[["Session", bool], None],
        on_room: Callable[["Session"], None],
    ) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.expiry_interval = expiry_interval  # seconds
        self.durable: bool = expiry_interval > 0
        self.recorded_open: bool = False  # the log has it open and must hear of its end
        self.full_window = window  # messages with QoS > 0 in flight at the most
        self.window = window  # the same, or less while its backlog is read (`gateway.pump`)
        self.outlet = outlet
        self.counters = counters
        self.on_change = on_change  # something has to be written to the log
        self.on_room = on_room  # the pump may go on
        self.closed: bool = False
        self.starved: bool = False  # a shared subscription has to be told when there is room
        self.in_window: int = 0  # entries of `inflight` that count against the window
        self.drops: Drops | None = None  # None: nothing was dropped
        self.behind: int = -1  # without a cursor: log position to read on from; -1: at the end
        self.behind_sent: int = 0  # messages that the record at `behind` let in and that are sent
        self.lagging: bool = False  # the pump has work once there is room
        self.pumping: bool = False
        self.nudged: bool = False  # something came while the pump was at work
        self.changed: bool = False  # cursors moved or packet ids changed since the last record
        self.urgent: bool = False  # …and a packet to the client waits for that record
        self.staging: int = 0  # of `staged` and those whose record is under way
        self.recorded: int = 0  # entries of `inflight` that the log knows
        self._next_packet_id: int = 0
        self._subscriptions: dict[bytes, Subscription] | None = None
        self._shares: dict[bytes, Membership] | None = None
        self._inbound: dict[int, int] | None = None
        self._inflight: dict[int, Inflight] | None = None
        self._unfinished: Unfinished | None = None
        self._routes: dict[bytes, Route | None] | None = None
        self._trie: Trie[Subscription] | None = None  # of its subscriptions, where there are many

    # --- what is made when it is first asked for: a client that is idle, or only publishes, has none of it

    @property
    def subscriptions(self) -> dict[bytes, Subscription]:
        """By filter."""
        if self._subscriptions is None:
            self._subscriptions = {}
        return self._subscriptions

    @property
    def shares(self) -> dict[bytes, Membership]:
        """Shared subscriptions, by their whole filter."""
        if self._shares is None:
            self._shares = {}
        return self._shares

    @property
    def has_shares(self) -> bool:
        """Whether it has, or had, shared subscriptions."""
        return self._shares is not None

    @property
    def inbound(self) -> dict[int, int]:
        """QoS 2 packet ids received and not released: where each stands."""
        if self._inbound is None:
            self._inbound = {}
        return self._inbound

    @property
    def inflight(self) -> dict[int, Inflight]:
        """What was sent and is not acknowledged, by packet id."""
        if self._inflight is None:
            self._inflight = {}
        return self._inflight

    @property
    def unfinished(self) -> "Unfinished":
        """What there is to do besides."""
        if self._unfinished is None:
            self._unfinished = Unfinished()
        return self._unfinished

    @property
    def subscribing(self) -> set[bytes]:
        return self.unfinished.subscribing

    @property
    def retained(self) -> dict[bytes, RetainedRequest]:
        return self.unfinished.retained

    @property
    def resends(self) -> deque[int]:
        return self.unfinished.resends

    def tidy(self) -> None:
        """Keep no place for what there is none of."""
        if not self._unfinished:
            self._unfinished = None
        if not self._shares:
            self._shares = None
        if not self._inflight:
            self._inflight = None

    # --- subscriptions

    def subscribe(self, subscription: Subscription) -> None:
        """Add or replace a subscription."""
        topic_filter = subscription.topic_filter
        if self._trie is not None:
            old = self.subscriptions.get(topic_filter)
            if old is not None:
                self._trie.remove(topic_filter, old)
            self._trie.add(topic_filter, subscription)
        self.subscriptions[topic_filter] = subscription
        self._routes = None

    def want_retained(self, subscription: Subscription, since: int) -> None:
        """Queue the retained values of a subscription that were there at log position `since`; asking again begins
        anew."""
        self.unfinished.retained[subscription.topic_filter] = RetainedRequest(subscription, since)

    def waits(self, topic: bytes) -> bool:
        """Whether a message on this topic has to wait, for the retained value that a new subscription is owed."""
        unfinished = self._unfinished
        if unfinished is None or not unfinished.retained:
            return False
        for request in unfinished.retained.values():
            if request.awaits(topic):
                unfinished.waiting = topic
                return True
        return False

    def unsubscribe(self, topic_filter: bytes) -> Subscription | None:
        self._routes = None
        if self._unfinished is not None:
            self._unfinished.retained.pop(topic_filter, None)
        subscription = self.subscriptions.pop(topic_filter, None)
        if subscription is not None and self._trie is not None:
            self._trie.remove(topic_filter, subscription)
        return subscription

    def route(self, topic: bytes) -> Route | None:
        """The merged route of `topic` to this session, None if nothing matches."""
        routes = self._routes
        if routes is None:
            routes = self._routes = {}
        if topic in routes:
            return routes[topic]
        found = [s for s in self._matching(topic) if s.is_live]
        route: Route | None = None
        if len(found) == 1:
            route = found[0].route
        elif found:
            route = Route(self, found)
        if len(routes) >= _MAX_ROUTES:
            routes.clear()
        routes[topic] = route
        return route

    def _matching(self, topic: bytes) -> list[Subscription]:
        subscriptions = self.subscriptions
        if len(subscriptions) <= _FEW:
            return [s for s in subscriptions.values() if matches(s.topic_filter, topic)]
        trie = self._trie
        if trie is None:
            trie = self._trie = Trie(0)
            for subscription in subscriptions.values():
                trie.add(subscription.topic_filter, subscription)
        return trie.match(topic)

    def cursor_of(self, name: bytes) -> Cursor | None:
        """The cursor that sent an exchange, by what the log calls it: a filter, or the history of one."""
        replayed = filter_of(name)
        subscription = self.subscriptions.get(replayed or name)
        if subscription is None:
            return None
        return subscription.history if replayed else subscription.cursor

    def let_go(self) -> None:
        """It is closed and recorded: drop what refers back to it. Garbage of thousands of sessions would wait for the
        collector, which looks through all of it at once."""
        self._subscriptions = None
        self._routes = None
        self._trie = None
        if self._unfinished is not None:
            self._unfinished.retained.clear()

    # --- messages out

    def dropped(self) -> Drops:
        """Where a message that is not sent is counted."""
        drops = self.drops
        if drops is None:
            drops = self.drops = Drops(self.counters)
        return drops

    @property
    def has_room(self) -> bool:
        """Whether one more message with QoS > 0 may go out."""
        return self.in_window < self.window and not self.outlet.congested

    def offer(
        self,
        route: Route,
        message: Message,
        topic_offset: int,
        filter_offsets: dict[bytes, int],
        now_ms: int,
    ) -> None:
        """A message that was just committed. Sends it if this session is at the end and has room."""
        if route.cursors:
            self._offer_durable(route, message, topic_offset, filter_offsets, now_ms)
            return
        if self.behind >= 0:
            return  # the pump will come to it, in order
        if route.no_local and message.publisher == self.client_id:
            return
        if message.expires_at and message.expired(now_ms):
            self.dropped().add_expired()
            return
        qos = route.qos if route.qos < message.qos else message.qos
        if qos == 0 and self.outlet.congested:
            self.dropped().add_qos0_congested()
            return
        if (qos and not self.has_room) or (self._unfinished is not None and self.waits(message.topic)):
            self.behind = message.position
            self.lagging = True
            return
        self.send(message, qos, message.retain and route.retain_as_published, False, route.identifiers, None, now_ms)

    def offer_moved(self, route: Route, moved: Moved, position: int) -> None:
        """A message that was held entered its queues with the commit at `position`: it is read from the store, and
        what comes behind it with it."""
        if not route.cursors and self.behind < 0:
            self.behind = position
        filter_offsets = dict(moved.filter_offsets)
        for cursor in route.cursors:
            is_filter = cursor.queue[0] == 0x66  # b"f"
            offset = filter_offsets.get(cursor.topic_filter, -1) if is_filter else moved.topic_offset
            if offset >= cursor.end:
                cursor.end = offset + 1
        self.lagging = True
        self.on_room(self)

    def late_at(self, store_time: int) -> set[int]:
        """Which messages that were held this session has read of those that entered their queues at `store_time`: of
        two records of one time that name a message, nobody can tell which of them let it in."""
        unfinished = self.unfinished
        if store_time != unfinished.late_time:
            unfinished.late_time = store_time
            unfinished.late = set()
        return unfinished.late

    def _offer_durable(
        self,
        route: Route,
        message: Message,
        topic_offset: int,
        filter_offsets: dict[bytes, int],
        now_ms: int,
    ) -> None:
        owner = route.cursors[0]
        for cursor in route.cursors:
            offset = topic_offset
            if cursor.queue[0] == 0x66:  # b"f", a filter queue
                offset = filter_offsets.get(cursor.topic_filter, -1)
                if offset < 0:
                    continue  # the filter queue is younger than this message
            if offset >= cursor.end:
                cursor.end = offset + 1
            if cursor.next != offset:
                self.lagging = True
            elif cursor is owner:
                if not self.take(cursor, offset, message, route, now_ms):
                    self.lagging = True
            elif owner.has_read(message) and not cursor.stretched:
                self.pass_over(cursor, offset, message)
            else:
                self.lagging = True

    def take(self, cursor: Cursor, offset: int, message: Message, route: Route, now_ms: int) -> bool:
        """Send the cursor's next message, or pass over it where it is not to be sent. False: no room for it."""
        if not self.has_room or cursor.stretched or self.staging >= MAX_STAGED or len(self.inflight) >= MAX_HELD:
            return False
        if self._unfinished is not None and self._unfinished.resends:
            return False  # what an earlier connection left open goes first (MQTT-4.6.0-1)
        if self._unfinished is not None and self.waits(message.topic):
            return False
        if message.expired(now_ms):
            self.dropped().add_expired()
        elif not (route.no_local and message.publisher == self.client_id):
            qos = route.qos if route.qos < message.qos else message.qos
            retain = message.retain and route.retain_as_published
            dup = offset < cursor.sent_before  # or so it may be (MQTT-3.3.1-1)
            if qos > 0:
                cursor.read(offset, message)
                entry = Inflight(cursor, cursor.topic_filter, offset, qos)
                self.send(message, qos, retain, dup, route.identifiers, entry, now_ms)
                return True
            if dup:  # MQTT-3.3.1-2: nothing could say so
                self.dropped().add_qos0_repeated()
            else:
                self.send(message, 0, retain, False, route.identifiers, None, now_ms)
        self.pass_over(cursor, offset, message)
        return True

    def pass_over(self, cursor: Cursor, offset: int, message: Message) -> None:
        """Go on behind a message of the cursor that is done with."""
        cursor.pass_over(offset, message)
        self._note_progress(cursor)

    def send(
        self,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
        entry: Inflight | None,
        now_ms: int,
    ) -> None:
        """Encode and send. `entry` is what the acknowledgement settles (a transient one is made if None)."""
        outlet = self.outlet
        if outlet.aliases is None or qos == 2:  # MQTT.js (5.16) forgets the topic of an aliased message of QoS 2
            head, tail = message.parts(outlet.version, qos, retain, dup, identifiers, now_ms)
        else:
            head, tail = self._aliased_parts(outlet.aliases, message, qos, retain, dup, identifiers, now_ms)
        if outlet.maximum_packet_size and self._is_oversized(head, tail):
            if entry is not None:
                entry.acknowledged()
                self._note_ack(entry)
            return
        self.counters.messages_sent += 1
        if qos == 0:
            self._stage_or_send(0, None, head)
            return
        if entry is None:
            entry = Inflight(None, b"", message.position, qos)
        packet_id = self._enter(entry)
        self._stage_or_send(packet_id, entry, head + _PACKET_IDS[packet_id] + tail)

    def reserve(self, entry: Inflight) -> int:
        """Have a packet id for an exchange that is begun later. No acknowledgement means it before that."""
        entry.phase = RESERVED
        return self._enter(entry)

    def _enter(self, entry: Inflight) -> int:
        """Have a packet id for an exchange, which counts against the window from here on."""
        packet_id = self._allocate(entry)
        self.inflight[packet_id] = entry
        self.in_window += 1
        return packet_id

    def send_reserved(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        """Send a message of QoS 2 for which the log knows already what it has to."""
        entry.phase = SENT
        outlet = self.outlet
        head, tail = message.parts(outlet.version, 2, retain, False, identifiers, now_ms)
        if outlet.maximum_packet_size and self._is_oversized(head, tail):
            self._complete(packet_id, entry)
            return
        self.counters.messages_sent += 1
        outlet.send(head + _PACKET_IDS[packet_id] + tail)

    def give_up(self, packet_id: int) -> None:
        """Nothing comes of a reserved exchange."""
        if self.inflight.pop(packet_id, None) is not None:
            self.in_window -= 1
            self._note_room()

    def _stage_or_send(self, packet_id: int, entry: Inflight | None, data: bytes) -> None:
        """Send, unless a record has to come first: of this QoS 2 message, or of one that this must not overtake."""
        if self.staging or (self.durable and entry is not None and entry.qos == 2):
            self.unfinished.staged.append(Staged(packet_id, entry, data))
            self.staging += 1
            self._note_urgent()
        else:
            self.outlet.send(data)

    def _aliased_parts(
        self,
        aliases: TopicAliases,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
    ) -> tuple[bytes, bytes]:
        """The parts of a message to a client that takes aliases: one in place of the topic, or beside it, or none."""
        alias = aliases.known(message.topic)
        if alias:
            return message.aliased_parts(qos, retain, dup, identifiers, now_ms, alias)
        head, tail = message.parts(5, qos, retain, dup, identifiers, now_ms)
        limit = self.outlet.maximum_packet_size
        if not limit or len(head) + len(tail) + 2 + _ALIAS_ROOM <= limit:
            alias = aliases.give(message.topic)
            if alias:  # a message that is left out would leave the client without the name
                return message.naming_parts(qos, retain, dup, identifiers, now_ms, alias)
        return head, tail

    def _is_oversized(self, head: bytes, tail: bytes) -> bool:
        """Larger than the client takes: not sent, and treated as if it had been (MQTT-3.1.2-24, -25)."""
        limit = self.outlet.maximum_packet_size
        if not limit or len(head) + len(tail) + (2 if tail else 0) <= limit:
            return False
        self.dropped().add_oversized()
        return True

    def note_recorded(self, entry: Inflight) -> None:
        """The log knows, or is about to know, of the packet id."""
        if not entry.recorded:
            entry.recorded = True
            self.recorded += 1

    def unrecorded(self, filters: set[bytes]) -> list[tuple[int, bytes, int, int]]:
        """The messages on their way by these filters that the log does not know of, to be recorded now."""
        found: list[tuple[int, bytes, int, int]] = []
        for packet_id, entry in self.inflight.items():
            if entry.phase == SENT and not entry.recorded and not entry.leased and entry.topic_filter in filters:
                self.note_recorded(entry)
                found.append((packet_id, entry.topic_filter, entry.offset, entry.qos))
        return found

    def restore(self, packet_id: int, entry: Inflight) -> None:
        """Take over an exchange of an earlier connection; `resend` or `resend_release` follows when there is room."""
        entry.phase = WAITING
        self.note_recorded(entry)
        self.inflight[packet_id] = entry

    def resend(self, packet_id: int, entry: Inflight, message: Message, route: Route | None, now_ms: int) -> None:
        """Send again under its old packet id, with DUP (MQTT-4.4.0-1)."""
        source: Route | Membership | None = route
        if is_shared(entry.topic_filter):  # it came by no other subscription
            source = self.shares.get(entry.topic_filter)
        # Without a queue it was sent as a retained value (MQTT-3.3.1-8).
        retain = not entry.topic_filter or (message.retain and source is not None and source.retain_as_published)
        identifiers = source.identifiers if source is not None else ()
        if entry.qos == 0:  # the record is of an older version, which did not tell: as it would be sent now
            entry.qos = message.qos if source is None or source is not route else min(message.qos, source.qos)
        head, tail = message.parts(self.outlet.version, entry.qos, retain, True, identifiers, now_ms)
        if entry.qos == 0 or self._is_oversized(head, tail):
            self.forget(packet_id, entry)
            return
        entry.phase = SENT
        self.in_window += 1
        self.counters.messages_sent += 1
        self._stage_or_send(packet_id, None, head + _PACKET_IDS[packet_id] + tail)

    def resend_without(self, cursor: Cursor) -> None:
        """Its subscription is gone: what it was to send again goes first now."""
        for _, packet_id in sorted(cursor.open.items()):
            entry = self.inflight.get(packet_id)
            if entry is not None and entry.phase == WAITING and not entry.released:
                self.unfinished.resends.append(packet_id)
                self.lagging = True
        cursor.open = {}

    def resend_release(self, packet_id: int, entry: Inflight) -> None:
        """Send PUBREL again (MQTT-4.4.0-1)."""
        entry.qos = 2
        entry.phase = RELEASED
        self.in_window += 1
        self.outlet.send(pubrel(self.outlet.version, packet_id, ReasonCode.SUCCESS))

    def forget(self, packet_id: int, entry: Inflight) -> None:
        """The message of a restored exchange is gone (retention), or may not be read: nothing is left to deliver."""
        entry.phase = SENT
        self.in_window += 1
        self._complete(packet_id, entry)

    def _allocate(self, entry: Inflight) -> int:
        """A packet id that is not in use; the window is smaller than their number (MQTT-2.2.1-3)."""
        inflight = self.inflight
        if entry.cursor is not None:
            packet_id = entry.cursor.packet_id(entry.offset)
            if packet_id not in inflight:
                return packet_id
        packet_id = self._next_packet_id
        while True:
            packet_id += 1
            if packet_id > 0xFFFF:
                packet_id = 1
            if packet_id not in inflight:
                self._next_packet_id = packet_id
                return packet_id

    # --- acknowledgements in

    def puback(self, packet_id: int) -> bool:
        """PUBACK. False: the packet id belongs to a QoS 2 exchange."""
        entry = self.inflight.get(packet_id)
        if entry is None or entry.phase >= COMPLETED:
            return True
        if entry.qos != 1:
            return False
        self._complete(packet_id, entry)
        return True

    def pubrec(self, packet_id: int, reason: int) -> bool:
        """PUBREC. A failure ends the exchange (MQTT-4.3.3); else PUBREL goes out, once recorded."""
        entry = self.inflight.get(packet_id)
        if entry is None:
            self.outlet.send(pubrel(self.outlet.version, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            return True
        if entry.phase >= COMPLETED:
            return True
        if entry.qos != 2:
            return False
        if reason >= 0x80:
            self._complete(packet_id, entry)
        elif entry.phase == SENT:
            entry.phase = RELEASED
            if self.durable:
                self.unfinished.received.append(packet_id)
                self._note_urgent()
            else:
                self.outlet.send(pubrel(self.outlet.version, packet_id, ReasonCode.SUCCESS))
        elif entry.phase == RELEASED and packet_id not in self.unfinished.received:
            self.outlet.send(pubrel(self.outlet.version, packet_id, ReasonCode.SUCCESS))
        return True

    def pubcomp(self, packet_id: int) -> bool:
        """PUBCOMP."""
        entry = self.inflight.get(packet_id)
        if entry is None or entry.phase >= COMPLETED:
            return True
        if entry.qos != 2:
            return False
        if entry.phase == RELEASED:
            self._complete(packet_id, entry)
        return True

    def _complete(self, packet_id: int, entry: Inflight) -> None:
        self.in_window -= 1
        entry.acknowledged()
        if entry.recorded or entry.cursor is not None:
            self._note_ack(entry)
        if entry.recorded:
            # The record of the packet id goes only together with a cursor that has passed the message:
            # until then a crash must still know that it was delivered.
            entry.phase = COMPLETED
        else:
            del self.inflight[packet_id]
        self._note_room()

    def _note_room(self) -> None:
        """An exchange is over: there may be room for others."""
        if self.in_window <= self.window >> 1:
            if self.lagging and not self.pumping:
                self.on_room(self)
            if self.starved:
                self.feed()

    def feed(self) -> None:
        """There may be room for shared subscriptions that wait for it."""
        self.starved = False
        for membership in list(self.shares.values()):
            membership.look()

    def take_staged(self) -> tuple[list[Staged], list[int]]:
        """What waits for a record that is written now: messages, and packet ids of PUBRECs."""
        unfinished = self._unfinished
        if unfinished is None or not (unfinished.staged or unfinished.received):
            return [], []
        staged, received = unfinished.staged, unfinished.received
        unfinished.staged, unfinished.received = [], []
        return staged, received

    def free_completed(self) -> list[int]:
        """Take out the recorded packet ids that are done with and whose cursors have passed them."""
        if not self.recorded:
            return []
        free = [
            packet_id
            for packet_id, entry in self.inflight.items()
            if entry.phase == COMPLETED and (entry.cursor is None or entry.cursor.has_passed(entry.offset))
        ]
        for packet_id in free:
            del self.inflight[packet_id]
        self.recorded -= len(free)
        return free

    def _note_ack(self, entry: Inflight) -> None:
        if entry.cursor is None:
            self.note_change()
        else:
            self._note_progress(entry.cursor)

    def _note_progress(self, cursor: Cursor) -> None:
        if cursor.strains and self.durable:
            self._note_urgent()
        elif not self.changed:
            self.note_change()

    def note_change(self) -> None:
        """Have the session's progress written to the log."""
        if not self.changed and self.durable:
            self.changed = True
            self.on_change(self, False)

    def _note_urgent(self) -> None:
        if not self.urgent:
            self.urgent = True
            self.changed = True
            self.on_change(self, True)
