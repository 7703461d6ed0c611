"""SUBSCRIBE and UNSUBSCRIBE: granting filters, recording them for durable sessions, making them live."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from gateway.auth.rules.permissions import Permissions
from gateway.broker.session_checkpoint import (
    records_of_subscribed,
    records_of_unsubscribed,
    records_without,
)
from gateway.broker.user_limits import UserLimits
from gateway.config.mqtt import MqttConfig
from gateway.connection.connection import Connection
from gateway.connection.handle_publish import PACKET_ID_IN_USE
from gateway.delivery.catch_up import CatchUp
from gateway.delivery.router import Router
from gateway.mqtt.encode import Explanation, suback, unsuback
from gateway.mqtt.packets import Subscribe, Unsubscribe
from gateway.mqtt.reasons import ReasonCode
from gateway.session.make_subscription import make_subscription
from gateway.session.pending_subscriptions import PendingSubscribe
from gateway.session.queue_cursor import QueueCursor
from gateway.session.replay_cursor import FOLLOW
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.shared.shared_subscriptions import SharedSubscriptions
from gateway.topics.replay_range import INFO_PROPERTY, PROPERTY, is_bounded, split_replay
from gateway.topics.subscribe_request import SubscribeRequest
from matcher.names import has_wildcard, is_shared, split_shared
from matcher.reserved import (
    REPLAY,
    SYS,
    bounded_replay_name,
    is_below,
    is_bounded_replay,
    read_filter,
    replay_name,
)
from store.api import Action, Appended, Store, StoredSubscription, Wants
from store.errors import StoreError

_QUEUES: Final = 128  # whose ends are asked for in one turn of the loop


def _names(session: Session) -> set[bytes]:
    """The names of the session's subscriptions, and of those that are about to be made."""
    names = {*session.subscribing.names, *session.subscriptions.filters(), *session.shares, *session.retained}
    return names | session.bounded_replays.keys()


def _lasting(names: set[bytes]) -> int:
    """How many of these count for other clients of the user: all but replays with an end, which end unnoticed."""
    return sum([not is_bounded_replay(name) for name in names])


def _histories(session: Session) -> int:
    """The number of the session's filters that are being replayed from the log, or are about to be."""
    coming = sum([name.startswith(REPLAY) for name in session.subscribing.names])
    coming += sum([has_wildcard(read_filter(name)) for name in _bounded_names(session)])
    return coming + sum([subscription.replay_cursor is not None for subscription in session.subscriptions.values()])


def _bounded_names(session: Session) -> set[bytes]:
    """The names of the session's replays that have an end, including those that are about to begin."""
    return {name for name in (*session.subscribing.names, *session.bounded_replays) if is_bounded_replay(name)}


def _ended_by(topic_filter: bytes, bounded: set[bytes]) -> list[bytes]:
    """The subscriptions that an UNSUBSCRIBE of this filter ends. A replay with an end is ended by its whole name. Any
    other filter ends its subscription, and all of its replays in `bounded`."""
    words, inner = split_replay(topic_filter)
    if is_bounded(words):
        return [bounded_replay_name(inner, words)]
    wanted = inner or topic_filter
    return [wanted, *[name for name in bounded if read_filter(name) == wanted]]


