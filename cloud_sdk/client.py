"""The asyncio client of a node."""

import asyncio
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Unpack

import record
from cloud_sdk.buckets import Bucket
from cloud_sdk.consumer_options import SelectionOptions, Start, checked_start, selection_of
from cloud_sdk.consuming.broadcast_consumer import BroadcastConsumer, BroadcastHandler
from cloud_sdk.consuming.partition_reader import PartitionReader
from cloud_sdk.consuming.pull_consumer import PullConsumer
from cloud_sdk.errors import InvalidArgument, NoAnswer, as_invalid_argument, require_positive
from cloud_sdk.groups.push_consumer import Handler, PushConsumer
from cloud_sdk.groups.simple_consumer import SimpleConsumer
from cloud_sdk.lifetime.closing import Closable, create_closing_task, wait_for_close
from cloud_sdk.message import (
    Child,
    Group,
    GroupQueue,
    Message,
    OutgoingMessage,
    Receipt,
    SendOptions,
    Timer,
    inbox_of,
)
from cloud_sdk.producing.idempotent_producer import IdempotentProducer, forget
from cloud_sdk.producing.producer import Producer
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.replies import Replies
from cloud_sdk.trace import TraceEvent, event_of
from cloud_sdk.transactions import Checker, Transaction, TransactionChecks
from cloud_sdk.transport.connection import NodeConnection
from cloud_sdk.transport.security import Credentials, Tls

_LAST_S: Final = 1.0  # for answers to sends, if the handlers have used all the time of `close`
_NEVER_MS: Final = (1 << 63) - 1  # later than any message


