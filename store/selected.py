"""Reads the messages of some topics, or with some keys, out of a partition, by their references alone.

A reference has a tag, which is a hash of the message's topic. So 24 bytes for each record of the partition tell which
records to read. The topics are those of the names view that the filter matches. The messages with a key are in the key
view. The record itself decides whether it is selected.

A message that names an ordering key has the tag of that key, so its record is read in any case. Where no reference is
wanted for long, the queues of the topics tell where the partition goes on, because a message enters both at one time.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import record
from matcher.names import has_wildcard, matches
from record.layout import PART_PROPERTIES, PART_TOPIC, REFERENCE
from store.api import Selected, topic_queue
from store.errors import LogCorrupt, OffsetOutOfRange
from store.log.reader import LogReader
from store.views.fold import Views
from store.views.queues.keys import key_digest

MAX_NAMES: Final = 1024  # topics that a filter is compared with
MAX_KEYED: Final = 4096  # messages with the keys
_ROWS: Final = 256  # of the names view and of the key view, read per turn of the loop
_GENERATIONS: Final = 64  # of the key view, searched per turn of the loop
_BLOCK: Final = 16_384  # references read per turn of the loop
_BLOCKS: Final = 16  # of one read
_JUMP_AFTER: Final = 4  # blocks without a wanted reference, before the queues of the topics are asked
_JUMP_TOPICS: Final = 16  # most topics whose queues are asked
_NEEDED: Final = PART_TOPIC | PART_PROPERTIES  # parts that tell whether a record is selected


class SelectedReads:
    """The messages of a partition whose topics match `topic_filter` and that have one of `keys`. An empty filter and no
    keys mean any."""

    __slots__ = ("_keys", "_parent", "_positions", "_queue", "_reader", "_topic_filter", "_topics", "_views")

    def __init__(
        self, views: Views, reader: LogReader, queue: bytes, topic_filter: bytes, keys: Sequence[bytes]
    ) -> None:
        self._views = views
        self._reader = reader
        self._queue = queue
        self._parent = queue[1:-3]
        self._topic_filter = topic_filter
        self._keys = frozenset(keys)
        self._topics: list[bytes] = []
        self._positions: list[int] = []

    async def fetch(self, offset: int, until: int, max_records: int, max_bytes: int, without: int) -> Selected | None:
        """See `store.api.QueueStore.fetch_selected`."""
        bounds = self._views.bounds((self._queue,))[0]
        if not bounds.begin <= offset <= bounds.end:
            raise OffsetOutOfRange(self._queue, offset, bounds.begin, bounds.end)
        if not await (self._find_keyed() if self._keys else self._find_topics()):
            return None
        found = Selected([], b"", offset, 0, bounds)
        # Topics and keys that came meanwhile are only behind the end that the queue had before.
        end = min(bounds.end, until)
        fruitless = 0
        for number in range(_BLOCKS):
            if number:
                await asyncio.sleep(0)
            if found.next_offset >= end or len(found.offsets) >= max_records or len(found.data) >= max_bytes:
                break
            had, at = len(found.offsets) + found.gone, found.next_offset
            await self._add_block(found, end, max_records, max_bytes, without & ~_NEEDED)
            fruitless = 0 if len(found.offsets) + found.gone > had or found.next_offset == at else fruitless + 1
            if fruitless == _JUMP_AFTER:
                found.next_offset = self._next_offset(found.next_offset, end)
                fruitless = 0
        return found

    async def _add_block(self, found: Selected, end: int, max_records: int, max_bytes: int, without: int) -> None:
        """Add the selected records of one block of references, as many as there is room for."""
        views, first = self._views, found.next_offset
        bounds, refs = views.look_up(self._queue, first, min(_BLOCK, end - first))
        if bounds.begin > first:  # retention was faster
            found.next_offset = min(bounds.begin, end)
            found.gone += found.next_offset - first
            return
        indexes = self._indexes(refs)
        there = indexes
        if not views.is_whole:
            there = [index for index in indexes if not views.is_gone(_position(refs, index))]
        wanted = b"".join(
            [refs[at * REFERENCE : (at + 1) * REFERENCE] for at in there[: max_records - len(found.offsets)]]
        )
        count = record.count_within(wanted, max_bytes - len(found.data))
        try:
            data = await self._reader.frames(wanted[: count * REFERENCE], without) if count else b""
        except LogCorrupt:
            if any(views.is_gone(_position(refs, index)) for index in there[:count]):
                return  # retention removed records during the read
            raise
        stop = there[count] if count < len(there) else len(refs) // REFERENCE
        found.next_offset = first + stop
        found.gone += sum(index < stop for index in indexes) - count
        starts = record.split(data)
        kept = [
            (index, data[start:behind])
            for index, start, behind in zip(there, starts, [*starts[1:], len(data)], strict=False)
            if self._has(data, start)
        ]
        found.offsets += [first + index for index, _ in kept]
        found.data += b"".join([frame for _, frame in kept])

    def _indexes(self, refs: bytes) -> list[int]:
        """The indexes of the packed references that may be wanted."""
        if self._keys:
            return record.find_positions(refs, self._positions)
        return record.find_tags(refs, [record.tag_of(topic, b"") for topic in self._topics])

    def _has(self, data: bytes, start: int) -> bool:
        """Whether a record is selected."""
        _, _, _, topic, _, properties, _ = record.decode(data, start)
        if self._topic_filter and not matches(self._topic_filter, topic):
            return False
        return not self._keys or not self._keys.isdisjoint(record.keys_of(properties))

    async def _find_topics(self) -> bool:
        """Find the topics that the filter matches. Returns whether they are few."""
        topic_filter = self._topic_filter
        if not has_wildcard(topic_filter):
            self._topics = [topic_filter]
            return True
        above = self._parent
        for level in topic_filter.split(b"/")[1:]:
            if level in (b"+", b"#"):
                break
            above += b"/" + level
        names, after, left = [above], None, MAX_NAMES
        while left > 0:
            page = self._views.names.topics(above + b"/", after, min(left, _ROWS))
            names += page.names
            after = page.after
            left -= len(page.names)
            if after is None:
                self._topics = [name for name in names if matches(topic_filter, name)]
                return True
            await asyncio.sleep(0)
        return False

    async def _find_keyed(self) -> bool:
        """Find the records that have one of the keys. Returns whether they are few."""
        for key in self._keys:
            digest, after = key_digest(self._parent, key), -1
            while True:
                rows, following = self._views.keys.find(digest, after, _ROWS, _GENERATIONS)
                self._positions += [position for position, _ in rows]
                if len(self._positions) > MAX_KEYED:
                    return False
                if following is None:
                    break
                after = following
                await asyncio.sleep(0)
        return True

    def _next_offset(self, offset: int, end: int) -> int:
        """The first offset from `offset` on that can be wanted, `end` if there is none."""
        if self._keys or len(self._topics) > _JUMP_TOPICS or offset >= end:
            return offset
        views = self._views
        since = _time(views, self._queue, offset)
        times: list[int] = []
        for topic in self._topics:
            queue = topic_queue(topic)
            at = first_since(views, queue, since)
            if at < views.end(queue):
                times.append(_time(views, queue, at))
        return min(max(offset, first_since(views, self._queue, min(times))), end) if times else end


def first_since(views: Views, queue: bytes, time_ms: int) -> int:
    """The first offset of a queue with a store time of at least `time_ms`; its end if there is none."""
    # Store times never run backwards along a queue.
    bounds = views.bounds((queue,))[0]
    low, high = bounds.begin, bounds.end
    while low < high:
        middle = (low + high) // 2
        if _time(views, queue, middle) < time_ms:
            low = middle + 1
        else:
            high = middle
    return low


def _time(views: Views, queue: bytes, offset: int) -> int:
    """When the message at an offset entered the queue, ms."""
    return record.unpack_refs(views.references(queue, offset, 1))[2][0]


def _position(refs: bytes, index: int) -> int:
    """The position of a packed reference."""
    return int.from_bytes(refs[index * REFERENCE : index * REFERENCE + 8], "little")
