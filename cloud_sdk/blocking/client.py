"""The blocking client, its idempotent producer and its transactions."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Unpack
from weakref import WeakSet

from cloud_sdk import buckets as aio_buckets
from cloud_sdk import client as aio
from cloud_sdk import transactions as aio_transaction
from cloud_sdk.blocking.calls import Blocking, BlockingPart, HandlingPart, blocking, in_threads
from cloud_sdk.blocking.consumers import PullConsumer, PushConsumer, SimpleConsumer
from cloud_sdk.blocking.loop_thread import LoopThread
from cloud_sdk.consumer_options import (
    BroadcastOptions,
    ConsumerOptions,
    PullOptions,
    PushOptions,
    ReadOptions,
)
from cloud_sdk.errors import ClientClosed
from cloud_sdk.message import (
    Batch,
    Message,
    OutgoingMessage,
    Receipt,
    SendOptions,
)
from cloud_sdk.producing import idempotent_producer as aio_idempotent
from cloud_sdk.transactions import Decision
from cloud_sdk.transport.security import Credentials, Tls


class Client(Blocking[aio.Client]):
    """See `cloud_sdk.Client`. Every call blocks until it has its answer."""

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
        self._options = endpoint, name, retry_seconds, linger_seconds, credentials, tls
        self._lock = threading.Lock()
        self._open: tuple[int, LoopThread, aio.Client] | None = None  # the id of the process that opened it comes first
        self._closed = False
        self._closing = threading.Lock()  # one thread closes the client, and others wait
        self._consumers: WeakSet[SimpleConsumer] = WeakSet()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, timeout: float | None = None) -> None:
        """See `cloud_sdk.Client.close`. A handler that runs longer than `timeout` continues in its thread, which cannot
        be stopped. Its message is given back."""
        with self._lock:
            opened = self._open
            if opened is None or opened[0] != os.getpid():
                self._open, self._closed = None, True
                return
        _, thread, client = opened
        if client.is_called_from_handler:
            self._release_buffered()
            thread.run(client.close(timeout=timeout))
            threading.Thread(target=self._end, args=(timeout,), name="sluice-closing").start()
        else:
            self._end(timeout)

    def _end(self, timeout: float | None) -> None:
        with self._closing:
            opened = self._open
            if opened is None:
                return
            _, thread, client = opened
            self._release_buffered()
            try:
                thread.run(client.close(timeout=timeout))
            finally:
                with self._lock:
                    self._open, self._closed = None, True
                thread.stop()

    send_many = blocking(aio.Client.send_many)
    forget_producer = blocking(aio.Client.forget_producer)
    recall = blocking(aio.Client.recall)
    timers = blocking(aio.Client.timers)
    groups = blocking(aio.Client.groups)
    reset_group = blocking(aio.Client.reset_group)
    remove_group = blocking(aio.Client.remove_group)
    pull = blocking(aio.Client.pull)
    commit_offsets = blocking(aio.Client.commit_offsets)
    committed_offsets = blocking(aio.Client.committed_offsets)
    partitions = blocking(aio.Client.partitions)
    offset_at = blocking(aio.Client.offset_at)
    parents = blocking(aio.Client.parents)
    children = blocking(aio.Client.children)
    topics = blocking(aio.Client.topics)
    find = blocking(aio.Client.find)
    message = blocking(aio.Client.message)
    find_between = blocking(aio.Client.find_between)
    trace = blocking(aio.Client.trace)
    request = blocking(aio.Client.request)

    def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """See `cloud_sdk.Client.send`. A single thread waits for one commit per message: prefer `send_many`."""
        return self.send_many((OutgoingMessage(topic, payload, **options),))[0]

    def idempotent_producer(self, name: str, number: int) -> "IdempotentProducer":
        """See `cloud_sdk.Client.idempotent_producer`."""
        thread, client = self._opened()
        return IdempotentProducer(thread, client.idempotent_producer(name, number))

    def transaction(self) -> "Transaction":
        """See `cloud_sdk.Client.transaction`."""
        thread, client = self._opened()
        return Transaction(thread, client.transaction())

    def transaction_checks(self, checker: Callable[[Message], Decision]) -> "TransactionChecks":
        """See `cloud_sdk.Client.transaction_checks`. The checker is called in a thread of its own."""
        thread, client = self._opened()
        executor = ThreadPoolExecutor(1, "sluice-checker")
        return TransactionChecks(thread, client.transaction_checks(in_threads(checker, executor)), executor)

    def consumer(self, group: str, parent: str, **options: Unpack[ConsumerOptions]) -> SimpleConsumer:
        """See `cloud_sdk.Client.consumer`."""
        thread, client = self._opened()
        return self._registered(SimpleConsumer(thread, client.consumer(group, parent, **options)))

    def push_consumer(
        self,
        group: str,
        parent: str,
        handler: Callable[[Message], None],
        *,
        concurrency: int = 16,
        **options: Unpack[PushOptions],
    ) -> PushConsumer:
        """See `cloud_sdk.Client.push_consumer`. The handler is called in up to `concurrency` threads."""
        thread, client = self._opened()
        executor = ThreadPoolExecutor(concurrency, "sluice-handler")
        handle = in_threads(handler, executor)
        consumer = client.push_consumer(group, parent, handle, concurrency=concurrency, **options)
        return PushConsumer(thread, consumer, executor)

    def pull_consumer(self, parent: str, **options: Unpack[PullOptions]) -> PullConsumer:
        """See `cloud_sdk.Client.pull_consumer`."""
        thread, client = self._opened()
        return PullConsumer(thread, client.pull_consumer(parent, **options))

    def broadcast_consumer(
        self, parent: str, handler: Callable[[Message], None], **options: Unpack[BroadcastOptions]
    ) -> PushConsumer:
        """See `cloud_sdk.Client.broadcast_consumer`. The handler is called in a thread of its own."""
        thread, client = self._opened()
        executor = ThreadPoolExecutor(1, "sluice-handler")
        consumer = client.broadcast_consumer(parent, in_threads(handler, executor), **options)
        return PushConsumer(thread, consumer, executor)

    def dead_letters(self, group: str, *, max_records: int = 256, invisible_seconds: float = 30.0) -> SimpleConsumer:
        """See `cloud_sdk.Client.dead_letters`."""
        thread, client = self._opened()
        consumer = client.dead_letters(group, max_records=max_records, invisible_seconds=invisible_seconds)
        return self._registered(SimpleConsumer(thread, consumer))

    def bucket(self, name: str) -> "Bucket":
        """See `cloud_sdk.Client.bucket`."""
        thread, client = self._opened()
        return Bucket(thread, client.bucket(name))

    def pull_ahead(
        self,
        parent: str,
        partition: int,
        offset: int,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        **options: Unpack[ReadOptions],
    ) -> "Future[Batch]":
        """Start a `pull` and return its future, so that the caller can work meanwhile."""
        thread, client = self._opened()
        return thread.start(
            client.pull(parent, partition, offset, max_records=max_records, max_bytes=max_bytes, **options)
        )

    def _release_buffered(self) -> None:
        """Release the messages that consumers have received and not returned."""
        for consumer in list(self._consumers):
            consumer.release_buffered()

    def _registered(self, consumer: SimpleConsumer) -> SimpleConsumer:
        self._consumers.add(consumer)
        return consumer

    def _opened(self) -> tuple[LoopThread, aio.Client]:
        """Return the loop thread and the asyncio client, which the first call starts. Raises `ClientClosed`."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed")
            if self._open is not None and self._open[0] != os.getpid():
                raise ClientClosed("this client was used before the process forked, and gRPC does not survive that")
            if self._open is None:
                endpoint, name, retry_seconds, linger_seconds, credentials, tls = self._options
                client = aio.Client(
                    endpoint,
                    name=name,
                    retry_seconds=retry_seconds,
                    linger_seconds=linger_seconds,
                    credentials=credentials,
                    tls=tls,
                )
                self._open = os.getpid(), LoopThread(), client
            return self._open[1], self._open[2]


