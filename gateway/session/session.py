"""One client's session while a node has it open: which message is sent when, and what is recorded in the log.

A *transient* session ends with its connection and writes nothing to the log. When its window or its socket is full, it
remembers one position of the log (`behind`) and reads on from there later. A *durable* session has a cursor for each
subscription, and records what it needs after a crash before it relies on that. Neither queues messages: the backlog of
a slow client is the log.

Only this package writes a session's state. It performs no I/O: `gateway.delivery.catch_up` reads backlogs, and
`gateway.broker.session_checkpoint` writes records. Its parts are the window of messages in flight (`exchanges`), the
subscriptions, the place in the log, and pending work.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.net.write_buffer import WriteBuffer
from gateway.observe.counters import Counters
from gateway.session.cursor import Cursor
from gateway.session.drop_counters import DropCounters
from gateway.session.inflight import Inflight
from gateway.session.log_position import LogPosition
from gateway.session.message_encoding import Message
from gateway.session.pending_subscriptions import PendingSubscriptions
from gateway.session.pending_work import BoundedReplay, PendingWork, RetainedRequest
from gateway.session.qos_exchanges import ARRIVED, ARRIVING, RESTORED, QosExchanges
from gateway.session.queue_cursor import QueueCursor
from gateway.session.subscription import Route, SharedMembership, Subscriber, Subscription
from gateway.session.subscriptions import Subscriptions
from gateway.session.traced_exchanges import TracedExchanges
from matcher.names import is_shared
from matcher.reserved import filter_of
from store.api import Moved, Outbound, PendingRetained
from store.errors import StoreBusy, StoreError

if TYPE_CHECKING:  # it loads OpenTelemetry
    from gateway.tracing.deliveries import DeviceSpans

# Empty values that all sessions share. They are never changed.
_NO_FRAMES: Final[list[bytes]] = []
_NO_INBOUND: Final[dict[int, int]] = {}
_NO_RETAINED: Final[dict[bytes, RetainedRequest]] = {}
_NO_REPLAYS: Final[dict[bytes, BoundedReplay]] = {}
_FILTER_QUEUE: Final = 0x66  # b"f": the first byte of a filter queue's name


class Session(Subscriber):
    """A client's session that this node has open."""

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
        spans: "DeviceSpans | None" = None,
    ) -> None:
        """spans: of what it is sent; None: traces are switched off."""
        super().__init__(client_id, expiry_interval > 0, write_buffer, counters)
        self.epoch = epoch
        self.expiry_interval = expiry_interval  # seconds
        self.is_recorded: bool = False  # the log has it open and must hear of its end
        self.exchanges: QosExchanges
        if spans is None:
            self.exchanges = QosExchanges(self, window)
        else:
            self.exchanges = TracedExchanges(self, window, spans)
        self.behind: LogPosition | None = None  # of subscriptions without a cursor; None: they have read all
        self.catching_up: bool = False
        self.has_news: bool = False  # there may be more to read since its turn began
        self.changed: bool = False  # cursors moved or packet ids changed since the last record
        self.urgent: bool = False  # a packet to the client waits for the next record
        self.shared_waiting: bool = False  # a shared subscription waits for room
        self.unrecorded: list[bytes] = _NO_FRAMES  # records that the log had no room for
        self.on_change = on_change  # something has to be written to the log; bool: at once
        self.on_room = on_room  # its backlog can be read on
        self.inbound = _NO_INBOUND  # QoS 2 messages received and not released: packet id → state
        self._subscriptions: Subscriptions | None = None
        self._shares: dict[bytes, SharedMembership] | None = None
        self._pending: PendingWork | None = None

    # --- life cycle

    def open(self, is_recorded: bool) -> None:
        """Begin. `is_recorded`: the log has the session open, or is about to, so that its end is recorded too."""
        self.is_recorded = is_recorded

    def restore_drops(self, drops: DropCounters | None) -> None:
        """Continue the counters of earlier connections."""
        self.drops = drops

    def set_durable(self, durable: bool) -> None:
        """Set whether the session's progress is recorded."""
        self.durable = durable

    def set_expiry(self, seconds: int) -> None:
        """Set the session expiry interval, as DISCONNECT says (MQTT-3.14.2-2)."""
        self.expiry_interval = seconds

    def close(self) -> None:
        """End the session's connection."""
        self.closed = True

    def release(self) -> None:
        """Drop the references back to this session when it is closed and its last records are made. Otherwise
        thousands of sessions would wait for the garbage collector, which visits all objects at once."""
        if self._subscriptions is not None:
            self._subscriptions.forget_routes()
        self._subscriptions = None
        self._pending = None
        self.exchanges.release()

    def shrink(self) -> None:
        """Free what takes memory and is empty."""
        if self._pending is not None and self._pending.is_empty:
            self._pending = None
        if not self._shares:
            self._shares = None
        self.exchanges.shrink()

    # --- records

    def note_change(self, urgent: bool) -> None:
        if not self.durable:
            return
        if urgent:
            if not self.urgent:
                self.urgent = self.changed = True
                self.on_change(self, True)
        elif not self.changed:
            self.changed = True
            self.on_change(self, False)

    def begin_checkpoint(self) -> list[Cursor]:
        """Begin a record of all changes. Returns the cursors that have moved, marked as committed."""
        self.changed = False
        self.urgent = False
        moved: list[Cursor] = []
        for subscription in self._subscriptions.values() if self._subscriptions is not None else ():
            moved += subscription.begin_commit()
        return moved

    def places_at_close(self) -> dict[bytes, int]:
        """Places where the cursors continue after this connection, by name, unless the log has them already. Everything
        before `next` is acknowledged or recorded as an exchange."""
        places: dict[bytes, int] = {}
        for subscription in self._subscriptions.values() if self._subscriptions is not None else ():
            for cursor in subscription.recorded_cursors():
                place = max(cursor.next, cursor.floor)
                if place != cursor.durable:
                    places[cursor.topic_filter] = place
        return places

    def pop_retained_changes(self) -> tuple[list[PendingRetained], list[bytes], bool]:
        """See `PendingWork.pop_changes`."""
        pending = self._pending
        if pending is None:
            return [], [], False
        changes = pending.pop_changes()
        if pending.is_empty:
            self._pending = None
        return changes

    def keep_unrecorded(self, frames: list[bytes], error: StoreError) -> None:
        """Keep records that a busy store refused. They are written with the last records of the connection. After any
        other error they would only make those fail too."""
        if isinstance(error, StoreBusy):
            self.unrecorded = self.unrecorded + frames

    # --- subscriptions

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            self._subscriptions = Subscriptions()
        return self._subscriptions

    @property
    def cursors(self) -> list[QueueCursor]:
        """The cursors of its subscriptions."""
        if self._subscriptions is None:
            return []
        return [s.cursor for s in self._subscriptions.values() if s.cursor is not None]

    @property
    def shares(self) -> Mapping[bytes, SharedMembership]:
        """Shared subscriptions, by their whole filter."""
        return self._shares if self._shares is not None else {}

    @property
    def subscribing(self) -> PendingSubscriptions:
        """Filters that are granted, and whose records are not committed."""
        return self.pending.subscribing

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription, in place of one with the same filter."""
        self.subscriptions.put(subscription)
        if self._pending is not None:
            self._pending.replace(subscription)

    def unsubscribe(self, topic_filter: bytes) -> Subscription | None:
        """Remove a subscription and return it. None: there is no such filter."""
        if self._pending is not None and self._pending.finish(topic_filter, self.durable):
            self.note_change(False)
        subscription = self.subscriptions.pop(topic_filter)
        if subscription is not None and subscription.cursor is not None:
            cursor = subscription.cursor
            cursor.has_ended = True
            if self.exchanges.resend_without(cursor):
                self.lagging = True
            self.note_change(False)
        return subscription

    def route(self, topic: bytes) -> Route | None:
        return self.subscriptions.route(topic)

    def join_group(self, topic_filter: bytes, membership: SharedMembership) -> None:
        """Add a shared subscription."""
        if self._shares is None:
            self._shares = {}
        self._shares[topic_filter] = membership

    def leave_group(self, topic_filter: bytes) -> SharedMembership | None:
        """Remove a shared subscription and return it. None: there is no such subscription."""
        return self._shares.pop(topic_filter, None) if self._shares is not None else None

    # --- retained values

    @property
    def pending(self) -> PendingWork:
        if self._pending is None:
            self._pending = PendingWork()
        return self._pending

    @property
    def retained(self) -> Mapping[bytes, RetainedRequest]:
        """Requests for retained values, by filter, in the order they are served."""
        return self._pending.retained if self._pending is not None else _NO_RETAINED

    @property
    def awaits_retained(self) -> bool:
        """Whether messages have to wait until retained values are sent."""
        return self._pending is not None and bool(self._pending.retained)

    def finish_retained(self, topic_filter: bytes) -> None:
        """All retained values of a subscription are sent."""
        if self.pending.finish(topic_filter, self.durable):
            self.note_change(False)

    # --- replays with an end

    @property
    def bounded_replays(self) -> Mapping[bytes, BoundedReplay]:
        """Replays with an end, by name, in the order they are served."""
        return self._pending.replays if self._pending is not None else _NO_REPLAYS

    def end_bounded_replay(self, name: bytes) -> bool:
        """Remove a replay with an end. Whether there was one."""
        return self._pending is not None and self._pending.end_replay(name)

    # --- QoS 2 in

    def receive(self, packet_id: int) -> None:
        """Note that a QoS 2 message from the client is being appended."""
        if self.inbound is _NO_INBOUND:
            self.inbound = {}
        self.inbound[packet_id] = ARRIVING

    def received(self, packet_ids: list[int]) -> None:
        """Note that the messages with these packet ids are in the log."""
        for packet_id in packet_ids:
            if packet_id in self.inbound:
                self.inbound[packet_id] = ARRIVED

    def forget_received(self, packet_id: int) -> int:
        """Free a packet id. Returns its state until now. -1: it was free."""
        state = self.inbound.get(packet_id, -1)
        if state >= 0:
            del self.inbound[packet_id]
        return state

    # --- an earlier connection

    def restore_inbound(self, packet_ids: list[int]) -> None:
        """Restore the QoS 2 messages that an earlier connection received and that are not released."""
        if packet_ids:
            self.inbound = dict.fromkeys(packet_ids, RESTORED)

    def restore_outbound(self, stored: list[Outbound]) -> None:
        """Restore the exchanges that an earlier connection left open. Its subscriptions are restored by now."""
        first: list[Outbound] = []
        for outbound in stored:
            subscription = self.subscriptions.get(outbound.topic_filter)
            cursor = subscription.cursor if subscription is not None else None
            if cursor is not None and outbound.offset < cursor.floor:
                cursor = None  # it does not read the message again
            if cursor is not None:
                cursor.resend[outbound.offset] = outbound.packet_id
            entry = Inflight(cursor, outbound.topic_filter, outbound.offset, outbound.qos)
            entry.released = outbound.released
            self.exchanges.restore(outbound.packet_id, entry)
            if cursor is None or outbound.released:
                first.append(outbound)
        # In the order of their queues, in which they were sent first (MQTT-4.6.0-1). Those that a cursor has yet to
        # read are sent again when it does.
        first.sort(key=_place)
        self.exchanges.queue_resends([outbound.packet_id for outbound in first])
        self.exchanges.mark_sent_before(self.cursors)

    def restore_retained(self, stored: PendingRetained) -> None:
        """Restore a request for retained values that an earlier connection did not finish."""
        subscription = self.subscriptions.get(stored.topic_filter)
        if subscription is not None:
            self.pending.restore(subscription, stored)

    # --- catching up

    def catch_up(self) -> None:
        """Have the backlog read, now or once there is room."""
        self.lagging = True
        self.on_room(self)

    def begin_catch_up(self) -> bool:
        """Begin to read the backlog. False: that is under way and will read once more, or the session is closed."""
        self.has_news = True
        if self.catching_up or self.closed:
            return False
        self.catching_up = True
        return True

    def begin_turn(self, window: int) -> None:
        """Begin to read a part of the backlog, with up to `window` messages in flight."""
        self.has_news = False
        self.exchanges.limit_window(window)

    def end_catch_up(self, lagging: bool) -> None:
        """Stop reading: at the end of the backlog, or (`lagging`) until there is room."""
        self.catching_up = False
        self.lagging = lagging
        if not lagging:
            self.exchanges.limit_window(self.exchanges.max_window)

    def fall_behind(self, position: int) -> None:
        """Read the log from `position` on, unless it is behind that already."""
        if self.behind is None:
            self.behind = LogPosition(position)
        self.lagging = True

    def caught_up(self) -> None:
        """The log is read to its end."""
        self.behind = None

    def room_available(self) -> None:
        if self.lagging and not self.catching_up:
            self.on_room(self)
        if self.shared_waiting:
            self.shared_waiting = False
            for membership in list(self.shares.values()):
                membership.resume()

    def wait_for_room(self) -> None:
        """Have the shared subscriptions resume when there is room again."""
        self.shared_waiting = True

    # --- messages out

    def offer(
        self,
        route: Route,
        message: Message,
        topic_offset: int,
        filter_offsets: dict[bytes, int],
        now_ms: int,
    ) -> None:
        """See `Subscriber.offer`."""
        if route.cursors:
            self._offer_durable(route, message, topic_offset, filter_offsets, now_ms)
            return
        if self.behind is not None:
            return  # it is read from the log later
        if route.no_local and message.publisher == self.client_id:
            return
        if message.expires_at and message.expired(now_ms):
            self.dropped().add_expired()
            return
        qos = route.qos if route.qos < message.qos else message.qos
        if self.awaits_retained:
            self.fall_behind(message.position)
            return
        if qos == 0 and self.write_buffer.congested:
            self.dropped().add_qos0_congested()
            return
        if qos and not self.exchanges.has_room:
            self.fall_behind(message.position)
            return
        self.exchanges.send(
            message, qos, message.retain and route.retain_as_published, False, route.identifiers, None, now_ms
        )

    def is_behind(self, route: Route, topic_offset: int, filter_offsets: dict[bytes, int]) -> bool:
        if not route.cursors:
            return self.behind is not None
        for cursor in route.cursors:
            offset = topic_offset
            if cursor.queue[0] == _FILTER_QUEUE:
                offset = filter_offsets.get(cursor.topic_filter, -1)
            if cursor.next == offset:
                return False
            if offset >= cursor.end:
                cursor.end = offset + 1
        return True

    def offer_released(self, route: Route, moved: Moved, position: int) -> None:
        if not route.cursors:
            self.fall_behind(position)
        filter_offsets = dict(moved.filter_offsets)
        for cursor in route.cursors:
            is_filter = cursor.queue[0] == _FILTER_QUEUE
            offset = filter_offsets.get(cursor.topic_filter, -1) if is_filter else moved.topic_offset
            if offset >= cursor.end:
                cursor.end = offset + 1
        self.catch_up()

    def send_unlogged(self, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int) -> None:
        if self.write_buffer.congested:
            self.dropped().add_qos0_congested()
        else:
            self.exchanges.send(message, 0, retain, False, identifiers, None, now_ms)

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
            if cursor.queue[0] == _FILTER_QUEUE:
                offset = filter_offsets.get(cursor.topic_filter, -1)
                if offset < 0:
                    continue  # the filter queue is younger than this message
            if offset >= cursor.end:
                cursor.end = offset + 1
            if cursor.next != offset:
                self.lagging = True
            elif cursor is owner:
                if not self.send_next(cursor, offset, message, route, now_ms):
                    self.lagging = True
            elif owner.has_read(message) and not cursor.must_wait:
                self.pass_over(cursor, offset, message, owner)
            else:
                self.lagging = True

    def send_next(self, cursor: QueueCursor, offset: int, message: Message, route: Route, now_ms: int) -> bool:
        """Send the cursor's next message, or pass over it where it is not to be sent. False: no room for it."""
        exchanges = self.exchanges
        if self.awaits_retained or not exchanges.has_room_in_order or cursor.must_wait:
            return False
        if message.expires_at and message.expired(now_ms):
            self.dropped().add_expired()
        elif not (route.no_local and message.publisher == self.client_id):
            qos = route.qos if route.qos < message.qos else message.qos
            if cursor.is_unrecorded:
                qos = 0
            retain = message.retain and route.retain_as_published
            dup = offset < cursor.sent_before  # or so it may be (MQTT-3.3.1-1)
            if qos > 0:
                cursor.read(offset, message)
                entry = Inflight(cursor, cursor.topic_filter, offset, qos)
                exchanges.send(message, qos, retain, dup, route.identifiers, entry, now_ms)
                return True
            if dup:  # MQTT-3.3.1-2: nothing could say so
                self.dropped().add_qos0_repeated()
            else:
                exchanges.send(message, 0, retain, False, route.identifiers, None, now_ms)
        self.pass_over(cursor, offset, message)
        return True

    def pass_over(self, cursor: QueueCursor, offset: int, message: Message, owner: QueueCursor | None = None) -> None:
        """Move past a message that is not sent by this cursor."""
        if owner is not None:
            cursor.leave_to(owner, offset)
        self.note_change(cursor.pass_over(offset, message))

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
        self.exchanges.send_again(packet_id, entry, message, retain, identifiers, now_ms)


def _place(outbound: Outbound) -> tuple[bytes, int]:
    return outbound.topic_filter, outbound.offset
