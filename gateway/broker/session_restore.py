"""Restores a session from the log when its client connects."""

from gateway.delivery.router import Router
from gateway.session.make_subscription import make_subscription
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import is_shared
from store.api import SessionState, StoredSubscription


class SessionRestore:
    """Restores the sessions of this node."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def restore(self, session: Session, state: SessionState) -> None:
        """Restore subscriptions, exchanges and requests for retained values."""
        for stored in state.subscriptions:
            if not is_shared(stored.topic_filter):
                self.restore_subscription(session, stored)
        session.restore_inbound(state.inbound)
        session.restore_outbound(state.outbound)
        for pending in state.pending_retained:
            session.restore_retained(pending)

    def restore_subscription(self, session: Session, stored: StoredSubscription) -> Subscription:
        """Restore one subscription, which gets what is committed from now on."""
        subscription = make_subscription(session, stored, self._router.delivered_end)
        session.subscribe(subscription)
        self._router.add(subscription)
        return subscription
