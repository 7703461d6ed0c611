"""`TimestampConverter`: times as numbers, as text in a format, or as text in ISO 8601."""

from datetime import UTC, datetime
from typing import Any, Final

from connect.api import DataError, Record, Setting, Settings, Transform
from connect.transforms.time_formats import TimeFormat
from connect.transforms.values import fields_of

_PER_MS: Final = {"seconds": 0.001, "milliseconds": 1, "microseconds": 1_000, "nanoseconds": 1_000_000}


class TimestampConverter(Transform):
    """Converts a field, or the whole value. `None` stays."""

    name = "TimestampConverter"
    settings = (
        Setting(
            "target.type",
            "`string` in the format, `unix` for a number, or `Timestamp`, `Date` and `Time` for ISO 8601.",
            required=True,
            choices=("string", "unix", "Date", "Time", "Timestamp"),
        ),
        Setting("field", "The field; empty: the whole value.", default=""),
        Setting("format", "The format of a text, as in Java: `yyyy-MM-dd'T'HH:mm:ss.SSS`. Default: ISO 8601."),
        Setting("unix.precision", "The unit of numbers since 1970.", default="milliseconds", choices=tuple(_PER_MS)),
    )

    def __init__(self, settings: Settings) -> None:
        self._target = settings["target.type"]
        self._field = settings["field"]
        self._format = TimeFormat(settings["format"]) if settings["format"] else None
        self._per_ms = _PER_MS[settings["unix.precision"]]
        if self._target == "string" and self._format is None:
            raise ValueError("target.type string needs a format")

    def apply(self, record: Record) -> Record:
        if record.value is None:
            return record
        if not self._field:
            record.value = self._converted(record.value)
            return record
        fields = fields_of(record, self.name)
        if fields.get(self._field) is not None:
            record.value = {**fields, self._field: self._converted(fields[self._field])}
        return record

    def _converted(self, value: Any) -> Any:
        try:
            return self._written(self._ms(value))
        except (ValueError, OverflowError, OSError) as error:
            raise DataError(f"a time cannot be converted: {error}") from error

    def _ms(self, value: Any) -> float:
        """Milliseconds since 1970-01-01 UTC."""
        if isinstance(value, datetime):
            return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp() * 1000
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value / self._per_ms
        if not isinstance(value, str):
            raise ValueError(f"a number or a text is expected, not {type(value).__name__}")
        if self._format is not None:
            return self._format.read(value)
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000

    def _written(self, ms: float) -> Any:
        if self._target == "unix":
            return round(ms * self._per_ms)
        if self._target == "string":
            assert self._format is not None
            return self._format.write(ms)
        time = datetime.fromtimestamp(ms / 1000, UTC)
        if self._target == "Date":
            return time.date().isoformat()
        if self._target == "Time":
            return time.time().isoformat("milliseconds")
        return time.isoformat(timespec="milliseconds")
