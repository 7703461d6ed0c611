"""Inboxes: a message published to `$inbox/<client id>` reaches that client, which need not subscribe.

The fold makes the subscription of a durable session when the first message is addressed to it, so a session without
inbox messages costs nothing. Here a connected session gets the same subscription, and a transient one gets one of its
own. From then on it is a subscription like any other.
"""

from collections.abc import Mapping
from typing import Final

from gateway.delivery.router import Router
from gateway.observe.counters import Counters
from gateway.session.queue_cursor import QueueCursor, reach_of
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.reserved import inbox_of
from store.api import Addressed, Commit, topic_queue

_MAX_UNREACHED: Final = 1 << 16  # more than the appends that one flush answers can have


class Inboxes:
    """The inboxes of a node's clients."""

    def __init__(
        self,
        router: Router,
        counters: Counters,
        open_sessions: Mapping[bytes, tuple[Session, object]],
        is_shared: bool,
    ) -> None:
        self._router = router
        self._counters = counters
        self._open_sessions = open_sessions
        self._is_shared = is_shared  # other gateways have clients too: a message may reach one of theirs
        self._unreached: dict[int, None] = {}  # positions of the last messages that reached nobody
        router.on_addressed = self.open

    def open(self, commit: Commit) -> None:
        """Subscribe the clients that the commit's messages are addressed to. Runs before its messages are offered."""
        for message in commit.addressed:
            opened = self._open_sessions.get(message.client_id)
            if opened is not None and not opened[0].closed:
                self._open(opened[0], message, commit.position)
            elif message.subscription is None and not self._is_shared:
                self._counters.messages_unreached += 1
                if len(self._unreached) >= _MAX_UNREACHED:
                    del self._unreached[next(iter(self._unreached))]
                self._unreached[message.position] = None

    def open_missed(self, session: Session, position: int) -> None:
        """Subscribe a transient session to its inbox from `position` on, because a missed commit may have a message for
        it."""
        self._open(session, Addressed(position, session.client_id, inbox_of(session.client_id), None), position)

    def is_unreached(self, position: int) -> bool:
        """Whether the message at `position`, whose append is being answered, was addressed to no known client."""
        return position in self._unreached

    def _open(self, session: Session, message: Addressed, position: int) -> None:
        if message.topic in session.subscriptions:
            return
        cursor: QueueCursor | None = None
        known = message.subscription
        if known is not None and session.durable:
            queue = topic_queue(message.topic)
            reach = reach_of(session.exchanges.max_window)
            cursor = QueueCursor(message.topic, queue, known.offset, known.start_position, reach=reach)
        subscription = Subscription(session, message.topic, 2, False, False, 0, cursor, position)
        session.subscribe(subscription)
        self._router.add(subscription)
