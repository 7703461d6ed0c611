"""Finds stored events by time, type, source and id.

An id alone is looked up: it is the key of its message, or the position. Otherwise the queue of a topic, or the
partitions of a parent topic, are read from a time on, in the order of the log, a bounded part in each call.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import record
from gateway.events.event import Event
from matcher.names import has_wildcard, matches, parent_of
from record.layout import MAX_KEY
from store.api import Store, partition_queue, topic_queue
from store.errors import NoSuchMessage

_MAX_READ: Final = 8192  # messages of a call
_MAX_BYTES: Final = 1 << 20  # of the events of a page; one may be larger
_BATCH: Final = 256  # messages of a read
_READ_BYTES: Final = 2 << 20  # of reads of all partitions together
_LEAST_BYTES: Final = 64 << 10  # of a read
_AT_ONCE: Final = 32  # events that are looked at in one turn of the loop


@dataclass(slots=True, frozen=True)
class EventQuery:
    """Which events are looked for."""

    topic_filter: bytes  # whose first level is no wildcard
    id: str = ""  # "": any
    source: str = ""
    type: str = ""
    since_ms: int = 0  # store time
    until_ms: int = 0  # before this store time; 0: no end

    def selects(self, event: Event) -> bool:
        if self.until_ms and event.stored_ms >= self.until_ms:
            return False
        if event.stored_ms < self.since_ms or not matches(self.topic_filter, event.topic):
            return False
        if not (self.id or self.source or self.type):
            return True
        found = event.attributes
        wanted = ((self.id, found["id"]), (self.source, found["source"]), (self.type, found["type"]))
        return all(not each or each == value for each, value in wanted)


@dataclass(slots=True, frozen=True)
class Place:
    """The last message that was looked at."""

    time_ms: int
    position: int


@dataclass(slots=True)
class FoundEvents:
    events: list[Event]
    after: Place | None  # where to go on; None: there are no more


@dataclass(slots=True)
class _Reader:
    """A queue that is read, and what was read of it."""

    queue: bytes
    offset: int
    is_ended: bool = False
    events: list[Event] = field(default_factory=list)  # in their order


class EventSearch:
    """Finds events of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, query: EventQuery, after: Place | None, limit: int) -> FoundEvents:
        """Up to `limit` events behind a place, the oldest first. There may be fewer, and more behind them. Raises
        `StoreError`."""
        if query.id and not query.since_ms and not query.until_ms:
            return await self._by_id(query, after, limit)
        return await self._by_time(query, after, limit)

    async def _by_id(self, query: EventQuery, after: Place | None, limit: int) -> FoundEvents:
        found: list[Event] = []
        behind = -1 if after is None else after.position
        if query.id.isascii() and query.id.isdigit() and len(query.id) < 19 and int(query.id) > behind:
            with suppress(NoSuchMessage):
                found.append(Event.of_frame(await self._store.message(int(query.id)), 0))
        place: Place | None = None
        key, parent = query.id.encode(), parent_of(query.topic_filter)
        if len(key) <= MAX_KEY:
            start = None if after is None else after.position
            page = await self._store.bulk.by_key(parent, key, start, limit, _MAX_BYTES)
            found += [Event.of_frame(page.data, at) for at in record.split(page.data)]
            place = None if page.after is None else Place(0, page.after)
        return FoundEvents([each for each in found if query.selects(each)], place)

    async def _by_time(self, query: EventQuery, after: Place | None, limit: int) -> FoundEvents:
        readers = await self._readers(query, after)
        found: list[Event] = []
        size = looked = 0
        while looked < _MAX_READ:
            events = await self._next_events(readers)
            if not events:
                return FoundEvents(found, None)
            for event in events:
                if after is not None and event.position <= after.position:
                    continue
                if query.until_ms and event.stored_ms >= query.until_ms:
                    return FoundEvents(found, None)
                looked += 1
                if looked % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                after = Place(event.stored_ms, event.position)
                if query.selects(event):
                    found.append(event)
                    size += len(event.payload) + len(event.block)
                    if len(found) == limit or size >= _MAX_BYTES:
                        return FoundEvents(found, after)
        return FoundEvents(found, after)

    async def _readers(self, query: EventQuery, after: Place | None) -> list[_Reader]:
        store, topic_filter = self._store, query.topic_filter
        if has_wildcard(topic_filter):
            parent = parent_of(topic_filter)
            queues = [partition_queue(parent, number) for number in range(store.partition_count(parent))]
        else:
            queues = [topic_queue(topic_filter)]
        since = max(query.since_ms, 0 if after is None else after.time_ms)
        readers: list[_Reader] = []
        for queue in queues:
            bounds = await store.bounds(queue)
            offset = max(await store.offset_at(queue, since), bounds.begin)
            readers.append(_Reader(queue, offset, is_ended=offset >= bounds.end))
        return readers

    async def _next_events(self, readers: Sequence[_Reader]) -> list[Event]:
        """The next events of all queues, in the order of the log. Empty: there are no more."""
        max_bytes = max(_READ_BYTES // len(readers), _LEAST_BYTES)
        for reader in readers:
            if not reader.events and not reader.is_ended:
                page = await self._store.bulk.fetch(reader.queue, reader.offset, _BATCH, max_bytes)
                reader.events = [Event.of_frame(page.data, start) for start in record.split(page.data)]
                reader.offset = page.next_offset
                reader.is_ended = not reader.events or page.next_offset >= page.bounds.end
        # Behind the last event of a queue that goes on, those of others may have to wait for its next ones.
        known = min((reader.events[-1].position for reader in readers if not reader.is_ended), default=1 << 63)
        found: list[Event] = []
        for reader in readers:
            count = sum(event.position <= known for event in reader.events)
            found += reader.events[:count]
            del reader.events[:count]
        return sorted(found, key=lambda event: event.position)
