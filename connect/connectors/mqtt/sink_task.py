"""What a task of `mqtt-sink` does: it publishes a batch in order, and waits for all acknowledgements."""

import re
from collections.abc import Sequence
from typing import Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from connect.api import ConnectError, DataError, RetriableError, Settings, SinkContext, SinkRecord, SinkTask
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, cross
from connect.connectors.common.expiry import seconds_left
from connect.connectors.common.topic_mapping import TopicMapping
from connect.connectors.common.values import raw
from connect.connectors.mqtt.connection import Connection, Outgoing
from connect.connectors.mqtt.settings import endpoint

_MAX_TEXT: Final = 65_535  # bytes of a topic, and of a name or a value
_OVERHEAD: Final = 16  # bytes of a PUBLISH beside topic, payload and properties, at most
_QUOTA_EXCEEDED: Final = 0x97
# Control characters and noncharacters: brokers may hang up on whoever sends one (MQTT 5.0, 1.5.4), and mosquitto does.
_NONCHARACTERS: Final = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
_NO_TEXT: Final = re.compile(f"[\\x00-\\x1f\\x7f-\\x9f\\ufdd0-\\ufdef{_NONCHARACTERS}]")


class MqttSinkTask(SinkTask):
    """Has one connection, and makes a new one when that is gone."""

    _connection: Connection | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._is_5 = settings["mqtt.protocol.version"] == "5.0"
        self._source = settings[SOURCE_ALIAS]
        self._target = settings[TARGET_ALIAS] or endpoint(settings)
        await self._connect()

    async def _connect(self) -> Connection:
        if self._connection is not None and self._connection.is_lost:
            self._connection.abort()
            self._connection = None
        if self._connection is None:
            connection = Connection(self._settings, self._context)
            try:
                await connection.open()
                if self._settings["mqtt.retained.enabled"] and not connection.keeps_retained:
                    raise ConnectError("the MQTT broker keeps no retained messages: set mqtt.retained.enabled to false")
            except BaseException:
                connection.abort()
                raise
            self._connection = connection
        return self._connection

    async def put(self, records: Sequence[SinkRecord]) -> None:
        connection = await self._connect()
        sent: list[SinkRecord] = []
        messages: list[Outgoing] = []
        for record in records:
            try:
                message = self._message(record, connection)
            except DataError as error:
                self._context.reject(record, error)
                continue
            if message is not None:
                sent.append(record)
                messages.append(message)
        try:
            reasons = await connection.publish_all(messages)
        except BaseException:
            self._connection = None
            connection.abort()
            raise
        for record, reason in zip(sent, reasons, strict=True):
            if reason.is_failure:
                self._refused(record, reason)

    def _refused(self, record: SinkRecord, reason: ReasonCode) -> None:
        if reason.value == _QUOTA_EXCEEDED:
            raise RetriableError("the MQTT broker takes no more messages: quota exceeded")
        self._context.reject(record, ConnectError(f"the MQTT broker refuses the message: {reason}"))

    def _message(self, record: SinkRecord, connection: Connection) -> Outgoing | None:
        """None for a message that does not go there: it has been there, or is expired. Raises `DataError`."""
        headers = cross(record.headers, self._source, self._target)
        if headers is None:
            return None
        topic, payload = self._map(record.topic), raw(record.value)
        size = len(topic.encode())
        if not 0 < size <= _MAX_TEXT or "+" in topic or "#" in topic or _NO_TEXT.search(topic):
            raise DataError(f"{topic[:100]!r} is not a topic name")
        properties = None
        if self._is_5:
            expiry = seconds_left(record)
            if expiry == 0:
                return None
            properties = _properties(record, headers, expiry)
            if connection.max_packet is not None:
                size += len(properties.pack())  # type: ignore[no-untyped-call]
        if connection.max_packet is not None and size + len(payload) + _OVERHEAD > connection.max_packet:
            raise DataError(f"a message of {len(payload)} bytes: the broker takes packets of {connection.max_packet}")
        qos = min(self._settings["mqtt.qos"], connection.max_qos)
        return Outgoing(topic, payload, qos, record.retain and self._settings["mqtt.retained.enabled"], properties)

    async def stop(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def _properties(record: SinkRecord, headers: list[tuple[str, str]], expiry: int | None) -> Properties:
    """Raises `DataError`."""
    pairs = [(_text(name, "a header"), _text(value, "a header")) for name, value in headers]
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = pairs
    if record.content_type is not None:
        properties.ContentType = _text(record.content_type, "the content type")
    if record.response_topic is not None:
        if _NO_TEXT.search(record.response_topic):
            raise DataError(f"{record.response_topic[:100]!r} is not a topic name")
        properties.ResponseTopic = _text(record.response_topic, "the response topic")
    if record.correlation_data is not None:
        if len(record.correlation_data) > _MAX_TEXT:
            raise DataError(f"the correlation data has more than {_MAX_TEXT} bytes")
        properties.CorrelationData = record.correlation_data
    if expiry is not None:
        properties.MessageExpiryInterval = expiry
    return properties


def _text(text: str, what: str) -> str:
    """A text that each broker takes: U+FFFD is in place of what it may not have. Raises `DataError`."""
    plain = _NO_TEXT.sub("\ufffd", text)
    if len(plain.encode()) > _MAX_TEXT:
        raise DataError(f"{what} has more than {_MAX_TEXT} bytes")
    return plain
