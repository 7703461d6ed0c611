"""Finds messages by business key and by message id, which is the position of the record.

The key view gives candidates; the record says whether it is the message that was asked for.
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
from store.views.keys import key_digest

_LOOKS: Final = 64  # generations of the key view that are looked into in one turn of the loop
_SAME_TIME: Final = 1024  # messages of a topic and a millisecond among which one is looked for


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
        rows, following = views.keys.find(digest, behind, limit - len(frames), _LOOKS)
        for position, length in rows:
            if frames and size + length > max_bytes:
                return Found(len(frames), b"".join(frames), behind)
            behind = position
            if views.is_gone(position):
                continue
            try:
                frame = await reader.records([position], [length])
            except LogCorrupt:
                if position >= views.begin:
                    raise
                continue  # retention took it meanwhile
            if _has_key(frame, parent, key) and not _is_too_old(views, frame):
                frames.append(frame)
                size += length
        if following is None or len(frames) >= limit:
            return Found(len(frames), b"".join(frames), following)
        behind = following
        await asyncio.sleep(0)  # a log may have many generations: others have their turn


async def message(views: Views, reader: LogReader, position: int) -> bytes:
    """See `store.api.Store.message`."""
    if position < views.begin:
        raise NoSuchMessage(f"the message at position {position} is gone: the log begins at {views.begin}")
    found: bytes | None = None
    begins = False
    if views.is_gone(position):
        raise NoSuchMessage(f"the message at position {position} is gone: the log is damaged there")
    if position < views.position:
        try:
            found = await reader.record_at(position, views.position)
            begins = found is not None and (_is_in_queue(views, found, position) or await reader.begins(position))
        except LogCorrupt:
            if position >= views.begin:
                raise
            return await message(views, reader, position)  # retention took it meanwhile
    if found is None or not begins or record.decode(found, 0)[0] != Kind.MESSAGE:
        raise NoSuchMessage(f"no message begins at position {position} of the log")
    if _is_too_old(views, found):
        raise NoSuchMessage(f"the message at position {position} is gone: its topic keeps none that are as old")
    return found


def _is_in_queue(views: Views, frame: bytes, position: int) -> bool:
    """Whether its topic's queue has the record. What is in none may be a piece of a payload: anybody can put a frame
    together that is sound at a place of the log."""
    queue, store_time = topic_queue(record.decode(frame, 0)[3]), record.store_time_of(frame, 0)

    def entered(offset: int) -> int:
        return record.unpack_refs(views.references(queue, offset, 1))[2][0]

    offsets = range(views.first(queue), views.end(queue))
    at = bisect_left(offsets, store_time, key=entered)
    return position in record.unpack_refs(views.references(queue, offsets.start + at, _SAME_TIME))[0]


def _is_too_old(views: Views, frame: bytes) -> bool:
    """Whether its parent topic keeps no message as old. One that was held is as old as its entry into its queues, which
    only they know: it is answered as long as its record is there."""
    _, flags, _, topic, _, _, _ = record.decode(frame, 0)
    return not flags & FLAG_HELD and record.store_time_of(frame, 0) < views.floors.of(parent_of(topic))


def _has_key(frame: bytes, parent: bytes, key: bytes) -> bool:
    _, _, _, topic, _, properties, _ = record.decode(frame, 0)
    return parent_of(topic) == parent and key in record.keys_of(properties)
