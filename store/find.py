"""Finds messages by business key and by message id. A message id is the position of the record.

The key view gives candidates. The record itself decides whether it is the message.
"""

import asyncio
from bisect import bisect_left
from typing import Final

import record
from matcher.names import parent_of
from record.layout import FLAG_HELD, Kind
from store.api import Found, topic_queue
from store.errors import LogCorrupt, NoSuchMessage
from store.log.reader import LogReader
from store.views.fold import Views
from store.views.queues.keys import key_digest

_MAX_GENERATIONS: Final = 64  # of the key view, searched per turn of the loop
_SAME_TIME: Final = 1024  # messages of one topic and millisecond that are searched for one


async def by_key(
    views: Views, reader: LogReader, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int
) -> Found:
    """See `store.api.Store.by_key`."""
    digest = key_digest(parent, key)
    frames: list[bytes] = []
    size = 0
    behind = -1 if after is None else after
    limit = max(limit, 1)
    while True:
        rows, following = views.keys.find(digest, behind, limit - len(frames), _MAX_GENERATIONS)
        for position, length in rows:
            if frames and size + length > max_bytes:
                return Found(len(frames), b"".join(frames), behind)
            behind = position
            if views.is_gone(position):
                continue
            try:
                frame = await reader.records([position], [length])
            except LogCorrupt:
                if not views.is_gone(position):
                    raise
                continue  # retention removed it meanwhile
            if _has_key(frame, parent, key) and not _is_too_old(views, frame):
                frames.append(frame)
                size += length
        if following is None or len(frames) >= limit:
            return Found(len(frames), b"".join(frames), following)
        behind = following
        await asyncio.sleep(0)  # a log may have many generations: let other tasks run


async def message(views: Views, reader: LogReader, position: int) -> bytes:
    """See `store.api.Store.message`."""
    if position < views.begin:
        raise NoSuchMessage(f"the message at position {position} is gone: the log begins at {views.begin}")
    found: bytes | None = None
    begins = False
    if views.is_gone(position):
        raise NoSuchMessage(
            f"the message at position {position} is gone: retention removed it, or the log is damaged there"
        )
    if position < views.position:
        try:
            found = await reader.record_at(position, views.position)
            begins = found is not None and (_is_in_queue(views, found, position) or await reader.begins(position))
        except LogCorrupt:
            if not views.is_gone(position):
                raise
            return await message(views, reader, position)  # retention removed it meanwhile
    if found is None or not begins or record.decode(found, 0)[0] != Kind.MESSAGE:
        raise NoSuchMessage(f"no message begins at position {position} of the log")
    if _is_too_old(views, found):
        raise NoSuchMessage(f"the message at position {position} is gone: it is older than its topic's retention")
    return found


def _is_in_queue(views: Views, frame: bytes, position: int) -> bool:
    """Whether the queue of the record's topic has it. A frame that is in no queue may be part of a payload: a
    publisher can forge one that is valid at its position in the log."""
    queue, store_time = topic_queue(record.decode(frame, 0)[3]), record.store_time_of(frame, 0)

    def entered(offset: int) -> int:
        return record.unpack_refs(views.references(queue, offset, 1))[2][0]

    offsets = range(views.first(queue), views.end(queue))
    at = bisect_left(offsets, store_time, key=entered)
    return position in record.unpack_refs(views.references(queue, offsets.start + at, _SAME_TIME))[0]


def _is_too_old(views: Views, frame: bytes) -> bool:
    """Whether the message is older than its parent topic's retention floor.

    A held message ages from its entry into its queues. The record does not have that time, so a held message is
    returned as long as its record exists.
    """
    _, flags, _, topic, _, _, _ = record.decode(frame, 0)
    return not flags & FLAG_HELD and record.store_time_of(frame, 0) < views.floors.of_parent(parent_of(topic))


def _has_key(frame: bytes, parent: bytes, key: bytes) -> bool:
    _, _, _, topic, _, properties, _ = record.decode(frame, 0)
    return parent_of(topic) == parent and key in record.keys_of(properties)
