"""Payloads as they are."""

from typing import Any

from connect.api import Converter, DataError, SinkRecord, SourceRecord


class RawConverter(Converter):
    """The value is the payload, `bytes`."""

    name = "raw"

    def to_value(self, record: SinkRecord) -> bytes:
        return record.payload

    def to_payload(self, record: SourceRecord) -> bytes:
        value: Any = record.value
        if value is None:
            return b""
        if isinstance(value, str):
            return value.encode()
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise DataError(f"bytes are expected, not {type(value).__name__}: set value.converter to json or text")
        return bytes(value)
