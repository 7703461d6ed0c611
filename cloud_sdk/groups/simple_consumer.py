"""A group member that leases messages, returns them one by one, and acknowledges in the background.

Delivery is at least once. A message that is not acknowledged (the member died, the lease ran out) comes again, to any
member of the group. After too many deliveries it becomes a dead letter. What the node answered survives its crash: an
acknowledged message does not come again, even while older ones are not acknowledged. Members share the messages of
every partition, so the order of a partition holds only while the group has one member, or if the group is *ordered*.
Then the node hands out nothing of an ordering key (or topic, without a key) while an older message of it is leased or
waits to come again.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import record
from cloud_sdk.consumer_options import Start, checked_start
from cloud_sdk.dead_letter import DeadLetter, DeadLetterReason
from cloud_sdk.errors import ClientClosed, InvalidArgument, as_invalid_argument, require_positive
from cloud_sdk.groups.leases import Lease
from cloud_sdk.groups.member_stream import MemberStream
from cloud_sdk.lifetime.closing import Closable, create_closing_task, wait_for_close
from cloud_sdk.lifetime.open_resources import OpenResources
from cloud_sdk.message import Message, RecordFields
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.transport.connection import NodeConnection

_WAIT_S: Final = 20.0  # how long one Receive waits at the end
_SAFE_SHARE: Final = 0.9  # of a lease; later, a buffered message is dropped and comes again


class Delivery(Message):
    """A message that is leased to this member. Acknowledge it when it is handled."""

    __slots__ = ("_consumer", "dead_letter", "deliveries")

    _consumer: "SimpleConsumer"
    deliveries: int  # how often the message was leased out, to any member, this time included
    dead_letter: DeadLetter | None  # where it came from and why, if `Client.dead_letters` receives it

    def __init__(
        self, fields: RecordFields, partition: int, offset: int, deliveries: int, consumer: "SimpleConsumer"
    ) -> None:
        super().__init__(fields, partition, offset)
        self.deliveries = deliveries
        self.dead_letter = None
        self._consumer = consumer

    @property
    def lease(self) -> Lease:
        """The lease of this delivery. Another delivery of the same message has another one."""
        return Lease(self.partition, self.offset, self.deliveries)

    async def ack(self) -> None:
        """See `SimpleConsumer.ack`."""
        self._consumer.settle((self.lease,))

    async def release(self) -> None:
        """See `SimpleConsumer.release`."""
        self._consumer.settle((), (self.lease,))

    async def nack(self, delay_seconds: float | None = None, error: str = "", *, last: bool = False) -> None:
        """See `SimpleConsumer.nack`."""
        self._consumer.settle((), (self.lease,), delay_seconds, error, is_last=last)

    async def extend(self, seconds: float) -> bool:
        """See `SimpleConsumer.extend`. False: the lease had expired, and the message is leased to another member or
        finished."""
        return not await self._consumer.extend((self,), seconds)


class SimpleConsumer(Closable):
    """An async context manager and an endless async iterator of `Delivery`. For one task at a time.

    A cancelled wait loses nothing. Messages that arrive all the same are returned by the next wait, as long as their
    lease lasts.
    """

    def __init__(
        self,
        connection: NodeConnection,
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
            raise InvalidArgument(f"invisible_seconds is more than 0, not {invisible_seconds}")
        self._group = group
        self._invisible_s = invisible_seconds
        self._buffer: deque[Delivery] = deque()  # received, not yet returned to the caller
        self._buffer_until = 0.0  # loop time when their lease runs out
        with as_invalid_argument():
            request = pb.ReceiveRequest(
                group=group,
                parent=parent,
                dead_letters=parent is None,
                max_records=max_records,
                invisible_ms=int(invisible_seconds * 1_000),
                from_earliest=checked_start(start) == "earliest",
                max_deliveries=max_deliveries,
                selection=selection,
                ordered=ordered,
                member=member,
            )
        self._member = MemberStream(connection, request)
        self._resources: OpenResources | None = connection.resources  # None: its owner closes it
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> "SimpleConsumer":
        return self

    async def __anext__(self) -> Delivery:
        while True:
            delivery = await self.next(_WAIT_S)
            if delivery is not None:
                return delivery

    async def next(self, wait_seconds: float) -> Delivery | None:
        """Return the next message, or None if none came within `wait_seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while True:
            if self._buffer and loop.time() < self._buffer_until:
                return self._buffer.popleft()
            self._buffer.clear()  # their leases run out, and the node hands them out again
            left = until - loop.time()
            await self._receive(min(max(left, 0.0), _WAIT_S))
            if not self._buffer and loop.time() >= until:
                return None

    async def batch(self, wait_seconds: float = _WAIT_S) -> list[Delivery]:
        """Return all messages that are there, at most `max_records`; none if none came within `wait_seconds`."""
        first = await self.next(wait_seconds)
        if first is None:
            return []
        deliveries = [first, *self._buffer]
        self._buffer.clear()
        return deliveries

    async def batch_with_expiry(self, wait_seconds: float) -> tuple[list[Delivery], float]:
        """Return a `batch`, and for how many seconds from now its messages may be used."""
        deliveries = await self.batch(wait_seconds)
        return deliveries, self._buffer_until - asyncio.get_running_loop().time()

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge messages: they are handled, and do not come again.

        Returns at once: acknowledgements are sent in the background, in batches. `flush` waits until the log has them.
        If a batch of them fails, the next `next` or `flush` raises the error, and its messages come again."""
        self.settle([delivery.lease for delivery in deliveries])

    async def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give messages back. They are delivered again at once, to any member. Returns at once, like `ack`."""
        self.settle((), [delivery.lease for delivery in deliveries])

    async def nack(
        self, deliveries: Iterable[Delivery], delay_seconds: float | None = None, error: str = "", *, last: bool = False
    ) -> None:
        """Give back messages that could not be handled. They are delivered again, to any member, after `delay_seconds`,
        or after a delay that grows with their deliveries. If this was their last delivery, or with `last`, they become
        dead letters with `error`, of which 256 bytes are kept. Returns at once, like `ack`. Raises
        `InvalidArgument`."""
        self.settle((), [delivery.lease for delivery in deliveries], delay_seconds, error, is_last=last)

    async def extend(self, deliveries: Iterable[Delivery], seconds: float) -> list[Delivery]:
        """Extend the leases of messages to `seconds` from now. Returns the messages whose lease had expired: they are
        leased to another member, or finished."""
        deliveries = list(deliveries)
        lost = set(await self.extend_leases([delivery.lease for delivery in deliveries], seconds))
        return [delivery for delivery in deliveries if delivery.lease in lost]

    async def extend_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases to `seconds` from now. Returns those that had expired."""
        return await self._member.extend(leases, seconds)

    def settle(
        self,
        done: Iterable[Lease],
        again: Iterable[Lease] = (),
        delay_seconds: float | None = 0.0,
        error: str = "",
        *,
        is_last: bool = False,
    ) -> None:
        """Acknowledge the leases `done`, and give back the leases `again`, as `nack` does. Raises `InvalidArgument`."""
        self._member.settle(done, again, delay_seconds, error=error, is_last=is_last)

    def give_back_unseen(self, leases: Iterable[Lease]) -> None:
        """Give back messages that no handler saw. They come again at once, and this delivery does not count."""
        self._member.settle((), (), 0.0, leases)

    async def flush(self) -> int:
        """Wait until the log has every acknowledgement given so far.

        Returns how many of them, since the last `flush`, came too late: the lease had expired and the message was
        leased out again, so it may be handled twice. If the connection broke, the number may include acknowledgements
        that were in time but were sent twice.
        """
        return await self._member.flush()

    async def close(self) -> None:
        """Give back the messages that were not returned to the caller, and `flush`. Returned messages that are not
        settled stay leased until their lease expires. Closing the client does the same."""
        if self._closing is None:
            self.give_back_unseen([delivery.lease for delivery in self._buffer])
            self._buffer.clear()
            self._closing = create_closing_task(self._end())
        await wait_for_close(self._closing, self._closing.cancel)

    def stop_waiting(self, *, for_node: bool) -> None:
        """Have a running `close` send no more settlements, if `for_node`."""
        if for_node and self._closing is not None:
            self._closing.cancel()

    def hand_over(self) -> OpenResources:
        """Leave it to the caller to close this consumer with the client. Returns the client's open resources."""
        resources, self._resources = self._resources, None
        assert resources is not None
        return resources

    async def _end(self) -> None:
        try:
            await self._member.close()
        finally:
            if self._resources is not None:
                self._resources.discard(self)

    def _dead_letter_of(self, letter: pb.DeadLetter) -> DeadLetter:
        return DeadLetter(
            self._group,
            DeadLetterReason[pb.DeadLetter.Reason.Name(letter.reason)],
            letter.error,
            letter.deliveries,
            letter.queue,
            letter.offset,
            letter.first_ms,
            letter.last_ms,
        )

    async def _receive(self, wait_s: float) -> None:
        if self._closing is not None:
            raise ClientClosed("the consumer is closed")
        if self._resources is not None:
            self._resources.add(self)
        self._member.raise_failure()
        if self._member.must_flush:
            await self._member.flush()
        received = await self._member.receive(wait_s)
        if self._closing is not None:  # `close` gives back what came
            raise ClientClosed("the consumer is closed")
        # The node's clock started a network hop earlier.
        self._buffer_until = received.time + _SAFE_SHARE * self._invisible_s
        rows = iter(record.decode_all(received.frames))
        for run in received.runs:
            partition, deliveries = run.partition, run.deliveries
            offsets = range(run.offset, run.offset + run.count)
            self._buffer += [
                Delivery(fields, partition, offset, deliveries, self)
                for offset, fields in zip(offsets, rows, strict=False)
            ]
        for delivery, letter in zip(self._buffer, received.dead_letters, strict=False):
            delivery.dead_letter = self._dead_letter_of(letter)
