"""Between messages of the log and records of a connector: converter and transforms."""

from cloud_sdk import Message, OutgoingMessage
from cloud_sdk.properties import KEY
from connect.api import DataError, Partition, Record, SinkRecord, SourceRecord
from connect.configuration import Configuration


def record_of(message: Message, parent: str) -> SinkRecord:
    """The record of a message, without its value."""
    properties = message.all_properties
    return SinkRecord(
        topic=message.topic,
        value=None,
        key=next((text for name, text in properties.user if name == KEY), None),
        headers=properties.user,
        timestamp_ms=message.store_time,
        payload=message.payload,
        content_type=properties.content_type,
        response_topic=properties.response_topic,
        correlation_data=properties.correlation_data,
        message_expiry=properties.message_expiry,
        publisher=message.publisher,
        qos=message.qos,
        retain=message.retain,
        position=message.position,
        partition=Partition(parent, message.partition),
        offset=message.offset,
    )


class Pipeline:
    """Converts and transforms the records of one task."""

    def __init__(self, configuration: Configuration) -> None:
        self._converter = configuration.converter
        self._steps = configuration.steps

    def convert(self, record: SinkRecord) -> SinkRecord | None:
        """Convert and transform the record of a message; None: a transform drops it. Raises `DataError`."""
        try:
            record.value = self._converter.to_value(record)
            transformed = self._transformed(record)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{type(error).__name__}: {error}") from error
        assert transformed is None or isinstance(transformed, SinkRecord)
        return transformed

    def to_message(self, record: SourceRecord) -> OutgoingMessage | None:
        """The message of a record; None: a transform drops it. Raises `DataError`."""
        try:
            transformed = self._transformed(record)
            if transformed is None:
                return None
            assert isinstance(transformed, SourceRecord)
            record = transformed
            payload = self._converter.to_payload(record)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{type(error).__name__}: {error}") from error
        has_key = record.key is None or (KEY, record.key) in record.headers
        return OutgoingMessage(
            record.topic,
            payload,
            qos=record.qos,
            retain=record.retain,
            properties=record.headers,
            content_type=record.content_type or self._converter.content_type,
            response_topic=record.response_topic,
            correlation_data=record.correlation_data,
            message_expiry=record.message_expiry,
            keys=() if has_key or record.key is None else (record.key,),
        )

    def _transformed(self, record: Record) -> Record | None:
        for step in self._steps:
            if step.applies_to(record):
                transformed = step.transform.apply(record)
                if transformed is None:
                    return None
                record = transformed
        return record
