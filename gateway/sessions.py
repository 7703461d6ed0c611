"""The sessions this node holds: opening, taking over, closing, and recording their progress in the log.

State that is not a message changes only by a control record. What a client is told (CONNACK, SUBACK,
PUBREL …) goes out when the record it rests on is committed.
"""

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from time import time
from typing import Final

from gateway.config import MqttConfig
from gateway.connection import Connection
from gateway.counters import Counters
from gateway.cursor import Cursor
from gateway.mqtt.encode import ConnackProperties, connack, pubrel, suback, unsuback
from gateway.mqtt.packets import Connect, Subscribe, Unsubscribe
from gateway.mqtt.reasons import ReasonCode
from gateway.pump import Pump
from gateway.router import Router
from gateway.session import COMPLETED, RESTORED, SENT, Inflight, Session, Subscription
from gateway.wills import Wills
from matcher.names import has_wildcard
from store import control
from store.api import Appended, Outbound, SessionState, Store, filter_queue, topic_queue
from store.api import Subscription as StoredSubscription
from store.errors import StoreError

log = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 0.1  # acknowledgements of durable sessions are recorded so far apart
SWEEP_SECONDS: Final = 5.0  # between looks for expired sessions
_SWEEP_PAGE: Final = 1000
_NEVER: Final = 0xFFFF_FFFF


