"""The cause of a failed query as one line, extracted from the stack traces of Python and the JVM.

Spark reports failures of the driver's planning, of a task and of the analysis of a query in different forms. Pure: no
Spark.
"""

import re
from dataclasses import dataclass
from typing import Final

_LONGEST: Final = 600  # characters of a line
_TRACEBACK: Final = "Traceback (most recent call last)"
_PYTHON: Final = re.compile(r"^([A-Za-z_]\w*(?:\.\w+)*): (\S.*)$")  # the last line of a traceback
# An `OptionError`, which Spark reports without a traceback.
_OPTION: Final = re.compile(r"\[PYTHON_DATA_SOURCE_ERROR\].*?: ([a-z]\w*(?:\.\w+)*\.OptionError): (.*)")
_AWAY: Final = ("cloud_sdk.errors.Unavailable", "cloud_sdk.errors.NoAnswer", "cloud_sdk.errors.Busy")
_JAVA: Final = re.compile(r"^(?:: )?(?:[a-z]\w*\.)+(\w+): ")  # a Java class before its message
# Spark waits ten seconds for a process of Python that it has started.
_LATE_WORKER: Final = re.compile(
    r"Python worker failed to connect back|waiting for the Python worker to connect back"
    r"|before the Python worker connected|STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT"
)
_NOISE: Final = ("An error occurred while calling ", "Driver stacktrace", "JVM stacktrace")
_STATE: Final = re.compile(r" ?SQLSTATE: \w{5};?")


@dataclass(slots=True, frozen=True)
class Failure:
    """Why a query failed."""

    kind: str  # the Python class, with its module unless it is built in; "" when unknown
    reason: str  # one line
    is_late_worker: bool = False  # a Python process of Spark did not connect in time, as on a busy machine

    @property
    def is_away(self) -> bool:
        """Whether the node could not be reached, so that a later attempt may succeed."""
        return self.kind in _AWAY


def failure_of(text: str) -> Failure:
    """Extract the failure from the text of a Spark exception."""
    is_late = _LATE_WORKER.search(text) is not None
    _, found, rest = text.rpartition(_TRACEBACK)
    if found:
        for line in rest.splitlines():
            match = _PYTHON.match(line)
            if match:
                return Failure(match[1], _short(match[2]), is_late)
    option = _OPTION.search(text)
    if option:
        return Failure(option[1], _short(option[2]), is_late)
    lines = [line.strip() for line in text.splitlines()]
    message = next((line for line in lines if line and not line.startswith(_NOISE)), "it failed for an unknown reason")
    return Failure("", _short(_JAVA.sub("", message)), is_late)


def _short(line: str) -> str:
    short = _STATE.sub("", line).strip()
    return short if len(short) <= _LONGEST else short[: _LONGEST - 1] + "…"
