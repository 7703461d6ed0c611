"""Runs a sink task that stores offsets together with records: it reads partitions by offset, from where the other
system is. The committed offsets of the connector's group follow, so that its lag can be seen.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from cloud_sdk import Message, OffsetOutOfRange, PullConsumer, SluiceError
from connect.api import (
    ConnectError,
    DataError,
    Partition,
    RetriableError,
    SinkConnector,
    SinkRecord,
    TransactionalSinkTask,
)
from connect.runtime.dead_letters import dead_letter_of, send_dead_letters
from connect.runtime.job import ContextOfSink, Runner, is_transient
from connect.runtime.pipeline import record_of
from connect.runtime.retries import Retry, Stopped, sleep
from connect.runtime.subscriptions import Subscription, subscriptions_of

log = logging.getLogger(__name__)

_PUT_S: Final = 1.0  # the longest time between two puts
_ASSIGN_S: Final = 30.0  # how often it is looked for new partitions
_MIRROR_S: Final = 1.0  # how often the offsets of the group are written
_LEAST_READ: Final = 16 << 10  # bytes of one read of a partition, whatever the bound of all
_PAUSE_S: Final = 1.0  # after the node could not be reached


class TransactionalContext(ContextOfSink):
    """Stores rejected records before the task commits."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.job)
        self._runner = runner
        self._rejected: list[tuple[SinkRecord, Exception]] = []

    def reject(self, record: SinkRecord, error: Exception) -> None:
        self._rejected.append((record, error))

    def forget(self) -> None:
        """Drop what was rejected since the last `store_rejected`: it comes again."""
        self._rejected = []

    async def store_rejected(self) -> None:
        rejected, self._rejected = self._rejected, []
        for record, error in rejected:
            self._runner.note_failed(f"topic {record.topic}, position {record.position}", error)
        if rejected:
            self._runner.raise_unless_tolerated(rejected[0][1])
            messages = [dead_letter_of(self._runner.job, *each) for each in rejected]
            await send_dead_letters(self._runner, messages)


@dataclass(slots=True)
class _Reader:
    """Reads the partitions of one parent topic that are this task's."""

    subscription: Subscription
    consumer: PullConsumer
    begins: dict[int, int]  # where each partition begins that the other system does not know
    given: dict[int, int] = field(default_factory=dict)  # behind the last record that `put` was given, by partition
    mirrored: dict[int, int] = field(default_factory=dict)  # the group's offsets
    poll: "asyncio.Task[list[Message]] | None" = None


