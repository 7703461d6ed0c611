"""One client's session while a node holds it: subscriptions, the window of messages in flight, acknowledgements.

Two kinds. A *transient* session ends with its connection and writes nothing to the log; when its window
or socket is full it remembers one log position (`behind`) and reads on from there later. A *durable* one
has a cursor per subscription, and what it needs after a crash is in the log before it is relied on.
Neither queues messages: the backlog of a slow client is the log (design section 5.4).

This file decides; it performs no I/O. `gateway.delivery.catch_up` reads backlogs, and `gateway.broker.sessions`
writes records.
"""

from collections.abc import Callable
from typing import Final

from gateway.net.write_buffer import WriteBuffer
from gateway.observe.counters import Counters
from gateway.session.cursor import Cursor
from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message
from gateway.session.pending_work import RetainedRequest
from gateway.session.qos_exchanges import MAX_HELD, MAX_STAGED, QosExchanges
from gateway.session.subscription import Route, SharedMembership, Subscription
from matcher.names import is_shared, matches
from matcher.reserved import filter_of
from matcher.trie import Trie
from store.api import Moved, Owed
from store.errors import StoreBusy, StoreError

_MAX_ROUTES: Final = 1024  # cached per session
_MAX_CACHED: Final = 256  # bytes of a topic whose route is cached
_FEW: Final = 16  # subscriptions that are looked at one by one


_NOTHING: Final[list[bytes]] = []  # of all sessions: never changed


