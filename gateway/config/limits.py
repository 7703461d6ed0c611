"""Settings that declare which values they may have, and the check of a table of settings."""

from dataclasses import field, fields
from typing import Any


def bounded(default: int, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high})


def one_of(default: str, *others: str) -> str:
    """One of several texts."""
    return field(default=default, metadata={"choices": (default, *others)})


def any_of(default: list[str], *choices: str) -> list[str]:
    """A list of some of the choices. It may be empty only if its default is."""
    return field(default_factory=lambda: [*default], metadata={"choices": choices, "may_be_empty": not default})


def addresses() -> list[str]:
    """A list of addresses, which may be one text with commas in between."""
    return field(default_factory=list, metadata={"has_commas": True})


def check_table(table: Any) -> str:
    """Return what is wrong with the values in a table of settings, starting with the name of a setting, or ""."""
    for each in fields(table):
        value, limits = getattr(table, each.name), each.metadata
        if "low" in limits and not limits["low"] <= value <= limits["high"]:
            return f"{each.name} must be between {limits['low']} and {limits['high']}, not {value}"
        choices = limits.get("choices")
        if choices is None:
            continue
        if isinstance(value, list):
            if not set(value) <= set(choices) or not (value or limits["may_be_empty"]):
                return f"{each.name} is a list of {', '.join(choices)}, not {value!r}"
        elif value not in choices:
            *first, last = [f'"{text}"' for text in choices if text]
            return f"{each.name} is {', '.join(first)} or {last}, not {value!r}"
    return ""
