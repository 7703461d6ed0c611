"""`kafka-sink`: messages of the log go to topics of Kafka."""

import asyncio
import re
from collections.abc import Mapping, Sequence
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
from connect.connectors.common.batches import writable
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.values import raw
from connect.connectors.kafka.settings import CONTENT_TYPE, SERVER_SETTINGS, TOPIC, check, explained, options, where

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")  # of a topic


class KafkaSink(SinkConnector):
    """Sends with an idempotent producer, and waits until all replicas that are in sync have the messages."""

    name = "kafka-sink"
    description = "sends messages to topics of Kafka"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("kafka.topic", f"The topic. It may have {KINDS}.", default="${level1}", check=problem_of),
        Setting("kafka.key", f"The key. It may have {KINDS}. By default the key of the message, or its topic.",
                check=problem_of),
        Setting("compression.type", "How batches are compressed.", default="none",
                choices=("none", "gzip", "snappy", "lz4", "zstd")),
        Setting("linger.ms", "How long a batch waits for more messages.", SettingType.INT, 5, least=0, most=1_000),
        Setting("delivery.timeout.ms", "How long a batch may take. After it, all its messages are sent again.",
                SettingType.INT, 120_000, importance=Importance.LOW, least=100),
        Setting("max.request.size", "Bytes of the largest message.", SettingType.INT, 1 << 20, least=1_000),
        *alias_settings(sink=True),
    )  # fmt: skip

    def check(self, settings: Settings) -> Mapping[str, str]:
        return check(settings)

    def task(self) -> SinkTask:
        return KafkaSinkTask()


class KafkaSinkTask(SinkTask):
    """Has one producer, and makes a new one after an error: a producer that lost messages may not go on."""

    _producer: "AIOKafkaProducer | None" = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._topic = Name(settings["kafka.topic"])
        self._key = None if settings["kafka.key"] is None else Name(settings["kafka.key"])
        self._target = settings[TARGET_ALIAS] or where(settings)
        await self._connect()

    async def _connect(self) -> "AIOKafkaProducer":
        from aiokafka import AIOKafkaProducer  # noqa: PLC0415

        if self._producer is None:
            compression = self._settings["compression.type"]
            producer = AIOKafkaProducer(
                **await options(self._settings, self._context),
                enable_idempotence=True,
                compression_type=None if compression == "none" else compression,
                linger_ms=self._settings["linger.ms"],
                max_request_size=self._settings["max.request.size"],
            )
            try:
                with explained(self._settings):
                    await producer.start()
            except BaseException:
                await _give_up(producer)
                raise
            self._producer = producer
        return self._producer

    async def put(self, records: Sequence[SinkRecord]) -> None:
        producer = await self._connect()
        messages = [each for each in writable(records, self._message, self._context) if each[1]]
        try:
            async with asyncio.timeout(self._settings["delivery.timeout.ms"] / 1_000):
                await self._send(producer, messages)
        except BaseException as error:
            self._producer = None
            await _give_up(producer)
            if isinstance(error, TimeoutError):
                raise RetriableError(f"Kafka at {where(self._settings)} does not acknowledge messages") from None
            raise

    async def _send(
        self, producer: "AIOKafkaProducer", messages: Sequence[tuple[SinkRecord, dict[str, Any] | None]]
    ) -> None:
        """Hand over all messages, and wait for all acknowledgements."""
        waiting: list[tuple[SinkRecord, asyncio.Future[Any]]] = []
        for record, message in messages:
            try:
                waiting.append((record, await producer.send(**message or {})))
            except Exception as error:  # noqa: BLE001 (judged there)
                self._judge(record, error)
        results = await asyncio.gather(*(future for _, future in waiting), return_exceptions=True)
        for (record, _), result in zip(waiting, results, strict=True):
            if isinstance(result, BaseException):
                self._judge(record, result)

    def _judge(self, record: SinkRecord, error: BaseException) -> None:
        """Reject a record for what concerns it alone. Raises `ConnectError` otherwise."""
        from aiokafka import errors  # noqa: PLC0415

        if isinstance(error, errors.MessageSizeTooLargeError | errors.RecordTooLargeError):
            self._context.reject(record, DataError("the message is larger than max.request.size, or than Kafka allows"))
        elif isinstance(
            error, errors.UnknownTopicOrPartitionError | errors.InvalidTopicError | errors.TopicAuthorizationFailedError
        ):
            topic = self._topic.of(record)
            self._context.reject(record, ConnectError(f"Kafka does not take messages of the topic {topic}: {error}"))
        else:
            with explained(self._settings):
                raise error

    def _message(self, record: SinkRecord) -> dict[str, Any] | None:
        """None for a message that has been there. Raises `DataError`."""
        headers = cross(record.headers, self._settings[SOURCE_ALIAS], self._target)
        if headers is None:
            return None
        topic = self._topic.of(record)
        if not _NAME.fullmatch(topic) or topic in (".", ".."):
            raise DataError(f"{topic[:100]!r} is no topic of Kafka: it has 1 to 249 of a-z A-Z 0-9 . _ -")
        key = (record.key or record.topic) if self._key is None else self._key.of(record)
        headers.append((TOPIC, record.topic))
        if record.content_type is not None:
            headers.append((CONTENT_TYPE, record.content_type))
        return {
            "topic": topic,
            "key": key.encode(),
            "value": raw(record.value),
            "headers": [(name, value.encode()) for name, value in headers],
            "timestamp_ms": record.timestamp_ms,
        }

    async def stop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()


async def _give_up(producer: "AIOKafkaProducer") -> None:
    """Close a producer with all that it has. `stop` would wait for acknowledgements, for ever if it is idempotent."""
    producer._closed = True
    if producer._sender is not None:
        await producer._sender.close()
    await producer.client.close()
