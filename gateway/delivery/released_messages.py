"""Held messages that a record of the log released, for sessions that read the log itself.

A control record names held messages by handle, which is the position of their record. A revived copy is the message
itself. Either may have released nothing: the message was recalled, or was released before. The topic's queue tells: a
message entered it at the store time of the record that released it.

What a record released is found once for all sessions that read it, and kept for a while.
"""

import asyncio
from typing import Final

from gateway.session.message_encoding import Message
from record import decode, position_of, split, store_time_of
from record.layout import FLAG_REVIVED, Kind
from store.api import MessageStore, topic_queue
from store.control import TimersFired, TransactionsEnded
from store.errors import OffsetOutOfRange

_PAGE: Final = 256  # records a fetch
_PAGE_BYTES: Final = 256 * 1024
_MAX_FOUND: Final = 1024  # records whose messages are kept
_MAX_FOUND_BYTES: Final = 4 << 20  # of those messages

Released = list[Message | None]  # by one record


def may_release(kind: int, flags: int) -> bool:
    """Whether a record may have released held messages, or is a copy of one."""
    return kind in (Kind.TIMERS_FIRED, Kind.TRANSACTIONS_ENDED) or (kind == Kind.MESSAGE and flags & FLAG_REVIVED != 0)


class ReleasedMessages:
    """The messages that records of the log released, by the position of the record."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._found: dict[int, Released] = {}  # the first found comes first
        self._found_bytes = 0
        self._asked: dict[int, asyncio.Task[Released]] = {}  # bounded by the sessions that wait

    async def by_record(self, data: bytes, start: int) -> Released:
        """The messages that a record names, in its order. None stands for one that it did not release, or that is gone.
        Raises StoreError."""
        position = position_of(data, start)
        found = self._found.get(position)
        if found is not None:
            return found
        task = self._asked.get(position)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._find(position, data, start))
            self._asked[position] = task
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """End all reads."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, position: int, data: bytes, start: int) -> Released:
        try:
            found = await self._released_by(data, start)
        finally:
            del self._asked[position]
        self._keep(position, found)
        return found

    async def _released_by(self, data: bytes, start: int) -> Released:
        kind, _, _, topic, _, _, payload = decode(data, start)
        position, store_time = position_of(data, start), store_time_of(data, start)
        if kind == Kind.MESSAGE:
            return [(await self._entered(topic, {position}, position, store_time)).get(position)]
        handles = (
            TimersFired.parse(payload).handles
            if kind == Kind.TIMERS_FIRED
            else TransactionsEnded.parse(payload).committed
        )
        by_topic: dict[bytes, set[int]] = {}
        for handle in handles:
            try:
                chunk = await self._store.read(handle, 1)
            except OffsetOutOfRange:
                continue  # gone by now
            if chunk.position == handle:  # else it is damaged
                by_topic.setdefault(decode(chunk.data, 0)[3], set()).add(handle)
        found: dict[int, Message] = {}
        for name, wanted in by_topic.items():
            found |= await self._entered(name, wanted, position, store_time)
        return [found.get(handle) for handle in dict.fromkeys(handles)]

    async def _entered(self, topic: bytes, wanted: set[int], by: int, store_time: int) -> dict[int, Message]:
        """Messages of the topic at the positions `wanted` that entered its queue at `store_time`, by the record at `by`
        as far as messages around them that were never held show."""
        queue = topic_queue(topic)
        found: dict[int, Message] = {}
        offset = await self._store.offset_at(queue, store_time)
        end = await self._store.offset_at(queue, store_time + 1)
        while offset < end:
            try:
                fetched = await self._store.fetch(queue, offset, min(_PAGE, end - offset), _PAGE_BYTES)
            except OffsetOutOfRange as error:
                offset = max(error.begin, offset + 1)
                continue
            for start in split(fetched.data):
                message = Message(fetched.data, start)
                if message.position in wanted:
                    found[message.position] = message
                elif not message.held and message.position < by:
                    found.clear()
                elif not message.held:
                    return found
            offset = fetched.next_offset
        return found

    def _keep(self, position: int, found: Released) -> None:
        self._found[position] = found
        self._found_bytes += _size(found)
        while len(self._found) > _MAX_FOUND or self._found_bytes > _MAX_FOUND_BYTES:
            oldest = next(iter(self._found))
            self._found_bytes -= _size(self._found.pop(oldest))


def _size(found: Released) -> int:
    return sum(len(m.topic) + len(m.properties) + len(m.payload) for m in found if m is not None)
