"""Answers to requests. All requests with the same reply topic share one reader of it.

A request carries its reply topic and fresh correlation data. An answer belongs to the request with its correlation
data. An answer without any (MQTT 3.1.1 has none) belongs to the request that has waited longest.
"""

import asyncio
from typing import Any, Final

from cloud_sdk.consuming.partition_reader import PartitionReader
from cloud_sdk.errors import ClientClosed, OffsetOutOfRange, SluiceError
from cloud_sdk.message import Message, PartitionBounds

_WAIT_S: Final = 20.0  # how long one Pull waits


class ReplyTopic:
    """The requests that wait for answers on one topic. The topic is read while there are any."""

    __slots__ = ("_bounds", "_has_failed", "_parent", "_reader", "_readers", "_topic", "waiting")

    def __init__(self, reader: PartitionReader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._parent = topic.partition("/")[0]
        self._readers: list[asyncio.Task[None]] = []
        self._has_failed = False  # a reader has ended; the next request starts them anew
        self._bounds: asyncio.Task[list[PartitionBounds]] | None = None  # where the readers start
        self.waiting: dict[bytes, asyncio.Future[Message]] = {}  # by correlation data, the oldest first

    async def add_request(self, correlation: bytes) -> "asyncio.Future[Message]":
        """Wait for an answer that is published from now on. `remove_request` has to follow."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.waiting[correlation] = answer
        if self._has_failed:
            self.stop()
            self._readers, self._bounds, self._has_failed = [], None, False
        if self._bounds is None:
            self._bounds = asyncio.create_task(self._reader.partitions(self._parent, topic_filter=self._topic))
        bounds = await asyncio.shield(self._bounds)
        if not self._readers and self.waiting:
            # The node chooses the partition of the reply topic, so all are read.
            self._readers = [asyncio.create_task(self._read(each.partition, each.end)) for each in bounds]
        return answer

    def remove_request(self, correlation: bytes) -> bool:
        """Stop waiting. Returns whether no request is left."""
        self.waiting.pop(correlation, None)
        return not self.waiting

    def fail(self, error: SluiceError) -> None:
        """Fail all requests."""
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def stop(self) -> "list[asyncio.Task[Any]]":
        """Stop reading. Returns the tasks that are cancelled."""
        tasks: list[asyncio.Task[Any]] = [*self._readers]
        if self._bounds is not None:
            tasks.append(self._bounds)
        for task in tasks:
            task.cancel()
        return tasks

    async def _read(self, partition: int, offset: int) -> None:
        while True:
            try:
                batch = await self._reader.pull(
                    self._parent,
                    partition,
                    offset,
                    wait_seconds=_WAIT_S,
                    topic_filter=self._topic,
                    known_partitions=len(self._readers),
                )
            except OffsetOutOfRange as error:  # retention was faster
                offset = error.begin
                continue
            except SluiceError as error:
                self._has_failed = True
                self.fail(error)
                return
            for message in batch.messages():
                self._on_answer(message)
            offset = batch.next_offset
            for added in range(len(self._readers), batch.partitions):
                self._readers.append(asyncio.create_task(self._read(added, 0)))

    def _on_answer(self, message: Message) -> None:
        correlation = message.correlation_data
        if correlation is None:
            correlation = next((each for each, answer in self.waiting.items() if not answer.done()), b"")
        answer = self.waiting.get(correlation)
        if answer is not None and not answer.done():
            answer.set_result(message)


class Replies:
    """The reply topics of a client on which requests wait."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self._topics: dict[str, ReplyTopic] = {}

    async def expect(self, topic: str, correlation: bytes) -> "asyncio.Future[Message]":
        """Wait for an answer that is published from now on. `forget` has to follow."""
        reply_topic = self._topics.get(topic)
        if reply_topic is None:
            reply_topic = self._topics[topic] = ReplyTopic(self._reader, topic)
        return await reply_topic.add_request(correlation)

    def forget(self, topic: str, correlation: bytes) -> None:
        """Stop waiting for an answer, or for more of them."""
        reply_topic = self._topics.get(topic)
        if reply_topic is not None and reply_topic.remove_request(correlation):
            reply_topic.stop()
            del self._topics[topic]

    async def close(self) -> None:
        """Fail all requests with `ClientClosed`."""
        topics, self._topics = list(self._topics.values()), {}
        for each in topics:
            each.fail(ClientClosed("the client is closed"))
        tasks = [task for each in topics for task in each.stop()]
        await asyncio.gather(*tasks, return_exceptions=True)
