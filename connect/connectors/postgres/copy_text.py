"""JSON values as cells of COPY's text format: https://www.postgresql.org/docs/current/sql-copy.html

An encoder takes a value, which is not None, and returns the text of a cell. It raises ValueError for values that a
column of the type cannot have. What only PostgreSQL can judge, as the text of a date, it passes on.
"""

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import orjson

Encoder = Callable[[Any], str]

NULL: Final = r"\N"
_SPECIAL: Final = re.compile(r"[\\\t\n\r\0]")
_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_EXACT: Final = 1 << 53  # whole numbers up to here are exact as double precision
_INTEGERS: Final = {"int2": 1 << 15, "int4": 1 << 31, "int8": 1 << 63}


def encoder(type_name: str) -> Encoder:
    """The encoder for columns of a type, by its name in `pg_type`."""
    if type_name.startswith("_"):
        return _array
    return _ENCODERS.get(type_name, _other)


def escaped(text: str) -> str:
    """A text as a cell, or a part of one."""
    if not _SPECIAL.search(text):
        return text
    if "\0" in text:
        raise ValueError("PostgreSQL has no texts with the character U+0000")
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _boolean(value: Any) -> str:
    if value is True:
        return "t"
    if value is False:
        return "f"
    raise ValueError(f"true or false is expected, not {_what(value)}")


def _integer(bound: int) -> Encoder:
    def encode(value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"a whole number is expected, not {_what(value)}")
        if not -bound <= value < bound:
            raise ValueError("the number is out of range")
        return str(value)

    return encode


def _double(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("the number is not finite")
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not -_EXACT <= value <= _EXACT and float(value) != value:
            raise ValueError("the number has more digits than double precision holds")
        return str(value)
    raise ValueError(f"a number is expected, not {_what(value)}")


def _numeric(value: Any) -> str:
    if isinstance(value, str):  # the way to keep all digits of a number in JSON
        return escaped(value)
    if isinstance(value, (float, Decimal)) and not math.isfinite(value):
        raise ValueError("the number is not finite")
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"a number is expected, not {_what(value)}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return escaped(value)
    raise ValueError(f"a text is expected, not {_what(value)}")


def _other(value: Any) -> str:
    """Types that PostgreSQL reads from text: times, UUIDs, addresses, enumerations."""
    return _text(value)


def _bytes(value: Any) -> str:
    if isinstance(value, bytes):
        return r"\\x" + value.hex()
    raise ValueError(f"bytes are expected, not {_what(value)}")


def _json(value: Any) -> str:
    if isinstance(value, bytes):  # of the converter `raw`: PostgreSQL parses them, so that nobody does so twice
        try:
            return escaped(value.decode())
        except UnicodeDecodeError:
            raise ValueError("the payload is not UTF-8") from None
    return json_cell(value)


def json_cell(value: Any) -> str:
    """A JSON value as a cell."""
    try:
        data = orjson.dumps(value)
    except TypeError as error:
        raise ValueError(f"this is no JSON value: {error}") from None
    if b"null" in data and _has_infinite(value):  # orjson writes null for them
        raise ValueError("a number in it is not finite")
    return data.replace(b"\\", b"\\\\").decode()  # the only character of JSON without white space that COPY escapes


def _has_infinite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_infinite, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_infinite, value))


def _array(value: Any) -> str:
    if not isinstance(value, list):
        raise ValueError(f"an array is expected, not {_what(value)}")
    return escaped(_array_literal(value, 0))


def _array_literal(value: Any, depth: int) -> str:
    if isinstance(value, list):
        if depth == 6:
            raise ValueError("PostgreSQL has arrays of at most 6 dimensions")
        return "{" + ",".join(_array_literal(each, depth + 1) for each in value) + "}"
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise ValueError(f"a text, a number or a boolean is expected in an array, not {_what(value)}")


def _what(value: Any) -> str:
    """What kind of value it is, in JSON's terms."""
    if isinstance(value, bool):
        return "a boolean"
    return _KINDS.get(type(value), type(value).__name__)


_KINDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a number",
    float: "a fraction",
    dict: "an object",
    list: "an array",
    bytes: "bytes",
}
_ENCODERS: Final[Mapping[str, Encoder]] = {
    "bool": _boolean,
    **{name: _integer(bound) for name, bound in _INTEGERS.items()},
    "float4": _double,
    "float8": _double,
    "numeric": _numeric,
    "text": _text,
    "varchar": _text,
    "bpchar": _text,
    "json": _json,
    "jsonb": _json,
    "bytea": _bytes,
}


def column_type(value: Any) -> str:
    """The type of a column that is made for a JSON value.

    All numbers are double precision: a device that sends 20 sends 20.5 next.
    """
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "double precision"
    if isinstance(value, str):
        return "text"
    return "bytea" if isinstance(value, bytes) else "jsonb"