class TransactionalRunner(Runner):
    """Runs one task."""

    async def run(self) -> None:
        connector = self.job.configuration.connector
        assert isinstance(connector, SinkConnector)
        if self.common["errors.tolerance"] == "all" and not self.common["errors.deadletterqueue.topic.name"]:
            raise ConnectError(
                "errors.tolerance all needs errors.deadletterqueue.topic.name: this connector reads by offset, and its"
                " group has no dead letters"
            )
        self._context = TransactionalContext(self)
        self._group = f"connect-{self.job.id.connector}"
        self._readers: list[_Reader] = []
        self._assigned = self._mirrored = -_ASSIGN_S  # loop time of the last look
        self._share: list[Partition] = []
        self._retry: Retry | None = None  # of the put that failed last
        try:
            task = await self.started(connector.task, lambda task: task.start(self.job.settings, self._context))
        except Stopped:
            return
        assert isinstance(task, TransactionalSinkTask)
        try:
            while not self.job.stopping.is_set():
                await self._turn(task)
        except Stopped:
            return
        finally:
            try:  # a worker in a hurry cancels one wait after the other
                await self._close_readers()
            finally:
                await self.stopped(task)

    async def _turn(self, task: TransactionalSinkTask) -> None:
        """Read, put and mirror once. A node that is away is waited for."""
        try:
            await self._assign(task)
            records = self._converted(await self._polled())
            await self._put(task, records)
            await self._mirror(task)
        except SluiceError as error:
            if not is_transient(error):
                raise
            self.note_retry(error)
            await sleep(_PAUSE_S, self.job.stopping)

    # --- partitions

    async def _assign(self, task: TransactionalSinkTask) -> None:
        """Find the partitions of this task, and begin anew if they have changed."""
        now = asyncio.get_running_loop().time()
        if now - self._assigned < _ASSIGN_S:
            return
        subscriptions = subscriptions_of(self.common["topics"])
        share = [
            Partition(each.parent, bounds.partition)
            for each in subscriptions
            for bounds in await self.job.client.partitions(each.parent, topic_filter=each.selected)
            if (crc32(each.parent.encode()) + bounds.partition) % self.job.tasks == self.job.id.number
        ]
        if share != self._share:
            await self._close_readers()
            self._share = []  # if anything below raises, it is done again
            offsets = await self._opened(task, share)
            for each in subscriptions:
                partitions = [partition.number for partition in share if partition.parent == each.parent]
                if partitions:
                    self._readers.append(await self._reader(each, partitions, len(share), offsets))
            self._share = share
        self._assigned = now

    async def _reader(
        self, subscription: Subscription, partitions: list[int], count: int, offsets: Mapping[Partition, int]
    ) -> _Reader:
        """count: of all partitions of this task, which share what a put may have."""
        consumer = self.job.client.pull_consumer(
            subscription.parent,
            partitions=partitions,
            group=self._group,
            start=self.common["consumer.override.auto.offset.reset"],
            max_records=max(1, self.common["consumer.override.max.poll.records"] // count),
            max_bytes=max(_LEAST_READ, self.common["consumer.override.fetch.max.bytes"] // count),
            topic_filter=subscription.selected,
        )
        reader = _Reader(subscription, consumer, await consumer.positions())
        await self._seek(reader, offsets)
        return reader

    async def _opened(self, task: TransactionalSinkTask, share: Sequence[Partition]) -> Mapping[Partition, int]:
        self._context.forget()
        retry = self.retry()
        while True:
            try:
                return await task.open(share)
            except RetriableError as error:
                self.note_retry(error)
                if not await retry.pause(error):
                    raise

    async def _seek(self, reader: _Reader, offsets: Mapping[Partition, int]) -> None:
        """Go on where the other system is, or where the partition begins for this connector."""
        parent = reader.subscription.parent
        at = {number: offsets.get(Partition(parent, number), begin) for number, begin in reader.begins.items()}
        reader.given.clear()
        if reader.poll is not None:  # what it has read is behind the new place
            await _cancelled(reader.poll)
            reader.poll = None
        await reader.consumer.seek(at)

    async def _close_readers(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if reader.poll is not None:
                await _cancelled(reader.poll)
            with suppress(SluiceError):
                await reader.consumer.close()

    # --- records

    async def _polled(self) -> list[tuple[_Reader, Message]]:
        """Messages of all partitions; none if none came in time."""
        for reader in self._readers:
            if reader.poll is None:
                reader.poll = asyncio.create_task(reader.consumer.poll(_PUT_S))
        polls = [reader.poll for reader in self._readers if reader.poll is not None]
        if not polls:
            await sleep(_PUT_S, self.job.stopping)
            return []
        await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=_PUT_S)
        found: list[tuple[_Reader, Message]] = []
        for reader in self._readers:
            poll = reader.poll
            if poll is None or not poll.done():
                continue
            error = poll.exception()
            if error is None:
                found += [(reader, message) for message in poll.result()]
            elif isinstance(error, OffsetOutOfRange):
                log.warning("%s: messages are gone from the log before they were read: %s", self.name, error)
                self.figures.note(error)
                await reader.consumer.skip_gone()
            elif found:
                continue  # the next turn raises it
            else:
                reader.poll = None
                raise error
            reader.poll = None
        self.figures.records_in += len(found)
        self.figures.bytes += sum(len(message.payload) for _, message in found)
        return found

    def _converted(self, found: Sequence[tuple[_Reader, Message]]) -> list[SinkRecord]:
        records = []
        for reader, message in found:
            if not reader.subscription.wants(message.topic):
                continue
            base = record_of(message, reader.subscription.parent)
            try:
                record = self.pipeline.convert(base)
            except DataError as error:
                self._context.reject(base, error)
                continue
            if record is None:
                self.figures.dropped += 1
            else:
                records.append(record)
                reader.given[message.partition] = message.offset + 1
        return records

    async def _put(self, task: TransactionalSinkTask, records: Sequence[SinkRecord]) -> None:
        retry = self._retry = self._retry or self.retry()
        try:
            await self._context.store_rejected()  # those that could not be converted
            await task.put(records)
            await self._context.store_rejected()
            self.figures.records_out += len(records)
            self._retry = None
            return
        except RetriableError as error:
            self.note_retry(error)
            if not await retry.pause(error):
                raise
        offsets = await self._opened(task, self._share)
        for reader in self._readers:
            await self._seek(reader, offsets)

    # --- offsets of the group

    async def _mirror(self, task: TransactionalSinkTask) -> None:
        """Let the committed offsets of the group follow what the other system has."""
        now = asyncio.get_running_loop().time()
        if now - self._mirrored < _MIRROR_S:
            return
        self._mirrored = now
        committed = task.committed()
        for reader in self._readers:
            parent = reader.subscription.parent
            offsets = {}
            for number, position in (await reader.consumer.positions()).items():
                known = committed.get(Partition(parent, number))
                given = reader.given.get(number)
                if given is None or (known is not None and known >= given):
                    offsets[number] = position  # nothing is under way: also what was not selected is done
                elif known is not None:
                    offsets[number] = known
            changed = {number: at for number, at in offsets.items() if reader.mirrored.get(number) != at}
            if changed:
                await self.job.client.commit_offsets(self._group, parent, changed)
                reader.mirrored.update(changed)


async def _cancelled(poll: "asyncio.Task[list[Message]]") -> None:
    poll.cancel()
    await asyncio.wait((poll,))
    if not poll.cancelled():
        poll.exception()  # nobody else asks for it
