"""The trace that a message or a call belongs to, as its sender names it: W3C Trace Context.

Source: https://www.w3.org/TR/trace-context/. `traceparent` is a header over HTTP, metadata over gRPC, and a user
property of MQTT 5.
"""

import re
from contextvars import ContextVar
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_MAX_STATE: Final = 512  # characters; a longer state is left out
# Versions after 00 may have more fields behind the flags.
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """A span of somebody else, whose trace goes on here."""

    trace_id: int
    span_id: int
    is_sampled: bool  # its sender records this trace
    state: str  # `tracestate`; "": none

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


def read_trace(traceparent: str, state: str = "") -> TraceContext | None:
    """The context that a `traceparent` names; None if it is not valid."""
    match = _FORM.fullmatch(traceparent)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(
        trace_id, span_id, bool(int(match[4], 16) & _SAMPLED), state if len(state) <= _MAX_STATE else ""
    )


# Of the call that this task answers: its caller's span. It is known to calls of the management surface, and to all
# calls of services where traces are switched on.
CALL_TRACE: Final[ContextVar[TraceContext | None]] = ContextVar("call_trace", default=None)
