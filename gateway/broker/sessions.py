"""The open sessions of this node. It opens them at CONNECT, takes them over, and closes them.

State other than messages changes only by control records. A packet that depends on a record (CONNACK, SUBACK, PUBREL)
is sent when the record is committed.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine, Sequence
from time import time
from typing import TYPE_CHECKING, Final

from gateway.auth.authority import Authority
from gateway.auth.identity import Identity
from gateway.auth.refusal import ClientGone, ClientRefused
from gateway.broker.append import LastRecords, append
from gateway.broker.authentication import Authentication
from gateway.broker.client_locks import ClientLocks
from gateway.broker.client_ownership import SINGLE_NODE, ClientOwnership
from gateway.broker.connack import Connack
from gateway.broker.connection_facts import ConnectionFacts, facts_of
from gateway.broker.eager_task import start_eagerly
from gateway.broker.handle_subscribe import SubscribeHandler
from gateway.broker.redirection import Redirection
from gateway.broker.session_checkpoint import SessionCheckpoint, last_records, records_of_unsubscribed
from gateway.broker.session_restore import SessionRestore
from gateway.broker.sys_topics import SysTopics
from gateway.broker.traces import TracePart, Traces
from gateway.broker.user_limits import UserLimits
from gateway.broker.wills import Wills, will_message, will_set
from gateway.config.mqtt import MqttConfig
from gateway.connection.connection import Connection
from gateway.connection.enhanced_auth import EnhancedAuthentication
from gateway.delivery.catch_up import CatchUp
from gateway.delivery.inbox import Inboxes
from gateway.delivery.missed_commits import MissedCommits
from gateway.delivery.router import Router
from gateway.mqtt.aliases import TopicAliases
from gateway.mqtt.packets import Auth, Connect, Subscribe, Unsubscribe, Will
from gateway.mqtt.reasons import ReasonCode
from gateway.net.weighted import Weighted
from gateway.observe.counters import Counters
from gateway.schemas.payload_checks import PayloadChecks
from gateway.session.drop_counters import OfflineDropCounters
from gateway.session.queue_cursor import QueueCursor, reach_of
from gateway.session.session import Session
from gateway.shared.shared_subscriptions import SharedSubscriptions
from gateway.topics.destination import InvalidDestination, parse_destination
from matcher.names import is_shared
from matcher.reserved import inbox_of
from store import control
from store.api import Action, SessionState, Store
from store.errors import ClaimedByAnotherUser, RecordTooLarge, StoreError

if TYPE_CHECKING:  # it loads OpenTelemetry
    from gateway.tracing.deliveries import DeviceSpans

log = logging.getLogger(__name__)

_NEVER: Final = 0xFFFF_FFFF


class Sessions:
    """Serves what `gateway.connection.connection` cannot answer on the spot (its `RequestCallbacks`)."""

    def __init__(
        self,
        store: Store,
        router: Router,
        authority: Authority,
        config: MqttConfig,
        counters: Counters,
        ownership: ClientOwnership = SINGLE_NODE,
        others: Callable[[], Sequence[Weighted]] = list,
        spans: "DeviceSpans | None" = None,
        payload_checks: PayloadChecks | None = None,
    ) -> None:
        """others: addresses of other nodes for clients that this one does not serve. spans: of what sessions are sent;
        None: traces are switched off. payload_checks: of wills; None: there are no schemas."""
        self._spans = spans
        self.redirection = Redirection(config, others)
        self._store = store
        self._ownership = ownership
        self._router = router
        self._config = config
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._catch_up = CatchUp(store, router, self._store_failed)
        self._checkpoint = SessionCheckpoint(store, self._store_failed)
        # Bound once, not for each session.
        self._note_change, self._start_catch_up = self._checkpoint.note, self._catch_up.start
        self.shared_subscriptions = SharedSubscriptions(store, config, counters, ownership.name, self._store_failed)
        self.open_sessions: dict[bytes, tuple[Session, Connection]] = {}
        self.sys_topics = SysTopics(store, router, counters, self.open_sessions, config.sys_interval_s, ownership)
        self._user_limits = UserLimits(config, counters)
        self._subscriptions = SubscribeHandler(
            store,
            router,
            self._catch_up,
            self.shared_subscriptions,
            config,
            self._spawn,
            self.sys_topics.send_values,
            self._user_limits,
        )
        self._connack = Connack(config)
        self._restore = SessionRestore(router)
        self._inboxes = Inboxes(router, counters, self.open_sessions, ownership.is_shared)
        self.missed = MissedCommits(
            router,
            self.open_sessions,
            self._refresh,
            self._inboxes.open_missed,
            self._start_catch_up,
            self._store_failed,
            self._spawn,
        )
        self._authority = authority
        self._authentication = Authentication(
            store, authority, counters, self._connections, self._spawn, payload_checks or PayloadChecks()
        )
        self.client_locks = ClientLocks()
        self.wills = Wills(store, counters, self.client_locks.lock, authority.may_send_will)
        self._ending = LastRecords(store)
        self.kept_drops = OfflineDropCounters()
        self.traces = Traces(self.open_sessions)
        self._beginning = 0  # durable sessions whose first record is on its way
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    # --- life of the node

    def start(self) -> None:
        """Start, after `gateway.broker.maintenance` has closed what earlier nodes left open."""
        self.shared_subscriptions.start()
        self._spawn(self.sys_topics.run())

    async def stop(self) -> None:
        """Close every connection and wait until each durable session's last record is committed."""
        self._stopping = True
        self.traces.stop()
        for _session, connection in list(self.open_sessions.values()):
            connection.close(ReasonCode.SERVER_SHUTTING_DOWN)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._catch_up.stop()
        await self.shared_subscriptions.stop()
        await asyncio.gather(*self._ending.all())
        self._checkpoint.stop()

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- CONNECT

    def connect(self, connection: Connection, packet: Connect) -> None:
        self.traces.connecting(connection, packet.client_id, packet)
        info = connection.info
        if info is not None and info.refusal is not None:
            self._counters.connections_refused += 1
            connection.refuse(info.refusal, info.why)
            return
        if packet.authentication_method is not None:
            seconds = connection.admission.connect_timeout
            connection.enhanced_auth = EnhancedAuthentication(connection, packet.authentication_method, seconds)
            self._spawn(self._connect(connection, packet))
        elif self._ownership.is_shared:
            self._spawn(self._connect(connection, packet))
        else:  # most clients wait for nothing
            start_eagerly(self._connect(connection, packet), self._spawn)

    async def _connect(self, connection: Connection, packet: Connect) -> None:
        try:
            client_id = self._admit(connection, packet)
            identity = await self._authentication.identify(connection, packet, client_id)
            self._connack.check(connection, packet, identity)
            self._user_limits.admit(connection, identity)
            try:
                async with self.client_locks.lock(client_id):
                    await self._open(connection, packet, identity)
            finally:
                self._release_if_unused(client_id)
        except ClientRefused as refused:
            self._counters.connections_refused += 1
            connection.refuse(refused.reason, str(refused), refused.server_reference)
        except ClientGone:
            if not connection.is_closed():
                connection.transport.abort()
        except ClaimedByAnotherUser as error:
            self._give_up(connection, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error))
        except StoreError as error:
            # Nothing is large in it but a will with very many user properties.
            large = isinstance(error, RecordTooLarge)
            reason = ReasonCode.PACKET_TOO_LARGE if large else ReasonCode.SERVER_UNAVAILABLE
            self._give_up(connection, reason, str(error))
        except Exception:
            log.exception("serving the CONNECT of %r failed", packet.client_id)
            self._give_up(connection, ReasonCode.SERVER_UNAVAILABLE, "the node cannot serve this connection now")

    def _give_up(self, connection: Connection, reason: ReasonCode, text: str) -> None:
        """End a connection whose session could not be opened, or not completely."""
        if connection.session is None:
            self._counters.connections_refused += 1
            connection.refuse(reason, text)
        else:
            connection.close(ReasonCode.UNSPECIFIED_ERROR, connection.explain(text.encode()))

    def _admit(self, connection: Connection, packet: Connect) -> bytes:
        """The client id to serve. Raises ClientRefused."""
        self.redirection.check()
        if self._stopping:
            raise ClientRefused(ReasonCode.SERVER_UNAVAILABLE, "the node is shutting down")
        if packet.will is not None:
            try:
                parse_destination(packet.will.topic, int(time() * 1000))
            except InvalidDestination as refused:
                raise ClientRefused(refused.reason, str(refused)) from refused
        if packet.will is not None and not self._config.accepts_name(packet.will.topic):
            raise ClientRefused(ReasonCode.TOPIC_NAME_INVALID, "the will's topic is too long or has too many levels")
        info = connection.info
        if info is not None and info.user_name is not None:
            packet.username = info.user_name
        if info is not None and info.client_id is not None:
            if packet.client_id not in (b"", info.client_id):
                raise ClientRefused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client id is not the certificate's")
            return info.client_id
        if packet.client_id:
            return packet.client_id
        if packet.version < 5 and not packet.clean_start:
            # MQTT-3.1.3-8: nobody could come back to such a session.
            raise ClientRefused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs a clean session")
        return b"sluice-" + uuid.uuid4().hex.encode()

    async def _open(self, connection: Connection, packet: Connect, identity: Identity) -> None:
        client_id = identity.client_id
        opened = self.open_sessions.get(client_id)
        if opened is not None:
            other = opened[1].identity
            if other is not None and not identity.may_use_session_of(other.user_name):
                self._authentication.refuse_session(
                    connection, identity, "another user is connected with this client id"
                )
            self._counters.takeovers += 1
        await self._end_connection(client_id, ReasonCode.SESSION_TAKEN_OVER)
        if connection.closed:
            return
        self._user_limits.enter(connection, identity.user_name)
        await self._ownership.claim(client_id, identity.user_name, connection.has_left)
        state = await self._store.session_row(client_id)
        expiry = self._connack.expiry(packet)
        if state is not None and not _has_expired(state) and not identity.may_use_session_of(state.user_name):
            self._authentication.refuse_session(connection, identity, "the session of this client id is another user's")
        fresh = packet.clean_start or state is None or _has_expired(state)
        epoch = 1 if state is None else state.epoch + 1
        window = min(packet.receive_maximum, connection.admission.max_in_flight)
        frames, wills = await self.wills.overdue(client_id, None if fresh else state)
        gateway = self._ownership.name
        if expiry > 0 or state is not None:
            # With an expiry of 0 a session lasts for this connection only. A clean start drops it (MQTT-3.1.2-4).
            user_name = identity.user_name
            frames.append(
                control.SessionOpened(epoch, expiry, fresh, reach_of(window), user_name, gateway).frame(client_id)
            )
        if packet.will is not None:
            frames.append(will_set(identity, epoch, packet.will, gateway))
        session = Session(
            client_id,
            epoch,
            expiry,
            window,
            connection,
            self._counters,
            self._note_change,
            self._start_catch_up,
            self._spans,
        )
        session.open(is_recorded=expiry > 0 or state is not None)
        try:
            await self._record_open(frames, identity.user_name, is_new=state is None and expiry > 0)
        except asyncio.CancelledError:
            # The node stops, and the records are on their way: its next start is not to take it for a connection.
            self._close_session(session, packet.will, is_sent=False)
            raise
        self.wills.sent(wills)
        kept = self.kept_drops.pop(client_id)
        session.restore_drops(None if fresh else kept)
        told = self._router.delivered_end
        try:
            state = None if fresh else await self._store.session(client_id)
            state = await self._still_allowed(identity, state)
            if connection.is_closed():  # meanwhile
                raise ClientGone
            if state is not None and not self.shared_subscriptions.may_join(
                [each.topic_filter for each in state.subscriptions if is_shared(each.topic_filter)]
            ):
                raise ClientRefused(
                    ReasonCode.QUOTA_EXCEEDED, "the node has too many shared subscriptions for this session"
                )
            # From here on, the inbox is opened by the commit that has a message for it.
            has_inbox = state is not None and self._router.delivered_end == told
            self._accept(connection, packet, identity, session, state, not fresh)
        except BaseException:
            if connection.session is None and not session.closed:
                self.open_sessions.pop(client_id, None)
                self._close_session(session, packet.will, is_sent=False)
            raise
        if state is not None and not session.closed:
            await self._subscriptions.learn_ends(session, session.cursors)
        if session.durable and not has_inbox:
            await self._open_inbox(session)

    def _accept(
        self,
        connection: Connection,
        packet: Connect,
        identity: Identity,
        session: Session,
        state: SessionState | None,
        present: bool,
    ) -> None:
        """Add the session to the open ones and send CONNACK. `state`: the session as the log has it."""
        # A session that came from the log is recorded on, even if it is to end with this connection.
        session.set_durable(session.expiry_interval > 0 or state is not None)
        if state is not None:
            self._restore.restore(session, state)
            self._user_limits.subscribed(connection, len(state.subscriptions))
        self.open_sessions[session.client_id] = (session, connection)
        aliases = min(packet.topic_alias_maximum, self._config.max_topic_aliases)
        connection.aliases = TopicAliases(aliases) if aliases else None
        connection.will = packet.will
        connection.client_id = session.client_id
        self.traces.connecting(connection, session.client_id)
        connection.identity = identity
        connection.is_clean_start, connection.opened_at = packet.clean_start, time()
        connection.permissions = identity.permissions
        connection.send(self._connack.accept(connection, packet, identity, session.expiry_interval, present))
        for stored in state.subscriptions if state is not None else ():
            if is_shared(stored.topic_filter):  # not before: a message may wait for a member
                self.shared_subscriptions.join(session, stored)
        connection.opened(session, self._connack.keep_alive(packet))
        if identity.grant is not None:
            self._authentication.end_in_time(connection, identity.grant)

    async def _refresh(self, session: Session, cursors: list[QueueCursor]) -> None:
        """Find what the session has missed."""
        await self._subscriptions.learn_ends(session, cursors)
        await self._open_inbox(session)

    async def _open_inbox(self, session: Session) -> None:
        """Subscribe to the inbox, if something was addressed to the session before it was among the open ones."""
        inbox = inbox_of(session.client_id)
        if inbox not in session.subscriptions:
            stored = (await self._store.subscriptions(session.client_id, [inbox])).get(inbox)
            if stored is not None and inbox not in session.subscriptions and not session.closed:
                cursor = self._restore.restore_subscription(session, stored).cursor
                await self._subscriptions.learn_ends(session, [] if cursor is None else [cursor])

    async def _still_allowed(self, identity: Identity, state: SessionState | None) -> SessionState | None:
        """Remove from the session what its client may not subscribe to any more. Nothing is awaited after the last
        check.

        Raises ClientRefused if the user was removed meanwhile, and StoreError.
        """
        while True:
            frames = []
            if state is not None:
                if withheld := self._authentication.forbidden_outbound(identity, state):
                    # As in `QosExchanges.forget`: one with QoS 2 ends with PUBREL.
                    released = [each.packet_id for each in withheld if each.qos == 2]
                    completed = [each.packet_id for each in withheld if each.qos != 2]
                    frames.append(control.OutboundChanged((), released, completed).frame(state.client_id))
                if forbidden := self._authentication.forbidden_filters(identity, state):
                    frames += records_of_unsubscribed(state.client_id, forbidden)
            if state is not None and frames:
                await append(self._store, frames)
                state = await self._store.session(state.client_id)
            if not await self._authority.renew(identity) and not frames:
                return state

    async def _end_connection(self, client_id: bytes, reason: ReasonCode) -> None:
        """Close the client's connection, if it has one, and wait for its last records."""
        opened = self.open_sessions.get(client_id)
        if opened is not None:
            opened[1].close(reason)
        ending = self._ending.get(client_id)
        if ending is not None:
            await asyncio.shield(ending)  # others wait for it too

    async def _record_open(self, frames: list[bytes], user: bytes, is_new: bool) -> None:
        """Append the first records of a connection. Raises ClientRefused and StoreError."""
        if not is_new:
            await append(self._store, frames)
            return
        why = ""
        if self._store.session_count() + self._beginning >= self._config.max_sessions:
            why = "the node has as many sessions as mqtt.max_sessions allows"
        elif user and self._config.max_user_sessions:
            count = await self._store.session_count_of(user) + self._user_limits.beginning(user)
            if count >= self._config.max_user_sessions:
                why = "the user has as many sessions as mqtt.max_user_sessions allows"
        if why:
            self._counters.sessions_full += 1
            raise ClientRefused(ReasonCode.QUOTA_EXCEEDED, why)
        self._beginning += 1
        self._user_limits.begin(user, 1)
        try:
            await append(self._store, frames)
        finally:
            self._beginning -= 1
            self._user_limits.begin(user, -1)

    # --- SUBSCRIBE, UNSUBSCRIBE

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        self._subscriptions.subscribe(connection, packet)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        self._subscriptions.unsubscribe(connection, packet)

    def auth(self, connection: Connection, packet: Auth) -> None:
        self._authentication.auth(connection, packet)

    def denied(self, connection: Connection, action: Action, topic: bytes) -> None:
        self._authentication.note_topic(connection, False, action, topic)

    def allowed(self, connection: Connection, action: Action, topic: bytes) -> None:
        self._authentication.note_topic(connection, True, action, topic)

    def _connections(self) -> list[Connection]:
        return [connection for _, connection in self.open_sessions.values()]

    def is_unreached(self, position: int) -> bool:
        return self._inboxes.is_unreached(position)

    # --- the end of a connection

    def lost(self, connection: Connection, clean: bool) -> None:
        """Close the session of a connection that has ended. `clean`: by a DISCONNECT that drops the will."""
        self._counters.connections_closed += 1
        if connection.tracer is not None:
            self.traces.lost(connection)
        if connection.enhanced_auth is not None:
            connection.enhanced_auth.connection_lost()
        if connection.forget_expiry is not None:
            connection.forget_expiry()
            connection.forget_expiry = None
        self._user_limits.leave(connection)
        session = connection.session
        if session is None:
            return
        packet = connection.disconnect_packet
        if packet is not None and packet.session_expiry_interval is not None:
            session.set_expiry(min(packet.session_expiry_interval, self._config.max_session_expiry))
        opened = self.open_sessions.get(session.client_id)
        if opened is not None and opened[0] is session:
            del self.open_sessions[session.client_id]
        is_sent = not clean and not connection.is_will_dropped
        self._close_session(session, connection.will, is_sent)
        connection.session = None

    def _store_failed(self, session: Session, error: StoreError) -> None:
        """Close the connection of a session whose records cannot be written, or whose backlog cannot be read. The
        client has to come back and resume."""
        opened = self.open_sessions.get(session.client_id)
        if opened is not None and opened[0] is session:
            opened[1].append_failed(error)

    def _close_session(self, session: Session, will: Will | None, is_sent: bool) -> None:
        """Close a session whose connection has ended. `is_sent`: the connection's will is to be sent."""
        session.close()
        for subscription in session.subscriptions.values():
            self._router.remove(subscription)
        self.shared_subscriptions.close(session)
        self._checkpoint.forget(session)
        self._catch_up.forget(session)
        client_id = session.client_id
        frames = last_records(session) if session.is_recorded else []
        waits = False
        if will is not None:
            waits = is_sent and min(will.delay_interval, session.expiry_interval) > 0
            if not is_sent:
                frames.insert(max(len(frames) - 1, 0), control.WillDropped(session.epoch).frame(client_id))
            elif not waits:
                frames.insert(max(len(frames) - 1, 0), will_message(client_id, will))

        def recorded() -> None:
            if waits:
                self.wills.waits()
            elif is_sent and will is not None:
                self.wills.sent(1)

        if frames:
            self._ending.record(client_id, frames, recorded, self._release_if_unused)
        else:
            self._release_if_unused(client_id)
        if session.drops is not None and session.expiry_interval:
            self.kept_drops.keep(client_id, session.drops)
        session.release()

    def _release_if_unused(self, client_id: bytes) -> None:
        """Let other gateways serve a client that has nothing left on this node."""
        if (
            client_id not in self.open_sessions
            and client_id not in self.client_locks
            and self._ending.get(client_id) is None
        ):
            self._ownership.release(client_id)

    async def give_up(self, client_id: bytes, is_taken_over: bool) -> None:
        """Close the client's connection: another gateway is to have the client, or nobody (not `is_taken_over`)."""
        async with self.client_locks.lock(client_id):
            reason = ReasonCode.SESSION_TAKEN_OVER if is_taken_over else ReasonCode.ADMINISTRATIVE_ACTION
            self._counters.takeovers += is_taken_over and client_id in self.open_sessions
            await self._end_connection(client_id, reason)
        self._release_if_unused(client_id)

    # --- for the operator

    @property
    def connected(self) -> Collection[bytes]:
        return self.open_sessions.keys()

    def gateway_of(self, _client_id: bytes) -> str:
        return ""

    async def facts(self, client_id: bytes) -> ConnectionFacts | None:
        """What only this process knows of a client's connection. None: it has none."""
        opened = self.open_sessions.get(client_id)
        return None if opened is None else facts_of(*opened)

    async def read_trace(self, client_id: bytes, name: str, until_ms: int) -> list[TracePart]:
        """The packets of a client since the last call, see `Traces.read`."""
        return [TracePart("", *self.traces.read(client_id, name, until_ms))]

    async def kick(self, client_id: bytes) -> bool:
        """Close the client's connection; its session stays. False: it has none."""
        async with self.client_locks.lock(client_id):
            if client_id not in self.open_sessions:
                return False
            await self._end_connection(client_id, ReasonCode.ADMINISTRATIVE_ACTION)
            return True

    async def remove(self, client_id: bytes) -> bool:
        """End the client's session with all it has; a will that waits is sent (MQTT-3.1.2-8). False: there is none.
        Raises StoreError."""
        async with self.client_locks.lock(client_id):
            was_open = client_id in self.open_sessions
            await self._end_connection(client_id, ReasonCode.ADMINISTRATIVE_ACTION)
            state = await self._store.session_row(client_id)
            frames, wills = await self.wills.overdue(client_id, None)
            self.kept_drops.pop(client_id)
            if state is not None:
                await append(self._store, [*frames, control.SessionEnded(state.epoch).frame(client_id)])
                self.wills.sent(wills)
            return was_open or state is not None


def _has_expired(state: SessionState) -> bool:
    """Whether the session ended by its expiry interval, though the sweep has not come by (MQTT-3.1.2-23)."""
    if not state.closed_at or state.expiry_interval == _NEVER:
        return False
    return time() * 1000 >= state.closed_at + state.expiry_interval * 1000
