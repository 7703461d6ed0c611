"""Where the next message of a parent topic is in the log, so that a replay need not read what lies before it.

A filter like `home/+` matches messages of one parent topic only. The partitions of that topic have all of them, in the
order of the store times at which they entered, and the log can be entered at a time. Finding the next one costs a
binary search and a record in each partition.
"""

from gateway.session.message_encoding import Message
from record import store_time_of
from store.api import MessageStore, QueueStore, partition_queue
from store.errors import OffsetOutOfRange


async def find_next_position(store: MessageStore, parent: bytes, position: int, limit: int) -> int:
    """The first position, from `position` on and up to `limit`, where a message of the parent topic may have entered;
    `position` itself if that is not known. Everything before `limit` is folded. Raises StoreError."""
    chunk = await store.read(position, 1)
    if not chunk.data or chunk.damaged:
        return position  # reading there counts the damage
    since = store_time_of(chunk.data, 0)
    first: int | None = None
    for number in range(store.partition_count(parent)):
        try:
            entered = await _next_entry(store, partition_queue(parent, number), since)
        except OffsetOutOfRange:
            return position  # retention is at work there
        if entered == since:
            return position
        if entered is not None:
            first = entered if first is None else min(first, entered)
    return limit if first is None else max(position, min(limit, await store.position_at(first)))


async def _next_entry(store: QueueStore, queue: bytes, since: int) -> int | None:
    """Store time at which the first message that is not older than `since` entered a partition. None: there is none.
    `since` itself: it is not known. Raises OffsetOutOfRange."""
    offset = await store.offset_at(queue, since)
    fetched = await store.fetch(queue, offset, 1, 1)
    if not fetched.count:
        return None if fetched.next_offset >= fetched.bounds.end else since
    if fetched.offset != offset or Message(fetched.data, 0).held:
        return since  # one is gone, or this one was held: it entered with another record than its own
    return store_time_of(fetched.data, 0)