class SubscribeHandler:
    """Serves SUBSCRIBE and UNSUBSCRIBE of this node's open sessions."""

    def __init__(
        self,
        store: Store,
        router: Router,
        catch_up: CatchUp,
        shared: SharedSubscriptions,
        config: MqttConfig,
        spawn: Callable[[Coroutine[object, None, None]], None],
        send_sys_values: Callable[[Subscription], None],
        limits: UserLimits,
    ) -> None:
        self._store = store
        self._router = router
        self._catch_up = catch_up
        self._shared = shared
        self._config = config
        self._spawn = spawn
        self._limits = limits
        self._send_sys_values = send_sys_values  # to a new subscription below `$SYS`

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """SUBSCRIBE. A durable session's SUBACK follows the commit of its record."""
        session = connection.session
        if session is None or not connection.may_answer(len(packet.requests)):
            return
        if _is_in_use(connection, session, packet.packet_id, len(packet.requests), suback):
            return
        coming = PendingSubscribe()
        requests = self._read_requests(connection, session, packet, coming)
        if not any(request.start is not None for request in requests):
            self._make_all(connection, session, packet.packet_id, requests)
            return
        session.subscribing.add(coming, [request.name for request in requests if request.is_granted])
        self._spawn(self._begin(connection, session, packet.packet_id, requests, coming))

    def _read_requests(
        self, connection: Connection, session: Session, packet: Subscribe, coming: PendingSubscribe
    ) -> list[SubscribeRequest]:
        names = _names(session)
        properties = dict(packet.user_properties)
        words = properties.get(PROPERTY, b"")
        requests: list[SubscribeRequest] = []
        shared = sum([is_shared(name) for name in names])
        for asked in packet.requests:
            request = SubscribeRequest(asked, words, packet.identifier, INFO_PROPERTY in properties)
            request.reason, request.why = self._grant(names, request, connection, session)
            if request.is_granted and is_shared(request.topic_filter) and request.topic_filter not in names:
                shared += 1
                if shared > self._config.max_shared_subscriptions:
                    request.reason = ReasonCode.QUOTA_EXCEEDED
                    request.why = b"the session has as many shared subscriptions as it may"
            if request.reason is ReasonCode.QUOTA_EXCEEDED:
                connection.counters.subscriptions_full += 1
            if request.is_granted:
                connection.requests.allowed(connection, Action.SUB, request.topic_filter)
                names.add(request.name)
                if is_shared(request.topic_filter):
                    self._shared.grant(request.topic_filter)
                if request.is_log_replay:
                    name = request.name if request.is_bounded else replay_name(request.topic_filter)
                    session.subscribing.add(coming, [name])
            requests.append(request)
        if self._limits.counts_subscriptions:
            self._limits.subscribed(connection, _lasting(names))
        return requests

    async def _begin(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        requests: list[SubscribeRequest],
        coming: PendingSubscribe,
    ) -> None:
        """Find where subscriptions with a replay begin, then make all of them."""
        try:
            for request in requests:
                await request.find_start(self._store, self._router.delivered_end, session.durable)
        except StoreError as error:
            self._end_grants(requests)
            connection.append_failed(error)
            return
        if session.closed:
            self._end_grants(requests)
        else:
            # A filter that was unsubscribed meanwhile is granted, but not made.
            left = [request for request in requests if request.name in coming.names]
            session.subscribing.done(coming)
            self._make_all(connection, session, packet_id, requests, left)

    def _make_all(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        requests: list[SubscribeRequest],
        left: list[SubscribeRequest] | None = None,
    ) -> None:
        """Answer SUBSCRIBE, and make the subscriptions that are granted; of `requests`, only those that are `left`."""
        wanted = [request for request in (requests if left is None else left) if request.is_granted]
        granted = [request.stored for request in wanted if not (request.is_browsing or request.is_bounded)]
        for request in wanted:
            if request.is_browsing:
                session.pending.request(self._make(session, request.stored), FOLLOW)
            elif request.is_bounded:
                replay = session.pending.replay(session, request.name, request.stored, request.bounds)
                if replay is not None and request.tells_place:
                    replay.tell_place()
        refused = b"; ".join(dict.fromkeys([request.why for request in requests if request.why]))
        why = connection.explain(refused) if refused else None
        reasons = [request.reason for request in requests]
        reply = suback(connection.version, packet_id, reasons, why, connection.maximum_packet_size)
        if not session.durable or not granted:
            fresh = [self._attach_transient(connection, session, stored) for stored in granted]
            _tell_places(session, requests)
            self._end_grants(requests)
            wants = self._router.wants
            if wants is None or wants.is_settled:
                self._answer_transient(connection, session, granted, fresh, reply)
            else:
                self._spawn(self._answer_when_settled(wants, connection, session, granted, fresh, reply))
            return

        unrecorded = [stored for stored in granted if not stored.qos]
        frames = self._stop_recording(session, unrecorded)
        frames += records_of_subscribed(session.client_id, granted)
        early = self._attach_early(session, unrecorded)

        coming = PendingSubscribe()
        session.subscribing.add(coming, [stored.topic_filter for stored in granted])
        session.subscribing.add(coming, [replay_name(stored.topic_filter) for stored in granted if stored.replay >= 0])

        def done(appended: Appended) -> None:
            if appended.error is not None:
                session.keep_unrecorded(frames, appended.error)
                connection.append_failed(appended.error)
            elif not session.closed:
                self._spawn(self._attach_durable(connection, session, granted, reply, requests, coming, early))
                return
            self._end_grants(requests)

        self._store.append(frames, done)

    def _stop_recording(self, session: Session, granted: list[StoredSubscription]) -> list[bytes]:
        """Replace recorded subscriptions that are now granted with QoS 0. The log has no cursor for them any more, and
        other subscriptions send the messages that both match. Returns the records of their messages in flight."""
        frames = records_without(session, {stored.topic_filter for stored in granted})
        stopped: list[StoredSubscription] = []
        for stored in granted:
            old = session.subscriptions.get(stored.topic_filter)
            if old is not None and old.qos and old.cursor is not None:
                stopped.append(stored)
        for stored in stopped:
            self._attach(session, stored)
        if stopped and session.lagging:
            session.catch_up()  # others may have waited for these
        return frames

    def _attach_early(self, session: Session, unrecorded: list[StoredSubscription]) -> "_Early":
        """Make QoS 0 subscriptions of a durable session live before their records are committed. The log has no cursors
        for them: they would miss what the client publishes right behind its SUBSCRIBE.

        Shared subscriptions and replays read from the log, so they miss nothing. An earlier SUBSCRIBE of the same
        filter that is not committed makes no subscription any more.
        """
        wants = self._router.wants
        early = _Early(wants is None or wants.is_settled)
        coming = session.subscribing.names
        for stored in unrecorded:
            name = stored.topic_filter
            if replay_name(name) in coming or stored.replay >= 0 or is_shared(name) or is_below(name, SYS):
                continue
            session.subscribing.end([name])
            early.add(name, self._attach(session, stored))
            if early.has_requested_retained:
                self._request_retained(session, stored, early.is_new(name))
        return early

    def _answer_transient(
        self,
        connection: Connection,
        session: Session,
        granted: list[StoredSubscription],
        fresh: list[bool],
        reply: bytes,
    ) -> None:
        """Send SUBACK. From here on the subscriptions miss nothing."""
        connection.send(reply)
        for stored, is_new in zip(granted, fresh, strict=True):
            self._request_retained(session, stored, is_new)
        _begin_pending(session)
        subscriptions = [session.subscriptions.get(stored.topic_filter) for stored in granted if stored.replay >= 0]
        if subscriptions:
            cursors = [each.cursor for each in subscriptions if each is not None and each.cursor is not None]
            self._spawn(self._learn(connection, session, cursors))

    async def _answer_when_settled(
        self,
        wants: Wants,
        connection: Connection,
        session: Session,
        granted: list[StoredSubscription],
        fresh: list[bool],
        reply: bytes,
    ) -> None:
        """Send SUBACK once the store knows which commits this gateway wants."""
        try:
            await wants.settled()
        except StoreError as error:
            connection.append_failed(error)
            return
        if not session.closed:
            self._answer_transient(connection, session, granted, fresh, reply)

    def _grant(
        self, names: set[bytes], request: SubscribeRequest, connection: Connection, session: Session
    ) -> tuple[ReasonCode, bytes]:
        """The reason code of a request, and the reason string of a refusal."""
        topic_filter = request.topic_filter
        request.check_name(session.client_id)
        if not request.is_granted:
            return request.reason, request.why
        if connection.permissions is not None and not _is_allowed(connection.permissions, request):
            connection.counters.subscriptions_denied += 1
            connection.requests.denied(connection, Action.SUB, topic_filter)
            return ReasonCode.NOT_AUTHORIZED, b"not all that the filter matches may be read"
        if not self._config.accepts_name(split_shared(topic_filter)[1]):
            why = b"the filter is longer, or has more levels, than this node takes"
            return ReasonCode.TOPIC_FILTER_INVALID, why
        if is_shared(topic_filter) and not self._shared.may_join((topic_filter,)):
            return ReasonCode.QUOTA_EXCEEDED, b"the node has as many shared subscriptions as it may"
        if request.name not in names:
            if len(names) >= connection.admission.max_subscriptions:
                return ReasonCode.QUOTA_EXCEEDED, b"the session has as many subscriptions as it may"
            if not self._limits.may_subscribe(connection, len(names)):
                return ReasonCode.QUOTA_EXCEEDED, b"the clients of the user have as many subscriptions as they may"
        if request.name in names:
            request.start = None  # it goes on where it is
        elif request.is_log_replay and _histories(session) >= self._config.max_replays:
            return ReasonCode.QUOTA_EXCEEDED, b"the session replays as many filters as it may"
        return request.reason, b""

    async def _learn(self, connection: Connection, session: Session, cursors: list[QueueCursor]) -> None:
        try:
            await self.learn_ends(session, cursors)
        except StoreError as error:
            connection.append_failed(error)

    def _attach(self, session: Session, stored: StoredSubscription) -> bool:
        """Make a subscription live, replacing one with the same filter (MQTT-3.8.4-3). Whether it is new."""
        if is_shared(stored.topic_filter):
            return self._shared.join(session, stored)
        old = session.subscriptions.get(stored.topic_filter)
        subscription = self._make(session, stored)
        if old is not None:
            subscription.replace(old)
            self._pass_over_sent(session, old, subscription)
            self._router.remove(old)
        session.subscribe(subscription)
        if subscription.is_live:
            self._router.add(subscription)
        return old is None

    def _pass_over_sent(self, session: Session, old: Subscription, new: Subscription) -> None:
        """Let a subscription that is recorded now begin behind what it has sent without a cursor, with QoS 0. That may
        be more than what came before its record."""
        if new.cursor is None or old.cursor is not None or old.replay_cursor is not None or self._router.is_delivering:
            return
        sent = self._router.delivered_end if session.behind is None else session.behind.position
        new.cursor.begin_behind(sent)

    def _attach_transient(self, connection: Connection, session: Session, stored: StoredSubscription) -> bool:
        """Make a subscription of a transient session live. Whether it is new."""
        if not is_shared(stored.topic_filter):
            return self._attach(session, stored)

        def done(appended: Appended) -> None:
            if appended.error is not None:
                connection.append_failed(appended.error)

        return self._shared.join_transient(session, stored, done)

    async def _attach_durable(
        self,
        connection: Connection,
        session: Session,
        granted: list[StoredSubscription],
        reply: bytes,
        requests: list[SubscribeRequest],
        coming: PendingSubscribe,
        early: "_Early",
    ) -> None:
        try:
            known = await self._store.subscriptions(session.client_id, [request.topic_filter for request in granted])
            if session.closed:
                return
            made: list[tuple[StoredSubscription, bool]] = []  # and whether each is new; they may have retained values
            for request in granted:
                name = request.topic_filter
                if not request.qos and name in early:
                    if not early.has_requested_retained:
                        made.append((request, early.is_new(name)))
                    continue
                # None: unsubscribed again meanwhile.
                stored = known.get(name) if name in coming.names else None
                if not request.qos:
                    stored = request if stored is not None else None  # the log knows nothing of its replay
                made.append((request, stored is not None and self._attach(session, stored)))
            _tell_places(session, requests)
            session.subscribing.done(coming)
            if self._router.wants is not None and not self._router.wants.is_settled:
                await self._router.wants.settled()
            connection.send(reply)
            for stored, is_new in made:
                self._request_retained(session, stored, is_new)
            _begin_pending(session)
            live = [session.subscriptions[g.topic_filter] for g in granted if g.topic_filter in session.subscriptions]
            await self.learn_ends(session, [s.cursor for s in live if s.cursor is not None])
        except StoreError as error:
            connection.append_failed(error)
        finally:
            self._end_grants(requests)

    def _end_grants(self, requests: list[SubscribeRequest]) -> None:
        """Note that the shared subscriptions among the requests are made, or have failed."""
        self._shared.end_grants([w.topic_filter for w in requests if w.is_granted and is_shared(w.topic_filter)])

    def _request_retained(self, session: Session, stored: StoredSubscription, is_new: bool) -> None:
        """Queue retained messages by Retain Handling (MQTT-3.3.1-9, -10, -11)."""
        if stored.replay >= 0 and is_new:
            return  # the replay has them
        subscription = session.subscriptions.get(stored.topic_filter)
        if subscription is not None and (stored.retain_handling == 0 or (stored.retain_handling == 1 and is_new)):
            if is_below(stored.topic_filter, SYS):
                self._send_sys_values(subscription)
            else:
                # Values that came after the record of a new subscription are in its queue.
                cursor = subscription.cursor if is_new else None
                since = self._router.delivered_end if cursor is None else cursor.start_position
                session.pending.request(subscription, since)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        """UNSUBSCRIBE."""
        session = connection.session
        if session is None or not connection.may_answer(len(packet.topic_filters)):
            return
        if _is_in_use(connection, session, packet.packet_id, len(packet.topic_filters), unsuback):
            return
        bounded = _bounded_names(session)
        wanted = [_ended_by(topic_filter, bounded) for topic_filter in packet.topic_filters]
        ended = [name for names in wanted for name in names]
        filters = [name for name in ended if not is_bounded_replay(name)]
        reasons: list[ReasonCode] = []
        # Messages in flight are completed (MQTT-3.10.4-3). Without a cursor, only a record tells of them.
        names = {*ended, *map(replay_name, filters)}
        coming = session.subscribing.end(names)
        frames = records_without(session, set(filters))
        for group in wanted:
            known = [self._detach(session, name) or name in coming for name in group]
            reasons.append(ReasonCode.SUCCESS if any(known) else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        session.exchanges.detach(names)
        if self._limits.counts_subscriptions:
            self._limits.subscribed(connection, _lasting(_names(session)))
        unknown = ReasonCode.NO_SUBSCRIPTION_EXISTED in reasons
        why = connection.explain(b"there was no subscription with such a filter") if unknown else None
        reply = unsuback(connection.version, packet.packet_id, reasons, why, connection.maximum_packet_size)
        if not session.durable or not filters:
            connection.send(reply)
            return

        frames += records_of_unsubscribed(session.client_id, filters)

        def done(appended: Appended) -> None:
            if appended.error is not None:
                session.keep_unrecorded(frames, appended.error)
                connection.append_failed(appended.error)
                return
            connection.send(reply)

        self._store.append(frames, done)

    def _detach(self, session: Session, topic_filter: bytes) -> bool:
        if is_bounded_replay(topic_filter):
            return session.end_bounded_replay(topic_filter)
        if topic_filter in session.shares:
            return self._shared.leave(session, topic_filter)
        subscription = session.unsubscribe(topic_filter)
        if subscription is None:
            return False
        self._router.remove(subscription)
        if session.lagging:
            session.catch_up()  # another subscription may have waited for this one
        return True

    def _make(self, session: Session, stored: StoredSubscription) -> Subscription:
        return make_subscription(session, stored, self._router.delivered_end)

    async def learn_ends(self, session: Session, cursors: list[QueueCursor]) -> None:
        """Ask for the ends of the queues, now that commits reach the session, and have it catch up."""
        for number, cursor in enumerate(cursors, 1):
            if number % _QUEUES == 0:
                await asyncio.sleep(0)  # the store may answer at once: let others run
            bounds = await self._store.bounds(cursor.queue)
            cursor.extend(bounds.end)
        session.catch_up()


class _Early:
    """QoS 0 subscriptions of one SUBSCRIBE that were live before their records were committed."""

    __slots__ = ("_new", "has_requested_retained")

    def __init__(self, has_requested_retained: bool) -> None:
        self._new: dict[bytes, bool] = {}  # by filter
        # Whether their retained values are requested. A gateway in a process of its own has to wait with that until the
        # store knows which commits it wants.
        self.has_requested_retained = has_requested_retained

    def __contains__(self, topic_filter: bytes) -> bool:
        return topic_filter in self._new

    def add(self, topic_filter: bytes, is_new: bool) -> None:
        """Add a subscription. `is_new`: there was none with this filter."""
        self._new[topic_filter] = is_new

    def is_new(self, topic_filter: bytes) -> bool:
        return self._new[topic_filter]


def _begin_pending(session: Session) -> None:
    """Have what was requested sent."""
    if session.retained or session.bounded_replays:
        session.catch_up()
    else:
        session.shrink()


def _tell_places(session: Session, requests: list[SubscribeRequest]) -> None:
    """Have replayed messages say where they were stored, for those who ask for it."""
    for request in requests:
        subscription = session.subscriptions.get(request.topic_filter) if request.tells_place else None
        if subscription is not None and not request.is_bounded:
            subscription.tell_place()


def _is_in_use(
    connection: Connection,
    session: Session,
    packet_id: int,
    count: int,
    answer: Callable[[int, int, list[ReasonCode], Explanation | None, int], bytes],
) -> bool:
    """Whether a QoS 2 exchange uses the packet id of a SUBSCRIBE or UNSUBSCRIBE with `count` filters. If so, the packet
    is refused; MQTT 3.1.1 has no reason code for that."""
    if connection.version < 5 or packet_id not in session.inbound:
        return False
    reasons, why = [ReasonCode.PACKET_IDENTIFIER_IN_USE] * count, connection.explain(PACKET_ID_IN_USE)
    connection.send(answer(connection.version, packet_id, reasons, why, connection.maximum_packet_size))
    return True


def _is_allowed(permissions: Permissions, request: SubscribeRequest) -> bool:
    if request.is_browsing:
        return permissions.may_look(Action.LIST, request.read_filter)
    return permissions.may_subscribe(request.read_filter)
