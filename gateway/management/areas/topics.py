"""Topics: the tree, and what there is of one topic."""

import asyncio
import time
from typing import Final

from gateway.config.storage import StoreSettings
from gateway.management.areas.messages import message_of, messages_in, valid_topic
from gateway.management.paging import AT_ONCE, MAX_PAGE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import LIST, SUB, TOPIC
from gateway.management.rights import Manager
from gateway.rpc.status import invalid
from matcher.names import parent_of
from store.api import Bounds, Child, topic_queue
from store.engine import Engine

_PAYLOAD: Final = 65_536  # bytes that are shown of a payload
_DOLLAR: Final = "$"
_RATE_S: Final = 60  # that rates are about
_SAMPLE: Final = 32  # messages, by whose size that of a topic is estimated
_SAMPLE_BYTES: Final = 65_536


class TopicsService:
    """Implements the service `Topics`. A right to all topics does not cover those that begin with `$`: lists leave out
    what the caller may not see."""

    def __init__(self, store: Engine, config: StoreSettings) -> None:
        self._store = store
        self._config = config  # as it is in force

    async def list_topics(self, request: pb.ListTopicsRequest, manager: Manager) -> pb.ListTopicsReply:
        above = request.above
        if above and not above.endswith("/"):
            raise invalid(f"{above!r} must end with a slash")
        now_ms = int(time.time() * 1000)
        page = await self._store.children(above.encode(), after_of(request), page_size(request.limit, MAX_PAGE))
        reply = pb.ListTopicsReply(after=None if page.after is None else page.after.decode())
        for number, child in enumerate(page.children, 1):
            if above or await _may_list(manager, child):
                path = above + child.name.decode()
                node = reply.topics.add(name=child.name.decode(), path=path)
                node.is_topic, node.has_children = child.is_topic, child.has_children
                if child.is_topic:
                    bounds = await self._store.bounds(topic_queue(path.encode()))
                    node.messages = bounds.end - bounds.begin
                    if request.with_rates:
                        last_ms, node.rate = self._rate(path.encode(), now_ms)
                        node.last_ms = last_ms
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return reply

    def _rate(self, topic: bytes, now_ms: int) -> tuple[int, float]:
        """When the last message of a topic was stored (ms; 0: there is none), and how many a second were, lately."""
        last_ms, count = self._store.recent(topic_queue(topic), now_ms - _RATE_S * 1000)
        return last_ms, count / _RATE_S

    async def search_topics(self, request: pb.SearchTopicsRequest, manager: Manager) -> pb.SearchTopicsReply:
        limit = page_size(request.limit, MAX_PAGE)
        page = await self._store.topics(request.prefix.encode(), after_of(request), limit)
        names = [name.decode() for name in page.names]
        seen = [name for name in names if not name.startswith(_DOLLAR) or await manager.may(LIST, TOPIC, name)]
        return pb.SearchTopicsReply(topics=seen, after=None if page.after is None else page.after.decode())

    async def get_topic(self, request: pb.GetTopicRequest, manager: Manager) -> pb.Topic:
        topic = valid_topic(request.topic)
        parent, queue = parent_of(topic), topic_queue(topic)
        bounds = await self._store.bounds(queue)
        reply = pb.Topic(topic=request.topic, begin=bounds.begin, end=bounds.end, parent=parent.decode())
        reply.retained_from_ms = await self._store.retention_floor(parent)
        for number, each in enumerate(await self._store.partition_bounds(parent)):
            reply.partitions.add(partition=number, begin=each.begin, end=each.end)
        reply.retained_s = self._config.retention_parents.get(reply.parent, self._config.retention_age_s)
        _, reply.rate = self._rate(topic, int(time.time() * 1000))
        reply.bytes = await self._bytes(queue, bounds)
        if await manager.may(SUB, TOPIC, request.topic):
            if bounds.end > bounds.begin:
                found = await self._store.bulk.fetch(queue, bounds.end - 1, 1, 1)
                for message in await messages_in(found.data, _PAYLOAD):
                    reply.last.CopyFrom(message)
                    reply.last.offset = found.offset
            for value in await self._store.retained(topic, None, 1):
                reply.retained.CopyFrom(message_of(value.frame, 0, _PAYLOAD))
        return reply

    async def _bytes(self, queue: bytes, bounds: Bounds) -> int:
        """The size of a topic in the log, by its newest messages."""
        first = max(bounds.end - _SAMPLE, bounds.begin)
        found = await self._store.bulk.fetch(queue, first, _SAMPLE, _SAMPLE_BYTES)
        return len(found.data) * (bounds.end - bounds.begin) // found.count if found.count else 0


async def _may_list(manager: Manager, child: Child) -> bool:
    name = child.name.decode()
    return not name.startswith(_DOLLAR) or await manager.may(LIST, TOPIC, f"{name}/#")
