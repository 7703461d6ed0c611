"""User properties as headers of systems in which a name has one value."""

from collections.abc import Iterable


def merged(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One value for each name: those of a name that repeats, with commas between them, as HTTP does."""
    found: dict[str, str] = {}
    for name, value in headers:
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
