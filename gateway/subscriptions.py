"""SUBSCRIBE and UNSUBSCRIBE: granting filters, recording them for durable sessions, making them live."""

from collections.abc import Callable, Coroutine
from typing import Final

from gateway.config import MqttConfig
from gateway.connection import Connection
from gateway.cursor import Cursor
from gateway.mqtt.encode import suback, unsuback
from gateway.mqtt.packets import Subscribe, Unsubscribe
from gateway.mqtt.reasons import ReasonCode
from gateway.pump import Pump
from gateway.router import Router
from gateway.session import Session, Subscription
from matcher.names import has_wildcard, split_shared
from store import control
from store.api import Appended, Store, filter_queue, topic_queue
from store.api import Subscription as StoredSubscription
from store.errors import StoreError

_REFUSALS: Final = {
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: b"shared subscriptions are not offered",
    ReasonCode.TOPIC_FILTER_INVALID: b"the filter is longer, or has more levels, than this node takes",
    ReasonCode.QUOTA_EXCEEDED: b"the session has as many subscriptions as it may",
}


class Subscriptions:
    """The filters of the sessions that this node holds."""

    def __init__(
        self,
        store: Store,
        router: Router,
        pump: Pump,
        config: MqttConfig,
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._store = store
        self._router = router
        self._pump = pump
        self._config = config
        self._spawn = spawn

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """SUBSCRIBE. A durable session's SUBACK follows the commit of its record."""
        session = connection.session
        if session is None or not connection.may_answer(len(packet.requests)):
            return
        reasons: list[ReasonCode] = []
        granted: list[StoredSubscription] = []
        names = session.subscribing.union(session.subscriptions)
        for request in packet.requests:
            reason = self._grant(names, request.topic_filter, request.qos)
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
        refused = b"; ".join(dict.fromkeys([_REFUSALS[reason] for reason in reasons if reason in _REFUSALS]))
        why = connection.explain(refused) if refused else None
        reply = suback(connection.version, packet.packet_id, reasons, why, connection.maximum_packet_size)
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

    def _grant(self, names: set[bytes], topic_filter: bytes, qos: int) -> ReasonCode:
        if not self._config.takes_name(split_shared(topic_filter)[1]):
            return ReasonCode.TOPIC_FILTER_INVALID
        if topic_filter.startswith(b"$share/"):
            # MQTT 5, 3.2.2.3.13: CONNACK said that they are not available.
            return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if topic_filter not in names and len(names) >= self._config.max_subscriptions:
            return ReasonCode.QUOTA_EXCEEDED
        return ReasonCode(qos)

    def _attach(self, session: Session, stored: StoredSubscription) -> bool:
        """Make a subscription live, replacing one with the same filter (MQTT-3.8.4-3). Whether it is new."""
        old = session.subscriptions.get(stored.topic_filter)
        subscription = self.make(session, stored)
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
            await self.learn_ends(session, [s.cursor for s in live if s.cursor is not None])
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
        """UNSUBSCRIBE."""
        session = connection.session
        if session is None or not connection.may_answer(len(packet.topic_filters)):
            return
        filters = list(packet.topic_filters)
        reasons: list[ReasonCode] = []
        # What is on its way goes on (MQTT-3.10.4-3); without its cursor only a record knows of it.
        sent = session.unrecorded(set(filters)) if session.durable else []
        for topic_filter in filters:
            known = self._detach(session, topic_filter)
            reasons.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        unknown = ReasonCode.NO_SUBSCRIPTION_EXISTED in reasons
        why = connection.explain(b"there was no subscription with such a filter") if unknown else None
        reply = unsuback(connection.version, packet.packet_id, reasons, why, connection.maximum_packet_size)
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

    def make(self, session: Session, stored: StoredSubscription) -> Subscription:
        """The subscription as the session works with it."""
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

    async def learn_ends(self, session: Session, cursors: list[Cursor]) -> None:
        """Find out how far the queues go, now that commits reach the session, and read what it missed."""
        for cursor in cursors:
            bounds = await self._store.bounds(cursor.queue)
            cursor.end = max(cursor.end, bounds.end)
        session.lagging = True
        self._pump.start(session)
