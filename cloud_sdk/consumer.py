"""A member of a group: leases messages, hands them out one by one, acknowledges in the background.

Delivery is at least once. A message that is not acknowledged (the member died, the lease ran out) comes again, to any
member of the group; one that was leased out too often becomes a dead letter. What the node answered survives its crash:
an acknowledged message does not come again, whatever older ones are still out. Members share the messages of every
partition, so order holds per partition only while a group has one member; or if it is *ordered*: then nothing of a
partition is handed out while something older of it is out, or is to come again.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, get_args

import record
from cloud_sdk.connection import Connection
from cloud_sdk.errors import ClientClosed, InvalidArgument, SluiceError, refused_values, require_positive
from cloud_sdk.message import Message
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.selecting import Start

_WAIT_S: Final = 20.0  # how long one Receive waits at the end
_SAFE_SHARE: Final = 0.9  # of a lease, in which a message is still handed out
_LONGEST_DELAY_S: Final = 0xFFFF_FFFF / 1_000  # on the wire; the node's limit is lower
_MAX_SENT: Final = 16_384  # of a kind, in one request
_MAX_UNSENT: Final = 16_384  # acknowledgements that wait to be sent; beyond it no more messages are taken


class Lease(NamedTuple):
    """Which message is leased, and for the how manieth time."""

    partition: int
    offset: int
    deliveries: int


class Delivery(Message):
    """A message leased to this member. Acknowledge it when its work is done."""

    __slots__ = ("_consumer", "deliveries")

    def __init__(
        self, frames: bytes, start: int, partition: int, offset: int, deliveries: int, consumer: "SimpleConsumer"
    ) -> None:
        super().__init__(frames, start, partition, offset)
        self.deliveries = deliveries  # how often the message was leased out, to any member, this time included
        self._consumer = consumer

    @property
    def lease(self) -> Lease:
        """Another delivery of the same message has another one."""
        return Lease(self.partition, self.offset, self.deliveries)

    async def ack(self) -> None:
        """See `SimpleConsumer.ack`."""
        self._consumer.settle((self.lease,))

    async def release(self) -> None:
        """See `SimpleConsumer.release`."""
        self._consumer.settle((), (self.lease,))

    async def nack(self, delay_seconds: float | None = None) -> None:
        """See `SimpleConsumer.nack`."""
        self._consumer.settle((), (self.lease,), delay_seconds)

    async def extend(self, seconds: float) -> bool:
        """See `SimpleConsumer.extend`. False: the lease is over, and somebody else has the message, or finished it."""
        return not await self._consumer.extend((self,), seconds)


class SimpleConsumer:
    """An async context manager and an endless async iterator of `Delivery`. For one task at a time.

    To wait for a bounded time use `next` or `batch`: when `anext` is cancelled just as messages arrive, those stay
    leased to nobody until their lease runs out.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        parent: str | None,  # None: the group's dead letters
        *,
        max_records: int,
        invisible_seconds: float,
        start: Start = "earliest",
        max_deliveries: int = 0,
        ordered: bool = False,
        selection: pb.Selection | None = None,
        member: str = "",
    ) -> None:
        require_positive(max_records)
        if invisible_seconds <= 0:
            raise InvalidArgument(f"a message is leased for more than {invisible_seconds} s")
        self._connection = connection
        self._group = group
        self._parent = parent
        self._max_records = max_records
        self._invisible_s = invisible_seconds
        self._start = start_of(start)
        self._max_deliveries = max_deliveries
        self._ordered = ordered
        self._selection = selection
        self._buffer: deque[Delivery] = deque()  # leased, not handed out
        self._buffer_until = 0.0  # loop time when their lease runs out
        self._member = member  # the client's name
        self._acks = _Acknowledger(connection, group, parent, member)
        self._closed = False

    async def __aenter__(self) -> "SimpleConsumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> "SimpleConsumer":
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
        self.settle([delivery.lease for delivery in deliveries])

    async def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give messages back: they are delivered again at once, to any member."""
        self.settle((), [delivery.lease for delivery in deliveries])

    async def nack(self, deliveries: Iterable[Delivery], delay_seconds: float | None = None) -> None:
        """The work on these failed: they are delivered again, to any member, after `delay_seconds`; without that, after
        a time that grows with their deliveries. Sent like acknowledgements."""
        self.settle((), [delivery.lease for delivery in deliveries], delay_seconds)

    async def extend(self, deliveries: Iterable[Delivery], seconds: float) -> list[Delivery]:
        """Keep messages for `seconds` from now. Returns those that are not this member's any more: their lease was
        over, and somebody else has them, or finished them."""
        deliveries = list(deliveries)
        lost = set(await self.keep([delivery.lease for delivery in deliveries], seconds))
        return [delivery for delivery in deliveries if delivery.lease in lost]

    async def keep(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases, as `extend` does."""
        return await self._acks.extend(leases, seconds)

    def settle(self, done: Iterable[Lease], again: Iterable[Lease] = (), delay_seconds: float | None = 0.0) -> None:
        """Acknowledge the leases `done`, and give back the leases `again`, as `nack` does."""
        check_delay(delay_seconds)
        self._acks.add(done, again, delay_seconds)

    async def flush(self) -> int:
        """Wait until the log has every acknowledgement given so far.

        Returns how many of them, since the last `flush`, came too late: the lease had run out and the message was
        leased out again, so its work may be done twice.
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
        sent = self._acks.take()  # goes along: a call for each would cost the node twice as much
        with refused_values():
            request = pb.ReceiveRequest(
                group=self._group,
                parent=self._parent,
                dead_letters=self._parent is None,
                max_records=self._max_records,
                invisible_ms=int(self._invisible_s * 1_000),
                wait_ms=int(wait_s * 1_000),
                from_earliest=self._start == "earliest",
                max_deliveries=self._max_deliveries,
                selection=self._selection,
                ordered=self._ordered,
                member=self._member,
                done=_runs(sent.done),
                again=_postponed(sent.again),
            )
        try:
            reply = await self._connection.call(self._connection.stub.Receive, request, wait_s)
        except asyncio.CancelledError:
            self._acks.repeat(sent)
            raise
        self._acks.count_late(sent, reply.expired)
        # The node's clock started a network hop earlier.
        self._buffer_until = asyncio.get_running_loop().time() + _SAFE_SHARE * self._invisible_s
        starts = record.split(reply.frames)
        index = 0
        for run in reply.runs:
            for offset in range(run.offset, run.offset + run.count):
                delivery = Delivery(reply.frames, starts[index], run.partition, offset, run.deliveries, self)
                self._buffer.append(delivery)
                index += 1


class _Sent(NamedTuple):
    """What is settled by one call."""

    done: list[Lease]
    again: list[tuple[Lease, int | None]]  # with the delay in ms


class _Acknowledger:
    """Gathers acknowledgements while a batch of them is under way."""

    def __init__(self, connection: Connection, group: str, parent: str | None, member: str) -> None:
        self._connection = connection
        self._group = group
        self._parent = parent
        self._member = member
        self._done: list[Lease] = []
        self._again: list[tuple[Lease, int | None]] = []
        self._repeated: set[Lease] = set()  # among them, what was sent before and perhaps arrived
        self._sender: asyncio.Task[None] | None = None
        self._failure: SluiceError | None = None
        self._late = 0  # acknowledgements that found no lease

    @property
    def unsent(self) -> int:
        return len(self._done) + len(self._again)

    def add(self, done: Iterable[Lease], again: Iterable[Lease], delay_seconds: float | None) -> None:
        delay = None if delay_seconds is None else _milliseconds(delay_seconds)
        self._done += done
        self._again += [(lease, delay) for lease in again]
        if self.unsent and (self._sender is None or self._sender.done()):
            self._sender = asyncio.get_running_loop().create_task(self._send())

    def take(self) -> _Sent:
        """What is to be sent next; the caller sends it."""
        sent = _Sent(self._done[:_MAX_SENT], self._again[:_MAX_SENT])
        self._done, self._again = self._done[_MAX_SENT:], self._again[_MAX_SENT:]
        return sent

    def repeat(self, sent: _Sent) -> None:
        """Nobody knows whether this arrived: send it again."""
        self._again += sent.again
        self._repeated.update(sent.done)
        self.add(sent.done, (), 0.0)

    def count_late(self, sent: _Sent, expired: Iterable[pb.Run]) -> None:
        late = set(sent.done).intersection(_leases(expired)).difference(self._repeated)
        self._late += len(late)
        self._repeated.difference_update(sent.done)

    async def extend(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Returns those that are not held any more."""
        lost: list[Lease] = []
        for at in range(0, len(leases), _MAX_SENT):
            some = leases[at : at + _MAX_SENT]
            lost += _leases(await self._settle(_Sent([], [(lease, _milliseconds(seconds)) for lease in some])))
        return lost

    async def flush(self) -> int:
        while self._sender is not None and not self._sender.done():
            await asyncio.wait((self._sender,))
        self.raise_failure()
        late, self._late = self._late, 0
        return late

    def raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    async def _send(self) -> None:
        await asyncio.sleep(0)  # acknowledgements of the same turn of the loop go together
        while self.unsent:
            sent = self.take()
            try:
                self.count_late(sent, await self._settle(sent))
            except SluiceError as error:
                self._failure = error
                return

    async def _settle(self, sent: _Sent) -> Iterable[pb.Run]:
        request = pb.AcknowledgeRequest(
            group=self._group,
            parent=self._parent,
            dead_letters=self._parent is None,
            done=_runs(sent.done),
            again=_postponed(sent.again),
            member=self._member,
        )
        return (await self._connection.call(self._connection.stub.Acknowledge, request)).expired