class Client(PartitionReader, Closable):
    """A client of a node, for one event loop: `async with Client("127.0.0.1:7070") as client`. Raises
    `InvalidArgument` if `endpoint` is not host:port (or gRPC's `unix:path`).

    For a cluster, `endpoint` names some of its nodes or all of them: in a sequence, or separated by commas. The client
    uses one of them, and goes on at the next one if that does not answer.

    Calls survive a restart of the node. They are repeated, with growing pauses, until `retry_seconds` have passed since
    the first failure; then they raise `Unavailable` or `Busy`. The first call opens the connection.

    `name` is the publisher that consumers of sent messages see. A request of sends waits up to `linger_seconds` for
    more sends; with 0, all sends that are there go out at once. `credentials` are for nodes with users, and `tls` is
    for ports with TLS. A call that the user's rules do not allow raises `NotAllowed`.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str],
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
        super().__init__(NodeConnection(endpoint, retry_seconds, credentials, tls, self.name))
        self._producer = Producer(self._connection, linger_seconds)
        self._replies = Replies(self)
        self._open_halves: set[int] = set()  # half messages of open transactions
        self._closing: asyncio.Task[None] | None = None

    async def close(self, *, timeout: float | None = None) -> None:
        """Close everything of the client that is open, send what waits to be sent, then disconnect.

        Consumers receive no more. Their running handlers end, their settlements are sent, and messages that no handler
        has begun with are given back. After `timeout` seconds (by default `retry_seconds`), running handlers are
        cancelled and their messages given back, and sends without an answer raise `ClientClosed`; this takes a few
        seconds at most. The same happens at once if the caller is cancelled. In a handler of one of its consumers,
        `close` returns at once, and the client closes after that handler."""
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
        """Whether the caller runs on behalf of a handler of this client."""
        return self._connection.resources.is_called_from_handler

    async def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """Store one message, on any MQTT topic; returns when it is committed. Sends of many tasks share requests. See
        `SendOptions` for the options.

        If the node goes away before it answers, the message is sent again. It is stored once all the same, but its
        receipt may have no position. Raises `InvalidArgument`, `Unavailable`, `Busy`.
        """
        frame = OutgoingMessage(topic, payload, **options).frame(self._publisher)
        return (await self._producer.send((frame,)))[0]

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store messages, in order; returns when all are committed. If it raises, some or all of them may be stored.
        Raises `MessagesRejected` if all are stored but those that it names."""
        return await self._producer.send([message.frame(self._publisher) for message in messages])

    def idempotent_producer(self, name: str, number: int) -> IdempotentProducer:
        """Store the messages of a unit of work once, also if another process repeats it: `async with
        client.idempotent_producer("billing/7", day) as producer`. All processes that use `name` send the same messages
        for the same `number`, one process at a time. Numbers only rise. Raises `InvalidArgument`."""
        return IdempotentProducer(self._connection, self._publisher, name, number)

    async def forget_producer(self, name: str) -> None:
        """Have the node forget the `name` of idempotent producers at once, and not after 30 days."""
        await forget(self._connection, name)

    def transaction(self) -> Transaction:
        """Send messages that are delivered if and only if the transaction is committed:
        `async with client.transaction() as transaction`. Raises `InvalidArgument` if the client has no `name`. If this
        process dies, the node asks clients of the same name for the outcome (`transaction_checks`)."""
        self._require_name()
        return Transaction(self._connection, self._producer, self._publisher, self._open_halves)

    def transaction_checks(self, checker: Checker) -> TransactionChecks:
        """Tell the node the outcome of transactions of this client's name that were not ended:
        `async with client.transaction_checks(f)`. `checker` gets a half message and returns the `Decision`. Raises
        `InvalidArgument` if the client has no `name`, or the checker is not an async function."""
        self._require_name()
        return TransactionChecks(self._connection, self.name, checker, self._open_halves)

    async def recall(self, positions: Iterable[int]) -> list[int]:
        """Drop delayed messages, by the positions in their receipts, so that they are never delivered. Returns the
        positions of those that are not delayed, or not any more."""
        with as_invalid_argument():
            request = pb.RecallRequest(handles=list(positions))
        return list((await self._connection.call(lambda stub: stub.Recall, request)).missing)

    async def timers(self, *, limit: int = 1000) -> list[Timer]:
        """Return the delayed messages that are not delivered yet, the next one first, up to `limit`."""
        require_positive(limit)
        timers: list[Timer] = []
        after: bytes | None = None
        while len(timers) < limit:
            request = pb.TimersRequest(after=after, limit=limit - len(timers))
            reply = await self._connection.call(lambda stub: stub.Timers, request)
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
        """Create a member of `group`. The members share the messages whose topic begins with the level `parent`, or
        those of them that the group selects.

        The member leases up to `max_records` messages at once, each for `invisible_seconds`. A message that is not
        acknowledged by then goes to another member. `start` is where a new group begins. A message that was leased
        `max_deliveries` times (0: as the node is configured) becomes a dead letter of the group. `ordered`: the node
        hands out nothing of an ordering key (or topic, without a key) while an older message of it is out. All members
        of a group must use the same options.
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
        """Create a member of `group` that calls `handler` for each message, for up to `concurrency` of them at once.
        See `consumer` for the other options."""
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
        max_bytes: int = 0,
        **selection: Unpack[SelectionOptions],
    ) -> PullConsumer:
        """Create a reader of partitions that keeps its own place. See `PullConsumer`. `max_records` and `max_bytes`
        (0: the node's limit) are those of one read of a partition."""
        return PullConsumer(
            self,
            self._connection.resources,
            parent,
            partitions=partitions,
            group=group,
            start=checked_start(start),
            max_records=max_records,
            max_bytes=max_bytes,
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
        """Create a reader that calls `handler` for every message of a parent topic, whoever else receives it. With a
        `member` name of its own, it continues where it was when it is opened again."""
        require_positive(attempts)
        reader = self.pull_consumer(parent, group=member, start=start, **selection)
        return BroadcastConsumer(reader, handler, attempts=attempts, commits=member is not None)

    def dead_letters(self, group: str, *, max_records: int = 256, invisible_seconds: float = 30.0) -> SimpleConsumer:
        """Create a member of `group` that receives the group's dead letters, the oldest first. An acknowledged dead
        letter is gone; one that is given back never becomes a dead letter again. Its partition is 0, and its offset is
        the one in the queue of dead letters."""
        return SimpleConsumer(
            self._connection,
            group,
            None,
            max_records=max_records,
            invisible_seconds=invisible_seconds,
            member=self.name,
        )

    def bucket(self, name: str) -> Bucket:
        """A set of key-value entries, for small state of services: `await client.bucket("settings").get("limit")`."""
        return Bucket(self._connection, name)

    async def groups(self) -> list[Group]:
        """Return every group, sorted by name, with its place in each queue."""
        groups: list[Group] = []
        more = True
        while more:
            request = pb.GroupsRequest(after=groups[-1].name if groups else None)
            reply = await self._connection.call(lambda stub: stub.Groups, request)
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
        """Have a group begin elsewhere in all partitions of `parent` (None: in its dead letters): at the oldest message
        or behind the newest (`start`), or at the first message that was stored at or after `time_ms`. With `offsets`,
        it begins there, by partition, and other partitions stay. Its leases there end. Raises `OffsetOutOfRange`."""
        if offsets is not None and not offsets:
            return  # on the wire, no offsets mean all partitions
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
        await self._connection.call(lambda stub: stub.ResetGroup, request)

    async def remove_group(self, group: str) -> None:
        """Remove a group. If it is used again, it begins as a new one. Its dead letters stay."""
        with as_invalid_argument():
            request = pb.RemoveGroupRequest(group=group)
        await self._connection.call(lambda stub: stub.RemoveGroup, request)

    async def parents(self) -> list[str]:
        """Return every parent topic that was ever published to, sorted."""
        names: list[str] = []
        more = True
        while more:
            request = pb.ChildrenRequest(after=names[-1] if names else None)
            reply = await self._connection.call(lambda stub: stub.Children, request)
            names += (child.name for child in reply.children)
            more = reply.more
        return names

    async def children(self, above: str = "", *, after: str | None = None, limit: int = 1000) -> list[Child]:
        """Return names of one level of the tree of topics, sorted, up to `limit`, behind the name `after`: the parent
        topics, or the names below `above`, which ends in a slash (`"home/"`). The cost does not depend on what is below
        them."""
        require_positive(limit)
        children: list[Child] = []
        more = True
        while more and len(children) < limit:
            with as_invalid_argument():
                request = pb.ChildrenRequest(above=above, after=after, limit=limit - len(children))
            reply = await self._connection.call(lambda stub: stub.Children, request)
            children += (Child(each.name, each.is_topic, each.has_children) for each in reply.children)
            more = reply.more
            after = children[-1].name if children else None
        return children

    async def topics(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Return topics that were ever published to and begin with `prefix`, in the order of their levels, up to
        `limit`, behind the topic `after`."""
        require_positive(limit)
        topics: list[str] = []
        more = True
        while more and len(topics) < limit:
            with as_invalid_argument():
                request = pb.TopicsRequest(prefix=prefix, after=after, limit=limit - len(topics))
            reply = await self._connection.call(lambda stub: stub.Topics, request)
            topics += reply.topics
            more = reply.more
            after = topics[-1] if topics else None
        return topics

    async def find(self, parent: str, *, key: str, after: int | None = None, limit: int = 100) -> list[Message]:
        """Return messages below `parent` that were sent with this key, the oldest first, up to `limit`. To get the next
        ones, pass the position of the last one as `after`. Raises `InvalidArgument`."""
        require_positive(limit)
        messages: list[Message] = []
        while True:
            with as_invalid_argument():
                wanted = limit - len(messages)
                request = pb.FindRequest(parent=parent, key=key, after=after, max_records=wanted)
            reply = await self._connection.call(lambda stub: stub.Find, request)
            messages += (Message(fields, -1, -1) for fields in record.decode_all(reply.frames))
            if not reply.HasField("after") or len(messages) >= limit:
                return messages
            after = reply.after

    async def message(self, position: int) -> Message:
        """Return the message with this id: the position in its receipt, or its own. Raises `NoSuchMessage`."""
        with as_invalid_argument():
            request = pb.FindRequest(position=position)
        reply = await self._connection.call(lambda stub: stub.Find, request)
        return Message(record.decode_all(reply.frames)[0], -1, -1)

    async def find_between(
        self, parent: str, from_ms: int, until_ms: int, *, limit: int = 100, **selection: Unpack[SelectionOptions]
    ) -> list[Message]:
        """Return selected messages below `parent` that were stored from `from_ms` on and before `until_ms` (ms since
        1970-01-01 UTC), the oldest first, up to `limit`."""
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
        """Return what became of the message with this id, in the order in which it happened. The node reads the log
        behind the message, which takes longer the older it is. Raises `NoSuchMessage`."""
        events: list[TraceEvent] = []
        after: bytes | None = None
        while True:
            with as_invalid_argument():
                request = pb.TraceRequest(position=position, after=after)
            reply = await self._connection.call(lambda stub: stub.Trace, request)
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
        """Send a command to a device and return its answer. Raises `NoAnswer` if none comes within `timeout` seconds.
        The command expires then, so an offline device does not receive it later.

        The command carries the reply topic (by default this client's inbox) and fresh correlation data. An answer with
        other correlation data is ignored. An answer without any (MQTT 3.1.1 has none) is accepted.
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
            await self._connection.resources.close(seconds)  # first, because handlers may send and call
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
