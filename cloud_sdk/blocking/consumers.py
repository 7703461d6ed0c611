"""Blocking consumers. The classes of `cloud_sdk` with the same names document them."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from cloud_sdk.blocking.calls import ClosablePart, HandlingPart, blocking
from cloud_sdk.blocking.loop_thread import LoopThread
from cloud_sdk.consuming import broadcast_consumer as aio_broadcast
from cloud_sdk.consuming import pull_consumer as aio_pull
from cloud_sdk.errors import ClientClosed, check_delay
from cloud_sdk.groups import push_consumer as aio_push
from cloud_sdk.groups import simple_consumer as aio_consumer
from cloud_sdk.groups.leases import Lease
from cloud_sdk.message import Message

_POLL_S: Final = 5.0  # how long an iterator waits at once, so that Ctrl-C is handled


class Delivery(Message):
    """See `cloud_sdk.Delivery`."""

    __slots__ = ("_consumer", "dead_letter", "deliveries")

    def __init__(self, delivery: aio_consumer.Delivery, consumer: "SimpleConsumer") -> None:
        for name in Message.__slots__:
            setattr(self, name, getattr(delivery, name))
        self.deliveries = delivery.deliveries
        self.dead_letter = delivery.dead_letter
        self._consumer = consumer

    @property
    def lease(self) -> Lease:
        """See `cloud_sdk.Delivery.lease`."""
        return Lease(self.partition, self.offset, self.deliveries)

    def ack(self) -> None:
        """See `SimpleConsumer.ack`."""
        self._consumer.ack((self,))

    def release(self) -> None:
        """See `SimpleConsumer.release`."""
        self._consumer.release((self,))

    def nack(self, delay_seconds: float | None = None, error: str = "", *, last: bool = False) -> None:
        """See `SimpleConsumer.nack`."""
        self._consumer.nack((self,), delay_seconds, error, last=last)

    def extend(self, seconds: float) -> bool:
        """See `cloud_sdk.Delivery.extend`."""
        return not self._consumer.extend((self,), seconds)


class SimpleConsumer(ClosablePart[aio_consumer.SimpleConsumer]):
    """See `cloud_sdk.SimpleConsumer`: a context manager and an endless iterator of `Delivery`. For one
    thread at a time."""

    flush = blocking(aio_consumer.SimpleConsumer.flush)

    def __init__(self, thread: LoopThread, inner: aio_consumer.SimpleConsumer) -> None:
        super().__init__(thread, inner)
        self._buffer: deque[Delivery] = deque()
        self._buffer_until = 0.0  # `time.monotonic` at which its leases expire

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while True:
            delivery = self.next(_POLL_S)
            if delivery is not None:
                return delivery

    def next(self, wait_seconds: float) -> Delivery | None:
        """See `cloud_sdk.SimpleConsumer.next`."""
        if not self._has_buffered:
            self._buffer.extend(self._receive(wait_seconds))
        return self._buffer.popleft() if self._buffer else None

    def batch(self, wait_seconds: float = _POLL_S) -> list[Delivery]:
        """See `cloud_sdk.SimpleConsumer.batch`."""
        if not self._has_buffered:
            return self._receive(wait_seconds)
        deliveries = list(self._buffer)
        self._buffer.clear()
        return deliveries

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """See `cloud_sdk.SimpleConsumer.ack`. Returns at once."""
        self._settle([delivery.lease for delivery in deliveries], (), 0.0)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """See `cloud_sdk.SimpleConsumer.release`."""
        self._settle((), [delivery.lease for delivery in deliveries], 0.0)

    def nack(
        self, deliveries: Iterable[Delivery], delay_seconds: float | None = None, error: str = "", *, last: bool = False
    ) -> None:
        """See `cloud_sdk.SimpleConsumer.nack`."""
        self._settle((), [delivery.lease for delivery in deliveries], delay_seconds, error, last)

    def extend(self, deliveries: Iterable[Delivery], seconds: float) -> list[Delivery]:
        """See `cloud_sdk.SimpleConsumer.extend`."""
        deliveries = list(deliveries)
        lost = set(self._thread.run(self._inner.extend_leases([delivery.lease for delivery in deliveries], seconds)))
        return [delivery for delivery in deliveries if delivery.lease in lost]

    def close(self) -> None:
        """See `cloud_sdk.SimpleConsumer.close`."""
        with suppress(ClientClosed):  # the client has closed it
            self.release_buffered()
        super().close()

    def release_buffered(self) -> None:
        """Release the messages that were received and not returned."""
        leases = [delivery.lease for delivery in self._buffer]
        self._buffer.clear()
        self._thread.call_soon(lambda: self._inner.give_back_unseen(leases))

    @property
    def _has_buffered(self) -> bool:
        """Whether there is a buffered message whose lease lasts. Expired ones are dropped, and come again."""
        if time.monotonic() >= self._buffer_until:
            self._buffer.clear()
        return bool(self._buffer)

    def _receive(self, wait_seconds: float) -> list[Delivery]:
        deliveries, left_s = self._thread.run(self._inner.batch_with_expiry(wait_seconds))
        self._buffer_until = time.monotonic() + left_s
        return [Delivery(each, self) for each in deliveries]

    def _settle(
        self,
        done: Sequence[Lease],
        again: Sequence[Lease],
        delay_seconds: float | None,
        error: str = "",
        is_last: bool = False,
    ) -> None:
        check_delay(delay_seconds)
        self._thread.call_soon(lambda: self._inner.settle(done, again, delay_seconds, error, is_last=is_last))


class PullConsumer(ClosablePart[aio_pull.PullConsumer]):
    """See `cloud_sdk.PullConsumer`: a context manager and an endless iterator of `Message`. For one
    thread at a time."""

    positions = blocking(aio_pull.PullConsumer.positions)
    seek = blocking(aio_pull.PullConsumer.seek)
    seek_to_time = blocking(aio_pull.PullConsumer.seek_to_time)
    seek_to = blocking(aio_pull.PullConsumer.seek_to)
    skip_gone = blocking(aio_pull.PullConsumer.skip_gone)
    lag = blocking(aio_pull.PullConsumer.lag)
    commit = blocking(aio_pull.PullConsumer.commit)

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield from self.poll(_POLL_S)

    def poll(self, wait_seconds: float = _POLL_S) -> list[Message]:
        """See `cloud_sdk.PullConsumer.poll`."""
        return self._thread.run(self._inner.poll(wait_seconds))


class PushConsumer(HandlingPart[aio_push.PushConsumer | aio_broadcast.BroadcastConsumer]):
    """See `cloud_sdk.PushConsumer` and `cloud_sdk.BroadcastConsumer`: a context manager that calls the handler in
    threads of its own."""

    def wait(self) -> None:
        """See `cloud_sdk.PushConsumer.wait`."""
        self._thread.run(self._inner.wait())
