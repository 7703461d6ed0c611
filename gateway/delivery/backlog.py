"""Backlogs of durable sessions, message by message: which are sent, passed over, or sent again.

This loop runs for each message that a session missed, and is compiled. `gateway.delivery.catch_up` reads the messages.
"""

from gateway.delivery.shared_reads import QueueRange
from gateway.session.cursor import Cursor
from gateway.session.inflight import WAITING
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from gateway.session.subscription import Route


def deliver(session: Session, cursor: Cursor, queue_range: QueueRange, limit: int, now_ms: int) -> bool:
    """Send up to `limit` messages of what was read of the cursor's queue. Whether the cursor came forward."""
    asked = cursor.next
    if queue_range.first > asked:
        forget_lost(session, cursor.skip(queue_range.first))
        session.dropped().add_reclaimed(cursor.next - asked)
        if cursor.next < queue_range.first:
            return True
    messages = queue_range.messages
    offset = cursor.next
    at = offset - queue_range.first
    end = min(len(messages), at + limit)
    subscription = session.subscriptions.get(cursor.topic_filter)
    counters = session.counters
    while at < end:
        message = messages[at]
        # Messages that are older than the subscription are sent by no other one.
        is_own = offset < cursor.live and subscription is not None
        if is_own and cursor.yields:
            merged = session.route(message.topic)
            is_own = merged is None or _owner(merged, message) is None
        route = subscription.route if is_own and subscription is not None else session.route(message.topic)
        if cursor.open and offset in cursor.open:
            if not session.has_room:
                break
            cursor.read(offset, message)
            _resend(session, cursor.open.pop(offset), message, route, now_ms)
        else:
            owner = cursor if is_own else _owner(route, message) if route is not None else None
            if owner is cursor and route is not None:
                sent = counters.messages_sent
                if not session.take(cursor, offset, message, route, now_ms):
                    break
                if is_own:
                    counters.messages_replayed += counters.messages_sent - sent
            elif (owner is None or owner.has_read(message)) and not cursor.stretched:
                session.pass_over(cursor, offset, message, owner)
            else:
                break
        offset += 1
        at += 1
    return offset > asked


def forget_lost(session: Session, packet_ids: list[int]) -> None:
    """Forget messages that an earlier connection left unacknowledged, and that are gone from the log."""
    for packet_id in packet_ids:
        entry = session.inflight.get(packet_id)
        if entry is not None and entry.phase == WAITING and not entry.released:
            session.forget(packet_id, entry)
    session.note_change()


def _resend(session: Session, packet_id: int, message: Message, route: Route | None, now_ms: int) -> None:
    """Send again what an earlier connection left unacknowledged, unless PUBREL was sent for it or is to be."""
    entry = session.inflight.get(packet_id)
    if entry is not None and entry.phase == WAITING and not entry.released:
        session.resend(packet_id, entry, message, route, now_ms)


def _owner(route: Route, message: Message) -> Cursor | None:
    """The cursor that sends this message: the first one that is not younger."""
    for cursor in route.cursors:
        if message.held or cursor.start_position <= message.position:
            return cursor
    return None
