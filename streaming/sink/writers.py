"""Spark's writers: a task sends the rows of its partition to the node, which stores each row once.

A task of a streaming query is the idempotent producer `query id/partition`, and the batch is its unit of work
(`cloud_sdk.producing.idempotent_producer`). Spark repeats a batch if a task, its machine or the driver died before the
checkpoint had the batch. The node knows how much of the batch it has and stores the rest. A task's rows must therefore
be the same, in the same order, each time. The rows of this source and of maps, filters and stateful operators over it
are. Behind another shuffle, `sortWithinPartitions` makes them so. If they differ, the node refuses them and the query
fails.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cloud_sdk import InvalidArgument, OutgoingMessage, SluiceError
from streaming.sink.columns import messages_of
from streaming.sink.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# The limits of one call to the node. The cuts depend on the rows alone, because a repeated batch must be sent in the
# same calls.
_TOGETHER: Final = 8_192  # messages,
_TOGETHER_BYTES: Final = 16 << 20  # of payload, or one message
_QUERY: Final = "sql.streaming.queryId"  # the properties that Spark sets for a task of a stream
_BATCH: Final = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """The result of a task, which the driver gets."""

    def __init__(self, messages: int) -> None:
        self.messages = messages


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `writeStream`. Rows are stored when a task writes them, so the commit does nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["RecordBatch"]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise RuntimeError(f"Spark does not say which query and batch a task is of ({_QUERY}, {_BATCH})")
        return _write(self._options, f"{query}/{task.partitionId()}", int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: `write` has stored the rows."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark repeats the batch, which completes it."""


class BatchWriter(DataSourceArrowWriter):
    """The writer of `write`. The tasks of a job may be retried. Running the job again writes its rows again, unless the
    options `producer` and `batch` identify the same work (in `foreachBatch`: the ids of the query and the batch)."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = options.producer or secrets.token_hex(12)

    def write(self, iterator: Iterator["RecordBatch"]) -> Written:
        return _write(self._options, f"{self._job}/{_task().partitionId()}", self._options.batch or 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._forget(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with suppress(SluiceError):  # keep the error of the job; the node forgets the producer later by itself
            self._forget(messages)

    def _forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Let the node forget the producers of a job without a name, which is never repeated. `messages` has an element
        per partition: None for a failed task, which may have written rows."""
        if self._options.producer is not None:
            return
        with self._options.connection.client(name=self._options.publisher) as client:
            for partition, message in enumerate(messages):
                if not isinstance(message, Written) or message.messages:
                    client.forget_producer(f"{self._job}/{partition}")


def _write(options: SinkOptions, producer: str, number: int, batches: Iterator["RecordBatch"]) -> Written:
    """Store the rows of a task in calls that do not depend on the borders of Arrow batches."""
    rows = chain.from_iterable(messages_of(batch, options) for batch in batches)
    some = _some(rows)
    if not some:
        return Written(0)
    count = 0
    try:
        with (
            options.connection.client(name=options.publisher) as client,
            client.idempotent_producer(producer, number) as stored_once,
        ):
            while some:
                stored_once.send_many(some)
                count += len(some)
                some = _some(rows)
    except InvalidArgument as error:
        raise InvalidArgument(f"batch {number} of the producer {producer}: {error}") from error
    return Written(count)


def _some(rows: Iterator[OutgoingMessage]) -> list[OutgoingMessage]:
    """Return the messages of the next call; empty at the end."""
    found: list[OutgoingMessage] = []
    size = 0
    for message in rows:
        found.append(message)
        size += len(message.payload)
        if len(found) == _TOGETHER or size >= _TOGETHER_BYTES:
            break
    return found


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows can be written only in a task of a Spark job")
    return task
