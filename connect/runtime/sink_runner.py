"""Runs a sink task as a member of the group of its connector. Messages are delivered at least once.

The rules of the file:

* A message is acknowledged when `put` has returned, and not before. Whatever else happens, it comes again: to this
  task, or to another member.
* While a task works, the next messages are received. What is in memory has a bound: one put, one batch of each parent
  topic in line, and one on its way.
* Leases of messages that wait for long are extended, so `put` may be repeated for as long as the other system is away.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cloud_sdk import Delivery, SimpleConsumer, SluiceError
from connect.api import DataError, RetriableError, SinkConnector, SinkRecord, SinkTask
from connect.runtime.dead_letters import dead_letter_of, send_dead_letters
from connect.runtime.job import ContextOfSink, Job, Runner, is_transient
from connect.runtime.pipeline import record_of
from connect.runtime.retries import Stopped
from connect.runtime.subscriptions import Subscription, subscriptions_of
from connect.runtime.waiting import first_of

log = logging.getLogger(__name__)

_LEASE_S: Final = 60.0
_EXTEND_S: Final = 15.0  # how often leases are extended
_RECEIVE: Final = 2_000  # messages that are asked for at once, at most
_WAIT_S: Final = 20.0  # for messages
_PAUSE_S: Final = 1.0  # after the node could not be asked for messages


@dataclass(slots=True, eq=False)
class _Batch:
    """Messages that are leased to this task."""

    consumer: SimpleConsumer
    subscription: Subscription
    deliveries: list[Delivery]
    received: float  # loop time
    bytes: int


class SinkContextOfTask(ContextOfSink):
    """Gathers the records that a `put` rejects."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.rejected: list[tuple[SinkRecord, Exception]] = []

    def reject(self, record: SinkRecord, error: Exception) -> None:
        self.rejected.append((record, error))

    async def store_rejected(self) -> None:
        """They are settled after `put`."""

    def take(self) -> dict[int, Exception]:
        """The records that were rejected, by `id`, and why."""
        rejected, self.rejected = self.rejected, []
        return {id(record): error for record, error in rejected}


