"""Retained values for new subscriptions: a page at a time, as far as there is room.

A filter may match a million of them. They do not all come at once, and messages that are published meanwhile do not
wait for the last one: a message whose topic has a value that was not sent yet has that value sent first, out of turn.
"""

from time import time
from typing import Final

from gateway.session.message_encoding import Message
from gateway.session.pending_work import RetainedRequest
from gateway.session.session import Session
from gateway.topics.browse import browse
from matcher.reserved import TOPICS, is_below
from store.api import Retained, Store

_MAX_PAGE: Final = 64  # values
_PAGE_BYTES: Final = 256 * 1024  # of values read at once, estimated by the page before
_MAX_AHEAD: Final = 1024  # topics of a request sent out of turn; then messages wait for their topic's turn
_MAX_AHEAD_BYTES: Final = 32 * 1024  # of their names, which a durable session records


class RetainedPages:
    """Sends retained values to sessions that asked for them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def send(self, session: Session, has_messages: bool) -> None:
        """Send the value that a message waits for, or else a page; each second time only, if there are messages to be
        sent too. Raises StoreError."""
        if not session.pending.waiting:
            if session.pending.is_turn_of_retained(has_messages):
                await self._send_page(session)
        elif not await self.send_ahead(session) and session.retained and not session.closed:
            await self._send_page(session)  # too many went out of turn: the message waits

    async def send_ahead(self, session: Session) -> bool:
        """Send the value that a message waits for. False: the message still waits. Raises StoreError."""
        topic = session.pending.end_waiting()
        for topic_filter, request in list(session.retained.items()):
            if not request.awaits(topic):
                continue
            if len(request.ahead) >= _MAX_AHEAD or request.ahead_size + len(topic) > _MAX_AHEAD_BYTES:
                return False
            values = await self._store.retained(topic, None, 1)
            if session.closed or session.retained.get(topic_filter) is not request:
                return False
            if request.awaits(topic):
                if not all(_send(session, request, value) for value in values):
                    return False
                request.go_ahead(topic)
                _note(session, request)
        return True

    async def _send_page(self, session: Session) -> None:
        topic_filter, request = next(iter(session.retained.items()))
        limit = request.page
        if request.subscription.qos:
            limit = min(limit, max(1, session.exchanges.window - session.exchanges.in_window))
        if is_below(topic_filter, TOPICS):
            page = await browse(self._store, topic_filter, request.after, limit)
        else:
            page = await self._store.retained(topic_filter, request.after, limit)
        if session.closed or session.retained.get(topic_filter) is not request:
            return
        for value in page:
            if value.topic not in request.ahead and not _send(session, request, value):
                break
            request.go_on(value.topic)
        else:
            if len(page) < limit:
                session.finish_retained(topic_filter)
                return
            size = sum([len(value.frame) for value in page])
            request.grow_page(min(_MAX_PAGE, _PAGE_BYTES * len(page) // size))
        _note(session, request)


def _note(session: Session, request: RetainedRequest) -> None:
    """Have a durable session record how far the request has come."""
    if request.subscription.qos:
        session.note_change(False)


def _send(session: Session, request: RetainedRequest, value: Retained) -> bool:
    """Send a value, unless it is expired or not wanted. False: there was no room."""
    if not session.exchanges.has_room:
        return False
    subscription = request.subscription
    message = Message(value.frame, 0)
    now_ms = int(time() * 1000)
    if value.entered >= request.since:
        return True
    if message.expired(now_ms):
        session.dropped().add_expired()
    elif not (subscription.no_local and message.publisher == session.client_id):
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        qos = min(subscription.qos, message.qos)
        session.exchanges.send(message, qos, True, False, identifiers, None, now_ms)
    return True