class Refused(Exception):
    """CONNECT cannot be served; the reason goes into CONNACK."""

    def __init__(self, reason: ReasonCode, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class _Turn:
    """A client id is opened by one connection at a time."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0  # that hold the lock or wait for it


class Sessions:
    """Serves what `gateway.connection` cannot answer on the spot (its `Desk`)."""

    def __init__(self, store: Store, router: Router, config: MqttConfig, counters: Counters) -> None:
        self._store = store
        self._router = router
        self._config = config
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._pump = Pump(store, router)
        self.wills = Wills(store, counters)
        self.held: dict[bytes, tuple[Session, Connection]] = {}
        self._turns: dict[bytes, _Turn] = {}
        self._closing: dict[bytes, asyncio.Future[None]] = {}  # the last record is on its way
        self._changed: dict[Session, None] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    # --- life of the node

    async def start(self) -> None:
        """Close what a dead predecessor left open, and begin to look for expired sessions."""
        after: bytes | None = None
        while page := await self._store.sessions_open(after, _SWEEP_PAGE):
            now_ms = int(time() * 1000)
            await self._append(
                [control.session_closed(client, epoch, expiry, now_ms) for client, epoch, expiry in page]
            )
            after = page[-1][0]
        self._spawn(self._sweep())

    async def stop(self) -> None:
        """Close every connection and wait until each durable session's last record is committed."""
        self._stopping = True
        for _session, connection in list(self.held.values()):
            connection.close(ReasonCode.SERVER_SHUTTING_DOWN)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pump.stop()
        await asyncio.gather(*self._closing.values(), return_exceptions=True)
        self.wills.stop()
        if self._progress_timer is not None:
            self._progress_timer.cancel()

    async def _sweep(self) -> None:
        while True:
            try:
                while expired := await self._store.sessions_expired(int(time() * 1000), _SWEEP_PAGE):
                    ended = [(c, e) for c, e in expired if c not in self.held]
                    await self._append([control.session_ended(client, epoch) for client, epoch in ended])
                    if len(expired) < _SWEEP_PAGE:
                        break
            except StoreError as error:
                log.error("looking for expired sessions failed: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(self, frames: list[bytes]) -> None:
        """Append control records and wait for the commit. Raises StoreError."""
        if not frames:
            return
        future: asyncio.Future[None] = self._loop.create_future()

        def done(appended: Appended) -> None:
            if future.done():
                return
            if appended.error is not None:
                future.set_exception(appended.error)
            else:
                future.set_result(None)

        self._store.append(frames, done)
        await future

    # --- CONNECT

    def connect(self, connection: Connection, packet: Connect) -> None:
        self._spawn(self._connect(connection, packet))

    async def _connect(self, connection: Connection, packet: Connect) -> None:
        try:
            client_id = self._admit(packet)
            turn = self._turns.setdefault(client_id, _Turn())
            turn.users += 1
            try:
                async with turn.lock:
                    await self._open(connection, packet, client_id)
            finally:
                turn.users -= 1
                if not turn.users:
                    del self._turns[client_id]
        except Refused as refused:
            self._counters.connections_refused += 1
            connection.refuse(refused.reason, str(refused))
        except StoreError as error:
            self._counters.connections_refused += 1
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, str(error))

    def _admit(self, packet: Connect) -> bytes:
        """The client id to serve. Raises Refused."""
        if self._stopping:
            raise Refused(ReasonCode.SERVER_UNAVAILABLE, "the node is shutting down")
        if packet.authentication_method:
            raise Refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "no extended authentication is offered")
        if packet.will is not None and packet.will.topic.startswith(b"$SYS/"):
            raise Refused(ReasonCode.NOT_AUTHORIZED, "$SYS/ is the node's own")
        if packet.client_id:
            return packet.client_id
        if packet.version < 5 and not packet.clean_start:
            # MQTT-3.1.3-8: nobody could come back to such a session.
            raise Refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
        return b"sluice-" + uuid.uuid4().hex.encode()

    async def _open(self, connection: Connection, packet: Connect, client_id: bytes) -> None:
        held = self.held.get(client_id)
        if held is not None:
            self._counters.takeovers += 1
            held[1].close(ReasonCode.SESSION_TAKEN_OVER)
        closing = self._closing.get(client_id)
        if closing is not None:
            await closing
        if connection.closed:
            return
        state = await self._store.session(client_id)
        expiry = self._expiry(packet)
        fresh = packet.clean_start or state is None or _has_expired(state)
        epoch = 1 if state is None else state.epoch + 1
        frames: list[bytes] = []
        if expiry > 0:
            frames.append(control.session_opened(client_id, epoch, expiry, fresh))
        elif state is not None:
            # The session goes on for this connection only, or (clean start) is dropped (MQTT-3.1.2-4).
            frames.append(control.session_opened(client_id, epoch, 0, fresh))
        await self._append(frames)
        if fresh:
            self.wills.send_now(client_id)  # the session that it belongs to has ended
            state = None
        else:
            self.wills.cancel(client_id)  # MQTT-3.1.3-9
            state = await self._store.session(client_id)
        session = Session(
            client_id,
            epoch,
            expiry,
            min(packet.receive_maximum, self._config.max_in_flight),
            connection,
            self._counters,
            self._on_change,
            self._pump.start,
        )
        # A session that came from the log is recorded on, even if it is to end with this connection.
        session.durable = expiry > 0 or state is not None
        session.recorded_open = bool(frames)
        if connection.is_closed():  # meanwhile
            self._close_session(session)
            return
        if state is not None:
            self._restore(session, state)
        self.held[client_id] = (session, connection)
        connection.maximum_packet_size = packet.maximum_packet_size
        connection.will = packet.will
        connection.client_id = client_id
        connection.send(self._connack(packet, client_id, expiry, not fresh))
        connection.opened(session, self._keep_alive(packet))
        if state is not None and not session.closed:
            await self._learn_ends(session, [s.cursor for s in session.subscriptions.values() if s.cursor is not None])

    def _expiry(self, packet: Connect) -> int:
        """Session expiry interval to serve, in seconds."""
        return min(packet.session_expiry_interval, self._config.max_session_expiry)

    def _keep_alive(self, packet: Connect) -> int:
        return min(packet.keep_alive, self._config.max_keep_alive) if packet.keep_alive else 0

    def _connack(self, packet: Connect, client_id: bytes, expiry: int, present: bool) -> bytes:
        properties = ConnackProperties()
        keep_alive = self._keep_alive(packet)
        if expiry != packet.session_expiry_interval:
            properties.session_expiry_interval = expiry
        if keep_alive != packet.keep_alive:
            properties.server_keep_alive = keep_alive
        if not packet.client_id:
            properties.assigned_client_id = client_id
        properties.receive_maximum = self._config.receive_maximum
        properties.maximum_packet_size = self._config.max_packet_size
        properties.topic_alias_maximum = self._config.topic_alias_maximum
        properties.shared_subscription_available = False
        return connack(packet.version, ReasonCode.SUCCESS, present, properties)

    def _restore(self, session: Session, state: SessionState) -> None:
        """Take up a session where the log has it."""
        for stored in state.subscriptions:
            subscription = self._subscription(session, stored)
            session.subscribe(subscription)
            self._router.add(subscription)
        for packet_id in state.inbound:
            session.inbound[packet_id] = RESTORED
        first: list[Outbound] = []
        for outbound in state.outbound:
            held = session.subscriptions.get(outbound.topic_filter)
            cursor = held.cursor if held is not None else None
            if cursor is not None and outbound.offset >= cursor.floor:
                cursor.open[outbound.offset] = outbound.packet_id
            else:
                cursor = None
            entry = Inflight(cursor, outbound.topic_filter, outbound.offset, 2)
            entry.released = outbound.released
            session.restore(outbound.packet_id, entry)
            if cursor is None or outbound.released:
                first.append(outbound)
        # In the order of their queues, which is the order in which they were sent first (MQTT-4.6.0-1). Those that
        # a cursor has yet to come by are sent again in their place there.
        first.sort(key=lambda outbound: (outbound.topic_filter, outbound.offset))
        session.resends.extend([outbound.packet_id for outbound in first])

    def _subscription(self, session: Session, stored: StoredSubscription) -> Subscription:
        topic_filter = stored.topic_filter
        cursor: Cursor | None = None
        if session.durable and stored.qos > 0:
            queue = filter_queue(topic_filter) if has_wildcard(topic_filter) else topic_queue(topic_filter)
            cursor = Cursor(topic_filter, queue, stored.offset, stored.start_position)
        return Subscription(
            session,
            topic_filter,
            stored.qos,
            stored.no_local,
            stored.retain_as_published,
            stored.identifier,
            cursor,
            self._router.delivered_end,
        )

    async def _learn_ends(self, session: Session, cursors: list[Cursor]) -> None:
        """Find out how far the queues go, now that commits reach the session, and read what it missed."""
        for cursor in cursors:
            bounds = await self._store.bounds(cursor.queue)
            cursor.end = max(cursor.end, bounds.end)
        session.lagging = True
        self._pump.start(session)

    # --- SUBSCRIBE, UNSUBSCRIBE

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        session = connection.session
        if session is None:
            return
        reasons: list[ReasonCode] = []
        granted: list[StoredSubscription] = []
        names = session.subscribing.union(session.subscriptions)
        for request in packet.requests:
            reason = self._grant(session, names, request.topic_filter, request.qos)
            reasons.append(reason)
            if reason < 0x80:
                names.add(request.topic_filter)
                granted.append(
                    StoredSubscription(
                        request.topic_filter,
                        request.qos,
                        request.no_local,
                        request.retain_as_published,
                        request.retain_handling,
                        packet.identifier,
                        0,
                        0,
                    )
                )
        reply = suback(connection.version, packet.packet_id, reasons)
        if not session.durable or not granted:
            fresh = [self._attach(session, stored) for stored in granted]
            connection.send(reply)
            self._want_retained(session, granted, fresh)
            return

        session.subscribing.update([stored.topic_filter for stored in granted])

        def done(appended: Appended) -> None:
            if appended.error is not None:
                connection.append_failed(appended.error)
            elif not session.closed:
                self._spawn(self._attach_durable(connection, session, granted, reply))

        self._store.append([control.subscribed(session.client_id, granted)], done)

    def _grant(self, session: Session, names: set[bytes], topic_filter: bytes, qos: int) -> ReasonCode:
        if topic_filter.startswith(b"$share/"):
            # MQTT 5, 3.2.2.3.13: CONNACK said that they are not available.
            version5 = session.outlet.version == 5
            return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED if version5 else ReasonCode.UNSPECIFIED_ERROR
        if topic_filter not in names and len(names) >= self._config.max_subscriptions:
            return ReasonCode.QUOTA_EXCEEDED if session.outlet.version == 5 else ReasonCode.UNSPECIFIED_ERROR
        return ReasonCode(qos)

    def _attach(self, session: Session, stored: StoredSubscription) -> bool:
        """Make a subscription live, replacing one with the same filter (MQTT-3.8.4-3). Whether it is new."""
        old = session.subscriptions.get(stored.topic_filter)
        subscription = self._subscription(session, stored)
        if old is not None:
            subscription.replace(old)
            self._router.remove(old)
        session.subscribe(subscription)
        self._router.add(subscription)
        return old is None

    async def _attach_durable(
        self, connection: Connection, session: Session, granted: list[StoredSubscription], reply: bytes
    ) -> None:
        try:
            known = await self._store.subscriptions(session.client_id, [request.topic_filter for request in granted])
            if session.closed:
                return
            fresh = []
            for request in granted:
                stored = known.get(request.topic_filter)
                # None: unsubscribed again meanwhile.
                fresh.append(stored is not None and self._attach(session, stored))
                session.subscribing.discard(request.topic_filter)
            connection.send(reply)
            self._want_retained(session, granted, fresh)
            live = [session.subscriptions[g.topic_filter] for g in granted if g.topic_filter in session.subscriptions]
            await self._learn_ends(session, [s.cursor for s in live if s.cursor is not None])
        except StoreError as error:
            connection.append_failed(error)

    def _want_retained(self, session: Session, granted: list[StoredSubscription], fresh: list[bool]) -> None:
        """Queue retained messages by Retain Handling (MQTT-3.3.1-9, -10, -11)."""
        for stored, new in zip(granted, fresh, strict=True):
            subscription = session.subscriptions.get(stored.topic_filter)
            if subscription is not None and (stored.retain_handling == 0 or (stored.retain_handling == 1 and new)):
                session.want_retained(subscription)
        if session.retained:
            session.lagging = True
            self._pump.start(session)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        if session is None:
            return
        filters = list(packet.topic_filters)
        reasons: list[ReasonCode] = []
        # What is on its way goes on (MQTT-3.10.4-3); without its cursor only a record knows of it.
        sent = session.unrecorded(set(filters)) if session.durable else []
        for topic_filter in filters:
            known = self._detach(session, topic_filter)
            reasons.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        reply = unsuback(connection.version, packet.packet_id, reasons)
        if not session.durable:
            connection.send(reply)
            return

        def done(appended: Appended) -> None:
            if appended.error is not None:
                connection.append_failed(appended.error)
                return
            for topic_filter in filters:  # a SUBSCRIBE that was under way may have come back meanwhile
                self._detach(session, topic_filter)
            connection.send(reply)

        frames = [control.outbound_changed(session.client_id, sent=sent)] if sent else []
        self._store.append([*frames, control.unsubscribed(session.client_id, filters)], done)

    def _detach(self, session: Session, topic_filter: bytes) -> bool:
        subscription = session.unsubscribe(topic_filter)
        if subscription is None:
            return False
        self._router.remove(subscription)
        if subscription.cursor is not None:
            session.resend_without(subscription.cursor)
        if session.lagging:
            self._pump.start(session)  # another subscription may have waited for this one
        return True

    # --- progress of durable sessions

    def _on_change(self, session: Session, urgent: bool) -> None:
        self._changed[session] = None
        if urgent:
            self._loop.call_soon(self._write_progress)
        elif self._progress_timer is None:
            self._progress_timer = self._loop.call_later(PROGRESS_SECONDS, self._progress_due)

    def _progress_due(self) -> None:
        self._progress_timer = None
        self._write_progress()

    def _write_progress(self) -> None:
        changed = self._changed
        self._changed = {}
        for session in changed:
            if not session.closed:
                self._record(session)

    def _record(self, session: Session) -> None:
        """Record acknowledgements, then packet ids; packets that wait for the record follow its commit."""
        session.changed = False
        session.urgent = False
        frames: list[bytes] = []
        moved: dict[bytes, int] = {}
        for subscription in session.subscriptions.values():
            cursor = subscription.cursor
            if cursor is not None and cursor.floor != cursor.committed:
                moved[subscription.topic_filter] = cursor.floor
                cursor.committed = cursor.floor
        if moved:
            frames.append(control.cursors_committed(session.client_id, moved))
        staged, received, completed = session.staged, session.received, session.free_completed()
        session.staged, session.received = [], []
        sent: list[tuple[int, bytes, int]] = []
        for waiting in staged:
            entry = waiting.entry
            if entry is not None and entry.qos == 2:
                sent.append((waiting.packet_id, entry.topic_filter, entry.offset))
                session.note_recorded(entry)
        if sent or received or completed:
            frames.append(
                control.outbound_changed(session.client_id, sent=sent, received=received, completed=completed)
            )

        if not frames and not staged:
            return

        def done(appended: Appended) -> None:
            session.staging -= len(staged)
            if session.closed:
                return
            if appended.error is not None:
                log.error("recording the progress of %r failed: %s", session.client_id, appended.error)
                self.held[session.client_id][1].append_failed(appended.error)
                return
            for waiting in staged:
                session.outlet.send(waiting.data)
            for packet_id in received:
                session.outlet.send(pubrel(session.outlet.version, packet_id, ReasonCode.SUCCESS))
            if session.lagging:
                self._pump.start(session)

        self._store.append(frames, done)

    # --- the end of a connection

    def lost(self, connection: Connection, clean: bool) -> None:
        """The connection is over. `clean`: by a DISCONNECT that drops the will."""
        self._counters.connections_closed += 1
        session = connection.session
        if session is None:
            return
        packet = connection.disconnect_packet
        if packet is not None and packet.session_expiry_interval is not None:
            session.expiry_interval = min(packet.session_expiry_interval, self._config.max_session_expiry)
        held = self.held.get(session.client_id)
        if held is not None and held[0] is session:
            del self.held[session.client_id]
        if connection.will is not None and not clean:
            self.wills.send(session.client_id, connection.will, session.expiry_interval)
        self._close_session(session)

    def _close_session(self, session: Session) -> None:
        session.closed = True
        for subscription in session.subscriptions.values():
            self._router.remove(subscription)
        self._changed.pop(session, None)
        if not session.recorded_open:
            return
        client_id = session.client_id
        future: asyncio.Future[None] = self._loop.create_future()
        self._closing[client_id] = future

        def done(appended: Appended) -> None:
            if self._closing.get(client_id) is future:
                del self._closing[client_id]
            if not future.done():
                future.set_result(None)
            if appended.error is not None:
                log.error("recording the end of session %r failed: %s", client_id, appended.error)

        self._store.append(_last_records(session), done)


