"""Runs a source task: poll, convert, store messages, then store offsets. Messages are stored at least once."""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from cloud_sdk import InvalidArgument, MessagesRejected, OutgoingMessage, RevisionConflict, SluiceError
from connect.api import ConnectError, DataError, RetriableError, SourceConnector, SourceRecord, SourceTask
from connect.runtime.entries import OFFSET, Bucket, packed, quoted
from connect.runtime.job import Context, Job, Runner, is_transient
from connect.runtime.retries import Retry, Stopped, sleep
from connect.runtime.waiting import first_of

log = logging.getLogger(__name__)

_MAX_SOURCES: Final = 10_000  # of a task
_PAUSE_S: Final = 1.0  # before a task begins anew
_MAX_TOPIC: Final = 200  # characters, in an error


class SourceContextOfTask(Context):
    """The offsets of a task, in the bucket.

    They are written by compare-and-set. So if two workers run a task for a moment, one of them finds out at its next
    write, and reads them again.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._id = job.id
        self._bucket: Bucket = job.bucket
        self._revisions: dict[str, int] = {}  # of this task's entries, by key
        self._newest: dict[str, tuple[int, bytes]] | None = None  # revision and offset by source; None: not read yet

    async def offset(self, source: str = "") -> Mapping[str, Any] | None:
        try:
            newest = await self._load()
        except SluiceError as error:
            if is_transient(error):
                raise RetriableError(f"offsets cannot be read: {error}") from error
            raise
        found = newest.get(quoted(source))
        try:
            return None if found is None else json.loads(found[1])
        except ValueError as error:
            raise ConnectError(f"the offset of the source {source!r} is not JSON") from error

    async def store(self, offsets: Mapping[str, Mapping[str, Any]]) -> None:
        """Store offsets, by source. Raises `RevisionConflict` if another worker has stored one."""
        newest = await self._load()
        for source, offset in offsets.items():
            key, value = self._id.offset(source), packed(offset)
            if key not in self._revisions and len(self._revisions) >= _MAX_SOURCES:
                raise ConnectError(f"a task has at most {_MAX_SOURCES} sources with offsets")
            revision = await self._bucket.put(key, value, revision=self._revisions.get(key, 0))
            self._revisions[key] = revision
            newest[quoted(source)] = (revision, value)

    async def _load(self) -> dict[str, tuple[int, bytes]]:
        """Read all offsets of the connector, once. The newest one of a source counts: before `tasks.max` changed,
        another task may have had it."""
        if self._newest is None:
            newest: dict[str, tuple[int, bytes]] = {}
            prefix = f"{OFFSET}{self._id.connector}/"
            async for entry in self._bucket.entries(prefix):
                task, _, source = entry.key.removeprefix(prefix).partition("/")
                if task == str(self._id.number):
                    self._revisions[entry.key] = entry.revision
                if entry.revision > newest.get(source, (0, b""))[0]:
                    newest[source] = (entry.revision, entry.value)
            self._newest = newest
        return self._newest


class SourceRunner(Runner):
    """Runs one source task."""

    async def run(self) -> None:
        with suppress(Stopped):
            while not self.job.stopping.is_set():
                try:
                    await self._run()
                except RevisionConflict as error:
                    log.warning("%s: begins anew, because another worker has stored offsets", self.name)
                    self.note_retry(error)
                    await sleep(_PAUSE_S, self.job.stopping)

    async def _run(self) -> None:
        """Run the task until it is to stop. Raises `RevisionConflict` if another worker has stored offsets."""
        connector = self.job.configuration.connector
        assert isinstance(connector, SourceConnector)
        self._context = SourceContextOfTask(self.job)
        task = await self.started(connector.task, lambda task: task.start(self.job.settings, self._context))
        try:
            while (records := await self._polled(task)) is not None:
                await self._store(task, records)
        finally:
            await self.stopped(task)

    async def _polled(self, task: SourceTask) -> Sequence[SourceRecord] | None:
        """The next records; None: the task is asked to stop."""
        retry = self.retry()
        while not self.job.stopping.is_set():
            poll = asyncio.ensure_future(task.poll())
            await first_of(poll, self.job.stopping)
            if not poll.done():
                poll.cancel()
                await asyncio.wait((poll,))
                return None
            try:
                return poll.result()
            except RetriableError as error:
                self.note_retry(error)
                if not await retry.pause(error):
                    raise
        return None

    async def _store(self, task: SourceTask, records: Sequence[SourceRecord]) -> None:
        self.figures.records_in += len(records)
        offsets = {each.source: each.offset for each in records if each.offset is not None}
        messages = []
        for record in records:
            try:
                message = self.pipeline.to_message(record)
            except DataError as error:
                self.note_failed(f"a record for {record.topic}", error)
                self.raise_unless_tolerated(error)
                continue
            if message is None:
                self.figures.dropped += 1
            else:
                messages.append(message)
        await self._send(messages)
        retry = self.retry()
        while True:
            try:
                await self._context.store(offsets)
                break
            except RevisionConflict:
                raise
            except SluiceError as error:
                await self._pause(error, retry)
        await self._committed(task, records)

    async def _send(self, messages: list[OutgoingMessage]) -> None:
        retry = self.retry()
        while messages:
            try:
                await self.job.client.send_many(messages)
            except MessagesRejected as error:
                self._count(each for index, each in enumerate(messages) if index not in error.reasons)
                faults = [self._refused(messages[index], reason) for index, reason in error.reasons.items()]
                self.raise_unless_tolerated(faults[0])
                return
            except InvalidArgument as error:  # nothing is stored, or it is not known what
                if len(messages) == 1:
                    self.raise_unless_tolerated(self._refused(messages[0], str(error)))
                    return
                half = len(messages) // 2
                await self._send(messages[:half])
                await self._send(messages[half:])
                return
            except SluiceError as error:
                await self._pause(error, retry)
            else:
                self._count(messages)
                return

    def _count(self, stored: Iterable[OutgoingMessage]) -> None:
        for message in stored:
            self.figures.records_out += 1
            self.figures.bytes += len(message.payload)

    def _refused(self, message: OutgoingMessage, reason: str) -> Exception:
        """Count a message that the node does not store."""
        error = DataError(f"the topic {message.topic[:_MAX_TOPIC]!r}: {reason}")
        self.note_failed(f"a record for {message.topic}", error)
        return error

    async def _committed(self, task: SourceTask, records: Sequence[SourceRecord]) -> None:
        retry = self.retry()
        while True:
            try:
                await task.committed(records)
                return
            except RetriableError as error:
                self.note_retry(error)
                if not await retry.pause(error):
                    raise

    async def _pause(self, error: SluiceError, retry: Retry) -> None:
        """Wait until the node is back, however long that takes. Raises other errors."""
        if not is_transient(error):
            raise error
        self.note_retry(error)
        await retry.pause(error)
