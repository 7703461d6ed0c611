"""Patterns of times as Java writes them (`SimpleDateFormat`), which Kafka's transforms take: to text and back."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

# Runs of pattern letters: how they are written, and what they match.
_LETTERS: Final[dict[str, tuple[Callable[[datetime], str], str]]] = {
    "yyyy": (lambda time: f"{time.year:04}", r"(?P<year>\d{4})"),
    "yy": (lambda time: f"{time.year % 100:02}", r"(?P<short_year>\d{2})"),
    "MM": (lambda time: f"{time.month:02}", r"(?P<month>\d{2})"),
    "dd": (lambda time: f"{time.day:02}", r"(?P<day>\d{2})"),
    "HH": (lambda time: f"{time.hour:02}", r"(?P<hour>\d{2})"),
    "mm": (lambda time: f"{time.minute:02}", r"(?P<minute>\d{2})"),
    "ss": (lambda time: f"{time.second:02}", r"(?P<second>\d{2})"),
    "SSS": (lambda time: f"{time.microsecond // 1000:03}", r"(?P<ms>\d{3})"),
    "XXX": (lambda _: "Z", r"(?P<zone>Z|[+-]\d{2}:\d{2})"),
    "Z": (lambda _: "+0000", r"(?P<zone>[+-]\d{4})"),
    "z": (lambda _: "UTC", r"(?:UTC|GMT)"),
}
_PARTS: Final = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z']+)")


class TimeFormat:
    """One pattern. Times without a zone are UTC."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for a pattern with letters that are not known here."""
        self._writers: list[Callable[[datetime], str]] = []
        expression = ""
        at = 0
        for part in _PARTS.finditer(pattern):
            if part.start() != at:
                break
            at = part.end()
            if part["letters"] is not None:
                if part["letters"] not in _LETTERS:
                    raise ValueError(
                        f"{part['letters']!r} is not supported in a time format: {', '.join(_LETTERS)} are"
                    )
                write, match = _LETTERS[part["letters"]]
                self._writers.append(write)
                expression += match
            else:
                text = part["other"] if part["quoted"] is None else part["quoted"].replace("''", "'") or "'"
                self._writers.append(_constant(text))
                expression += re.escape(text)
        if at != len(pattern) or not pattern:
            raise ValueError(f"{pattern!r} is not a time format")
        try:
            self._expression = re.compile(expression)
        except re.error as error:
            raise ValueError(f"{pattern!r} has the same letters twice") from error

    def write(self, ms: float) -> str:
        """A time in ms since 1970-01-01 UTC as text."""
        time = datetime.fromtimestamp(ms / 1000, UTC)
        return "".join(write(time) for write in self._writers)

    def read(self, text: str) -> int:
        """A text as ms since 1970-01-01 UTC. Raises ValueError."""
        match = self._expression.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:60]!r} has not the expected format")
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        zone = found.pop("zone", "Z").replace(":", "")
        offset_min = 0 if zone == "Z" else (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 60 + int(zone[3:5]))
        year = int(found["short_year"]) + 2000 if "short_year" in found else int(found.get("year", 1970))
        month, day = int(found.get("month", 1)), int(found.get("day", 1))
        hour, minute, second = (int(found.get(name, 0)) for name in ("hour", "minute", "second"))
        time = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        return round(time.timestamp() * 1000) + int(found.get("ms", 0)) - offset_min * 60_000


def _constant(text: str) -> Callable[[datetime], str]:
    return lambda _: text