def _has_expired(state: SessionState) -> bool:
    """Whether the session ended by its expiry interval, though the sweep has not come by (MQTT-3.1.2-23)."""
    if not state.closed_at or state.expiry_interval == _NEVER:
        return False
    return time() * 1000 >= state.closed_at + state.expiry_interval * 1000


def _last_records(session: Session) -> list[bytes]:
    """What the log must know when a connection ends: every open exchange, then exact cursors.

    Everything below a cursor's `next` is either acknowledged or listed as an exchange, so the committed
    offset is `next`. The exchanges come first: a torn write may lose the cursors, never the messages.
    """
    sent: list[tuple[int, bytes, int]] = []
    completed: list[int] = []
    for packet_id, entry in session.inflight.items():
        if entry.phase == COMPLETED:
            if entry.cursor is None or entry.offset < max(entry.cursor.next, entry.cursor.floor):
                completed.append(packet_id)
        elif entry.phase == SENT:
            sent.append((packet_id, entry.topic_filter, entry.offset))
    frames: list[bytes] = []
    if sent or session.received:
        frames.append(control.outbound_changed(session.client_id, sent=sent, received=session.received))
    cursors = {s.topic_filter: s.cursor.next for s in session.subscriptions.values() if s.cursor is not None}
    if cursors:
        frames.append(control.cursors_committed(session.client_id, cursors))
    if completed:
        frames.append(control.outbound_changed(session.client_id, completed=completed))
    frames.append(control.session_closed(session.client_id, session.epoch, session.expiry_interval, int(time() * 1000)))
    return frames