class Bucket(BlockingPart[aio_buckets.Bucket]):
    """See `cloud_sdk.Bucket`."""

    get = blocking(aio_buckets.Bucket.get)
    put = blocking(aio_buckets.Bucket.put)
    remove = blocking(aio_buckets.Bucket.remove)
    page = blocking(aio_buckets.Bucket.page)
    changes = blocking(aio_buckets.Bucket.changes)

    @property
    def name(self) -> str:
        """See `cloud_sdk.Bucket`."""
        return self._inner.name

    def entries(self, prefix: str = "") -> Iterator[aio_buckets.Entry]:
        """See `cloud_sdk.Bucket.entries`."""
        after: str | None = None
        while True:
            page, after = self.page(prefix, after=after)
            yield from page
            if after is None:
                return


class IdempotentProducer(BlockingPart[aio_idempotent.IdempotentProducer]):
    """See `cloud_sdk.IdempotentProducer`: a context manager."""

    __exit__ = blocking(aio_idempotent.IdempotentProducer.__aexit__)
    send_many = blocking(aio_idempotent.IdempotentProducer.send_many)
    close = blocking(aio_idempotent.IdempotentProducer.close)


class Transaction(BlockingPart[aio_transaction.Transaction]):
    """See `cloud_sdk.Transaction`: a context manager that commits at the end of its block."""

    __exit__ = blocking(aio_transaction.Transaction.__aexit__)
    send = blocking(aio_transaction.Transaction.send)
    send_many = blocking(aio_transaction.Transaction.send_many)
    commit = blocking(aio_transaction.Transaction.commit)
    rollback = blocking(aio_transaction.Transaction.rollback)

    @property
    def handles(self) -> Sequence[int]:
        """See `cloud_sdk.Transaction.handles`."""
        return self._inner.handles


class TransactionChecks(HandlingPart[aio_transaction.TransactionChecks]):
    """See `cloud_sdk.TransactionChecks`."""
