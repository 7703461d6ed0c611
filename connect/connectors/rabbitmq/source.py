"""`rabbitmq-source`: messages of queues of RabbitMQ go into the log."""

import asyncio
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

_MAX_RECORDS: Final = 1_000
_MAX_BYTES: Final = 4 << 20


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
        self._changed = asyncio.Event()
        self._is_over = False
        self._unacknowledged: Unacknowledged[AbstractIncomingMessage] = Unacknowledged()

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._source = settings[SOURCE_ALIAS] or where(settings)
        await self._connect()

    async def _connect(self) -> None:
        if self._connection is not None:
            return
        self._held.clear()
        self._unacknowledged.clear()  # the server delivers them again
        self._is_over = False
        self._connection = await connected(self._settings, self._context)
        try:
            with explained(self._settings):
                channel = await self._connection.channel()
                channel.close_callbacks.add(self._note_end)
                underlay = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(self._note_end)  # a queue was removed
                await channel.set_qos(prefetch_count=self._settings["rabbitmq.prefetch.count"])
                for name in self._settings["rabbitmq.queue"]:
                    queue = await channel.get_queue(name)
                    await queue.consume(self._hold)
        except BaseException:
            await self.stop()
            raise

    async def _hold(self, message: "AbstractIncomingMessage") -> None:
        self._held.append(message)
        self._changed.set()

    def _note_end(self, *_: object) -> None:
        self._is_over = True
        self._changed.set()

    async def poll(self) -> Sequence[SourceRecord]:
        records: list[SourceRecord] = []
        while not records:
            await self._connect()
            while not self._held:
                if self._is_over:
                    await self.stop()
                    raise RetriableError(f"lost the connection to RabbitMQ at {where(self._settings)}")
                self._changed.clear()
                await self._changed.wait()
            size = 0
            while self._held and len(records) < _MAX_RECORDS and size < _MAX_BYTES:
                message = self._held.popleft()
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
