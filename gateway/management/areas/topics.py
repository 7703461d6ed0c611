"""Topics: the tree, and what there is of one topic."""

import asyncio
from typing import Final

from gateway.management.areas.messages import message_of, messages_in, valid_topic
from gateway.management.paging import AT_ONCE, MAX_PAGE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import LIST, SUB, TOPIC
from gateway.management.rights import Manager
from gateway.rpc.status import invalid
from matcher.names import parent_of
from store.api import Child, Store, topic_queue

_PAYLOAD: Final = 65_536  # bytes that are shown of a payload
_DOLLAR: Final = "$"


class TopicsService:
    """Implements the service `Topics`. A right to all topics does not cover those that begin with `$`: lists leave out
    what the caller may not see."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list_topics(self, request: pb.ListTopicsRequest, manager: Manager) -> pb.ListTopicsReply:
        above = request.above
        if above and not above.endswith("/"):
            raise invalid(f"{above!r} must end with a slash")
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
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return reply

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
        if await manager.may(SUB, TOPIC, request.topic):
            if bounds.end > bounds.begin:
                found = await self._store.bulk.fetch(queue, bounds.end - 1, 1, 1)
                for message in await messages_in(found.data, _PAYLOAD):
                    reply.last.CopyFrom(message)
                    reply.last.offset = found.offset
            for value in await self._store.retained(topic, None, 1):
                reply.retained.CopyFrom(message_of(value.frame, 0, _PAYLOAD))
        return reply


async def _may_list(manager: Manager, child: Child) -> bool:
    name = child.name.decode()
    return not name.startswith(_DOLLAR) or await manager.may(LIST, TOPIC, f"{name}/#")
