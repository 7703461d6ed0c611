"""Parsing the options of the data source. Spark gives texts, and ignores the case of names."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime


class OptionError(ValueError):
    """An option is missing, unknown or has a value that cannot be used."""


def known_options(
    options: Mapping[str, str],
    names: Sequence[str],
    aliases: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the options by their names in lower case. `aliases` are other names for some of `names`, and `instead`
    says what to do for names that people try. Raises `OptionError` for an unknown name, and for two of one meaning."""
    other = {alias.lower(): name.lower() for alias, name in (aliases or {}).items()}
    hints = {name.lower(): hint for name, hint in (instead or {}).items()}
    given: dict[str, str] = {}
    for name, value in options.items():
        real = other.get(name.lower(), name.lower())
        if real in given and real != name.lower():
            raise OptionError(f"{name} and another option with the meaning of {real} must not be given together")
        given[real] = value
    known = {name.lower(): name for name in names}
    for name in given:
        if name in hints:
            raise OptionError(f"there is no option {name!r} here: {hints[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; the options are {', '.join(names)}"
            raise OptionError(f"unknown option {name!r}{hint}")
    return given


def required(given: Mapping[str, str], name: str) -> str:
    if name.lower() not in given:
        raise OptionError(f"option {name!r} is missing")
    return given[name.lower()]


def positive(given: Mapping[str, str], name: str) -> int | None:
    """Parse a whole number above 0; None without the option."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise OptionError(f"{name} must be a whole number above 0, not {text!r}")
    return int(text)


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def moment(given: Mapping[str, str], name: str) -> int | None:
    """Parse a time to ms since 1970-01-01 UTC: such a number, or ISO 8601 (UTC without an offset)."""
    text = given.get(name.lower())
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(
            f"{name} must be a time such as 2026-01-31T12:00:00Z or milliseconds since 1970, not {text!r}"
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000)
