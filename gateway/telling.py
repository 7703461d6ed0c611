"""Log lines about what peers do wrong: of each kind one a minute, whatever they do."""

import logging
from time import monotonic
from typing import Final

_TELL_AGAIN: Final = 60.0  # seconds


class Telling:
    """The lines of one listener, or of another part of the node. Kinds are words of the code: there are few."""

    __slots__ = ("_log", "_told", "_who")

    def __init__(self, log: logging.Logger, who: str = "") -> None:
        """who: what each line begins with."""
        self._log = log
        self._who = who
        self._told: dict[str, float] = {}  # by kind

    def tell(self, kind: str, text: str) -> None:
        """Log a line, if there was none of this kind in the last minute."""
        now = monotonic()
        if now - self._told.get(kind, -_TELL_AGAIN) >= _TELL_AGAIN:
            self._told[kind] = now
            self._log.warning("%s%s", self._who, text)
