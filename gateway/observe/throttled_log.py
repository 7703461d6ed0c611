"""Log lines about what peers do wrong, of each kind one a minute, whatever they do; and about what the store does."""

import logging
from time import monotonic
from typing import Final

from store.errors import StoreClosed, StoreError

_TELL_AGAIN: Final = 60.0  # seconds


def tell_failure(log: logging.Logger, error: StoreError, text: str, name: bytes) -> None:
    """Log that the store failed in an affair of somebody; `name` and the error go into `text`. Not so where it is away:
    that is told once, by who lost it, and not for each of a hundred thousand sessions."""
    log.log(logging.DEBUG if isinstance(error, StoreClosed) else logging.ERROR, text, name, error)


class ThrottledLog:
    """The lines of one listener, or of another part of the node. Kinds are words of the code: there are few."""

    __slots__ = ("_log", "_logged", "_who")

    def __init__(self, log: logging.Logger, who: str = "") -> None:
        """who: what each line begins with."""
        self._log = log
        self._who = who
        self._logged: dict[str, float] = {}  # by kind

    def warning(self, kind: str, text: str) -> None:
        """Log a line, if there was none of this kind in the last minute."""
        now = monotonic()
        if now - self._logged.get(kind, -_TELL_AGAIN) >= _TELL_AGAIN:
            self._logged[kind] = now
            self._log.warning("%s%s", self._who, text)
