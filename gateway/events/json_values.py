"""JSON values of events. Whole numbers of up to 308 digits are read and written without loss."""

from typing import Any, Final

import msgspec

MAX_JSON: Final = 1 << 20  # bytes of a payload that is read as JSON, and of a result that is written

Json = dict[str, Any] | list[Any] | str | int | float | bool | None

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def read_json(data: bytes) -> Json:
    """Raises ValueError: it is no JSON, or deeper than some hundred levels."""
    try:
        value: Json = _decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return value


def write_json(value: Any) -> bytes:
    """Raises ValueError: it is too deep, or has a whole number that is too long."""
    try:
        data: bytes = _encode(value)
    except (msgspec.MsgspecError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error
    return data
