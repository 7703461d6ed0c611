"""What a failed query failed with, in a line: the cause, out of the stacks of Python and of the JVM around it.

The texts are Spark's, whose forms differ by where something failed: the driver's planning, a task, the analysis of the
query. Pure: no Spark.
"""

import re
from dataclasses import dataclass
from typing import Final

_LONGEST: Final = 600  # characters of a line
TRACEBACK: Final = "Traceback (most recent call last)"
_PYTHON: Final = re.compile(r"^([A-Za-z_]\w*(?:\.\w+)*): (\S.*)$")  # the last line of a traceback
_AWAY: Final = ("cloud_sdk.errors.Unavailable", "cloud_sdk.errors.NoAnswer", "cloud_sdk.errors.Busy")
_JAVA: Final = re.compile(r"^(?:: )?(?:[a-z]\w*\.)+(\w+): ")  # a Java class in front of what it says
_NOISE: Final = ("An error occurred while calling ", "Driver stacktrace", "JVM stacktrace")
_STATE: Final = re.compile(r" ?SQLSTATE: \w{5};?")


@dataclass(slots=True, frozen=True)
class Failure:
    """Why a query failed."""

    kind: str  # the Python class, with its module where it is no built-in one; else ""
    reason: str  # one line

    @property
    def is_away(self) -> bool:
        """The node could not be reached for as long as it was tried: later it may."""
        return self.kind in _AWAY


def failure_of(text: str) -> Failure:
    """From the text of an exception of Spark's."""
    _, found, rest = text.rpartition(TRACEBACK)
    if found:
        for line in rest.splitlines():
            match = _PYTHON.match(line)
            if match:
                return Failure(match[1], _short(match[2]))
    lines = [line.strip() for line in text.splitlines()]
    said = next((line for line in lines if line and not line.startswith(_NOISE)), "it failed, and does not say why")
    return Failure("", _short(_JAVA.sub("", said)))


def _short(line: str) -> str:
    told = _STATE.sub("", line).strip()
    return told if len(told) <= _LONGEST else told[: _LONGEST - 1] + "…"
