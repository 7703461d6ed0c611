"""The figures of a task, which go into the heartbeat of its worker."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_MAX_ERROR = 500  # characters


@dataclass(slots=True)
class Figures:
    """Counts since the worker took the task."""

    records_in: int = 0  # read: from the log, or from the other system
    records_out: int = 0  # delivered, or stored
    bytes: int = 0  # of payloads that a sink has read from the log, or a source has stored in it
    dropped: int = 0  # by a transform
    failed: int = 0  # could not be converted, transformed or delivered
    dead: int = 0  # of them, dead letters
    retried: int = 0  # calls that were repeated
    last_error: str = ""
    last_error_ms: int = 0  # since 1970-01-01 UTC
    secrets: tuple[str, ...] = ()  # that no text about an error may have

    def text(self, error: BaseException) -> str:
        """An error in one line, without secrets."""
        return error_text(error, self.secrets)

    def note(self, error: BaseException) -> None:
        """Keep an error for people."""
        self.last_error = self.text(error)
        self.last_error_ms = int(time.time() * 1000)

    def fields(self) -> dict[str, Any]:
        """For the heartbeat."""
        fields = asdict(self)
        del fields["secrets"]
        return fields


def error_text(error: BaseException, secrets: Sequence[str] = ()) -> str:
    """An error in one line, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in secrets:
        text = text.replace(secret, "***")
    if isinstance(error, ModuleNotFoundError):
        text += ": the worker does not have what this connector needs, see docs/connectors.md"
    return text if len(text) <= _MAX_ERROR else f"{text[:_MAX_ERROR]}…"
