"""The trace of a message, for programs that use OpenTelemetry: W3C Trace Context in user properties.

Nothing here loads OpenTelemetry. A program that has not loaded it has no trace that could go on.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.context import Context

TRACEPARENT: Final = "traceparent"
_NAMES: Final = (TRACEPARENT, "tracestate")
_API: Final = "opentelemetry.trace"


def current_trace() -> dict[str, str]:
    """The user properties that name the current span; none without one."""
    if _API not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found


def context_of(user: Sequence[tuple[str, str]]) -> "Context | None":
    """The context of OpenTelemetry that user properties name; None if they name none, or it is not installed."""
    named = {name: value for name, value in user if name in _NAMES}
    if TRACEPARENT not in named:
        return None
    try:
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
    except ImportError:
        return None
    context = TraceContextTextMapPropagator().extract(named, Context())
    return context or None


@contextmanager
def within_trace(find: "Callable[[], Context | None]") -> Iterator[None]:
    """Make the context that `find` returns the current one. In a program that has not loaded OpenTelemetry, nothing is
    looked for."""
    context = find() if _API in sys.modules else None
    if context is None:
        yield
        return
    from opentelemetry.context import attach, detach  # noqa: PLC0415

    token = attach(context)
    try:
        yield
    finally:
        detach(token)
