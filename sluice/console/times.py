"""Moments of the log as they are written on a command line, and told."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from store.exports.until import Until

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_YEAR_MS: Final = 31_556_952_000
_LAST_MS: Final = 253_402_300_800_000  # 10000-01-01: there are no dates from there on, but messages may be due


def moment(text: str) -> "Until":
    """A position of the log, or a time: ISO 8601, UTC unless it says else."""
    from store.exports.until import Until  # noqa: PLC0415

    if text.isascii() and text.isdigit():
        return Until(position=int(text))
    try:
        return Until(time_ms=milliseconds(time(text)))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a position nor a time such as 2025-06-01T12:00:00Z"
        ) from None


def time(text: str) -> datetime:
    """A time: ISO 8601, UTC unless it says else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2025-06-01T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def milliseconds(time: datetime) -> int:
    """Since 1970-01-01 UTC."""
    return (time - _EPOCH) // _MS


def told(time_ms: int) -> str:
    """A store time for people."""
    if time_ms == 0:
        return "never"
    if time_ms >= _LAST_MS:
        return f"the year {10_000 + (time_ms - _LAST_MS) // _YEAR_MS}"
    return (_EPOCH + time_ms * _MS).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
