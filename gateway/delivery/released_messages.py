"""Messages that entered their queues long after their records, for sessions that read the log itself.

A control record names such messages by handle, the position of their record; a revived copy is the message. Either may
have done nothing: the message was recalled, or had entered already. Its topic queue knows: what entered has the store
time of the record that let it in there.

What a record let in is found once for all sessions that come by it, and kept for a while.
"""

import asyncio
from typing import Final

from gateway.session.message_encoding import Message
from record import decode, position_of, split, store_time_of
from record.layout import FLAG_REVIVED, Kind
from store.api import Store, topic_queue
from store.control import TimersFired, TransactionsEnded
from store.errors import OffsetOutOfRange

_PAGE: Final = 256  # records a fetch
_PAGE_BYTES: Final = 256 * 1024
_MAX_FOUND: Final = 1024  # records whose messages are kept
_MAX_FOUND_BYTES: Final = 4 << 20  # of those messages

Let = list[Message | None]  # what a record let in


def may_release(kind: int, flags: int) -> bool:
    """Whether a record may have let messages into their queues that are older than itself, or is a copy of one."""
    return kind in (Kind.TIMERS_FIRED, Kind.TRANSACTIONS_ENDED) or (kind == Kind.MESSAGE and flags & FLAG_REVIVED != 0)


class ReleasedMessages:
    """What records of the log let in, by their position."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[int, Let] = {}  # the oldest find first
        self._found_bytes = 0
        self._asked: dict[int, asyncio.Task[Let]] = {}  # bounded by the sessions that wait for them

    async def by_record(self, data: bytes, start: int) -> Let:
        """The messages that the record names, in their order, each None that it did not let in or that is gone. Raises
        StoreError."""
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
        """End what is under way."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find(self, position: int, data: bytes, start: int) -> Let:
        try:
            found = await self._let_in(data, start)
        finally:
            del self._asked[position]
        self._keep(position, found)
        return found

    async def _let_in(self, data: bytes, start: int) -> Let:
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
        """Those of the topic's messages at the positions `wanted` that entered its queue at `store_time` and, as far as
        messages around them that were never held tell, by the record at `by`."""
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

    def _keep(self, position: int, found: Let) -> None:
        self._found[position] = found
        self._found_bytes += _size(found)
        while len(self._found) > _MAX_FOUND or self._found_bytes > _MAX_FOUND_BYTES:
            oldest = next(iter(self._found))
            self._found_bytes -= _size(self._found.pop(oldest))


def _size(found: Let) -> int:
    return sum(len(m.topic) + len(m.properties) + len(m.payload) for m in found if m is not None)
