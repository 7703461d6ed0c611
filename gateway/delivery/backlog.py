"""Backlogs of durable sessions, message by message: which are sent, passed over, or sent again.

This loop runs for each message that a session missed, and is compiled. `gateway.delivery.catch_up` reads the messages.
"""

from gateway.delivery.shared_reads import QueueRange
from gateway.session.message_encoding import Message, PlacedMessage
from gateway.session.queue_cursor import QueueCursor
from gateway.session.session import Session
from gateway.session.subscription import Route


def deliver(session: Session, cursor: QueueCursor, queue_range: QueueRange, limit: int, now_ms: int) -> bool:
    """Send up to `limit` messages of what was read of the cursor's queue. Whether the cursor came forward."""
    asked = cursor.next
    if queue_range.first > asked:
        session.exchanges.forget_lost(cursor.skip(queue_range.first))
        session.dropped().add_reclaimed(cursor.next - asked)
        if cursor.next < queue_range.first:
            return True
    messages = queue_range.messages
    offset = cursor.next
    at = offset - queue_range.first
    end = min(len(messages), at + limit)
    subscription = session.subscriptions.get(cursor.topic_filter)
    # A queue has what its filter matches. So there is nothing to match for a session's only subscription.
    is_only = subscription is not None and subscription.is_live and len(session.subscriptions) == 1
    counters = session.counters
    while at < end:
        message = messages[at]
        # Messages that are older than the subscription are sent by no other one.
        is_own = offset < cursor.replay_end and subscription is not None
        if is_own and cursor.yields:
            merged = session.route(message.topic)
            is_own = merged is None or _owner(merged, message) is None
        is_routed = is_own or is_only
        route = subscription.route if is_routed and subscription is not None else session.route(message.topic)
        if cursor.resend and offset in cursor.resend:
            if not session.exchanges.has_room:
                break
            packet_id = cursor.read_again(offset, message)
            entry = session.exchanges.waiting(packet_id)
            if entry is not None:
                session.resend(packet_id, entry, message, route, now_ms)
        else:
            owner = cursor if is_own else _owner(route, message) if route is not None else None
            if owner is cursor and route is not None:
                sent = counters.messages_sent
                if is_own and subscription is not None and subscription.tells_place:
                    message = PlacedMessage(message, offset)
                if not session.send_next(cursor, offset, message, route, now_ms):
                    break
                if is_own:
                    counters.messages_replayed += counters.messages_sent - sent
            elif (owner is None or owner.has_read(message)) and not cursor.must_wait:
                session.pass_over(cursor, offset, message, owner)
            else:
                break
        offset += 1
        at += 1
    return offset > asked


def _owner(route: Route, message: Message) -> QueueCursor | None:
    """The cursor that sends this message: the first one that is not younger."""
    for cursor in route.cursors:
        if message.held or cursor.start_position <= message.position:
            return cursor
    return None
