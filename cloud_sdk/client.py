"""The asyncio client of a node."""

import asyncio
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Unpack

import record
from cloud_sdk.broadcast_consumer import BroadcastConsumer, BroadcastHandler
from cloud_sdk.closing import create_closing_task, wait_for_close
from cloud_sdk.connection import NodeConnection
from cloud_sdk.consumer_options import ReadOptions, SelectionOptions, Start, checked_start, selection_of
from cloud_sdk.errors import InvalidArgument, NoAnswer, as_invalid_argument, require_positive
from cloud_sdk.idempotent_producer import IdempotentProducer, forget
from cloud_sdk.message import (
    Batch,
    Child,
    Group,
    GroupQueue,
    Message,
    OutgoingMessage,
    PartitionBounds,
    Receipt,
    SendOptions,
    Timer,
    inbox_of,
)
from cloud_sdk.partitions import Partitions
from cloud_sdk.producer import Producer
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.pull_consumer import PullConsumer
from cloud_sdk.push_consumer import Handler, PushConsumer
from cloud_sdk.replies import Replies
from cloud_sdk.security import Credentials, Tls
from cloud_sdk.simple_consumer import SimpleConsumer
from cloud_sdk.trace import TraceEvent, event_of
from cloud_sdk.transaction import Checker, Transaction, TransactionChecks

_LAST_S: Final = 1.0  # that an answer is waited for where handlers took all the time
_NEVER_MS: Final = (1 << 63) - 1  # no message was stored that late


