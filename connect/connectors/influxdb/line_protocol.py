"""InfluxDB's line protocol: https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from connect.api import DataError

TYPES: Final = ("float", "integer", "string", "boolean")
_MEASUREMENT: Final = re.compile(r"([, ])")
_KEY: Final = re.compile(r"([,= ])")
_QUOTED: Final = re.compile(r'(["\\])')
_MAX_DEPTH: Final = 32  # of JSON
_MAX_REPEATED: Final = 256 << 10  # characters
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, str], timestamp_ns: int) -> str:
    """A point. fields: with values of `field_value`. Raises `DataError`."""
    if not measurement:
        raise DataError("the name of the measurement is empty")
    if not fields:
        raise DataError("there is no number, text or truth value for a field")
    head = ",".join(
        [
            _escaped(_MEASUREMENT, measurement),
            # InfluxDB takes points with sorted tags faster. A tag without a value is not allowed.
            *(f"{_escaped(_KEY, name)}={_escaped(_KEY, value)}" for name, value in sorted(tags.items()) if value),
        ]
    )
    values = ",".join(f"{_escaped(_KEY, name)}={value}" for name, value in fields.items())
    return f"{head} {values} {timestamp_ns}"


def flat(value: Any) -> dict[str, Any]:
    """The numbers, texts and truth values of a JSON value by name; a value itself is named `value`, and a member of a
    member `a_b`. Arrays count their elements: `a_0`. Raises `DataError`."""
    found: dict[str, Any] = {}
    repeated = 0  # characters: each name has those of the members around it in it

    def add(value: Any, name: str, depth: int) -> None:
        nonlocal repeated
        if depth > _MAX_DEPTH:
            raise DataError(f"the value has more than {_MAX_DEPTH} levels")
        if isinstance(value, dict):
            members = value.items()
        elif isinstance(value, list):
            members = {str(place): each for place, each in enumerate(value)}.items()
        else:
            if value is not None:
                found[name or "value"] = value
            return
        for own, each in members:
            repeated += len(name)
            if repeated > _MAX_REPEATED:
                raise DataError(f"names would be repeated in more than {_MAX_REPEATED} characters")
            add(each, f"{name}_{own}" if name else own, depth + 1)

    add(value, "", 0)
    return found


def field_value(value: Any, kind: str | None) -> str:
    """A value of a field. kind: one of `TYPES`; None: numbers are floats, other values as they are.

    Raises `DataError`."""
    if kind is None:
        kind = "boolean" if isinstance(value, bool) else "float" if isinstance(value, int | float) else "string"
    try:
        if kind == "boolean":
            return {True: "true", False: "false", "true": "true", "false": "false"}[value]
        if kind == "string":
            text = str(value).replace("\n", "\\n")
            return '"' + _QUOTED.sub(r"\\\1", text) + '"'
        if kind == "integer":
            number = int(value)
            if not _LEAST <= number <= _MOST:
                raise DataError(f"{number} is not an integer of 64 bits")
            return f"{number}i"
        number_of = float(value)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise DataError(f"{str(value)[:40]!r} is no {kind}") from None
    if not math.isfinite(number_of):
        raise DataError(f"{number_of} cannot be written")
    return repr(number_of)


def _escaped(special: re.Pattern[str], text: str) -> str:
    if text.endswith("\\"):
        raise DataError("a measurement, tag or name of a field ends with a backslash")
    # A line cannot have a line break: it becomes the two characters `\n`, as in Telegraf.
    return special.sub(r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")
