"""Retained values for new subscriptions: a page at a time, as far as there is room.

A filter may match a million of them. Messages that are published meanwhile wait in the log until all values are sent,
so that none overtakes the retained value of its topic (MQTT-4.6.0-5). See `docs/decisions/0032-retained-first.md`.
"""

from time import time
from typing import Final

from gateway.session.message_encoding import Message
from gateway.session.pending_work import RetainedRequest
from gateway.session.session import Session
from gateway.topics.browse import browse
from matcher.reserved import TOPICS, is_below
from store.api import QueueStore, Retained

_MAX_PAGE: Final = 64  # values
_PAGE_BYTES: Final = 256 * 1024  # of values read at once, estimated by the page before


async def send_page(store: QueueStore, session: Session) -> None:
    """Send the next page of the session's oldest request for retained values. Raises StoreError."""
    topic_filter, request = next(iter(session.retained.items()))
    limit = request.page
    if request.subscription.qos:
        limit = min(limit, max(1, session.exchanges.window - session.exchanges.in_window))
    if is_below(topic_filter, TOPICS):
        page = await browse(store, topic_filter, request.after, limit)
    else:
        page = await store.retained(topic_filter, request.after, limit)
    if session.closed or session.retained.get(topic_filter) is not request:
        return
    for value in page:
        if not _send(session, request, value):
            break
        request.go_on(value.topic)
    else:
        if len(page) < limit:
            session.finish_retained(topic_filter)
            return
        size = sum([len(value.frame) for value in page])
        request.grow_page(min(_MAX_PAGE, _PAGE_BYTES * len(page) // size))
    if request.subscription.qos:
        session.note_change(False)


def _send(session: Session, request: RetainedRequest, value: Retained) -> bool:
    """Send a value, unless it is expired or not wanted. False: there was no room."""
    if not session.exchanges.has_room:
        return False
    if value.entered >= request.since:
        return True  # it is delivered as a message
    subscription = request.subscription
    message = Message(value.frame, 0)
    now_ms = int(time() * 1000)
    if message.expired(now_ms):
        session.dropped().add_expired()
    elif not (subscription.no_local and message.publisher == session.client_id):
        qos = min(subscription.qos, message.qos)
        session.exchanges.send(message, qos, True, False, subscription.route.identifiers, None, now_ms)
    return True
