"""The blocking client, its idempotent producer and its transactions."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Unpack
from weakref import WeakSet

from cloud_sdk import client as aio
from cloud_sdk import transactions as aio_transaction
from cloud_sdk.blocking.consumers import PullConsumer, PushConsumer, SimpleConsumer
from cloud_sdk.blocking.loop_thread import LoopThread
from cloud_sdk.consumer_options import (
    BroadcastOptions,
    ConsumerOptions,
    PullOptions,
    PushOptions,
    ReadOptions,
    SelectionOptions,
    Start,
)
from cloud_sdk.errors import ClientClosed
from cloud_sdk.message import (
    Batch,
    Child,
    Group,
    Message,
    OutgoingMessage,
    PartitionBounds,
    Receipt,
    SendOptions,
    Timer,
)
from cloud_sdk.producing import idempotent_producer as aio_idempotent
from cloud_sdk.trace import TraceEvent
from cloud_sdk.transactions import Decision
from cloud_sdk.transport.security import Credentials, Tls


class Client:
    """See `cloud_sdk.Client`. Every call blocks until it has its answer."""

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
        self._options = endpoint, name, retry_seconds, linger_seconds, credentials, tls
        self._lock = threading.Lock()
        self._open: tuple[int, LoopThread, aio.Client] | None = None  # the id of the process that opened it comes first
        self._closed = False
        self._closing = threading.Lock()  # one thread closes the client, and others wait
        self._consumers: WeakSet[SimpleConsumer] = WeakSet()

    def __enter__(self) -> "Client":
        return self

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

    def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """See `cloud_sdk.Client.send`. A single thread waits for one commit per message: prefer `send_many`."""
        return self.send_many((OutgoingMessage(topic, payload, **options),))[0]

    def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """See `cloud_sdk.Client.send_many`."""
        thread, client = self._running()
        return thread.run(client.send_many(messages))

    def idempotent_producer(self, name: str, number: int) -> "IdempotentProducer":
        """See `cloud_sdk.Client.idempotent_producer`."""
        thread, client = self._running()
        return IdempotentProducer(thread, client.idempotent_producer(name, number))

    def forget_producer(self, name: str) -> None:
        """See `cloud_sdk.Client.forget_producer`."""
        thread, client = self._running()
        thread.run(client.forget_producer(name))

    def transaction(self) -> "Transaction":
        """See `cloud_sdk.Client.transaction`."""
        thread, client = self._running()
        return Transaction(thread, client.transaction())

    def transaction_checks(self, checker: Callable[[Message], Decision]) -> "TransactionChecks":
        """See `cloud_sdk.Client.transaction_checks`. The checker is called in a thread of its own."""
        thread, client = self._running()
        executor = ThreadPoolExecutor(1, "sluice-checker")

        async def check(message: Message) -> Decision:
            call = partial(copy_context().run, checker, message)  # with the mark of `cloud_sdk.lifetime.closing`
            return await asyncio.get_running_loop().run_in_executor(executor, call)

        return TransactionChecks(thread, client.transaction_checks(check), executor)

    def recall(self, positions: Iterable[int]) -> list[int]:
        """See `cloud_sdk.Client.recall`."""
        thread, client = self._running()
        return thread.run(client.recall(positions))

    def timers(self, *, limit: int = 1000) -> list[Timer]:
        """See `cloud_sdk.Client.timers`."""
        thread, client = self._running()
        return thread.run(client.timers(limit=limit))

    def consumer(self, group: str, parent: str, **options: Unpack[ConsumerOptions]) -> SimpleConsumer:
        """See `cloud_sdk.Client.consumer`."""
        thread, client = self._running()
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
        thread, client = self._running()
        executor = ThreadPoolExecutor(concurrency, "sluice-handler")

        async def handle(delivery: Message) -> None:
            call = partial(copy_context().run, handler, delivery)  # with the mark of `cloud_sdk.lifetime.closing`
            await asyncio.get_running_loop().run_in_executor(executor, call)

        consumer = client.push_consumer(group, parent, handle, concurrency=concurrency, **options)
        return PushConsumer(thread, consumer, executor)

    def pull_consumer(self, parent: str, **options: Unpack[PullOptions]) -> PullConsumer:
        """See `cloud_sdk.Client.pull_consumer`."""
        thread, client = self._running()
        return PullConsumer(thread, client.pull_consumer(parent, **options))

    def broadcast_consumer(
        self, parent: str, handler: Callable[[Message], None], **options: Unpack[BroadcastOptions]
    ) -> PushConsumer:
        """See `cloud_sdk.Client.broadcast_consumer`. The handler is called in a thread of its own."""
        thread, client = self._running()
        executor = ThreadPoolExecutor(1, "sluice-handler")

        async def handle(message: Message) -> None:
            call = partial(copy_context().run, handler, message)  # with the mark of `cloud_sdk.lifetime.closing`
            await asyncio.get_running_loop().run_in_executor(executor, call)

        return PushConsumer(thread, client.broadcast_consumer(parent, handle, **options), executor)

    def dead_letters(self, group: str, *, max_records: int = 256, invisible_seconds: float = 30.0) -> SimpleConsumer:
        """See `cloud_sdk.Client.dead_letters`."""
        thread, client = self._running()
        consumer = client.dead_letters(group, max_records=max_records, invisible_seconds=invisible_seconds)
        return self._registered(SimpleConsumer(thread, consumer))

    def groups(self) -> list[Group]:
        """See `cloud_sdk.Client.groups`."""
        thread, client = self._running()
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
        thread, client = self._running()
        thread.run(client.reset_group(group, parent, start=start, time_ms=time_ms, offsets=offsets))

    def remove_group(self, group: str) -> None:
        """See `cloud_sdk.Client.remove_group`."""
        thread, client = self._running()
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
        **options: Unpack[ReadOptions],
    ) -> Batch:
        """See `cloud_sdk.Client.pull`."""
        thread, client = self._running()
        return thread.run(
            client.pull(
                parent,
                partition,
                offset,
                max_records=max_records,
                max_bytes=max_bytes,
                wait_seconds=wait_seconds,
                **options,
            )
        )

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
        thread, client = self._running()
        return thread.start(
            client.pull(parent, partition, offset, max_records=max_records, max_bytes=max_bytes, **options)
        )

    def commit_offsets(self, group: str, parent: str, offsets: Mapping[int, int]) -> None:
        """See `cloud_sdk.Client.commit_offsets`."""
        thread, client = self._running()
        thread.run(client.commit_offsets(group, parent, offsets))

    def committed_offsets(self, group: str, parent: str) -> dict[int, int]:
        """See `cloud_sdk.Client.committed_offsets`."""
        thread, client = self._running()
        return thread.run(client.committed_offsets(group, parent))

    def partitions(self, parent: str) -> list[PartitionBounds]:
        """See `cloud_sdk.Client.partitions`."""
        thread, client = self._running()
        return thread.run(client.partitions(parent))

    def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
        """See `cloud_sdk.Client.offset_at`."""
        thread, client = self._running()
        return thread.run(client.offset_at(parent, partition, time_ms))

    def parents(self) -> list[str]:
        """See `cloud_sdk.Client.parents`."""
        thread, client = self._running()
        return thread.run(client.parents())

    def children(self, above: str = "", *, after: str | None = None, limit: int = 1000) -> list[Child]:
        """See `cloud_sdk.Client.children`."""
        thread, client = self._running()
        return thread.run(client.children(above, after=after, limit=limit))

    def topics(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> list[str]:
        """See `cloud_sdk.Client.topics`."""
        thread, client = self._running()
        return thread.run(client.topics(prefix, after=after, limit=limit))

    def find(self, parent: str, *, key: str, after: int | None = None, limit: int = 100) -> list[Message]:
        """See `cloud_sdk.Client.find`."""
        thread, client = self._running()
        return thread.run(client.find(parent, key=key, after=after, limit=limit))

    def message(self, position: int) -> Message:
        """See `cloud_sdk.Client.message`."""
        thread, client = self._running()
        return thread.run(client.message(position))

    def find_between(
        self, parent: str, from_ms: int, until_ms: int, *, limit: int = 100, **selection: Unpack[SelectionOptions]
    ) -> list[Message]:
        """See `cloud_sdk.Client.find_between`."""
        thread, client = self._running()
        return thread.run(client.find_between(parent, from_ms, until_ms, limit=limit, **selection))

    def trace(self, position: int) -> list[TraceEvent]:
        """See `cloud_sdk.Client.trace`."""
        thread, client = self._running()
        return thread.run(client.trace(position))

    def request(
        self,
        topic: str,
        payload: bytes,
        *,
        timeout: float = 10.0,
        reply_topic: str | None = None,
        **options: Unpack[SendOptions],
    ) -> Message:
        """See `cloud_sdk.Client.request`."""
        thread, client = self._running()
        return thread.run(client.request(topic, payload, timeout=timeout, reply_topic=reply_topic, **options))

    def _release_buffered(self) -> None:
        """Release the messages that consumers have received and not returned."""
        for consumer in list(self._consumers):
            consumer.release_buffered()

    def _registered(self, consumer: SimpleConsumer) -> SimpleConsumer:
        self._consumers.add(consumer)
        return consumer

    def _running(self) -> tuple[LoopThread, aio.Client]:
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


class IdempotentProducer:
    """See `cloud_sdk.IdempotentProducer`: a context manager."""

    def __init__(self, thread: LoopThread, producer: aio_idempotent.IdempotentProducer) -> None:
        self._thread = thread
        self._producer = producer

    def __enter__(self) -> "IdempotentProducer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._producer.__aexit__(kind, error, trace))

    def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """See `cloud_sdk.IdempotentProducer.send_many`."""
        return self._thread.run(self._producer.send_many(messages))

    def close(self) -> None:
        """See `cloud_sdk.IdempotentProducer.close`."""
        self._thread.run(self._producer.close())


class Transaction:
    """See `cloud_sdk.Transaction`: a context manager that commits at the end of its block."""

    def __init__(self, thread: LoopThread, transaction: aio_transaction.Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))

    @property
    def handles(self) -> Sequence[int]:
        """See `cloud_sdk.Transaction.handles`."""
        return self._transaction.handles

    def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """See `cloud_sdk.Transaction.send`."""
        return self._thread.run(self._transaction.send(topic, payload, **options))

    def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """See `cloud_sdk.Transaction.send_many`."""
        return self._thread.run(self._transaction.send_many(messages))

    def commit(self) -> None:
        """See `cloud_sdk.Transaction.commit`."""
        self._thread.run(self._transaction.commit())

    def rollback(self) -> None:
        """See `cloud_sdk.Transaction.rollback`."""
        self._thread.run(self._transaction.rollback())


class TransactionChecks:
    """See `cloud_sdk.TransactionChecks`."""

    def __init__(
        self, thread: LoopThread, checks: aio_transaction.TransactionChecks, executor: ThreadPoolExecutor
    ) -> None:
        self._thread = thread
        self._checks = checks
        self._executor = executor

    def __enter__(self) -> "TransactionChecks":
        self._thread.run(self._checks.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """See `cloud_sdk.TransactionChecks.close`."""
        with suppress(ClientClosed):  # the client has closed it
            self._thread.run(self._checks.close())
        self._executor.shutdown(wait=not self._checks.is_called_from_handler)
