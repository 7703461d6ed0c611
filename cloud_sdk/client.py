"""The asyncio client of a node."""

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final

import record
from cloud_sdk.connection import Connection
from cloud_sdk.consumer import Consumer, Start, start_of
from cloud_sdk.errors import Unavailable, refused_values, require_positive
from cloud_sdk.message import Batch, Child, Group, GroupQueue, Message, OutgoingMessage, PartitionBounds, Receipt
from cloud_sdk.producer import Producer
from cloud_sdk.properties import UserProperties
from cloud_sdk.proto import sluice_pb2 as pb

_NEVER_MS: Final = (1 << 63) - 1  # no message was stored that late


class Client:
    """Talks to one node: `async with Client("127.0.0.1:7070") as client`. For one event loop. Raises
    `InvalidArgument` when `endpoint` is not host:port (or gRPC's `unix:path`).

    Calls survive a restart of the node: they are repeated, with growing pauses, until `retry_seconds` have passed
    since the first failure; then they raise `Unavailable` (or `Busy`). Nothing connects before the first call.
    `name` is the publisher that consumers of sent messages see.
    """

    def __init__(self, endpoint: str, *, name: str | None = None, retry_seconds: float = 30.0) -> None:
        self.name = name or f"cloud-{secrets.token_hex(6)}"
        self._publisher = self.name.encode()
        self._connection = Connection(endpoint, retry_seconds)
        self._producer = Producer(self._connection)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is on its way, then disconnect."""
        await self._producer.close()
        await self._connection.close()

    async def send(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        properties: UserProperties | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        message_expiry: int | None = None,
        keys: Sequence[str] = (),
    ) -> Receipt:
        """Store one message; returns when it is committed. Sends of many tasks share batches by themselves.

        At least once: when the node goes away before it answers, the message is sent again and may be stored
        twice. `qos` is the most that subscribers get it with, `keys` are what `find` finds it by. Raises
        `InvalidArgument`, `Unavailable`, `Busy`.
        """
        message = OutgoingMessage(
            topic,
            payload,
            qos,
            retain,
            properties,
            content_type,
            response_topic,
            correlation_data,
            message_expiry,
            keys,
        )
        return (await self._producer.send((message.frame(self._publisher),)))[0]

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store messages, in order; returns when all are committed. All or some may be stored when it raises."""
        return await self._producer.send([message.frame(self._publisher) for message in messages])

    def consumer(
        self,
        group: str,
        parent: str,
        *,
        max_records: int = 256,
        invisible_seconds: float = 30.0,
        start: Start = "earliest",
        max_deliveries: int = 0,
    ) -> Consumer:
        """A new member of `group`, which shares all messages whose topic begins with the level `parent`.

        It holds up to `max_records` messages, each for `invisible_seconds`: what is not acknowledged by then goes
        to another member. `start` is where the group begins when nobody ever used it. A message that was leased out
        `max_deliveries` times (0: as the node is configured) becomes a dead letter of the group.
        """
        return Consumer(
            self._connection,
            group,
            parent,
            max_records=max_records,
            invisible_seconds=invisible_seconds,
            start=start,
            max_deliveries=max_deliveries,
        )

    def dead_letters(self, group: str, *, max_records: int = 256, invisible_seconds: float = 30.0) -> Consumer:
        """A member of `group` that gets the messages which the group gave up on, the oldest first. What it
        acknowledges is gone; its messages never become dead letters again. Their partition is 0 and their offset that
        in the queue of dead letters."""
        return Consumer(self._connection, group, None, max_records=max_records, invisible_seconds=invisible_seconds)

    async def groups(self) -> list[Group]:
        """Every group that was ever used, sorted, with where it is."""
        groups: list[Group] = []
        more = True
        while more:
            request = pb.GroupsRequest(after=groups[-1].name if groups else None)
            reply = await self._connection.call(self._connection.stub.Groups, request)
            groups += (Group(each.name, [_group_queue(queue) for queue in each.queues]) for each in reply.groups)
            more = reply.more
        return groups

    async def reset_group(
        self,
        group: str,
        parent: str | None,
        *,
        start: Start = "earliest",
        time_ms: int | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        """Have a group begin anew in all partitions of `parent`: at the oldest message or behind the newest (`start`);
        at the first that was stored at or after `time_ms`; or at `offsets`, by partition, and only in these. Without
        parent its dead letters are meant. What it had leased out there is forgotten. Raises `OffsetOutOfRange`."""
        if offsets is not None and not offsets:
            return  # on the wire that would mean all partitions
        if time_ms is None:
            time_ms = 0 if start_of(start) == "earliest" else _NEVER_MS
        with refused_values():
            request = pb.ResetGroupRequest(
                group=group,
                parent=parent,
                dead_letters=parent is None,
                offsets=[pb.PartitionOffset(partition=each, offset=at) for each, at in (offsets or {}).items()],
                time_ms=time_ms,
            )
        await self._connection.call(self._connection.stub.ResetGroup, request)

    async def remove_group(self, group: str) -> None:
        """Forget a group: when it is used again it begins as a new one. Its dead letters stay."""
        with refused_values():
            request = pb.RemoveGroupRequest(group=group)
        await self._connection.call(self._connection.stub.RemoveGroup, request)

    async def pull(
        self,
        parent: str,
        partition: int,
        offset: int,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
    ) -> Batch:
        """Records of a partition from `offset` on (limits of 0: as many as the node gives). At the end it waits up
        to `wait_seconds` (the node's limit is a minute) for one, then returns an empty batch. Records that are gone
        from the log are skipped: the batch then begins behind `offset`. Read on at its `next_offset`. Raises
        `OffsetOutOfRange`, which knows the bounds."""
        with refused_values():
            request = pb.PullRequest(
                parent=parent,
                partition=partition,
                offset=offset,
                max_records=max_records,
                max_bytes=max_bytes,
                wait_ms=int(wait_seconds * 1_000),
            )
        reply = await self._connection.call(self._connection.stub.Pull, request, wait_seconds)
        return Batch(partition, reply.offset, reply.count, reply.frames, reply.begin, reply.end)

    async def partitions(self, parent: str) -> list[PartitionBounds]:
        """The partitions of a parent topic with their readable offsets; all empty when nobody published to it."""
        with refused_values():
            request = pb.PartitionsRequest(parent=parent)
        reply = await self._connection.call(self._connection.stub.Partitions, request)
        return [PartitionBounds(each.partition, each.begin, each.end) for each in reply.partitions]

    async def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms` (ms since 1970-01-01 UTC); the end if there is none."""
        with refused_values():
            request = pb.OffsetAtRequest(parent=parent, partition=partition, time_ms=time_ms)
        return (await self._connection.call(self._connection.stub.OffsetAt, request)).offset

    async def parents(self) -> list[str]:
        """Every parent topic that was ever published to, sorted."""
        names: list[str] = []
        more = True
        while more:
            request = pb.ChildrenRequest(after=names[-1] if names else None)
            reply = await self._connection.call(self._connection.stub.Children, request)
            names += (child.name for child in reply.children)
            more = reply.more
        return names

    async def children(self, above: str = "", *, after: str | None = None, limit: int = 1000) -> list[Child]:
        """Names of one level of the tree of topics, sorted, up to `limit`, behind the name `after`: the parent topics,
        or those below some levels, which end in a slash (`"home/"`). It costs the same whatever is below them."""
        require_positive(limit)
        children: list[Child] = []
        more = True
        while more and len(children) < limit:
            with refused_values():
                request = pb.ChildrenRequest(above=above, after=after, limit=limit - len(children))
            reply = await self._connection.call(self._connection.stub.Children, request)
            children += (Child(each.name, each.is_topic, each.has_children) for each in reply.children)
            more = reply.more
            after = children[-1].name if children else None
        return children

    async def topics(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Topics that were ever published to and begin with `prefix`, in the order of their levels, up to `limit`,
        behind the topic `after`."""
        require_positive(limit)
        topics: list[str] = []
        more = True
        while more and len(topics) < limit:
            with refused_values():
                request = pb.TopicsRequest(prefix=prefix, after=after, limit=limit - len(topics))
            reply = await self._connection.call(self._connection.stub.Topics, request)
            topics += reply.topics
            more = reply.more
            after = topics[-1] if topics else None
        return topics

    async def find(self, parent: str, *, key: str, after: int | None = None, limit: int = 100) -> list[Message]:
        """Messages below `parent` that were sent with this key, the oldest first, up to `limit`. The position of the
        last one as `after` gets those behind. Raises `InvalidArgument`."""
        require_positive(limit)
        messages: list[Message] = []
        while True:
            with refused_values():
                wanted = limit - len(messages)
                request = pb.FindRequest(parent=parent, key=key, after=after, max_records=wanted)
            reply = await self._connection.call(self._connection.stub.Find, request)
            messages += (Message(reply.frames, start, -1, -1) for start in record.split(reply.frames))
            if not reply.HasField("after") or len(messages) >= limit:
                return messages
            after = reply.after

    async def message(self, position: int) -> Message:
        """The message with this id: the position in its receipt, or in the message itself. Raises `NoSuchMessage`."""
        with refused_values():
            request = pb.FindRequest(position=position)
        reply = await self._connection.call(self._connection.stub.Find, request)
        return Message(reply.frames, 0, -1, -1)

    async def request(
        self,
        topic: str,
        payload: bytes,
        *,
        reply_topic: str,
        timeout: float = 10.0,
        content_type: str | None = None,
        properties: UserProperties | None = None,
    ) -> Message:
        """Send a command and return the first answer on `reply_topic`; `Unavailable` when none comes in time.

        The command carries the reply topic and fresh correlation data. An answer with other correlation data is
        not ours; one without any (MQTT 3.1.1 knows none) is taken for ours.
        """
        parent = reply_topic.partition("/")[0]
        correlation = secrets.token_bytes(12)

        async def answer_in(partition: int, offset: int) -> Message:
            while True:
                batch = await self.pull(parent, partition, offset, wait_seconds=timeout)
                for message in batch.messages():
                    if message.topic == reply_topic and message.correlation_data in (None, correlation):
                        return message
                offset = batch.next_offset

        # The reply's partition is the node's to choose: all are watched, from before the command is sent.
        bounds = await self.partitions(parent)
        watches = [asyncio.create_task(answer_in(each.partition, each.end)) for each in bounds]
        try:
            await self.send(
                topic,
                payload,
                response_topic=reply_topic,
                correlation_data=correlation,
                content_type=content_type,
                properties=properties,
            )
            done, _ = await asyncio.wait(watches, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise Unavailable(f"no answer on {reply_topic!r} within {timeout} s")
            return done.pop().result()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


def _group_queue(queue: pb.GroupQueue) -> GroupQueue:
    match queue.WhichOneof("source"):
        case "parent":
            name = f"{queue.parent}[{queue.partition}]"
        case "dead_letters":
            name = f"dead letters of {queue.dead_letters}"
        case "topic":
            name = queue.topic
        case _:
            name = queue.filter
    return GroupQueue(name, queue.floor, queue.next, queue.unfinished, queue.lag)