def _postponed(again: Iterable[tuple[Lease, int | None]]) -> list[pb.Postponed]:
    by_delay: dict[int | None, list[Lease]] = {}
    for lease, delay in again:
        by_delay.setdefault(delay, []).append(lease)
    return [pb.Postponed(run=run, delay_ms=delay) for delay, some in by_delay.items() for run in _runs(some)]


def _leases(runs: Iterable[pb.Run]) -> list[Lease]:
    return [
        Lease(run.partition, offset, run.deliveries)
        for run in runs
        for offset in range(run.offset, run.offset + run.count)
    ]


def _runs(leases: Iterable[Lease]) -> list[pb.Run]:
    """Neighbours together: what is acknowledged at once was mostly received at once."""
    runs: list[pb.Run] = []
    own, first, end, count = -1, 0, 0, 0  # the run so far: partition, offsets [first, end), deliveries
    for partition, offset, deliveries in sorted(leases):
        if offset == end and partition == own and deliveries == count:
            end += 1
            continue
        if end > first:
            runs.append(pb.Run(partition=own, offset=first, count=end - first, deliveries=count))
        own, first, end, count = partition, offset, offset + 1, deliveries
    if end > first:
        runs.append(pb.Run(partition=own, offset=first, count=end - first, deliveries=count))
    return runs


def start_of(start: Start) -> Start:
    """The same. Raises `InvalidArgument` where it is none."""
    if start not in get_args(Start):
        raise InvalidArgument(f"start is one of {', '.join(get_args(Start))}, not {start!r}")
    return start


def check_delay(seconds: float | None) -> None:
    """Raise `InvalidArgument` unless the wire takes this for a delay."""
    if seconds is not None and not 0 <= seconds < _LONGEST_DELAY_S:
        raise InvalidArgument(f"a delay of {seconds} s is negative or too long")


def _milliseconds(seconds: float) -> int:
    check_delay(seconds)
    return int(seconds * 1_000)
