"""A client's subscriptions, and how a message reaches a session by those that match its topic."""

from abc import ABCMeta, abstractmethod

from gateway.net.write_buffer import WriteBuffer
from gateway.observe.counters import Counters
from gateway.session.cursor import Cursor
from gateway.session.drop_counters import DropCounters
from gateway.session.message_encoding import Message
from gateway.session.queue_cursor import QueueCursor
from gateway.session.replay_cursor import FOLLOW, ReplayCursor
from store.api import Moved


class Subscriber(metaclass=ABCMeta):
    """A session (`gateway.session.session.Session`) as the router and its own parts know it."""

    def __init__(self, client_id: bytes, durable: bool, write_buffer: WriteBuffer, counters: Counters) -> None:
        self.client_id = client_id
        self.durable: bool = durable  # the log has it: it outlives its connection
        self.write_buffer = write_buffer
        self.counters = counters
        self.drops: DropCounters | None = None  # None: nothing was dropped
        self.closed: bool = False  # its connection has ended
        self.lagging: bool = False  # it reads on from the store once there is room

    def dropped(self) -> DropCounters:
        """The counters of messages that are not sent."""
        drops = self.drops
        if drops is None:
            drops = self.drops = DropCounters(self.counters)
        return drops

    @abstractmethod
    def is_behind(self, route: "Route", topic_offset: int, filter_offsets: dict[bytes, int]) -> bool:
        """Whether a message that was just committed has to wait for others. The ends of its queues are noted."""

    @abstractmethod
    def offer(
        self, route: "Route", message: Message, topic_offset: int, filter_offsets: dict[bytes, int], now_ms: int
    ) -> None:
        """Send a message that was just committed, if the session is at the end of its backlog and has room."""

    @abstractmethod
    def send_unlogged(self, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int) -> None:
        """Send a message that is not in the log, with QoS 0."""

    @abstractmethod
    def offer_released(self, route: "Route", moved: Moved, position: int) -> None:
        """Catch up with a message that was held and entered its queues with the commit at `position`."""

    @abstractmethod
    def route(self, topic: bytes) -> "Route | None":
        """The route of a topic to this session. None: no subscription matches."""

    @abstractmethod
    def room_available(self) -> None:
        """There may be room for messages that wait."""

    @abstractmethod
    def note_change(self, urgent: bool) -> None:
        """Have the session's progress recorded in the log; `urgent`: at once."""


class Subscription:
    """One filter of a session."""

    __slots__ = (
        "cursor",
        "identifier",
        "is_live",
        "no_local",
        "qos",
        "replay_cursor",
        "retain_as_published",
        "route",
        "session",
        "start",
        "tells_place",
        "topic_filter",
    )

    def __init__(
        self,
        session: Subscriber,
        topic_filter: bytes,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        identifier: int,
        cursor: QueueCursor | None,
        start: int,
        replay: ReplayCursor | None = None,
    ) -> None:
        self.session = session
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier  # 0: none
        self.cursor = cursor  # durable sessions with QoS > 0
        self.start = start  # log position from which on it gets messages
        self.replay_cursor = replay  # of what is older than itself
        self.tells_place: bool = False  # replayed messages say when and where they were stored
        # A subscription gets what is committed, but for one that follows the log to the present.
        self.is_live: bool = replay is None or replay.end != FOLLOW
        if replay is not None and cursor is not None:
            cursor.awaits_replay = True
        self.route = Route(session, [self])

    def replace(self, old: "Subscription") -> None:
        """Go on where the subscription with the same filter was: none of its messages is lost (MQTT-3.8.4-4)."""
        self.start = old.start
        if old.cursor is not None:
            new = self.cursor
            self.cursor = old.cursor
            self.cursor.reach = 0 if new is None else new.reach
            if new is not None and old.qos == 0:
                self.cursor.begin_again(new)
            self.cursor.is_unrecorded = self.session.durable and self.qos == 0
        self.replay_cursor = old.replay_cursor
        self.is_live = old.is_live
        if old.replay_cursor is not None and not old.is_live and self.cursor is not None:
            # It was followed to the present. From its record on the cursor has what comes, and waits for the replay.
            self.is_live = True
            old.replay_cursor.end = self.cursor.start_position
            self.cursor.awaits_replay = old.replay_cursor.is_lagging
            if not old.replay_cursor.is_lagging:
                self.replay_cursor = None
        self.route = Route(self.session, [self])

    def tell_place(self) -> None:
        """Have replayed messages say when and where they were stored, while this connection lasts."""
        self.tells_place = True

    def end_replay(self) -> None:
        """All that is older than the subscription was read; of a recorded replay it may not be acknowledged."""
        if self.replay_cursor is not None and not self.replay_cursor.recorded:
            self.replay_cursor = None
        if self.cursor is not None:
            self.cursor.awaits_replay = False

    def go_live(self, position: int) -> None:
        """The replay has met the present at `position` of the log: get what is committed from here on."""
        self.replay_cursor = None
        self.is_live = True
        self.start = position

    def begin_commit(self) -> list[Cursor]:
        """The cursors that have come forward since the last record. Their places are committed with the next one."""
        moved: list[Cursor] = []
        if self.cursor is not None and self.qos and self.cursor.begin_commit():
            moved.append(self.cursor)
        replay = self.replay_cursor
        if replay is not None and replay.recorded and replay.begin_commit():
            moved.append(replay)
            if replay.floor >= replay.end:
                self.replay_cursor = None
        return moved

    def recorded_cursors(self) -> list[Cursor]:
        """The cursors whose places the log has."""
        cursors: list[Cursor] = []
        if self.cursor is not None and self.qos:
            cursors.append(self.cursor)
        if self.replay_cursor is not None and self.replay_cursor.recorded:
            cursors.append(self.replay_cursor)
        return cursors


class Route:
    """How a message on some topic reaches one session: its matching subscriptions, merged.

    A message is delivered once, at the highest QoS, with every identifier (MQTT-3.3.4-2, -4). The first cursor is the
    *owner*: it sends, and the others pass over the message once the owner has read it. The owner is the oldest, so that
    a further subscription changes neither what was sent nor the order. Unrecorded cursors come last.
    """

    __slots__ = ("cursors", "identifiers", "no_local", "qos", "retain_as_published", "session", "start")

    def __init__(self, session: Subscriber, subscriptions: list[Subscription]) -> None:
        self.session = session
        self.qos = max([s.qos for s in subscriptions])
        self.no_local = True
        self.retain_as_published = False
        identifiers: list[int] = []
        self.cursors: list[QueueCursor] = []
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


def _age(cursor: QueueCursor) -> tuple[bool, int, bytes]:
    return cursor.is_unrecorded, cursor.start_position, cursor.topic_filter


class SharedMembership(metaclass=ABCMeta):
    """A shared subscription of a session (`gateway.shared.group`)."""

    __slots__ = ("identifiers", "qos", "retain_as_published")

    def __init__(self) -> None:
        self.qos = 0  # granted
        self.identifiers: tuple[int, ...] = ()
        self.retain_as_published = False

    @abstractmethod
    def resume(self) -> None:
        """The session may have room again."""
