"""Make a session's subscription from what the log has of it, or is about to have."""

from gateway.session.queue_cursor import QueueCursor, reach_of
from gateway.session.replay_cursor import FOLLOW, ReplayCursor
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import has_wildcard
from store.api import StoredSubscription, subscription_queue


def make_subscription(session: Session, stored: StoredSubscription, position: int) -> Subscription:
    """`position`: of the log, from which on a subscription without a cursor gets messages."""
    topic_filter = stored.topic_filter
    is_replay = stored.replay >= 0
    is_wild = has_wildcard(topic_filter)
    is_recorded = session.durable and stored.qos > 0
    cursor: QueueCursor | None = None
    if is_recorded or (is_replay and not is_wild):
        cursor = QueueCursor(
            topic_filter,
            subscription_queue(topic_filter),
            stored.offset,
            stored.start_position,
            stored.sent_before,
            reach=reach_of(session.exchanges.max_window) if is_recorded else 0,
            replay_end=stored.replay if is_replay and not is_wild else 0,
            is_unrecorded=session.durable and not is_recorded,
        )
    replay: ReplayCursor | None = None
    if is_replay and is_wild:
        end = stored.start_position if is_recorded else FOLLOW
        replay = ReplayCursor(topic_filter, stored.replay, end, is_recorded, stored.sent_before)
    return Subscription(
        session,
        topic_filter,
        stored.qos,
        stored.no_local,
        stored.retain_as_published,
        stored.identifier,
        cursor,
        position,
        replay,
    )
