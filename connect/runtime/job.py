"""What a runner is given: one task, from its start to its end."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cloud_sdk import Busy, Client, OutgoingMessage, SluiceError, Unavailable
from connect.api import ConnectError, RetriableError, Settings, SinkTask, SourceRecord, SourceTask
from connect.configuration import Configuration
from connect.runtime.entries import Bucket, TaskId
from connect.runtime.figures import Figures
from connect.runtime.permissions import Permissions
from connect.runtime.pipeline import Pipeline
from connect.runtime.retries import Retry

log = logging.getLogger(__name__)

AnyTask = TypeVar("AnyTask", SinkTask, SourceTask)


@dataclass(slots=True)
class Job:
    """A task to run."""

    id: TaskId
    client: Client
    bucket: Bucket
    configuration: Configuration
    settings: Settings  # of the task
    tasks: int  # of its connector
    permissions: Permissions
    figures: Figures
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # set: end soon, and lose nothing


class Context:
    """What a runner does for its task: the part that all kinds of tasks have."""

    def __init__(self, job: Job) -> None:
        self.connector = job.id.connector
        self.task = job.id.number
        self._permissions = job.permissions

    async def require_allowed(self, host: str, port: int) -> None:
        await self._permissions.require_allowed(host, port)

    def require_path(self, path: str) -> Path:
        return self._permissions.require_path(path)


class ContextOfSink(Context):
    """What a runner does for a sink task, of any kind."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.client = job.client
        self.topics: Sequence[str] = job.configuration.common["topics"]

    async def publish(self, records: Sequence[SourceRecord]) -> None:
        """See `SinkContext.publish`."""
        try:
            await self.client.send_many(
                [
                    OutgoingMessage(
                        each.topic,
                        each.value,
                        qos=each.qos,
                        retain=each.retain,
                        properties=each.headers or None,
                        content_type=each.content_type,
                        response_topic=each.response_topic,
                        correlation_data=each.correlation_data,
                        message_expiry=each.message_expiry,
                        keys=() if each.key is None else (each.key,),
                    )
                    for each in records
                ]
            )
        except SluiceError as error:
            if is_transient(error):
                raise RetriableError(f"the node is away: {error}") from error
            raise ConnectError(f"messages cannot be published: {error}") from error


class Runner(ABC):
    """Runs one task. `run` returns after `job.stopping` is set, and raises what the task cannot go on with."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.figures = job.figures
        self.common = job.configuration.common
        self.pipeline = Pipeline(job.configuration)

    @abstractmethod
    async def run(self) -> None: ...

    def retry(self) -> Retry:
        """Attempts of a call from now on."""
        return Retry(self.common, self.job.stopping)

    async def started(self, make: Callable[[], AnyTask], start: Callable[[AnyTask], Awaitable[None]]) -> AnyTask:
        """A task that has started. Each attempt is a new task, since a failed one has to be stopped."""
        retry = self.retry()
        while True:
            task = make()
            try:
                await start(task)
            except BaseException as error:
                await self.stopped(task)
                if not isinstance(error, RetriableError):
                    raise
                self.note_retry(error)
                if not await retry.pause(error):
                    raise
            else:
                return task

    async def stopped(self, task: SinkTask | SourceTask) -> None:
        """Stop a task. What it raises is logged alone."""
        try:
            await task.stop()
        except Exception as error:  # noqa: BLE001  a plug-in's, of any kind
            log.warning("%s: stop failed: %s", self.name, self.figures.text(error))

    @property
    def name(self) -> str:
        """For log lines."""
        return f"task {self.job.id.number} of connector {self.job.id.connector}"

    def note_retry(self, error: Exception) -> None:
        """Count a call that is repeated."""
        self.figures.retried += 1
        self.figures.note(error)
        log.info("%s: tries again: %s", self.name, self.figures.text(error))

    def note_failed(self, what: str, error: Exception) -> None:
        """Count a record that fails. what: its topic and position."""
        self.figures.failed += 1
        self.figures.note(error)
        if self.common["errors.log.enable"]:
            where = f" ({what})" if self.common["errors.log.include.messages"] else ""
            log.error("%s: a record failed%s: %s", self.name, where, self.figures.text(error))

    def raise_unless_tolerated(self, error: Exception) -> None:
        """Raise `ConnectError` if a record that fails fails the task."""
        if self.common["errors.tolerance"] == "none":
            raise ConnectError(f"a record failed: {self.figures.text(error)}") from error


def is_transient(error: Exception) -> bool:
    """Whether a call to the node may succeed later. The client has repeated it for some time already."""
    return isinstance(error, (Unavailable, Busy))
