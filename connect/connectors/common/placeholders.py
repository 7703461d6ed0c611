"""Names made of a record, such as `iot-${level2}`: of an index, a measurement, a table, a folder or a URL."""

import re
from collections.abc import Callable
from typing import Any, Final

from connect.api import DataError, SinkRecord
from connect.connectors.common.values import at_path, iso, parsed

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_LEVEL: Final = re.compile(r"level([1-9][0-9]?)")
KINDS: Final = (
    "${topic}, ${level1}, ${level2}, …, ${key}, ${header.NAME}, ${value.PATH}, ${partition}, ${date} and ${hour} (UTC, "
    "of the time at which it was stored)"
)

Read = Callable[[SinkRecord], Any]


class Name:
    """A text with placeholders."""

    __slots__ = ("_parts",)

    def __init__(self, text: str) -> None:
        """Raises ValueError for a placeholder that there is not."""
        self._parts: list[str | Read] = []
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            self._parts += (text[end : found.start()], _reader(found[1]))
            end = found.end()
        self._parts.append(text[end:])

    def of(self, record: SinkRecord, quote: Callable[[str], str] = str) -> str:
        """The name of a record. quote: what is done with each text of the record. Raises `DataError` if the record
        does not have what a placeholder names."""
        return "".join(part if isinstance(part, str) else quote(_text(part(record))) for part in self._parts)

    def of_if_any(self, record: SinkRecord) -> str | None:
        """Like `of`, but None if the record does not have what a placeholder names."""
        try:
            return self.of(record)
        except DataError:
            return None

    @property
    def is_constant(self) -> bool:
        return len(self._parts) == 1


_SIMPLE: Final[dict[str, Read]] = {
    "topic": lambda record: record.topic,
    "partition": lambda record: record.partition.number,
    "date": lambda record: iso(record.timestamp_ms)[:10],
    "hour": lambda record: iso(record.timestamp_ms)[11:13],
}


def problem_of(text: str) -> str | None:
    """What is wrong with a text with placeholders, for `Setting.check`."""
    try:
        Name(text)
    except ValueError as error:
        return str(error)
    return None


def _reader(name: str) -> Read:
    kind, _, rest = name.partition(".")
    if level := _LEVEL.fullmatch(name):
        number = int(level[1])
        return lambda record: _level(record, number)
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name == "key":
        return lambda record: _there(record.key, "a key")
    if kind == "header" and rest:
        return lambda record: _there(dict(reversed(record.headers)).get(rest), f"a user property {rest!r}")
    if kind == "value" and rest:
        return lambda record: _there(at_path(parsed(record.value), rest), f"a value {rest!r}")
    raise ValueError(f"there is no placeholder ${{{name}}}: there are {KINDS}")


def _level(record: SinkRecord, number: int) -> str:
    levels = record.topic.split("/", number)
    if len(levels) < number:
        raise DataError(f"the topic has fewer than {number} levels")
    return levels[number - 1]


def _there(value: Any, what: str) -> Any:
    if value is None:
        raise DataError(f"the message does not have {what}")
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise DataError("a placeholder stands for an array or an object")
