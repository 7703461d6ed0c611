"""Times, log positions and sizes: parsing them from a command line and formatting them for people."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from store.exports.until import Until

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_YEAR_MS: Final = 31_556_952_000
_LAST_MS: Final = 253_402_300_800_000  # 10000-01-01: datetime ends here, but a message may be due later


def position_or_time(text: str) -> "Until":
    """Parse a position of the log, or a time in ISO 8601 (UTC without an offset)."""
    from store.exports.until import Until  # noqa: PLC0415

    if text.isascii() and text.isdigit():
        return Until(position=int(text))
    try:
        return Until(time_ms=milliseconds(parse_time(text)))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a position nor a time such as 2025-06-01T12:00:00Z"
        ) from None


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601 (UTC without an offset)."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2025-06-01T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def milliseconds(time: datetime) -> int:
    """Convert a time to milliseconds since 1970-01-01 UTC."""
    return (time - _EPOCH) // _MS


def format_time(time_ms: int) -> str:
    """Format milliseconds since 1970 for people; 0 is "never"."""
    if time_ms == 0:
        return "never"
    if time_ms >= _LAST_MS:
        return f"the year {10_000 + (time_ms - _LAST_MS) // _YEAR_MS}"
    return (_EPOCH + time_ms * _MS).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def format_size(count: int) -> str:
    """Format a number of bytes for people."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
