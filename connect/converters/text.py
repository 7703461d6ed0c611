"""Payloads that are text in UTF-8."""

from typing import Any

from connect.api import Converter, DataError, SinkRecord, SourceRecord


class TextConverter(Converter):
    """The value is a `str`."""

    name = "text"
    content_type = "text/plain"

    def to_value(self, record: SinkRecord) -> str:
        try:
            return record.payload.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"the payload is not UTF-8: {error.reason} at byte {error.start}") from error

    def to_payload(self, record: SourceRecord) -> bytes:
        value: Any = record.value
        if value is None:
            return b""
        if isinstance(value, bytes):
            return value
        if isinstance(value, (dict, list)):
            raise DataError(f"a text is expected, not {type(value).__name__}: set value.converter to json")
        return str(value).encode()