class SinkRunner(Runner):
    """Runs one sink task."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._context = SinkContextOfTask(job)
        self._most: int = self.common["consumer.override.max.poll.records"]
        self._most_bytes: int = self.common["consumer.override.fetch.max.bytes"]
        self._linger_s: float = self.common["consumer.override.fetch.max.wait.ms"] / 1000
        self._held: set[_Batch] = set()  # received and not settled
        self._line: list[_Batch] = []  # of them, those that wait for a put
        self._came = asyncio.Event()  # a batch came, or receiving failed
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._failure: Exception | None = None  # of receiving, for good

    async def run(self) -> None:
        connector = self.job.configuration.connector
        assert isinstance(connector, SinkConnector)
        try:
            task = await self.started(connector.task, lambda task: task.start(self.job.settings, self._context))
        except Stopped:
            return
        consumers = [(self._consumer(each), each) for each in subscriptions_of(self.common["topics"])]
        helpers = [asyncio.create_task(self._receive(*each)) for each in consumers]
        helpers.append(asyncio.create_task(self._extend()))
        try:
            await self._deliver(task)
        except Stopped:
            return
        finally:
            for helper in helpers:
                helper.cancel()
            for batch in self._held:
                batch.consumer.give_back_unseen([each.lease for each in batch.deliveries])
            try:  # a worker in a hurry cancels one wait after the other
                await asyncio.wait(helpers)
                for consumer, _ in consumers:
                    with suppress(SluiceError):  # what could not be settled comes again
                        await consumer.close()
            finally:
                await self.stopped(task)

    def _consumer(self, subscription: Subscription) -> SimpleConsumer:
        return self.job.client.consumer(
            f"connect-{self.job.id.connector}",
            subscription.parent,
            max_records=min(self._most, _RECEIVE),
            invisible_seconds=_LEASE_S,
            start=self.common["consumer.override.auto.offset.reset"],
            topic_filter=subscription.selected,
        )

    # --- receiving

    async def _receive(self, consumer: SimpleConsumer, subscription: Subscription) -> None:
        """Receive batches while there is room for them."""
        loop = asyncio.get_running_loop()
        while True:
            await self._has_room.wait()
            try:
                deliveries = await consumer.batch(_WAIT_S)
            except Exception as error:  # noqa: BLE001  a task that receives nothing must not seem to run
                if not is_transient(error):
                    self._failure = error
                    self._came.set()
                    return
                self.note_retry(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if deliveries:
                size = sum(len(each.payload) for each in deliveries)
                batch = _Batch(consumer, subscription, deliveries, loop.time(), size)
                self.figures.records_in += len(deliveries)
                self.figures.bytes += size
                self._held.add(batch)
                self._line.append(batch)
                self._came.set()
                self._update_room()

    def _update_room(self) -> None:
        count = sum(len(each.deliveries) for each in self._line)
        if count >= self._most or sum(each.bytes for each in self._line) >= self._most_bytes:
            self._has_room.clear()
        else:
            self._has_room.set()

    async def _extend(self) -> None:
        """Keep the leases of messages that wait for long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_EXTEND_S)
            for batch in [each for each in self._held if loop.time() - each.received >= _EXTEND_S]:
                with suppress(SluiceError):  # then they come again, to this task or to another
                    await batch.consumer.extend_leases([each.lease for each in batch.deliveries], _LEASE_S)

    # --- delivering

    async def _deliver(self, task: SinkTask) -> None:
        while not self.job.stopping.is_set():
            for batches in await self._gathered():
                await self._put(task, batches)

    async def _gathered(self) -> list[list[_Batch]]:
        """Batches for puts: once there is one, those that come while it lingers. Empty: the task is asked to stop."""
        loop = asyncio.get_running_loop()
        until: float | None = None
        while not self.job.stopping.is_set():
            if self._failure is not None:
                raise self._failure
            if self._line and until is None:
                until = loop.time() + self._linger_s
            left = None if until is None else until - loop.time()
            if not self._has_room.is_set() or (left is not None and left <= 0):
                line, self._line = self._line, []
                self._update_room()
                return self._portions(line)
            self._came.clear()
            came = asyncio.ensure_future(self._came.wait())
            await first_of(came, self.job.stopping, left)
            came.cancel()
        return []

    def _portions(self, line: Iterable[_Batch]) -> list[list[_Batch]]:
        """Batches in portions for one put each; one that is too large is cut."""
        portions: list[list[_Batch]] = []
        count = size = 0
        for batch in line:
            for part in self._cut(batch):
                count, size = count + len(part.deliveries), size + part.bytes
                if not portions or count > self._most or size > self._most_bytes:
                    portions.append([])
                    count, size = len(part.deliveries), part.bytes
                portions[-1].append(part)
        return portions

    def _cut(self, batch: _Batch) -> list[_Batch]:
        if len(batch.deliveries) <= self._most and batch.bytes <= self._most_bytes:
            return [batch]
        self._held.discard(batch)
        parts = []
        some: list[Delivery] = []
        size = 0
        for delivery in batch.deliveries:
            if some and (len(some) == self._most or size + len(delivery.payload) > self._most_bytes):
                parts.append(_Batch(batch.consumer, batch.subscription, some, batch.received, size))
                some, size = [], 0
            some.append(delivery)
            size += len(delivery.payload)
        parts.append(_Batch(batch.consumer, batch.subscription, some, batch.received, size))
        self._held.update(parts)
        return parts

    async def _put(self, task: SinkTask, batches: list[_Batch]) -> None:
        """Deliver the messages of batches, and settle them."""
        records: list[SinkRecord] = []
        failed: dict[int, Exception] = {}  # by `id` of the delivery
        by_record: dict[int, Delivery] = {}  # by `id` of the record
        for batch in batches:
            for delivery in batch.deliveries:
                if not batch.subscription.wants(delivery.topic):
                    continue
                try:
                    record = self.pipeline.convert(record_of(delivery, batch.subscription.parent))
                except DataError as error:
                    failed[id(delivery)] = error
                    continue
                if record is None:
                    self.figures.dropped += 1
                else:
                    records.append(record)
                    by_record[id(record)] = delivery
        if records:
            rejected = await self._delivered(task, records)
            failed.update((id(by_record[each]), reason) for each, reason in rejected.items())
            self.figures.records_out += len(records) - len(rejected)
        for batch in batches:
            await self._settle(batch, failed)
        if failed:
            self.raise_unless_tolerated(next(iter(failed.values())))

    async def _delivered(self, task: SinkTask, records: Sequence[SinkRecord]) -> dict[int, Exception]:
        """Call `put` until it returns. Returns the records that were rejected, by `id`."""
        retry = self.retry()
        while True:
            self._context.take()
            try:
                await task.put(records)
                return self._context.take()
            except RetriableError as error:
                self.note_retry(error)
                if not await retry.pause(error):
                    return {id(record): error for record in records}

    async def _settle(self, batch: _Batch, failed: dict[int, Exception]) -> None:
        """Acknowledge what is delivered, and make dead letters of what failed, or give it back."""
        bad = [each for each in batch.deliveries if id(each) in failed]
        for delivery in bad:
            self.note_failed(f"topic {delivery.topic}, position {delivery.position}", failed[id(delivery)])
        done = [each.lease for each in batch.deliveries if id(each) not in failed] if bad else None
        if bad and self.common["errors.tolerance"] == "none":
            batch.consumer.give_back_unseen([each.lease for each in bad])
        elif bad and self.common["errors.deadletterqueue.topic.name"]:
            records = [(record_of(each, batch.subscription.parent), failed[id(each)]) for each in bad]
            await send_dead_letters(self, [dead_letter_of(self.job, *each) for each in records])
            done = None
        else:
            for delivery in bad:
                batch.consumer.settle(
                    (), (delivery.lease,), error=self.figures.text(failed[id(delivery)]), is_last=True
                )
                self.figures.dead += 1
        batch.consumer.settle([each.lease for each in batch.deliveries] if done is None else done)
        self._held.discard(batch)
