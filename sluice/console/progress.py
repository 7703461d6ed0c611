"""The progress of a long command, shown on a terminal only."""

import sys
import time
from types import TracebackType
from typing import Final

from sluice.console.times import format_size

_EVERY: Final = 0.1  # seconds


class ProgressLine:
    """A line on standard error that each report overwrites."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._last = 0.0

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def report(self, what: str, done: int, total: int) -> None:
        """Show that `what` has done so many of `total` bytes; 0: the total is unknown."""
        now = time.monotonic()
        if not self._is_shown or now - self._last < _EVERY:
            return
        self._last = now
        of = f" of {format_size(total)}" if total else ""
        print(f"\r\x1b[K{what} {format_size(done)}{of}", end="", file=sys.stderr, flush=True)
