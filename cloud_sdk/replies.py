"""Answers to requests: one watch of a reply topic for all who wait for answers there.

A request carries the reply topic and fresh correlation data. An answer goes to the request with its correlation data;
one without any (MQTT 3.1.1 knows none) to the request that has waited longest.
"""

import asyncio
from typing import Any, Final

from cloud_sdk.errors import ClientClosed, OffsetOutOfRange, SluiceError
from cloud_sdk.message import Message, PartitionBounds
from cloud_sdk.partitions import Partitions

_WAIT_S: Final = 20.0  # how long one Pull waits


class ReplyTopic:
    """Who waits for answers on one topic. It reads while there is somebody."""

    __slots__ = ("_is_over", "_parent", "_partitions", "_readers", "_starting", "_topic", "waiting")

    def __init__(self, partitions: Partitions, topic: str) -> None:
        self._partitions = partitions
        self._topic = topic
        self._parent = topic.partition("/")[0]
        self._readers: list[asyncio.Task[None]] = []
        self._is_over = False  # one of them has ended: it begins anew with whoever waits next
        self._starting: asyncio.Task[list[PartitionBounds]] | None = None
        self.waiting: dict[bytes, asyncio.Future[Message]] = {}  # by correlation data, the longest first

    async def join(self, correlation: bytes) -> "asyncio.Future[Message]":
        """Begin to wait. What is published from here on is seen."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.waiting[correlation] = answer
        if self._is_over:
            self.stop()
            self._readers, self._starting, self._is_over = [], None, False
        if self._starting is None:
            self._starting = asyncio.create_task(self._partitions.bounds(self._parent))
        bounds = await asyncio.shield(self._starting)
        if not self._readers and self.waiting:
            # The partition of the reply topic is the node's to choose: all are read.
            self._readers = [asyncio.create_task(self._read(each.partition, each.end)) for each in bounds]
        return answer

    def leave(self, correlation: bytes) -> bool:
        """Wait no more. Whether nobody does."""
        self.waiting.pop(correlation, None)
        return not self.waiting

    def fail(self, error: SluiceError) -> None:
        """Nobody gets an answer any more."""
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def stop(self) -> "list[asyncio.Task[Any]]":
        """Read no more. Returns what comes to its end."""
        tasks: list[asyncio.Task[Any]] = [*self._readers]
        if self._starting is not None:
            tasks.append(self._starting)
        for task in tasks:
            task.cancel()
        return tasks

    async def _read(self, partition: int, offset: int) -> None:
        while True:
            try:
                batch = await self._partitions.pull(
                    self._parent, partition, offset, wait_seconds=_WAIT_S, topic_filter=self._topic
                )
            except OffsetOutOfRange as error:  # retention was faster
                offset = error.begin
                continue
            except SluiceError as error:
                self._is_over = True
                self.fail(error)
                return
            for message in batch.messages():
                self._take(message)
            offset = batch.next_offset

    def _take(self, message: Message) -> None:
        correlation = message.correlation_data
        if correlation is None:
            correlation = next((each for each, answer in self.waiting.items() if not answer.done()), b"")
        answer = self.waiting.get(correlation)
        if answer is not None and not answer.done():
            answer.set_result(message)


class Replies:
    """The watches of a client, by reply topic: as many as there are topics on which somebody waits."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._topics: dict[str, ReplyTopic] = {}

    async def expect(self, topic: str, correlation: bytes) -> "asyncio.Future[Message]":
        """Wait for an answer. `forget` has to follow."""
        watch = self._topics.get(topic)
        if watch is None:
            watch = self._topics[topic] = ReplyTopic(self._partitions, topic)
        return await watch.join(correlation)

    def forget(self, topic: str, correlation: bytes) -> None:
        """The answer came, or is not waited for any more."""
        watch = self._topics.get(topic)
        if watch is not None and watch.leave(correlation):
            watch.stop()
            del self._topics[topic]

    async def close(self) -> None:
        """Nobody waits any more."""
        watches, self._topics = list(self._topics.values()), {}
        for watch in watches:
            watch.fail(ClientClosed("the client is closed"))
        tasks = [task for watch in watches for task in watch.stop()]
        await asyncio.gather(*tasks, return_exceptions=True)
