"""Log lines of limited rate about faults of clients, and log lines about failures of the store."""

import logging
from time import monotonic
from typing import Final

from store.errors import StoreClosed, StoreError

_PAUSE: Final = 60.0  # seconds between two lines of a kind


def log_failure(log: logging.Logger, error: StoreError, text: str, name: bytes, client: bytes = b"") -> None:
    """Log a failure of the store. `text` has two %-placeholders, for `name` and the error. client: the id of the client
    that it is about, if it is about one.

    A store that is away is logged at debug level only: its loss is logged once elsewhere, and not for each of a hundred
    thousand sessions.
    """
    log.log(
        logging.DEBUG if isinstance(error, StoreClosed) else logging.ERROR, text, name, error, extra={"client": client}
    )


class ThrottledLog:
    """Log lines of one part of the node, at most one a minute of each kind. Kinds are constants of the code."""

    __slots__ = ("_log", "_logged", "_prefix")

    def __init__(self, log: logging.Logger, prefix: str = "") -> None:
        """prefix: the start of each line."""
        self._log = log
        self._prefix = prefix
        self._logged: dict[str, float] = {}  # by kind

    def warning(self, kind: str, text: str, client: bytes = b"") -> None:
        """Log a line unless there was one of this kind in the last minute. client: whom it is about, if known."""
        now = monotonic()
        if now - self._logged.get(kind, -_PAUSE) >= _PAUSE:
            self._logged[kind] = now
            self._log.warning("%s%s", self._prefix, text, extra={"client": client})
