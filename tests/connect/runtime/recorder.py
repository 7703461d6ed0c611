"""Connectors that note what a worker asks of them, and do what a test wants."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from connect.api import (
    ConnectError,
    Partition,
    RetriableError,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceContext,
    SourceRecord,
    SourceTask,
    TransactionalSinkTask,
)


class Recorder:
    """What the tasks of one test have seen, and what they do."""

    def __init__(self) -> None:
        self.puts: list[list[SinkRecord]] = []
        self.starts: list[Settings] = []
        self.stops = 0
        self.failures: list[Exception] = []  # of the next puts, polls or starts
        self.rejects: set[Any] = set()  # values
        self.hangs = False
        self.offsets: dict[Partition, int] = {}  # of the transactional sink, with its values
        self.stored: list[Any] = []
        self.polls: list[list[SourceRecord]] = []  # what is still to be returned
        self.committed: list[Any] = []
        self.came = asyncio.Event()

    def fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    @property
    def values(self) -> list[Any]:
        return [record.value for records in self.puts for record in records]


class RecordingSink(SinkConnector):
    """Notes records."""

    name = "recording-sink"
    description = "for tests"
    settings: ClassVar = (
        Setting("color", "A text.", default="red"),
        Setting("password", "A secret.", SettingType.PASSWORD),
    )
    recorder: ClassVar[Recorder]

    def task(self) -> SinkTask:
        return RecordingTask(self.recorder)


class RecordingTask(SinkTask):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self.context = context
        self.recorder.starts.append(settings)
        if settings["color"] == "wrong":
            raise ConnectError("wrong is no color")

    async def put(self, records: Sequence[SinkRecord]) -> None:
        if self.recorder.hangs:
            await asyncio.sleep(3600)
        self.recorder.fail()
        self.recorder.puts.append([each for each in records if each.value not in self.recorder.rejects])
        for record in records:
            if record.value in self.recorder.rejects:
                self.context.reject(record, ValueError(f"{record.value} is not wanted"))

    async def stop(self) -> None:
        self.recorder.stops += 1


class TransactionalSink(RecordingSink):
    """Stores values and offsets together."""

    name = "transactional-sink"

    def task(self) -> SinkTask:
        return TransactionalTask(self.recorder)


class TransactionalTask(RecordingTask, TransactionalSinkTask):
    async def open(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self.next = {each: self.recorder.offsets[each] for each in partitions if each in self.recorder.offsets}
        return dict(self.next)

    async def put(self, records: Sequence[SinkRecord]) -> None:
        for record in records:
            assert record.offset >= self.next.get(record.partition, 0), "a record came twice"
        wanted = []
        for record in records:
            if record.value in self.recorder.rejects:
                self.context.reject(record, ValueError(f"{record.value} is not wanted"))
            else:
                wanted.append(record)
        await self.context.store_rejected()
        self.recorder.fail()
        for partition in {record.partition for record in records}:
            if self.recorder.offsets.get(partition) != self.next.get(partition):
                raise RetriableError("another worker has written")
        for record in records:
            self.next[record.partition] = self.recorder.offsets[record.partition] = record.offset + 1
        self.recorder.stored += [record.value for record in wanted]

    def committed(self) -> Mapping[Partition, int]:
        return dict(self.next)


class RecordingSource(SourceConnector):
    """Returns the records that a test has made."""

    name = "recording-source"
    description = "for tests"
    settings: ClassVar = ()
    recorder: ClassVar[Recorder]

    def task(self) -> SourceTask:
        return RecordingSourceTask(self.recorder)


class RecordingSourceTask(SourceTask):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self.recorder.starts.append({"offset": await context.offset("s")})

    async def poll(self) -> Sequence[SourceRecord]:
        while not self.recorder.polls:
            self.recorder.fail()
            await asyncio.sleep(0.005)
        self.recorder.fail()
        return self.recorder.polls.pop(0)

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        self.recorder.committed += [each.value for each in records]

    async def stop(self) -> None:
        self.recorder.stops += 1