class Session(QosExchanges):
    """A client's session, held by this node."""

    def __init__(
        self,
        client_id: bytes,
        epoch: int,
        expiry_interval: int,
        window: int,
        write_buffer: WriteBuffer,
        counters: Counters,
        on_change: Callable[["Session", bool], None],
        on_room: Callable[["Session"], None],
    ) -> None:
        super().__init__(expiry_interval > 0, window, write_buffer, counters)
        self.client_id = client_id
        self.epoch = epoch
        self.expiry_interval = expiry_interval  # seconds
        self.recorded_open: bool = False  # the log has it open and must hear of its end
        self.on_change = on_change  # something has to be written to the log
        self.on_room = on_room  # catch-up may go on
        self.behind: int = -1  # without a cursor: log position to read on from; -1: at the end
        self.behind_sent: int = 0  # messages that the record at `behind` released and that are sent
        self.catching_up: bool = False  # in line for turns of catch-up
        self.has_news: bool = False  # there may be more to read since its turn began
        self._subscriptions: dict[bytes, Subscription] | None = None
        self._shares: dict[bytes, SharedMembership] | None = None
        self._routes: dict[bytes, Route | None] | None = None
        self._trie: Trie[Subscription] | None = None  # of its subscriptions, where there are many
        self.unsaid: list[bytes] = _NOTHING  # records that the log had no room for

    # --- what is made when it is first asked for: a client that is idle, or only publishes, has none of it

    @property
    def subscriptions(self) -> dict[bytes, Subscription]:
        """By filter."""
        if self._subscriptions is None:
            self._subscriptions = {}
        return self._subscriptions

    @property
    def shares(self) -> dict[bytes, SharedMembership]:
        """Shared subscriptions, by their whole filter."""
        if self._shares is None:
            self._shares = {}
        return self._shares

    @property
    def has_shares(self) -> bool:
        """Whether it has, or had, shared subscriptions."""
        return self._shares is not None

    def tidy(self) -> None:
        """Keep no place for what there is none of."""
        if not self._unfinished:
            self._unfinished = None
        if not self._shares:
            self._shares = None
        if not self._inflight:
            self._inflight = None

    def leave_unsaid(self, frames: list[bytes], error: StoreError) -> None:
        """These records were not taken. What a store was only too busy for goes with the last ones of the connection;
        what it does not take at all would keep those from the log."""
        if isinstance(error, StoreBusy):
            self.unsaid = self.unsaid + frames

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
        if self._unfinished is not None and topic_filter in self._unfinished.retained:
            self._unfinished.retained[topic_filter].subscription = subscription

    def want_retained(self, subscription: Subscription, since: int) -> None:
        """Queue the retained values of a subscription that were there at log position `since`; asking again begins
        anew."""
        retained = self.unfinished.retained
        old = retained.pop(subscription.topic_filter, None)
        request = RetainedRequest(subscription, since)
        request.is_noted = (old is not None and old.is_noted) or subscription.topic_filter in self.unfinished.settled
        self.unfinished.settled.discard(subscription.topic_filter)
        retained[subscription.topic_filter] = request

    def end_retained(self, request: RetainedRequest) -> None:
        """All retained values of the request are sent."""
        topic_filter = request.subscription.topic_filter
        del self.retained[topic_filter]
        if request.is_noted:
            self.unfinished.settled.add(topic_filter)
            self.note_change()
        self.answered(request)

    def answered(self, request: RetainedRequest) -> None:
        """It came to its end. What is on its way of it is the session's, whatever happens to this node."""
        if self.durable and request.subscription.qos:
            self.unfinished.is_answered = True
            self.note_change()

    def owe(self, owed: Owed) -> None:
        """An earlier connection left this unfinished."""
        subscription = self.subscriptions.get(owed.topic_filter)
        if subscription is not None:
            request = RetainedRequest(subscription, owed.since, owed.after)
            for topic in owed.ahead:
                request.go_ahead(topic)
            request.is_noted, request.noted = True, (owed.after, len(request.ahead))
            self.unfinished.retained[owed.topic_filter] = request

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
            request = self._unfinished.retained.pop(topic_filter, None)
            if request is not None:
                self.answered(request)
        subscription = self.subscriptions.pop(topic_filter, None)
        if subscription is not None and subscription.cursor is not None:
            subscription.cursor.is_over = True
            self.note_change()
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
        if len(topic) <= _MAX_CACHED:
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
        """The cursor that comes by an exchange of an earlier connection, by the filter that the log names."""
        subscription = self.subscriptions.get(name)
        return None if subscription is None else subscription.cursor

    def let_go(self) -> None:
        """It is closed and recorded: drop what refers back to it. Garbage of thousands of sessions would wait for the
        collector, which looks through all of it at once."""
        self._subscriptions = None
        self._routes = None
        self._trie = None
        if self._unfinished is not None:
            self._unfinished.retained.clear()

    def note(self, urgent: bool) -> None:
        self.on_change(self, urgent)

    def use_room(self) -> None:
        if self.lagging and not self.catching_up:
            self.on_room(self)
        if self.starved:
            self.feed()

    def feed(self) -> None:
        """There may be room for shared subscriptions that wait for it."""
        self.starved = False
        for membership in list(self.shares.values()):
            membership.resume()

    def join_group(self, topic_filter: bytes, membership: SharedMembership) -> None:
        """Add a shared subscription."""
        self.shares[topic_filter] = membership

    def leave_group(self, topic_filter: bytes) -> SharedMembership | None:
        """Remove a shared subscription and return it. None: there is no such subscription."""
        return self._shares.pop(topic_filter, None) if self._shares is not None else None

    # --- catching up (`gateway.delivery.catch_up`)

    def begin_catch_up(self) -> bool:
        """There may be something to read. Returns whether the session is to be put in line: it is not there yet."""
        self.has_news = True
        if self.catching_up or self.closed:
            return False
        self.catching_up = True
        return True

    def begin_turn(self, window: int) -> None:
        """A turn begins. Up to `window` messages may be in flight, and no more than the client takes."""
        self.window = min(self.full_window, window)
        self.has_news = False

    def end_catch_up(self, has_work: bool) -> None:
        """The session leaves the line. `has_work`: there is more to read once there is room."""
        self.catching_up = False
        self.lagging = has_work
        if self.closed or not has_work:
            self.window = self.full_window

    def fall_behind(self, position: int) -> None:
        """What was committed from `position` of the log on was not offered: the session reads it there."""
        if self.behind < 0:
            self.behind = position
        self.lagging = True

    def read_on_from(self, position: int, sent: int = 0) -> None:
        """Read on at the record at `position`, without the first `sent` messages that it released."""
        self.behind = position
        self.behind_sent = sent

    def caught_up(self) -> None:
        """The log is read to its end. No other record releases what was released by those before it."""
        self.behind = -1
        if self._unfinished is not None:
            self._unfinished.late_time = 0
            self._unfinished.late = set()

    def released_at(self, store_time: int) -> set[int]:
        """Positions of held messages that were released at `store_time` and were read. If two records of that time
        name a message, nothing tells which of them released it."""
        unfinished = self.unfinished
        if store_time != unfinished.late_time:
            unfinished.late_time = store_time
            unfinished.late = set()
        return unfinished.late

    def add_released(self, message: Message) -> None:
        """The message, which was held, was read: it belongs to the time that `released_at` was asked for last."""
        self.unfinished.late.add(message.position)

    # --- messages out

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
            return  # catch-up reads it, in order
        if route.no_local and message.publisher == self.client_id:
            return
        if message.expires_at and message.expired(now_ms):
            self.dropped().add_expired()
            return
        qos = route.qos if route.qos < message.qos else message.qos
        if qos == 0 and self.write_buffer.congested:
            self.dropped().add_qos0_congested()
            return
        if (qos and not self.has_room) or (self._unfinished is not None and self.waits(message.topic)):
            self.behind = message.position
            self.lagging = True
            return
        self.send(message, qos, message.retain and route.retain_as_published, False, route.identifiers, None, now_ms)

    def is_behind(self, route: Route, topic_offset: int, filter_offsets: dict[bytes, int]) -> bool:
        """Whether it has to read what comes before this message, which was just committed. Its cursors hear of it."""
        if not route.cursors:
            return self.behind >= 0
        for cursor in route.cursors:
            offset = topic_offset
            if cursor.queue[0] == 0x66:  # b"f", a filter queue
                offset = filter_offsets.get(cursor.topic_filter, -1)
            if cursor.next == offset:
                return False
            if offset >= cursor.end:
                cursor.end = offset + 1
        return True

    def offer_moved(self, route: Route, moved: Moved, position: int) -> None:
        """A message that was held entered its queues with the commit at `position`: it is read from the store, and
        what comes behind it with it."""
        if not route.cursors:
            self.fall_behind(position)
        filter_offsets = dict(moved.filter_offsets)
        for cursor in route.cursors:
            is_filter = cursor.queue[0] == 0x66  # b"f"
            offset = filter_offsets.get(cursor.topic_filter, -1) if is_filter else moved.topic_offset
            if offset >= cursor.end:
                cursor.end = offset + 1
        self.lagging = True
        self.on_room(self)

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
                self.pass_over(cursor, offset, message, owner)
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
            if cursor.fleeting:
                qos = 0
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

    def pass_over(self, cursor: Cursor, offset: int, message: Message, owner: Cursor | None = None) -> None:
        """Go on behind a message of the cursor that is done with, or is its owner's business."""
        if owner is not None:
            cursor.leave_to(owner, offset)
        cursor.pass_over(offset, message)
        self._note_progress(cursor)

    def resend(self, packet_id: int, entry: Inflight, message: Message, route: Route | None, now_ms: int) -> None:
        """Send again what an earlier connection left open."""
        source: Route | SharedMembership | None = route
        replayed = filter_of(entry.topic_filter)
        if is_shared(entry.topic_filter):  # it came by no other subscription
            source = self.shares.get(entry.topic_filter)
        elif replayed:  # the same
            subscription = self.subscriptions.get(replayed)
            source = None if subscription is None else subscription.route
        # Without a queue it was sent as a retained value (MQTT-3.3.1-8).
        retain = not entry.topic_filter or (message.retain and source is not None and source.retain_as_published)
        identifiers = source.identifiers if source is not None else ()
        if entry.qos == 0:  # the record is of an older version, which did not tell: as it would be sent now
            entry.qos = message.qos if source is None or source is not route else min(message.qos, source.qos)
        self.send_again(packet_id, entry, message, retain, identifiers, now_ms)
