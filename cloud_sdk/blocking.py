"""The blocking face of the SDK: the same calls as `cloud_sdk.Client`, for code without an event loop.

A client runs the asyncio client on a loop of its own, in a daemon thread that the first call starts: a client may
be made before a process forks and used after, but a process that has used one must not fork and use one in the
child (gRPC does not survive that). Safe to use from several threads, which then share batches.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, TypeVar

from cloud_sdk import client as aio
from cloud_sdk import consumer as aio_consumer
from cloud_sdk.consumer import Lease, Start, check_delay
from cloud_sdk.errors import ClientClosed
from cloud_sdk.message import Batch, Child, Group, Message, OutgoingMessage, PartitionBounds, Receipt
from cloud_sdk.properties import UserProperties

Result = TypeVar("Result")

_POLL_S: Final = 5.0  # an iterator looks up this often, so that Ctrl-C is heard


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sluice-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[object, object, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # nobody waits for it any more (Ctrl-C)
            raise

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    """End what still runs on the loop, gRPC's own tasks among it: asyncio complains of those that a loop leaves."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Client:
    """See `cloud_sdk.Client`; every call blocks until it has its answer."""

    def __init__(self, endpoint: str, *, name: str | None = None, retry_seconds: float = 30.0) -> None:
        self._endpoint = endpoint
        self._name = name
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._open: tuple[int, _LoopThread, aio.Client] | None = None  # with the process that opened it
        self._closed = False

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what is on its way, then disconnect."""
        with self._lock:
            opened, self._open, self._closed = self._open, None, True
        if opened is not None and opened[0] == os.getpid():
            opened[1].run(opened[2].close())
            opened[1].stop()

    def send(
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
        """See `cloud_sdk.Client.send`. One thread alone waits for one commit per message: use `send_many`."""
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
        return self.send_many((message,))[0]

    def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """See `cloud_sdk.Client.send_many`."""
        thread, client = self._opened()
        return thread.run(client.send_many(messages))

    def consumer(
        self,
        group: str,
        parent: str,
        *,
        max_records: int = 256,
        invisible_seconds: float = 30.0,
        start: Start = "earliest",
        max_deliveries: int = 0,
    ) -> "Consumer":
        """See `cloud_sdk.Client.consumer`."""
        thread, client = self._opened()
        consumer = client.consumer(
            group,
            parent,
            max_records=max_records,
            invisible_seconds=invisible_seconds,
            start=start,
            max_deliveries=max_deliveries,
        )
        return Consumer(thread, consumer)

    def dead_letters(self, group: str, *, max_records: int = 256, invisible_seconds: float = 30.0) -> "Consumer":
        """See `cloud_sdk.Client.dead_letters`."""
        thread, client = self._opened()
        consumer = client.dead_letters(group, max_records=max_records, invisible_seconds=invisible_seconds)
        return Consumer(thread, consumer)

    def groups(self) -> list[Group]:
        """See `cloud_sdk.Client.groups`."""
        thread, client = self._opened()
        return thread.run(client.groups())

    def reset_group(
        self,
        group: str,
        parent: str | None,
        *,
        start: Start = "earliest",
        time_ms: int | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        """See `cloud_sdk.Client.reset_group`."""
        thread, client = self._opened()
        thread.run(client.reset_group(group, parent, start=start, time_ms=time_ms, offsets=offsets))

    def remove_group(self, group: str) -> None:
        """See `cloud_sdk.Client.remove_group`."""
        thread, client = self._opened()
        thread.run(client.remove_group(group))

    def pull(
        self,
        parent: str,
        partition: int,
        offset: int,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
    ) -> Batch:
        """See `cloud_sdk.Client.pull`."""
        thread, client = self._opened()
        return thread.run(
            client.pull(
                parent,
                partition,
                offset,
                max_records=max_records,
                max_bytes=max_bytes,
                wait_seconds=wait_seconds,
            )
        )

    def partitions(self, parent: str) -> list[PartitionBounds]:
        """See `cloud_sdk.Client.partitions`."""
        thread, client = self._opened()
        return thread.run(client.partitions(parent))

    def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
        """See `cloud_sdk.Client.offset_at`."""
        thread, client = self._opened()
        return thread.run(client.offset_at(parent, partition, time_ms))

    def parents(self) -> list[str]:
        """See `cloud_sdk.Client.parents`."""
        thread, client = self._opened()
        return thread.run(client.parents())

    def children(self, above: str = "", *, after: str | None = None, limit: int = 1000) -> list[Child]:
        """See `cloud_sdk.Client.children`."""
        thread, client = self._opened()
        return thread.run(client.children(above, after=after, limit=limit))

    def topics(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> list[str]:
        """See `cloud_sdk.Client.topics`."""
        thread, client = self._opened()
        return thread.run(client.topics(prefix, after=after, limit=limit))

    def find(self, parent: str, *, key: str, after: int | None = None, limit: int = 100) -> list[Message]:
        """See `cloud_sdk.Client.find`."""
        thread, client = self._opened()
        return thread.run(client.find(parent, key=key, after=after, limit=limit))

    def message(self, position: int) -> Message:
        """See `cloud_sdk.Client.message`."""
        thread, client = self._opened()
        return thread.run(client.message(position))

    def request(
        self,
        topic: str,
        payload: bytes,
        *,
        reply_topic: str,
        timeout: float = 10.0,
        content_type: str | None = None,
        properties: UserProperties | None = None,
    ) -> Message:
        """See `cloud_sdk.Client.request`."""
        thread, client = self._opened()
        return thread.run(
            client.request(
                topic,
                payload,
                reply_topic=reply_topic,
                timeout=timeout,
                content_type=content_type,
                properties=properties,
            )
        )

    def _opened(self) -> tuple[_LoopThread, aio.Client]:
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            if self._open is not None and self._open[0] != os.getpid():
                raise ClientClosed("this client was used before the process forked, which gRPC does not survive")
            if self._open is None:
                client = aio.Client(self._endpoint, name=self._name, retry_seconds=self._retry_seconds)
                self._open = os.getpid(), _LoopThread(), client
            return self._open[1], self._open[2]


class Delivery(Message):
    """See `cloud_sdk.Delivery`."""

    __slots__ = ("_consumer", "deliveries")

    def __init__(self, delivery: aio_consumer.Delivery, consumer: "Consumer") -> None:
        for name in Message.__slots__:
            setattr(self, name, getattr(delivery, name))
        self.deliveries = delivery.deliveries
        self._consumer = consumer

    @property
    def lease(self) -> Lease:
        """See `cloud_sdk.Delivery.lease`."""
        return Lease(self.partition, self.offset, self.deliveries)

    def ack(self) -> None:
        """See `Consumer.ack`."""
        self._consumer.ack((self,))

    def release(self) -> None:
        """See `Consumer.release`."""
        self._consumer.release((self,))

    def nack(self, delay_seconds: float | None = None) -> None:
        """See `Consumer.nack`."""
        self._consumer.nack((self,), delay_seconds)

    def extend(self, seconds: float) -> bool:
        """See `cloud_sdk.Delivery.extend`."""
        return not self._consumer.extend((self,), seconds)


class Consumer:
    """See `cloud_sdk.Consumer`: a context manager and an endless iterator of `Delivery`. For one thread at a time."""

    def __init__(self, thread: _LoopThread, consumer: aio_consumer.Consumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._buffer: deque[Delivery] = deque()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        while True:
            delivery = self.next(_POLL_S)
            if delivery is not None:
                return delivery

    def next(self, wait_seconds: float) -> Delivery | None:
        """The next message, or None when none came within `wait_seconds`."""
        if not self._buffer:
            self._buffer.extend(self.batch(wait_seconds))
        return self._buffer.popleft() if self._buffer else None

    def batch(self, wait_seconds: float = _POLL_S) -> list[Delivery]:
        """All messages at hand, at most `max_records`; empty when none came within `wait_seconds`."""
        if self._buffer:
            deliveries = list(self._buffer)
            self._buffer.clear()
            return deliveries
        return [Delivery(each, self) for each in self._thread.run(self._consumer.batch(wait_seconds))]

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """The work on these is done. Returns at once, see `cloud_sdk.Consumer.ack`."""
        self._settle([delivery.lease for delivery in deliveries], (), 0.0)

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Give messages back: they are delivered again at once, to any member."""
        self._settle((), [delivery.lease for delivery in deliveries], 0.0)

    def nack(self, deliveries: Iterable[Delivery], delay_seconds: float | None = None) -> None:
        """See `cloud_sdk.Consumer.nack`."""
        self._settle((), [delivery.lease for delivery in deliveries], delay_seconds)

    def extend(self, deliveries: Iterable[Delivery], seconds: float) -> list[Delivery]:
        """See `cloud_sdk.Consumer.extend`."""
        deliveries = list(deliveries)
        lost = set(self._thread.run(self._consumer.keep([delivery.lease for delivery in deliveries], seconds)))
        return [delivery for delivery in deliveries if delivery.lease in lost]

    def flush(self) -> int:
        """See `cloud_sdk.Consumer.flush`."""
        return self._thread.run(self._consumer.flush())

    def close(self) -> None:
        """See `cloud_sdk.Consumer.close`."""
        self.release(self._buffer)
        self._buffer.clear()
        self._thread.run(self._consumer.close())

    def _settle(self, done: Sequence[Lease], again: Sequence[Lease], delay_seconds: float | None) -> None:
        check_delay(delay_seconds)
        self._thread.call_soon(lambda: self._consumer.settle(done, again, delay_seconds))
