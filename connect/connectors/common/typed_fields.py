"""Columns that are made of members of the value, as `temperature=t:double`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from connect.api import DataError, Setting, SettingType
from connect.connectors.common.values import COLUMNS, at_path, to_json

_MOST: Final = 500  # columns
_INT64: Final = range(-(1 << 63), 1 << 63)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


def _long(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    number = int(value)
    if number not in _INT64:
        raise OverflowError
    return number


def _double(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[value]


def _timestamp(value: Any) -> datetime:
    """Of milliseconds since 1970, or of ISO 8601, in UTC if it names no zone."""
    if isinstance(value, str):
        at = datetime.fromisoformat(value)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return datetime.fromtimestamp(_double(value) / 1000, UTC)


TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": _string,
    "long": _long,
    "double": _double,
    "boolean": _boolean,
    "timestamp": _timestamp,
}


@dataclass(slots=True, frozen=True)
class TypedField:
    """A column, and the member of the value that it has."""

    column: str
    path: str  # a.b: the member b of the member a
    type: str  # one of `TYPES`

    def of(self, value: Any) -> Any:
        """What the column has for a value; None: nothing. Raises `DataError` for another type."""
        found = at_path(value, self.path)
        if found is None:
            return None
        try:
            return TYPES[self.type](found)
        except (ValueError, TypeError, KeyError, OverflowError, OSError):
            raise DataError(f"{self.path} is no {self.type}: {str(found)[:40]!r}") from None


def parse_fields(texts: Sequence[str]) -> list[TypedField]:
    """Raises ValueError."""
    if len(texts) > _MOST:
        raise ValueError(f"at most {_MOST} fields are allowed")
    fields: list[TypedField] = []
    for text in texts:
        rest, colon, kind = text.rpartition(":")
        column, _, path = rest.partition("=")
        if not colon or not column or kind not in TYPES:
            raise ValueError(f"fields are such as temperature=t:double, with a type of {', '.join(TYPES)}")
        if column in {*COLUMNS, "date"} or column in (each.column for each in fields):
            raise ValueError(f"there is already a column {column}")
        fields.append(TypedField(column, path or column, kind))
    return fields


def _problem(texts: list[str]) -> str | None:
    try:
        parse_fields(texts)
    except ValueError as error:
        return str(error)
    return None


FIELDS: Final = Setting(
    "fields",
    "Columns that are made of members of the value, such as temperature=t:double,ok=state.ok:boolean. Types: string, "
    "long, double, boolean, timestamp. Without the member there is no value; with another type a message is rejected.",
    SettingType.LIST,
    [],
    check=_problem,
)
