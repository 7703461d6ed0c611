"""Values of records as JSON: what sinks write, whatever a converter made."""

from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import orjson

from connect.api import DataError, SinkRecord

# The columns that a table of messages has, in this order.
COLUMNS: Final = (
    "topic",
    "levels",
    "key",
    "value",
    "value_base64",
    "headers",
    "stored_at",
    "partition",
    "offset",
    "position",
)


def to_json(value: Any) -> bytes:
    """A value as JSON. Bytes are Base64, decimal numbers are texts. Raises `DataError`."""
    try:
        return orjson.dumps(value, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"the value is not JSON: {error}") from None


def parsed(value: Any) -> Any:
    """The JSON value of bytes or a text; the text itself if it is not JSON; other values as they are.

    Raises `DataError` for bytes that are not UTF-8."""
    if not isinstance(value, bytes | str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value if isinstance(value, str) else _utf8(value)


def json_object(record: SinkRecord) -> Mapping[str, Any]:
    """The value of a record, which must be a JSON object. Raises `DataError`."""
    value = parsed(record.value)
    if not isinstance(value, dict):
        raise DataError("the value is not a JSON object")
    return value


def raw(value: Any) -> bytes:
    """The bytes of a value as they are sent: bytes and texts as they are, all else as JSON. Raises `DataError`."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value)


def texts(value: Any) -> tuple[str | None, str | None]:
    """A value for the columns `value` and `value_base64`: its text, as JSON if it is not a text already; or Base64 if
    it is bytes without a text. Raises `DataError`."""
    if value is None:
        return None, None
    if isinstance(value, bytes):
        try:
            return value.decode(), None
        except UnicodeDecodeError:
            return None, b64encode(value).decode()
    return (value if isinstance(value, str) else to_json(value).decode()), None


def row(record: SinkRecord) -> dict[str, Any]:
    """A record with the names of `COLUMNS`. `value` is a JSON value if it is one, `stored_at` is ISO 8601."""
    value, is_text = record.value, True
    if isinstance(value, bytes):
        try:
            value = parsed(value)
        except DataError:
            value, is_text = b64encode(value).decode(), False
    return {
        "topic": record.topic,
        "levels": record.topic.split("/"),
        "key": record.key,
        "value": value if is_text else None,
        "value_base64": None if is_text else value,
        "headers": [list(each) for each in record.headers],
        "stored_at": iso(record.timestamp_ms),
        "partition": record.partition.number,
        "offset": record.offset,
        "position": record.position,
    }


def iso(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def at_path(value: Any, path: str) -> Any:
    """What a JSON value has at a path (`a.b`: the member `b` of the member `a`); None: nothing."""
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DataError("the value is neither JSON nor UTF-8 text") from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no JSON")
