"""The line of each setting in a TOML file, which `tomllib` does not tell."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final

_AT_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_LAST: Final = re.compile(r"(.*?)(?:\.[^.\[]+|\[\d+\])")


def lines_of(text: str) -> dict[str, int]:
    """The line of each table and setting of a valid TOML file, by its path: `mqtt.listeners[0].address`."""
    found: dict[str, int] = {}
    numbers: dict[str, int] = {}  # of tables of lists, by the path of the list
    table = ""
    for number, statement in _statements(text):
        tree = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _header(tree, numbers)
            found.setdefault(table, number)
        else:
            for path in _paths(tree, f"{table}." if table else ""):
                found.setdefault(path, number)
    return found


def line_of(key: str, lines: dict[str, int]) -> int:
    """The line of a setting, or of the table or list that it is missing in; 0 if there is none."""
    while key and key not in lines:
        match = _LAST.fullmatch(key)
        key = match[1] if match is not None else ""
    return lines.get(key, 0)


def line_of_error(error: tomllib.TOMLDecodeError) -> int:
    """The line of an error of TOML; 0 if it is at the end of the file."""
    match = _AT_LINE.search(str(error))
    return int(match[1]) if match is not None else 0


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of a file, each with the number of its first line."""
    statement, first = "", 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not statement and not line.strip().partition("#")[0]:
            continue
        statement, first = statement + line, first or number
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # it goes on in the next line
            continue
        yield first, statement
        statement, first = "", 0


def _header(tree: dict[str, Any], numbers: dict[str, int]) -> str:
    """The path of the table that a header begins: the tree that the header alone stands for."""
    path = ""
    node: Any = tree
    while node:
        name, node = next(iter(node.items()))
        path = f"{path}.{name}" if path else name
        if isinstance(node, list):
            numbers[path] = numbers.get(path, -1) + 1
            node = node[0]
        if path in numbers:
            path = f"{path}[{numbers[path]}]"
    return path


def _paths(node: Any, prefix: str) -> Iterator[str]:
    """Yield the paths of all that a statement sets."""
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for number, each in enumerate(value):
                yield f"{prefix}{name}[{number}]"
                if isinstance(each, dict):
                    yield from _paths(each, f"{prefix}{name}[{number}].")