class Client:
    """Talks to one node: `async with Client("127.0.0.1:7070") as client`. For one event loop. Raises
    `InvalidArgument` when `endpoint` is not host:port (or gRPC's `unix:path`).

    Calls survive a restart of the node: they are repeated, with growing pauses, until `retry_seconds` have passed
    since the first failure; then they raise `Unavailable` (or `Busy`). Nothing connects before the first call.
    `name` is the publisher that consumers of sent messages see. A batch of sends waits up to `linger_seconds` for more
    to go with it: 0 sends at once what is there, which is more the more is under way. `credentials` say who calls,
    where the node asks; `tls` is for a port that speaks TLS. What a user may not do raises `NotAllowed`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        name: str | None = None,
        retry_seconds: float = 30.0,
        linger_seconds: float = 0.0,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.name = name or f"cloud-{secrets.token_hex(6)}"
        self._is_named = name is not None
        self._publisher = self.name.encode()
        self._connection = NodeConnection(endpoint, retry_seconds, credentials, tls)
        self._producer = Producer(self._connection, linger_seconds)
        self._partitions = Partitions(self._connection)
        self._replies = Replies(self._partitions)
        self._running: set[int] = set()  # half messages of transactions that are not over
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, *, timeout: float | None = None) -> None:
        """Close what is open, send what is on its way, then disconnect.

        Consumers take no more, their handlers come to their end, what they settled is sent, and what none has begun
        with is given back. After `timeout` seconds (`retry_seconds`, where nothing is said) handlers that still run are
        cancelled and their messages given back, and sends that have no answer raise `ClientClosed`; that takes a few
        seconds at most. Cancelled, it comes to that at once. In a handler it returns at once, and happens when that has
        come to its end."""
        if self._closing is None:
            self._closing = create_closing_task(
                self._end(self._connection.retry_seconds if timeout is None else timeout)
            )
        if self.is_called_from_handler:
            await self._connection.resources.close_callers()
        else:
            await wait_for_close(self._closing, self._stop_waiting)

    @property
    def is_called_from_handler(self) -> bool:
        """Whether a handler of one of its consumers asks."""
        return self._connection.resources.is_called_from_handler

    async def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """Store one message, on any MQTT topic; returns when it is committed. Sends of many tasks share batches by
        themselves. `SendOptions` are what may be said of it.

        When the node goes away before it answers, the message is sent again; it is stored once all the same, and the
        receipt may not know where. Raises `InvalidArgument`, `Unavailable`, `Busy`.
        """
        frame = OutgoingMessage(topic, payload, **options).frame(self._publisher)
        return (await self._producer.send((frame,)))[0]

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store messages, in order; returns when all are committed. All or some may be stored when it raises."""
        return await self._producer.send([message.frame(self._publisher) for message in messages])

    def idempotent_producer(self, name: str, number: int) -> IdempotentProducer:
        """Store the messages of a piece of work once, also when another process has to do it again:
        `async with client.idempotent_producer("billing/7", day) as producer`. All processes that do work under `name`
        send the same for the same `number`, whose numbers only rise; one of them at a time."""
        return IdempotentProducer(self._connection, self._publisher, name, number)

    async def forget_producer(self, name: str) -> None:
        """No process does work under `name` any more: the node forgets it at once, and not after 30 days."""
        await forget(self._connection, name)

    def transaction(self) -> Transaction:
        """Messages that are delivered when the transaction is committed, and never if it is rolled back:
        `async with client.transaction() as transaction`. The client needs a `name`: others that have it are asked what
        became of the transaction when this process dies (`transaction_checks`)."""
        self._require_name()
        return Transaction(self._connection, self._producer, self._publisher, self._running)

    def transaction_checks(self, checker: Checker) -> TransactionChecks:
        """Answer for transactions of this client's name that have no end: `async with client.transaction_checks(f)`.
        `checker` gets a message of one, and says what became of it."""
        self._require_name()
        return TransactionChecks(self._connection, self.name, checker, self._running)

    async def recall(self, positions: Iterable[int]) -> list[int]:
        """Drop messages that wait for their time, by the positions in their receipts. Returns those that do not (any
        more); the others are never delivered."""
        with as_invalid_argument():
            request = pb.RecallRequest(handles=list(positions))
        return list((await self._connection.call(self._connection.stub.Recall, request)).missing)

    async def timers(self, *, limit: int = 1000) -> list[Timer]:
        """Messages that wait for their time, the next first."""
        require_positive(limit)
        timers: list[Timer] = []
        after: bytes | None = None
        while len(timers) < limit:
            request = pb.TimersRequest(after=after, limit=limit - len(timers))
            reply = await self._connection.call(self._connection.stub.Timers, request)
            timers += (Timer(each.handle, each.topic, each.publisher, each.due_ms) for each in reply.timers)
            if not reply.HasField("after"):
                break
            after = reply.after
        return timers

    def consumer(
        self,
        group: str,
        parent: str,
        *,
        max_records: int = 256,
        invisible_seconds: float = 30.0,
        start: Start = "earliest",
        max_deliveries: int = 0,
        ordered: bool = False,
        **selection: Unpack[SelectionOptions],
    ) -> SimpleConsumer:
        """A new member of `group`, which shares all messages whose topic begins with the level `parent`, or those of
        them that the group selects.

        It holds up to `max_records` messages, each for `invisible_seconds`: what is not acknowledged by then goes
        to another member. `start` is where the group begins when nobody ever used it. A message that was leased out
        `max_deliveries` times (0: as the node is configured) becomes a dead letter of the group. `ordered`: nothing of
        a partition is handed out while something older of it is out. All members of a group say the same.
        """
        return SimpleConsumer(
            self._connection,
            group,
            parent,
            max_records=max_records,
            invisible_seconds=invisible_seconds,
            start=start,
            max_deliveries=max_deliveries,
            ordered=ordered,
            selection=selection_of(selection),
            member=self.name,
        )

    def push_consumer(
        self,
        group: str,
        parent: str,
        handler: Handler,
        *,
        concurrency: int = 16,
        invisible_seconds: float = 30.0,
        start: Start = "earliest",
        max_deliveries: int = 0,
        ordered: bool = False,
        **selection: Unpack[SelectionOptions],
    ) -> PushConsumer:
        """A member of `group` that calls `handler` for each message, for up to `concurrency` of them at once. See
        `consumer` for the rest."""
        require_positive(concurrency)
        consumer = self.consumer(
            group,
            parent,
            max_records=2 * concurrency,
            invisible_seconds=invisible_seconds,
            start=start,
            max_deliveries=max_deliveries,
            ordered=ordered,
            **selection,
        )
        return PushConsumer(
            consumer, handler, concurrency=concurrency, ordered=ordered, invisible_seconds=invisible_seconds
        )

    def pull_consumer(
        self,
        parent: str,
        *,
        partitions: Sequence[int] | None = None,
        group: str | None = None,
        start: Start = "earliest",
        max_records: int = 512,
        **selection: Unpack[SelectionOptions],
    ) -> PullConsumer:
        """A reader of partitions that says itself where it is. See `PullConsumer`."""
        return PullConsumer(
            self._partitions,
            self._connection.resources,
            parent,
            partitions=partitions,
            group=group,
            start=checked_start(start),
            max_records=max_records,
            **selection,
        )

    def broadcast_consumer(
        self,
        parent: str,
        handler: BroadcastHandler,
        *,
        member: str | None = None,
        start: Start = "latest",
        attempts: int = 16,
        **selection: Unpack[SelectionOptions],
    ) -> BroadcastConsumer:
        """Calls `handler` for every message of a parent topic, whoever else gets it. With a name of its own (`member`)
        it goes on where it was when it is opened again."""
        require_positive(attempts)
        reader = self.pull_consumer(parent, group=member, start=start, **selection)
        return BroadcastConsumer(reader, handler, attempts=attempts, commits=member is not None)

    def dead_letters(self, group: str, *, max_records: int = 256, invisible_seconds: float = 30.0) -> SimpleConsumer:
        """A member of `group` that gets the messages which the group gave up on, the oldest first. What it
        acknowledges is gone; its messages never become dead letters again. Their partition is 0 and their offset that
        in the queue of dead letters."""
        return SimpleConsumer(
            self._connection,
            group,
            None,
            max_records=max_records,
            invisible_seconds=invisible_seconds,
            member=self.name,
        )

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
            time_ms = 0 if checked_start(start) == "earliest" else _NEVER_MS
        with as_invalid_argument():
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
        with as_invalid_argument():
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
        **options: Unpack[ReadOptions],
    ) -> Batch:
        """Records of a partition from `offset` on (limits of 0: as many as the node gives). At the end it waits up
        to `wait_seconds` (the node's limit is a minute) for one, then returns an empty batch. Records that are gone
        from the log, or not selected, are skipped. Read on at its `next_offset`, also where it is empty. Raises
        `OffsetOutOfRange`, which knows the bounds. `ReadOptions` say what is wanted."""
        return await self._partitions.pull(
            parent,
            partition,
            offset,
            max_records=max_records,
            max_bytes=max_bytes,
            wait_seconds=wait_seconds,
            **options,
        )

    async def commit_offsets(self, group: str, parent: str, offsets: Mapping[int, int]) -> None:
        """Remember the next offset of a group of readers, by partition. A group that receives (`consumer`) begins there
        as well, when it is new."""
        await self._partitions.commit_offsets(group, parent, offsets)

    async def committed_offsets(self, group: str, parent: str) -> dict[int, int]:
        """What was remembered, by partition."""
        return await self._partitions.committed_offsets(group, parent)

    async def partitions(self, parent: str) -> list[PartitionBounds]:
        """The partitions of a parent topic with their readable offsets; all empty when nobody published to it."""
        return await self._partitions.bounds(parent)

    async def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms` (ms since 1970-01-01 UTC); the end if there is none."""
        return await self._partitions.offset_at(parent, partition, time_ms)

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
            with as_invalid_argument():
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
            with as_invalid_argument():
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
            with as_invalid_argument():
                wanted = limit - len(messages)
                request = pb.FindRequest(parent=parent, key=key, after=after, max_records=wanted)
            reply = await self._connection.call(self._connection.stub.Find, request)
            messages += (Message(reply.frames, start, -1, -1) for start in record.split(reply.frames))
            if not reply.HasField("after") or len(messages) >= limit:
                return messages
            after = reply.after

    async def message(self, position: int) -> Message:
        """The message with this id: the position in its receipt, or in the message itself. Raises `NoSuchMessage`."""
        with as_invalid_argument():
            request = pb.FindRequest(position=position)
        reply = await self._connection.call(self._connection.stub.Find, request)
        return Message(reply.frames, 0, -1, -1)

    async def find_between(
        self, parent: str, from_ms: int, until_ms: int, *, limit: int = 100, **selection: Unpack[SelectionOptions]
    ) -> list[Message]:
        """Messages below `parent` that were stored from `from_ms` on and before `until_ms` (ms since 1970-01-01 UTC),
        the oldest first, up to `limit`."""
        require_positive(limit)
        messages: list[Message] = []
        for each in await self.partitions(parent):
            offset = await self.offset_at(parent, each.partition, from_ms)
            end = await self.offset_at(parent, each.partition, until_ms)
            left = limit
            while offset < end and left > 0:
                batch = await self.pull(parent, each.partition, offset, max_records=left, **selection)
                found = [message for message in batch.messages() if message.offset < end]
                messages += found
                left -= len(found)
                offset = batch.next_offset
        return sorted(messages, key=lambda message: message.position)[:limit]

    async def trace(self, position: int) -> list[TraceEvent]:
        """What became of the message with this id, in the order in which it happened: the log behind it is looked
        through, which takes longer the older it is. Raises `NoSuchMessage`."""
        events: list[TraceEvent] = []
        after: bytes | None = None
        while True:
            with as_invalid_argument():
                request = pb.TraceRequest(position=position, after=after)
            reply = await self._connection.call(self._connection.stub.Trace, request)
            events += map(event_of, reply.events)
            if not reply.HasField("after"):
                return events
            after = reply.after

    async def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout: float = 10.0,
        reply_topic: str | None = None,
        **options: Unpack[SendOptions],
    ) -> Message:
        """Send a command to a device and return its answer; `NoAnswer` when none comes within `timeout` seconds, after
        which a device that was away does not get the command either.

        The command carries the reply topic (this client's inbox, where nothing else is said) and fresh correlation
        data. An answer with other correlation data is not ours; one without any (MQTT 3.1.1 knows none) is taken for
        ours.
        """
        reply_topic = reply_topic or inbox_of(self.name)
        correlation = secrets.token_bytes(12)
        options.setdefault("message_expiry", max(1, math.ceil(timeout)))
        options["response_topic"], options["correlation_data"] = reply_topic, correlation
        try:
            async with asyncio.timeout(timeout):
                answer = await self._replies.expect(reply_topic, correlation)
                await self.send(topic, payload, **options)
                return await answer
        except TimeoutError:
            raise NoAnswer(f"no answer on {reply_topic!r} within {timeout} s") from None
        finally:
            self._replies.forget(reply_topic, correlation)

    async def _end(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            await self._connection.resources.close(seconds)  # its handlers may send, and ask
            await self._replies.close()
            await self._producer.close(max(until - loop.time(), _LAST_S))
        finally:
            await self._connection.close()

    def _stop_waiting(self) -> None:
        self._connection.resources.stop_waiting()
        self._producer.stop_waiting(for_node=True)

    def _require_name(self) -> None:
        if not self._is_named:
            raise InvalidArgument("transactions need a client with a name: Client(endpoint, name=…)")


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
