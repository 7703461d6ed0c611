"""`rabbitmq-source`: messages of queues of RabbitMQ go into the log.

RabbitMQ bounds what it sends ahead by the number of messages, not by their bytes. When a task holds more bytes than it
may, it drops what it holds, and has the server deliver that again, fewer messages at a time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from connect.api import (
    Importance,
    RetriableError,
    Setting,
    Settings,
    SettingType,
    SourceConnector,
    SourceContext,
    SourceRecord,
    SourceTask,
)
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.topic_mapping import MAPPING, TopicMapping
from connect.connectors.common.unacknowledged import Unacknowledged
from connect.connectors.rabbitmq.settings import SERVER_SETTINGS, TOPIC, connected, explained, where

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection, AbstractIncomingMessage

log = logging.getLogger(__name__)

_MAX_RECORDS: Final = 1_000  # of one poll
_MAX_BYTES: Final = 4 << 20
_MAX_HELD: Final = 64 << 20  # bytes of messages that wait for a poll; one message alone may have more


class RabbitMqSource(SourceConnector):
    """Consumes queues. Its tasks share them."""

    name = "rabbitmq-source"
    description = "consumes queues of RabbitMQ"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("rabbitmq.queue", "The queues, which must be there.", SettingType.LIST, required=True,
                importance=Importance.HIGH),
        Setting("rabbitmq.prefetch.count", "Messages that a task is given before the first of them is stored.",
                SettingType.INT, 1_000, least=1, most=65_535),
        Setting("topic.header.enabled",
                f"Whether the header `{TOPIC}`, which `rabbitmq-sink` sets, is the topic. Else it is the routing key "
                "with slashes for dots.",
                SettingType.BOOLEAN, default=False),
        MAPPING,
        *alias_settings(sink=False),
    )  # fmt: skip

    def task_settings(self, settings: Mapping[str, str], most: int) -> list[dict[str, str]]:
        return [dict(settings) for _ in range(most)]

    def task(self) -> SourceTask:
        return RabbitMqSourceTask()


class RabbitMqSourceTask(SourceTask):
    """Acknowledges what is stored."""

    def __init__(self) -> None:
        self._connection: AbstractConnection | None = None
        self._held: deque[AbstractIncomingMessage] = deque()
        self._held_bytes = 0
        self._is_full = False  # what was held is dropped, and so is what still comes over this connection
        self._changed = asyncio.Event()
        self._is_over = False
        self._unacknowledged: Unacknowledged[AbstractIncomingMessage] = Unacknowledged()

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._source = settings[SOURCE_ALIAS] or where(settings)
        self._prefetch: int = settings["rabbitmq.prefetch.count"]  # of each queue
        await self._connect()

    async def _connect(self) -> None:
        if self._connection is not None:
            return
        self._drop_held()
        self._unacknowledged.clear()  # the server delivers them again
        self._is_over = self._is_full = False
        self._connection = await connected(self._settings, self._context)
        try:
            with explained(self._settings):
                channel = await self._connection.channel()
                channel.close_callbacks.add(self._note_end)
                underlay = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(self._note_end)  # a queue was removed
                await channel.set_qos(prefetch_count=self._prefetch)
                for name in self._settings["rabbitmq.queue"]:
                    queue = await channel.get_queue(name)
                    await queue.consume(self._hold)
        except BaseException:
            await self.stop()
            raise

    async def _hold(self, message: "AbstractIncomingMessage") -> None:
        if self._is_full:
            return
        self._held.append(message)
        self._held_bytes += len(message.body)
        if self._held_bytes > _MAX_HELD and len(self._held) > 1:
            self._prefetch = max(1, len(self._held) // (2 * len(self._settings["rabbitmq.queue"])))
            log.info(
                "connector %s: %d messages of RabbitMQ have %d bytes: a queue sends %d ahead from now on",
                self._context.connector,
                len(self._held),
                self._held_bytes,
                self._prefetch,
            )
            self._drop_held()
            self._is_full = True
        self._changed.set()

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    def _note_end(self, *_: object) -> None:
        self._is_over = True
        self._changed.set()

    async def poll(self) -> Sequence[SourceRecord]:
        records: list[SourceRecord] = []
        while not records:
            await self._connect()
            while not self._held:
                if self._is_full:
                    await self.stop()  # so the server has back what was dropped
                    await self._connect()
                if self._is_over:
                    await self.stop()
                    raise RetriableError(f"lost the connection to RabbitMQ at {where(self._settings)}")
                self._changed.clear()
                await self._changed.wait()
            size = 0
            while self._held and len(records) < _MAX_RECORDS and size < _MAX_BYTES:
                message = self._held.popleft()
                self._held_bytes -= len(message.body)
                size += len(message.body)
                record = self._record(message)
                if record is not None:
                    records.append(record)
                    self._unacknowledged.add(record, message)
                elif not self._unacknowledged.skip(message):
                    await self._acknowledge(message)
        return records

    def _record(self, message: "AbstractIncomingMessage") -> SourceRecord | None:
        """None for a message that was here before."""
        texts = {name: _text(value) for name, value in message.headers.items()}
        topic = texts.pop(TOPIC, None) if self._settings["topic.header.enabled"] else None
        headers = cross(list(texts.items()), self._source, self._settings[TARGET_ALIAS])
        if headers is None:
            return None
        return SourceRecord(
            topic=self._map(topic or (message.routing_key or "").replace(".", "/")),
            value=message.body,
            headers=headers,
            timestamp_ms=None if message.timestamp is None else int(message.timestamp.timestamp() * 1_000),
            content_type=message.content_type,
        )

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        messages = self._unacknowledged.take(records)
        if messages:
            await self._acknowledge(messages[-1])

    async def _acknowledge(self, last: "AbstractIncomingMessage") -> None:
        """Acknowledge a message and all that were delivered before it."""
        if not self._is_over:
            with explained(self._settings):
                await last.ack(multiple=True)

    async def stop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _text(value: object) -> str:
    """A header has any type of AMQP."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
