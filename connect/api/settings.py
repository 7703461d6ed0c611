"""The settings of a connector: their types, defaults and checks, in the terms of Kafka Connect's `ConfigDef`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from connect.api.errors import InvalidSettings


class SettingType(StrEnum):
    """How the text of a setting is read."""

    STRING = "STRING"
    INT = "INT"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    LIST = "LIST"  # texts with commas between them
    PASSWORD = "PASSWORD"  # noqa: S105 (never shown again)


class Importance(StrEnum):
    """How likely a user has to set it."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


Settings = Mapping[str, Any]  # by name: `str`, `int`, `float`, `bool`, `list[str]`, or None


@dataclass(slots=True, frozen=True)
class Setting:
    """One setting of a connector, a converter or a transform."""

    name: str
    documentation: str
    type: SettingType = SettingType.STRING
    default: Any = None
    required: bool = False
    importance: Importance = Importance.MEDIUM
    choices: Sequence[str] = ()  # the values that are allowed; empty: any
    least: float | None = None
    most: float | None = None
    check: Callable[[Any], str | None] | None = None  # of a value that was read: what is wrong with it, or None

    def read(self, text: object) -> Any:
        """The value of a text. Raises ValueError, whose message says what is expected."""
        value = _READERS[self.type](text)
        if self.choices:
            for each in value if isinstance(value, list) else [value]:
                if each not in self.choices:
                    raise ValueError(f"one of {', '.join(self.choices)} is expected, not {each!r}")
        if self.least is not None and value < self.least:
            raise ValueError(f"the least value is {self.least}, not {value}")
        if self.most is not None and value > self.most:
            raise ValueError(f"the largest value is {self.most}, not {value}")
        problem = None if self.check is None else self.check(value)
        if problem:
            raise ValueError(problem)
        return value


def read_settings(
    definitions: Iterable[Setting], given: Mapping[str, object], *, strict: bool = True
) -> dict[str, Any]:
    """The value of each defined setting. Raises `InvalidSettings` with all that is wrong.

    strict: a name without a definition is an error.
    """
    known = {each.name: each for each in definitions}
    values: dict[str, Any] = {}
    errors: dict[str, list[str]] = {}
    for name, setting in known.items():
        text = given.get(name)
        if text is None or text == "":
            values[name] = setting.default
            if setting.required:
                errors[name] = ["a value is required"]
            continue
        try:
            values[name] = setting.read(text)
        except ValueError as error:
            errors[name] = [str(error)]
    if strict:
        errors.update({name: ["there is no such setting"] for name in given if name not in known})
    if errors:
        raise InvalidSettings(errors)
    return values


def _text(value: object) -> str:
    if isinstance(value, (dict, list)):
        raise ValueError("a text is expected")
    return str(value)


def _int(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"a whole number is expected, not {str(value)!r}") from None


def _double(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"a number is expected, not {str(value)!r}") from None


def _boolean(value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f"true or false is expected, not {str(value)!r}")
    return text == "true"


def _list(value: object) -> list[str]:
    parts = value if isinstance(value, list) else str(value).split(",")
    return [part for each in parts if (part := str(each).strip())]


_READERS: dict[SettingType, Callable[[object], Any]] = {
    SettingType.STRING: _text,
    SettingType.INT: _int,
    SettingType.DOUBLE: _double,
    SettingType.BOOLEAN: _boolean,
    SettingType.LIST: _list,
    SettingType.PASSWORD: _text,
}
