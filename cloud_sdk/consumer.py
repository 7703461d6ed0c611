"""A member of a group: leases messages, hands them out one by one, acknowledges in the background.

Delivery is at least once. A message whose acknowledgement did not reach the log (the member died, the lease ran
out, the node was restarted) comes again, to any member of the group. The log knows one offset per partition, so
behind a message that is still out acknowledgements wait in the node's memory: after a crash those come again too.
Members share the messages of every partition, so order holds per partition only while a group has one member.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Literal, get_args

import record
from cloud_sdk.connection import Connection
from cloud_sdk.errors import ClientClosed, InvalidArgument, SluiceError, refused_values
from cloud_sdk.message import Message
from cloud_sdk.proto import sluice_pb2 as pb

Start = Literal["earliest", "latest"]

_WAIT_S: Final = 20.0  # how long one Receive waits at the end
_SAFE_SHARE: Final = 0.9  # of a lease, in which a message is still handed out
_MAX_UNSENT: Final = 16_384  # acknowledgements that wait to be sent; beyond it no more messages are taken


class Delivery(Message):
    """A message leased to this member. Acknowledge it when its work is done."""

    __slots__ = ("_consumer", "lease")

    def __init__(
        self, frames: bytes, start: int, partition: int, offset: int, lease: int, consumer: "Consumer"
    ) -> None:
        super().__init__(frames, start, partition, offset)
        self.lease = lease  # another delivery of the same message has another one
        self._consumer = consumer

    async def ack(self) -> None:
        """See `Consumer.ack`."""
        self._consumer.settle((self.lease,), ())

    async def release(self) -> None:
        """See `Consumer.release`."""
        self._consumer.settle((), (self.lease,))


class Consumer:
    """An async context manager and an endless async iterator of `Delivery`. For one task at a time.

    To wait for a bounded time use `next` or `batch`: when `anext` is cancelled just as messages arrive, those stay
    leased to nobody until their lease runs out.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        parent: str,
        *,
        max_records: int,
        invisible_seconds: float,
        start: Start,
    ) -> None:
        if start not in get_args(Start):
            raise InvalidArgument(f"start is one of {', '.join(get_args(Start))}, not {start!r}")
        self._connection = connection
        self._group = group
        self._parent = parent
        self._max_records = max_records
        self._invisible_s = invisible_seconds
        self._start = start
        self._buffer: deque[Delivery] = deque()  # leased, not handed out
        self._buffer_until = 0.0  # loop time when their lease runs out
        self._acks = _Acknowledger(connection, group, parent)
        self._closed = False

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> "Consumer":
        return self

    async def __anext__(self) -> Delivery:
        while True:
            delivery = await self.next(_WAIT_S)
            if delivery is not None:
                return delivery

    async def next(self, wait_seconds: float) -> Delivery | None:
        """The next message, or None when none came within `wait_seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while True:
            if self._buffer and loop.time() < self._buffer_until:
                return self._buffer.popleft()
            self._buffer.clear()  # leases that ran out: their messages go to whoever asks next
            left = until - loop.time()
            await self._receive(min(max(left, 0.0), _WAIT_S))
            if not self._buffer and loop.time() >= until:
                return None

    async def batch(self, wait_seconds: float = _WAIT_S) -> list[Delivery]:
        """All messages at hand, at most `max_records`; empty when none came within `wait_seconds`."""
        first = await self.next(wait_seconds)
        if first is None:
            return []
        deliveries = [first, *self._buffer]
        self._buffer.clear()
        return deliveries

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """The work on these is done. Returns at once: acknowledgements are sent in the background, in batches.
        `flush` waits until the log has them. When a batch fails, the next `next` or `flush` raises why, and its
        messages come again."""
        self.settle([delivery.lease for delivery in deliveries], ())

    async def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give messages back: they are delivered again at once, to any member."""
        self.settle((), [delivery.lease for delivery in deliveries])

    def settle(self, done: Iterable[int], release: Iterable[int]) -> None:
        """Acknowledge the leases `done` and give back the leases `release`."""
        self._acks.add(done, release)

    async def flush(self) -> int:
        """Wait until the node has every acknowledgement given so far, and the log those that no older message of
        their partition, still out, holds back.

        Returns how many of them, since the last `flush`, found no lease: it had run out, or the node was
        restarted. Their messages may be delivered again.
        """
        return await self._acks.flush()

    async def close(self) -> None:
        """Give back what was not handed out, and `flush`. What was handed out and neither acknowledged nor released
        stays leased until its time runs out."""
        if self._closed:
            return
        self._closed = True
        self.settle((), [delivery.lease for delivery in self._buffer])
        self._buffer.clear()
        await self.flush()

    async def _receive(self, wait_s: float) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")
        self._acks.raise_failure()
        if self._acks.unsent >= _MAX_UNSENT:
            await self._acks.flush()
        with refused_values():
            request = pb.ReceiveRequest(
                group=self._group,
                parent=self._parent,
                max_records=self._max_records,
                invisible_ms=int(self._invisible_s * 1_000),
                wait_ms=int(wait_s * 1_000),
                from_earliest=self._start == "earliest",
            )
        reply = await self._connection.call(self._connection.stub.Receive, request, wait_s)
        # The node's clock started a network hop earlier.
        self._buffer_until = asyncio.get_running_loop().time() + _SAFE_SHARE * self._invisible_s
        starts = record.split(reply.frames)
        index = 0
        for run in reply.runs:
            for offset in range(run.offset, run.offset + run.count):
                lease = reply.lease + index
                self._buffer.append(Delivery(reply.frames, starts[index], run.partition, offset, lease, self))
                index += 1


class _Acknowledger:
    """Gathers acknowledgements while a batch of them is under way."""

    def __init__(self, connection: Connection, group: str, parent: str) -> None:
        self._connection = connection
        self._group = group
        self._parent = parent
        self._done: list[int] = []
        self._release: list[int] = []
        self._sender: asyncio.Task[None] | None = None
        self._failure: SluiceError | None = None
        self._late = 0  # acknowledgements that found no lease

    @property
    def unsent(self) -> int:
        return len(self._done) + len(self._release)

    def add(self, done: Iterable[int], release: Iterable[int]) -> None:
        self._done += done
        self._release += release
        if self.unsent and (self._sender is None or self._sender.done()):
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def flush(self) -> int:
        while self._sender is not None and not self._sender.done():
            await asyncio.wait((self._sender,))
        self.raise_failure()
        late, self._late = self._late, 0
        return late

    async def _send(self) -> None:
        await asyncio.sleep(0)  # acknowledgements of the same turn of the loop go together
        while self._done or self._release:
            request = pb.AcknowledgeRequest(
                group=self._group, parent=self._parent, done=self._done, release=self._release
            )
            self._done, self._release = [], []
            try:
                reply = await self._connection.call(self._connection.stub.Acknowledge, request)
                self._late += len(set(reply.expired).intersection(request.done))
            except SluiceError as error:
                self._failure = error
                return

    def raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
