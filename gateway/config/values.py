"""Values of settings as the configuration file, the environment and flags have them, converted to their types."""

import dataclasses
import difflib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from gateway.config.cluster import Options

_SWITCH: Final[dict[object, bool]] = {True: True, False: False, "true": True, "false": False}
_A_LIST: Final = "a list (in the environment as JSON)"
_WORDS: Final[dict[object, str]] = {
    bool: "true or false",
    int: "a whole number",
    Path: "a path",
    str: "a text",
    dict[str, int]: "a table of whole numbers (in the environment as JSON)",
    Options: "a table of texts, numbers and switches (in the environment as JSON)",
}


class ConfigError(Exception):
    """A setting is unknown or has an invalid value. The message names it and says what is allowed."""

    def __init__(self, text: str, key: str = "") -> None:
        """key: the setting, with its table and, in a list, its number: `mqtt.listeners[0].mode`. "": the first word."""
        super().__init__(text)
        self.key = key or text.partition(" ")[0].rstrip(":")


@cache
def types_of(table: type) -> dict[str, Any]:
    """The types of the settings of a table."""
    return get_type_hints(table)


def options_of(kind: Any) -> tuple[Any, ...]:
    """The types of which a value may be one."""
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def convert(key: str, value: object, kind: Any, source: str) -> object:
    """Return the value of a setting as `kind`. source: for errors, where the value is from. Raises ConfigError."""
    options = options_of(kind)
    if get_origin(kind) is list:
        return _list(key, value, get_args(kind)[0], source)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _table(key, value, kind, source)
    try:
        if bool in options:
            return _SWITCH[value.lower() if isinstance(value, str) else value]
        if int in options and not isinstance(value, bool) and isinstance(value, (int, str)):
            return int(value)
        if Path in options and isinstance(value, (str, Path)) and value != "":  # Path("") is the working directory
            return Path(value)
        if str in options and isinstance(value, str):
            return value
        if dict[str, int] in options:
            return _numbers(value)
        if Options in options:
            return _options(value)
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{key} in {source} must be {_in_words(kind)}, not {value!r}", key)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the known name that is most like it, if one is."""
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _in_words(kind: Any) -> str:
    return "a table" if dataclasses.is_dataclass(kind) else next(_WORDS[option] for option in options_of(kind))


def _list(key: str, value: object, kind: Any, source: str) -> list[object]:
    """Convert a list of values or tables, or its JSON text. Raises ConfigError."""
    try:
        items = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        items = None
    if not isinstance(items, list):
        raise ConfigError(f"{key} in {source} must be {_A_LIST}, not {value!r}", key)
    return [convert(f"{key}[{number}]", item, kind, source) for number, item in enumerate(items)]


def _table(key: str, value: dict[str, object], kind: Any, source: str) -> object:
    """Convert a table in a list. Raises ConfigError."""
    table = kind()
    hints = types_of(kind)
    for name, item in value.items():
        if name not in hints:
            raise ConfigError(f"unknown setting {name!r} in {key} in {source}{nearest(name, hints)}", f"{key}.{name}")
        setattr(table, name, convert(f"{key}.{name}", item, hints[name], source))
    return table


def _numbers(value: object) -> dict[str, int]:
    """Convert a table of numbers by name, or its JSON text. Raises ValueError."""
    table = json.loads(value) if isinstance(value, str) else value
    if not isinstance(table, dict) or any(type(number) is not int for number in table.values()):
        raise ValueError("not a table of whole numbers")
    return table


def _options(value: object) -> Options:
    """Convert a table of texts, numbers and switches, or its JSON text. Raises ValueError."""
    table = json.loads(value) if isinstance(value, str) else value
    if not isinstance(table, dict) or not all(isinstance(each, str | int | float) for each in table.values()):
        raise ValueError("not a table of texts, numbers and switches")
    return table
