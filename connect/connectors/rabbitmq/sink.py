"""`rabbitmq-sink`: messages of the log go to an exchange of RabbitMQ."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from connect.api import (
    ConnectError,
    DataError,
    Importance,
    RetriableError,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
)
from connect.connectors.common.batches import at_most, writable
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.expiry import seconds_left
from connect.connectors.common.headers import merged
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.values import raw
from connect.connectors.rabbitmq.settings import SERVER_SETTINGS, TOPIC, connected, explained, where

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractMessage

_SHORT: Final = 255  # bytes of what AMQP calls a short string
# Headers are one frame, and servers hang up on whoever sends one larger than `frame_max`, by default 131,072 bytes.
_MAX_HEADERS: Final = 128_000  # bytes
_MAX_EXPIRATION_S: Final = 0xFFFF_FFFF // 1_000  # servers close the channel of whoever sends a longer one


class RabbitMqSink(SinkConnector):
    """Publishes with confirms, and wants each message in a queue."""

    name = "rabbitmq-sink"
    description = "publishes messages to an exchange of RabbitMQ"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("rabbitmq.exchange", "The exchange, which must be there. By default the one that knows all queues."),
        Setting(
            "rabbitmq.routing.key",
            f"The routing key. It may have {KINDS}. By default the topic with dots for slashes, as RabbitMQ's MQTT "
            "plug-in makes it.",
            check=problem_of,
        ),
        Setting("rabbitmq.delivery.mode", "How queues keep messages.", default="PERSISTENT",
                choices=("PERSISTENT", "TRANSIENT")),
        Setting("rabbitmq.mandatory", "Whether a message that no queue takes is an error. Else it is dropped there.",
                SettingType.BOOLEAN, default=True),
        Setting("rabbitmq.max.in.flight", "Messages that are sent before the first of them is confirmed.",
                SettingType.INT, 500, importance=Importance.LOW, least=1, most=10_000),
        *alias_settings(sink=True),
    )  # fmt: skip

    def task(self) -> SinkTask:
        return RabbitMqSinkTask()


class RabbitMqSinkTask(SinkTask):
    """Has one connection, and makes a new one when that is gone."""

    _connection: "AbstractConnection | None" = None
    _exchange: "AbstractExchange | None" = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._key = None if settings["rabbitmq.routing.key"] is None else Name(settings["rabbitmq.routing.key"])
        self._persists = settings["rabbitmq.delivery.mode"] == "PERSISTENT"
        self._target = settings[TARGET_ALIAS] or where(settings)
        self._timeout_s = settings["rabbitmq.connection.timeout.ms"] / 1_000
        await self._connect()

    async def _connect(self) -> "AbstractExchange":
        if self._exchange is None:
            self._connection = await connected(self._settings, self._context)
            try:
                with explained(self._settings):
                    channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
                    name = self._settings["rabbitmq.exchange"]
                    self._exchange = await channel.get_exchange(name) if name else channel.default_exchange
            except BaseException:
                await self.stop()
                raise
        return self._exchange

    async def put(self, records: Sequence[SinkRecord]) -> None:
        exchange = await self._connect()
        messages = list(writable(records, self._message, self._context))
        try:
            await at_most(self._settings["rabbitmq.max.in.flight"], messages, partial(self._publish, exchange))
        except BaseException:
            await self.stop()
            raise

    async def _publish(
        self, exchange: "AbstractExchange", each: tuple[SinkRecord, tuple["AbstractMessage", str] | None]
    ) -> None:
        from aiormq.exceptions import DeliveryError, PublishError  # noqa: PLC0415

        record, made = each
        if made is None:
            return
        message, key = made
        mandatory = self._settings["rabbitmq.mandatory"]
        with explained(self._settings):
            try:
                await exchange.publish(message, key, mandatory=mandatory, timeout=self._timeout_s)
            except PublishError:
                self._context.reject(record, ConnectError(f"no queue takes the routing key {key}"))
            except DeliveryError:
                raise RetriableError("RabbitMQ does not take a message: a queue is full, or cannot store it") from None

    def _message(self, record: SinkRecord) -> "tuple[AbstractMessage, str] | None":
        """None for a message that has been there, or is expired. Raises `DataError`."""
        from aio_pika import DeliveryMode, Message  # noqa: PLC0415

        headers = cross(record.headers, self._settings[SOURCE_ALIAS], self._target)
        left_s = seconds_left(record)
        if headers is None or left_s == 0:
            return None
        key = record.topic.replace("/", ".") if self._key is None else self._key.of(record)
        table: dict[str, Any] = {**merged(headers), TOPIC: record.topic}
        for text in (key, record.content_type or "", *table):
            if len(text.encode()) > _SHORT:
                raise DataError(
                    f"{text[:40]!r}… has more than {_SHORT} bytes: AMQP has no longer routing keys and names"
                )
        if sum(len(name.encode()) + len(str(text).encode()) + 6 for name, text in table.items()) > _MAX_HEADERS:
            raise DataError(f"the headers have more than {_MAX_HEADERS} bytes: RabbitMQ takes no larger frames")
        if left_s is not None and left_s > _MAX_EXPIRATION_S:
            left_s = None  # late is better than never
        message = Message(
            raw(record.value),
            headers=table,
            content_type=record.content_type,
            message_id=f"{self._context.connector}-{record.position}-{record.timestamp_ms}"[-_SHORT:],
            timestamp=datetime.fromtimestamp(record.timestamp_ms / 1_000, UTC),
            expiration=left_s,
            delivery_mode=DeliveryMode.PERSISTENT if self._persists else DeliveryMode.NOT_PERSISTENT,
        )
        return message, key

    async def stop(self) -> None:
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            await connection.close()
