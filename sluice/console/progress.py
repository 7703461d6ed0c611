"""How far a long command has come, on a terminal; elsewhere nothing is said until it is done."""

import sys
import time
from types import TracebackType
from typing import Final

from sluice.console.times import size

_EVERY: Final = 0.1  # seconds


class Progress:
    """A line on standard error that is written over again and again."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._last = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown and self._last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def tell(self, what: str, done: int, total: int) -> None:
        """`what` has come to `done` of `total` bytes; of an unknown number when that is 0."""
        now = time.monotonic()
        if not self._is_shown or now - self._last < _EVERY:
            return
        self._last = now
        of = f" of {size(total)}" if total else ""
        print(f"\r\x1b[K{what} {size(done)}{of}", end="", file=sys.stderr, flush=True)
