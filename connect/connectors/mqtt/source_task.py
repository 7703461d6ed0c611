"""What a task of `mqtt-source` does. The broker hears of a message when that is stored in the log."""

import logging
from collections.abc import Sequence
from typing import Final

from paho.mqtt.client import MQTTMessage

from connect.api import RetriableError, Settings, SourceContext, SourceRecord, SourceTask
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, cross
from connect.connectors.common.topic_mapping import TopicMapping
from connect.connectors.common.unacknowledged import Unacknowledged
from connect.connectors.mqtt.connection import Connection
from connect.connectors.mqtt.settings import endpoint

_MAX_RECORDS: Final = 1_000
_MAX_BYTES: Final = 4 << 20

log = logging.getLogger(__name__)


class MqttSourceTask(SourceTask):
    """Has one connection, and makes a new one when that is gone. The session at the broker stays the same."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._has_session = False
        self._unacknowledged = Unacknowledged[MQTTMessage]()

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._source = settings[SOURCE_ALIAS] or endpoint(settings)
        self._target = settings[TARGET_ALIAS]
        await self._connect()

    async def _connect(self) -> Connection:
        if self._connection is None:
            self._unacknowledged.clear()  # the broker sends them again
            settings = self._settings
            session_s = 0 if settings["mqtt.clean.session.enabled"] else settings["mqtt.session.expiry.seconds"]
            connection = Connection(
                settings, self._context, session_s=session_s, receive_maximum=settings["mqtt.receive.maximum"]
            )
            try:
                await connection.open()
                # On MQTT 3.1.1, each SUBSCRIBE brings all retained messages again.
                if not self._has_session or not connection.session_present or connection.is_5:
                    await connection.subscribe(settings["mqtt.topics"], settings["mqtt.qos"])
            except BaseException:
                connection.abort()
                raise
            if self._has_session and not connection.session_present:
                log.warning("%s: the MQTT broker has forgotten the session; messages may be missing", self._source)
            self._has_session = session_s > 0
            self._connection = connection
        return self._connection

    async def poll(self) -> Sequence[SourceRecord]:
        connection = await self._connect()
        records: list[SourceRecord] = []
        while not records:
            try:
                messages = await connection.receive(_MAX_RECORDS, _MAX_BYTES)
            except RetriableError:
                self._connection = None
                connection.abort()
                raise
            for message in messages:
                record = self._record(message)
                if record is not None:
                    records.append(record)
                    self._unacknowledged.add(record, message)
                elif not self._unacknowledged.skip(message):
                    connection.acknowledge(message)
        return records

    def _record(self, message: MQTTMessage) -> SourceRecord | None:
        """None for a message that was here before."""
        properties = message.properties
        headers = cross(getattr(properties, "UserProperty", ()), self._source, self._target)
        if headers is None:
            return None
        return SourceRecord(
            topic=self._map(message.topic),
            value=message.payload,
            headers=headers,
            content_type=getattr(properties, "ContentType", None),
            response_topic=getattr(properties, "ResponseTopic", None),
            correlation_data=getattr(properties, "CorrelationData", None),
            message_expiry=getattr(properties, "MessageExpiryInterval", None),
            qos=message.qos,
            retain=message.retain,
        )

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        for message in self._unacknowledged.take(records):
            if self._connection is not None:
                self._connection.acknowledge(message)

    async def stop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
