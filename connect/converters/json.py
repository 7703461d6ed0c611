"""Payloads that are JSON."""

from base64 import b64encode
from decimal import Decimal
from typing import Any

import orjson

from connect.api import Converter, DataError, Setting, SettingType, SinkRecord, SourceRecord


def _no_schemas(value: bool) -> str | None:
    return "a schema in each message is not supported: use false" if value else None


class JsonConverter(Converter):
    """The value is what JSON has: `dict`, `list`, `str`, `int`, `float`, `bool`. An empty payload is `None`."""

    name = "json"
    settings = (
        Setting(
            "schemas.enable",
            "Whether each message has its schema in it, as in Kafka Connect. It has to be false.",
            SettingType.BOOLEAN,
            default=False,
            check=_no_schemas,
        ),
    )
    content_type = "application/json"

    def to_value(self, record: SinkRecord) -> Any:
        if not record.payload:
            return None
        try:
            return orjson.loads(record.payload)
        except orjson.JSONDecodeError as error:
            raise DataError(f"the payload is not JSON: {error}") from error

    def to_payload(self, record: SourceRecord) -> bytes:
        if record.value is None:
            return b""
        try:
            return orjson.dumps(record.value, default=_json, option=orjson.OPT_NON_STR_KEYS)
        except orjson.JSONEncodeError as error:
            raise DataError(f"the value cannot be written as JSON: {error}") from error


def _json(value: object) -> Any:
    """What JSON has in place of other types. A decimal number is a text: as a number it would lose digits."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"JSON has no {type(value).__name__}")
