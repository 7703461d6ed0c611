"""The reference of all settings, as a page of Markdown and as a configuration file with comments.

Both are written from the fields of `Config` and of its tables: a name, a default or a range cannot be wrong.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import orjson

from gateway.config.cluster import Options
from gateway.config.config import Config, keys
from gateway.config.values import options_of, types_of

_WIDTH: Final = 110  # of a comment
_WORDS: Final[dict[object, str]] = {
    bool: "true or false",
    int: "a whole number",
    Path: "a path",
    str: "a text",
    dict[str, int]: "a table of whole numbers",
    Options: "a table of texts, numbers and switches",
}
_INTRODUCTION: Final = """\
# Configuration

`sluice config reference --format markdown` has written this page. `sluice config reference` prints the same as a
configuration file with comments. [operations.md](operations.md#configuration) explains where settings come from, how to
check a file, and how a running node takes a new one.

*Live* settings take effect when a node reads its configuration again (SIGHUP, `sluice config reload`). All others need
a restart. In the environment, `mqtt.port` is `SLUICE_MQTT_PORT`; lists and tables are JSON there.
"""
_GENERAL: Final = "All settings without a table."


@dataclass(slots=True, frozen=True)
class _Table:
    """A table of settings."""

    path: str  # "mqtt", "mqtt.listeners"; "": that of the settings without a table
    about: str
    is_listed: bool  # one of a list
    settings: tuple["Field[Any]", ...]
    types: dict[str, Any]


def markdown() -> str:
    """The page about all settings."""
    parts = [_INTRODUCTION]
    for table in _tables():
        title = f"`{_header(table)}`" if table.path else "Without a table"
        parts.append(f"\n## {title}\n\n{table.about}\n\n| setting | value | default | live | what it does |\n")
        parts.append("| --- | --- | --- | --- | --- |\n")
        for each in table.settings:
            values = _values(each, table.types[each.name])
            live = "live" if each.metadata["live"] else ""
            parts.append(f"| `{each.name}` | {values} | {_default_cell(each)} | {live} | {_about(each)} |\n")
    return "".join(parts)


def toml() -> str:
    """A configuration file in which each setting is a comment and has its default."""
    lines = ["# Every setting of a node, with its default. Remove the # before a setting to change it."]
    for table in _tables():
        mark = "## " if table.is_listed else ""  # of lines that are an example, and no default
        lines += ["", *_comment(table.about), *([f"{mark}{_header(table)}"] if table.path else [])]
        for each in table.settings:
            kind = table.types[each.name]
            if not _is_list_of_tables(kind):
                live = "live" if each.metadata["live"] else "needs a restart"
                values = _values(each, kind).replace("`", "")
                about = _about(each).replace("`", "")
                value = _toml_value(_default(each))
                lines += ["", *_comment(about), *_comment(f"{values}; {live}"), f"{mark or '#'}{each.name} = {value}"]
    return "\n".join(lines) + "\n"


def _tables() -> Iterator[_Table]:
    top = [each for each in fields(Config) if each.name in keys()]
    yield _Table("", _GENERAL, False, tuple(top), types_of(Config))
    for each in fields(Config):
        if any(key.startswith(f"{each.name}.") for key in keys()):
            yield from _table(each.name, types_of(Config)[each.name], is_listed=False)


def _table(path: str, kind: Any, *, is_listed: bool) -> Iterator[_Table]:
    types = types_of(kind)
    own = tuple(each for each in fields(kind) if not is_dataclass(types[each.name]))
    yield _Table(path, " ".join(kind.__doc__.split()), is_listed, own, types)
    for each in fields(kind):
        if is_dataclass(types[each.name]):
            yield from _table(f"{path}.{each.name}", types[each.name], is_listed=False)
        if _is_list_of_tables(types[each.name]):
            yield from _table(f"{path}.{each.name}", get_args(types[each.name])[0], is_listed=True)


def _header(table: _Table) -> str:
    return f"[[{table.path}]]" if table.is_listed else f"[{table.path}]"


def _is_list_of_tables(kind: Any) -> bool:
    return get_origin(kind) is list and is_dataclass(get_args(kind)[0])


def _values(each: "Field[Any]", kind: Any) -> str:
    """Which values a setting may have, in words."""
    limits = each.metadata
    if "low" in limits:
        unit = f" {limits['unit']}" if limits["unit"] else ""
        return f"{limits['low']} to {limits['high']}{unit}"
    if _is_list_of_tables(kind):
        return "a list of tables"
    if "choices" in limits:
        choices = ", ".join(f"`{choice}`" for choice in limits["choices"] if choice)
        may_be_empty = "" in limits["choices"]
        return f"a list of {choices}" if get_origin(kind) is list else choices + ", or empty" * may_be_empty
    if get_origin(kind) is list:
        return f"a list of {'whole numbers' if get_args(kind)[0] is int else 'texts'}"
    return next(_WORDS[option] for option in options_of(kind) if option in _WORDS)


def _about(each: "Field[Any]") -> str:
    return str(each.metadata["about"])


def _default(each: "Field[Any]") -> Any:
    return each.default_factory() if callable(each.default_factory) else each.default


def _default_cell(each: "Field[Any]") -> str:
    value = _default(each)
    if value in ("", None, Path()) or value in ([], {}):
        return ""
    return f"`{_toml_value(value)}`"


def _toml_value(value: Any) -> str:
    """A value in TOML. JSON is, for what a setting may be."""
    if value in ({}, None) or value == Path():
        return "{}" if value == {} else '""'
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return orjson.dumps(value, default=str).decode()


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
