"""Tasks: the part of a connector that a worker runs, in its event loop.

A task belongs to one loop and is called by one caller: no two of its methods run at the same time. A `poll` that waits
is cancelled before `stop`. A call that blocks belongs into `asyncio.to_thread`. Any method may raise `RetriableError`:
the worker calls again later, and counts it. Any other exception ends the task, which is FAILED until somebody restarts
it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from connect.api.records import Partition, SinkRecord, SourceRecord
from connect.api.settings import Settings

if TYPE_CHECKING:
    from cloud_sdk import Client


class TaskContext(Protocol):
    """What a worker does for a task."""

    connector: str  # the name of the connector
    task: int  # its number, from 0

    async def require_allowed(self, host: str, port: int) -> None:
        """Raise `ConnectError` if the worker may not connect to a host: an address of it is private, and of none of the
        worker's `allowed_networks`."""

    def require_path(self, path: str) -> Path:
        """A file or folder with its links resolved. Raises `ConnectError` if it is below none of the worker's
        `allowed_folders`."""


class SinkContext(TaskContext, Protocol):
    """What a worker does for a sink task."""

    client: "Client"  # of this log, with the rights of the worker's user; the worker closes it
    topics: Sequence[str]  # the filters of the connector

    def reject(self, record: SinkRecord, error: Exception) -> None:
        """Say that this record alone cannot be delivered, now and later, while `put` deals with the others.

        With `errors.tolerance` "all" it becomes a dead letter. Otherwise the task fails after this `put`.
        """

    async def store_rejected(self) -> None:
        """Store the records that were rejected so far as dead letters. Raises `ConnectError` if the task has to fail.

        A `TransactionalSinkTask` calls it after all its `reject` and before it commits, and rolls back if it raises.
        Otherwise the other system would have an offset behind a record that is nowhere. Other tasks need not call it.
        """

    async def publish(self, records: Sequence[SourceRecord]) -> None:
        """Store messages in this log, in order: what a task makes of others, or asks devices for. Their values are
        `bytes`. Raises `RetriableError` and `ConnectError`; some of them may be stored then."""


class SourceContext(TaskContext, Protocol):
    """What a worker does for a source task."""

    async def offset(self, source: str = "") -> Mapping[str, Any] | None:
        """The offset of the last record of a source that was stored; None: there is none."""


class SinkTask(ABC):
    """Delivers messages to another system, at least once."""

    @abstractmethod
    async def start(self, settings: Settings, context: SinkContext) -> None:
        """Connect to the other system."""

    @abstractmethod
    async def put(self, records: Sequence[SinkRecord]) -> None:
        """Deliver records. When this returns, the other system has them for good, but for those that were rejected.

        If it raises, all of them come again.
        """

    async def stop(self) -> None:  # noqa: B027 (most tasks have something to close, some have not)
        """Give up connections. Called once after `start`, also if that raised."""


class TransactionalSinkTask(SinkTask):
    """Delivers messages exactly once: it stores offsets together with them, in one transaction of the other system.

    The records of a partition come in their order, from one task. If two workers run a task for a moment, the
    transaction of one of them has to fail: `put` compares the offset that the other system has with the one that it
    continues from.

    `put` may keep records in memory, within bounds, until they are enough for a transaction. A worker calls it at least
    once a second, with no records if there are none, so that a task can commit by time, too.
    """

    @abstractmethod
    async def open(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The next offset of each partition, as the other system knows it. A partition that it does not know is left
        out. Called after `start`, whenever the partitions of the task change, with all that it has from now on, and
        after each failure of `put`. Records that were kept are dropped: they come again."""

    @abstractmethod
    def committed(self) -> Mapping[Partition, int]:
        """The next offset of each partition whose records the other system has for good. Partitions without a
        transaction since `open` may be left out."""


class SourceTask(ABC):
    """Reads messages of another system."""

    @abstractmethod
    async def start(self, settings: Settings, context: SourceContext) -> None:
        """Connect to the other system, and go on after the offsets that `context` knows."""

    @abstractmethod
    async def poll(self) -> Sequence[SourceRecord]:
        """Wait for records, and return some: at most a few thousand, and a few MiB. A cancelled call loses nothing."""

    async def committed(self, records: Sequence[SourceRecord]) -> None:  # noqa: B027 (for systems that want answers)
        """Note that these records of `poll` are stored, and their offsets too. They come in the order of `poll`."""

    async def stop(self) -> None:  # noqa: B027 (most tasks have something to close, some have not)
        """Give up connections. Called once after `start`, also if that raised."""
