"""What a check has found."""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # it may become a problem
    ERROR = "error"  # the node cannot start, or loses service


@dataclass(slots=True, frozen=True)
class Finding:
    """One line of the report."""

    check: str  # what was looked at
    state: State
    text: str  # what was found
    advice: str = ""  # what to do; "": nothing


def ok(check: str, text: str) -> Finding:
    return Finding(check, State.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(check, State.WARNING, text, advice)


def error(check: str, text: str, advice: str) -> Finding:
    return Finding(check, State.ERROR, text, advice)
