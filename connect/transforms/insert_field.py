"""`InsertField`: fields from what a record is beside its value, or with a fixed value."""

from datetime import UTC, datetime
from typing import Any

from connect.api import DataError, Record, Setting, Settings, SinkRecord, Transform
from connect.transforms.values import fields_of


class InsertField(Transform):
    """Adds fields. A field of the same name is replaced. A value of `None` stays."""

    name = "InsertField"
    settings = (
        Setting("topic.field", "The field for the topic."),
        Setting("partition.field", "The field for the partition; sinks only."),
        Setting("offset.field", "The field for the offset in the partition; sinks only."),
        Setting("timestamp.field", "The field for the time of the message, in ISO 8601."),
        Setting("static.field", "The field for a fixed value."),
        Setting("static.value", "The fixed value."),
    )

    def __init__(self, settings: Settings) -> None:
        self._fields = {  # Kafka allows a mark behind the name: whether the field has to be there
            name.removesuffix(".field"): str(field).rstrip("!?")
            for name, field in settings.items()
            if name.endswith(".field") and field
        }
        self._static = settings["static.value"]
        if not self._fields:
            raise ValueError(
                "one of topic.field, timestamp.field, static.field, partition.field, offset.field is needed"
            )
        if ("static" in self._fields) != (self._static is not None):
            raise ValueError("static.field and static.value go together")

    def apply(self, record: Record) -> Record:
        if record.value is not None:
            added = {field: self._value(record, what) for what, field in self._fields.items()}
            record.value = {**fields_of(record, self.name), **added}
        return record

    def _value(self, record: Record, what: str) -> Any:
        if what == "topic":
            return record.topic
        if what == "static":
            return self._static
        if what == "timestamp":
            time = record.timestamp_ms
            return None if time is None else datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")
        if not isinstance(record, SinkRecord):
            raise DataError(f"{what}.field is for sinks: records of a source have no {what} yet")
        return record.partition.number if what == "partition" else record.offset
