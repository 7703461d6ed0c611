"""What a worker is to a sink task in a test: settings, a context, records."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from connect.api import (
    ConnectError,
    Connector,
    InvalidSettings,
    Partition,
    RetriableError,
    SinkConnector,
    SinkRecord,
    SourceConnector,
    SourceRecord,
    SourceTask,
    read_settings,
)


@dataclass
class Context:
    """A worker that lets tasks connect to `allowed` networks alone."""

    connector: str = "test"
    task: int = 0
    is_private_allowed: bool = True
    asked: list[tuple[str, int]] = field(default_factory=list)
    rejected: list[tuple[SinkRecord, Exception]] = field(default_factory=list)
    published: list[SourceRecord] = field(default_factory=list)
    stored_rejects: int = 0  # how many of them are stored as dead letters
    is_tolerant: bool = True
    offsets: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by source
    client: Any = None  # of the node that messages come from
    topics: Sequence[str] = ()

    async def require_allowed(self, host: str, port: int) -> None:
        self.asked.append((host, port))
        try:
            is_private = ip_address(host).is_private
        except ValueError:
            is_private = host == "localhost"
        if is_private and not self.is_private_allowed:
            raise ConnectError(f"{host} is a private address")

    def require_path(self, path: str) -> Path:
        return Path(path).resolve()

    async def offset(self, source: str = "") -> Mapping[str, Any] | None:
        return self.offsets.get(source)

    async def publish(self, records: Sequence[SourceRecord]) -> None:
        self.published += records

    async def store_rejected(self) -> None:
        if not self.is_tolerant:
            raise ConnectError(str(self.rejected[-1][1]))
        self.stored_rejects = len(self.rejected)

    def reject(self, record: SinkRecord, error: Exception) -> None:
        self.rejected.append((record, error))


def settings_of(connector: Connector, given: Mapping[str, str]) -> dict[str, Any]:
    """Settings as a worker reads them. Raises `InvalidSettings`."""
    settings = read_settings(connector.settings, given)
    if problems := connector.check(settings):
        raise InvalidSettings({name: [text] for name, text in problems.items()})
    return settings


@asynccontextmanager
async def started(connector: SinkConnector | SourceConnector, context: Context, **given: str) -> AsyncIterator[Any]:
    """A task with settings, whose names have `_` for dots here."""
    task = connector.task()
    try:
        await task.start(
            settings_of(connector, {name.replace("_", "."): text for name, text in given.items()}), context
        )
        yield task
    finally:
        await task.stop()


def sent(topic: str, value: Any, offset: int = 0, **more: Any) -> SinkRecord:
    """A message as a worker hands it to a sink: the position is 1,000 times the offset unless it is given."""
    return SinkRecord(
        topic,
        value,
        **{
            "timestamp_ms": 1_780_000_000_000 + offset,
            "position": 1000 * offset,
            "partition": Partition(topic.partition("/")[0], 0),
            "offset": offset,
            **more,
        },
    )


def reasons(context: Context) -> Sequence[str]:
    """Why records were rejected."""
    return [str(error) for _, error in context.rejected]


async def collect(task: SourceTask, count: int, *, commit: bool = True) -> list[SourceRecord]:
    """Poll until there are so many records, and tell the task that they are stored."""
    found: list[SourceRecord] = []
    while len(found) < count:
        new = await task.poll()
        found += new
        if commit:
            await task.committed(new)
    return found


async def again(step: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a call of a task, which is repeated as a worker does."""
    while True:
        try:
            return await step()
        except RetriableError:
            await asyncio.sleep(0.05)
