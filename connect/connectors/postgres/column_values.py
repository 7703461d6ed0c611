"""Texts of PostgreSQL as JSON values, by the type of their column.

The texts are those of a session with the settings `SESSION`.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

Decoder = Callable[[str], Any]

# Without time limits: a snapshot waits while the log takes its rows, and would begin again and again.
SESSION: Final = (
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; "
    "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'; SET bytea_output = 'hex'; "
    "SET extra_float_digits = 1; SET client_encoding = 'UTF8'"
)


def _float(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else text  # JSON has no NaN and no infinity


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # a number that Python's floats cannot hold, U+0000 in halves
        return text


def _bytes(text: str) -> str:
    return b64encode(bytes.fromhex(text[2:])).decode()


def _timestamp(text: str) -> str:
    """In ISO 8601. Years before Christ and infinity stay as PostgreSQL writes them."""
    if text[10:11] != " " or text.endswith("BC"):
        return text
    text = f"{text[:10]}T{text[11:]}"
    return text[:-3] + "Z" if text.endswith("+00") else text


# By OID: https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat
_DECODERS: Final[Mapping[int, Decoder]] = {
    16: lambda text: text == "t",
    17: _bytes,
    20: int,
    21: int,
    23: int,
    26: int,
    114: _json,
    700: _float,
    701: _float,
    1114: _timestamp,
    1184: _timestamp,
    3802: _json,
}


def decoder(kind: int, element: int = 0) -> Decoder:
    """The decoder of a type. kind: its OID, of a domain that of its base type. element: that of an array's elements.

    Types without one, as `numeric`, `date` and `uuid`, stay text: a numeric has digits that JSON's readers lose.
    """
    if element:
        of_element = decoder(element)
        return lambda text: _array(text, of_element)
    return _DECODERS.get(kind, str)


def _array(text: str, of_element: Decoder) -> Any:
    """An array of its literal: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO"""
    start = text.find("{")
    if start < 0:
        return text  # a vector of the catalog
    outer: list[Any] = []
    stack = [outer]
    at = start  # what is before it says where indexes begin
    while at < len(text):
        character = text[at]
        if character == "{":
            inner: list[Any] = []
            stack[-1].append(inner)
            stack.append(inner)
            at += 1
        elif character == "}":
            stack.pop()
            at += 1
        elif character == ",":
            at += 1
        elif character == '"':
            end = at + 1
            while text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            quoted = text[at + 1 : end]
            stack[-1].append(of_element(_unescaped(quoted) if "\\" in quoted else quoted))
            at = end + 1
        else:
            ends = [found for each in ",}" if (found := text.find(each, at)) >= 0]
            word = text[at : min(ends)]
            stack[-1].append(None if word == "NULL" else of_element(word))
            at += len(word)
    return outer[0]


def _unescaped(text: str) -> str:
    parts = text.split("\\\\")
    return "\\".join(part.replace("\\", "") for part in parts)
