"""Settings that declare what they do, which values they may have, and whether they can change while a node runs.

`gateway.config.reference` writes the reference of all settings from these declarations.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import field, fields
from typing import Any, TypeVar

T = TypeVar("T")


def setting(default: T, about: str, *, live: bool = False) -> T:
    """Any value of the type of the default.

    about: what the setting does, in one or more sentences. live: a node that reads its configuration again takes the
    new value; otherwise it needs a restart.
    """
    return _field(default, about, live)


def bounded(default: int, low: int, high: int, about: str, unit: str = "", *, live: bool = False) -> int:
    """A whole number from `low` to `high`."""
    return _field(default, about, live, low=low, high=high, unit=unit)


def one_of(default: str, *others: str, about: str, live: bool = False) -> str:
    """One of several texts."""
    return _field(default, about, live, choices=(default, *others))


def any_of(default: list[str], *choices: str, about: str) -> list[str]:
    """A list of some of the choices. It may be empty only if its default is."""
    return _field(default, about, live=False, choices=choices, may_be_empty=not default)


def addresses(about: str) -> list[str]:
    """A list of addresses, which may be one text with commas in between."""
    return _field([], about, live=False, has_commas=True)


def _field(default: T, about: str, live: bool, **limits: object) -> T:
    metadata = {"about": about, "live": live, **limits}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_table(table: Any) -> str:
    """Return what is wrong with the values in a table of settings, starting with the name of a setting, or ""."""
    return next(wrong_values(table), "")


def wrong_values(table: Any) -> Iterator[str]:
    """All that is wrong with the values in a table of settings."""
    for each in fields(table):
        value, limits = getattr(table, each.name), each.metadata
        if "low" in limits and not limits["low"] <= value <= limits["high"]:
            yield f"{each.name} must be between {limits['low']} and {limits['high']}, not {value}"
        choices = limits.get("choices")
        if choices is None:
            continue
        if isinstance(value, list):
            if not set(value) <= set(choices) or not (value or limits["may_be_empty"]):
                yield f"{each.name} is a list of {', '.join(choices)}, not {value!r}"
        elif value not in choices:
            *first, last = [f'"{text}"' for text in choices if text]
            yield f"{each.name} is {', '.join(first)} or {last}, not {value!r}"
