"""Where the next message of a parent topic is in the log, for whoever reads the log for it.

A filter like `home/+` matches messages of one parent topic alone, and the partitions of that have all of them in the
order in which they entered, by store time; the log can be entered at a time. So what lies between is passed over at the
cost of a look into each partition, and not of reading it.
"""

from gateway.session.message_encoding import Message
from record import store_time_of
from store.api import Store, partition_queue
from store.errors import OffsetOutOfRange


async def next_place(store: Store, parent: bytes, place: int, limit: int) -> int:
    """The first place of the log, from `place` on and up to `limit`, where a message of the parent topic may have
    entered; `place` itself where nobody can tell. Everything before `limit` is folded. Raises StoreError."""
    chunk = await store.read(place, 1)
    if not chunk.data or chunk.damaged:
        return place  # who reads on counts damage
    since = store_time_of(chunk.data, 0)
    first: int | None = None
    for number in range(store.partitions):
        try:
            found = await _entered(store, partition_queue(parent, number), since)
        except OffsetOutOfRange:
            return place  # retention is at work there
        if found == since:
            return place
        if found is not None:
            first = found if first is None else min(first, found)
    return limit if first is None else max(place, min(limit, await store.position_at(first)))


async def _entered(store: Store, queue: bytes, since: int) -> int | None:
    """Store time at which the first message that is not older than `since` entered a partition; None: there is none.
    `since` itself where nobody can tell. Raises OffsetOutOfRange."""
    offset = await store.offset_at(queue, since)
    fetched = await store.fetch(queue, offset, 1, 1)
    if not fetched.count:
        return None if fetched.next_offset >= fetched.bounds.end else since
    if fetched.offset != offset or Message(fetched.data, 0).held:
        return since  # something is gone, or was held: it entered with another record than its own
    return store_time_of(fetched.data, 0)
