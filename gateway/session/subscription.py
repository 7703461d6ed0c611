"""A client's subscriptions, and how a message reaches a session by those that match its topic."""

from typing import TYPE_CHECKING

from gateway.session.cursor import Cursor
from gateway.session.replay_cursor import ReplayCursor

if TYPE_CHECKING:
    from gateway.session.session import Session


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
        self.replay_cursor: ReplayCursor | None = None  # while what is older than itself is replayed
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
                self.cursor.begin_again(new)
            self.cursor.fleeting = self.session.durable and self.qos == 0
        self.replay_cursor = old.replay_cursor
        self.is_live = old.is_live
        if old.replay_cursor is not None and not old.is_live and self.cursor is not None:
            # Its past was followed to the present. From its record on a cursor has what comes, and waits for the past.
            self.is_live = True
            old.replay_cursor.end = self.cursor.start_position
            self.cursor.waits = old.replay_cursor.lagging
            if not old.replay_cursor.lagging:
                self.replay_cursor = None
        self.route = Route(self.session, [self])

    def go_live(self, position: int) -> None:
        """Its past is read up to `position`, the log's end: it gets what is committed from there on."""
        self.replay_cursor = None
        self.is_live = True
        self.start = position

    def end_replay(self) -> None:
        """Its past is read up to its record: its queue's cursor goes on there. A replay that is recorded is kept until
        all of it is acknowledged (`gateway.broker.session_checkpoint`)."""
        if self.replay_cursor is not None and not self.replay_cursor.recorded:
            self.replay_cursor = None
        if self.cursor is not None:
            self.cursor.waits = False


class Route:
    """How a message on some topic reaches one session: its matching subscriptions, merged.

    A message is delivered once, at the highest QoS, with every identifier (MQTT-3.3.4-2, -4). The first
    cursor is the *owner*: the one that sends; the others pass over the message once the owner has read it. It
    is the oldest, so that a further subscription changes neither what was sent already nor the order; one that the log
    does not know comes behind all others.
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


def _age(cursor: Cursor) -> tuple[bool, int, bytes]:
    return cursor.fleeting, cursor.start_position, cursor.topic_filter


class SharedMembership:
    """A shared subscription of a session (`gateway.shared.group`)."""

    __slots__ = ("identifiers", "qos", "retain_as_published")

    def __init__(self) -> None:
        self.qos = 0  # granted
        self.identifiers: tuple[int, ...] = ()
        self.retain_as_published = False

    def resume(self) -> None:
        """Get messages again: the session may have room."""
        raise NotImplementedError
