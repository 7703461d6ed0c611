"""A session of the log, taken up where the log has it."""

from gateway.broker.handle_subscribe import SubscribeHandler
from gateway.delivery.router import Router
from gateway.session.inflight import Inflight
from gateway.session.qos_exchanges import RESTORED
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import is_shared
from store.api import Outbound, SessionState
from store.api import Subscription as StoredSubscription


class SessionRestore:
    """Of all sessions of a node."""

    def __init__(self, router: Router, subscriptions: SubscribeHandler) -> None:
        self._router = router
        self._subscriptions = subscriptions

    def restore(self, session: Session, state: SessionState) -> None:
        """Take up a session where the log has it."""
        for stored in state.subscriptions:
            if not is_shared(stored.topic_filter):
                self.take_up(session, stored)
        for packet_id in state.inbound:
            session.inbound[packet_id] = RESTORED
        first: list[Outbound] = []
        for outbound in state.outbound:
            cursor = session.cursor_of(outbound.topic_filter)
            if cursor is not None and outbound.offset < cursor.floor:
                cursor = None  # it does not come by the message again
            if cursor is not None:
                cursor.open[outbound.offset] = outbound.packet_id
            entry = Inflight(cursor, outbound.topic_filter, outbound.offset, outbound.qos)
            entry.released = outbound.released
            session.restore(outbound.packet_id, entry)
            if cursor is None or outbound.released:
                first.append(outbound)
        # In the order of their queues, which is the order in which they were sent first (MQTT-4.6.0-1). Those that
        # a cursor has yet to come by are sent again in their place there.
        first.sort(key=lambda outbound: (outbound.topic_filter, outbound.offset))
        session.resends.extend([outbound.packet_id for outbound in first])
        cursors = [s.cursor for s in session.subscriptions.values() if s.cursor is not None]
        session.marked = [cursor for cursor in cursors if cursor.next < cursor.sent_before]
        for owed in state.owed:
            session.owe(owed)

    def take_up(self, session: Session, stored: StoredSubscription) -> Subscription:
        subscription = self._subscriptions.make(session, stored)
        session.subscribe(subscription)
        self._router.add(subscription)
        return subscription
