"""Which messages are traced, and their spans.

A message with a `traceparent` is traced if that says so (the flag *sampled*), and all spans of the node are children of
the span that it names. Of the messages without one, as many begin a trace as `otel.sample_per_million` says. Which
ones, and the ids of their traces, follow from position and time of their records: so each process that meets such a
message knows them, and the record needs nothing. The span of the append is the root then.

Spans are made when they have ended, so a message costs nothing before. Names and attributes are those of
OpenTelemetry's semantic conventions for messaging.
"""

import time
from hashlib import blake2b
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.config.otel import OtelConfig, traces_url
from gateway.mqtt.properties import read_message_block
from gateway.observe.trace_context import TRACEPARENT, TRACESTATE, TraceContext, read_trace
from gateway.tracing.span_queue import SpanQueue
from matcher.names import parent_of

_NAME: Final = TRACEPARENT.encode()
_LOOKED_AT: Final = 16_384  # bytes of a record in which the name is looked for
_SCALE: Final = 1 << 32
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15  # Fibonacci hashing: neighbours differ
_MAX_TEXT: Final = 256  # characters of an attribute
_TIMEOUT_S: Final = 10.0  # of a request to the collector
_MAX_AGE_MS: Final = 86_400_000  # a message that is older is not traced any more when it is delivered
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_RANDOM: Final = RandomIdGenerator()

Attributes = dict[str, str | int]


class Traced:
    """A message that is traced."""

    __slots__ = ("message_id", "parent", "size", "topic")

    def __init__(self, parent: TraceContext, topic: bytes, size: int, position: int) -> None:
        self.parent = parent  # of all its spans
        self.topic = topic
        self.size = size  # bytes of the payload
        self.message_id = position


class Tracer:
    """The spans of one process."""

    def __init__(self, config: OtelConfig, process: str, exporter: SpanExporter | None = None) -> None:
        """process: its name, if the node has several, else "node". exporter: in place of the configured one."""
        place = traces_url(config)
        if exporter is None:
            headers = {name: str(value) for name, value in config.headers.items()}
            exporter = OTLPSpanExporter(place, config.ca or None, headers=headers, timeout=_TIMEOUT_S)
        self.queue = SpanQueue(exporter, place, config.max_queue)
        self._ids = _GivenIds()
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # what is not sampled has no span
            resource=Resource.create({"service.name": config.service_name, "service.instance.id": process}),
            id_generator=self._ids,
            span_limits=SpanLimits(max_span_attribute_length=_MAX_TEXT),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self.queue)
        self._tracer = provider.get_tracer("sluice")
        self._bound = config.sample_per_million * _SCALE // 1_000_000
        self._max_rate = config.max_rate
        self._second = 0.0  # monotonic time since when `_left` counts
        self._left = 0
        self.beyond_rate = 0  # spans that were dropped

    def stop(self) -> None:
        """Send the last spans, for a moment at most. Blocks."""
        self.queue.stop()

    def figures(self) -> dict[str, int]:
        """For `/metrics`."""
        queue = self.queue
        return {
            "spans_exported": queue.exported,
            "spans_dropped_queue": queue.dropped,
            "spans_dropped_rate": self.beyond_rate,
            "spans_dropped_export": queue.lost,
        }

    # --- which messages

    @property
    def begins_traces(self) -> bool:
        """Whether messages without a trace of their own may begin one."""
        return self._bound > 0

    def names_trace(self, data: bytes, start: int = 0) -> bool:
        """Whether the record that begins there may have a `traceparent`. A payload with this word is one, too."""
        return data.find(_NAME, start, start + _LOOKED_AT) >= 0

    def any_names_trace(self, data: bytes) -> bool:
        """Whether one of several records may have a `traceparent`."""
        return _NAME in data

    def begins_trace(self, position: int) -> bool:
        """Whether the message at this position begins a trace, if it names none."""
        return (position * _SPREAD >> 16) % _SCALE < self._bound

    def parent_of(self, block: bytes, position: int, store_time: int) -> TraceContext | None:
        """The parent of the spans of a message; None: it is not traced. block: its MQTT 5 properties."""
        named = trace_of(block)
        if named is not None:
            return named if named.is_sampled else None
        if not self.begins_trace(position):
            return None
        trace_id = _hash(position, store_time, 16)
        return TraceContext(trace_id, _hash(position, store_time, 8), True, "")

    def is_root(self, parent: TraceContext, position: int, store_time: int) -> bool:
        """Whether a trace began with the append of this message."""
        return parent.trace_id == _hash(position, store_time, 16)

    def is_too_old(self, store_time: int, now_ms: int) -> bool:
        """Whether a message is too old for its trace to go on."""
        return now_ms - store_time > _MAX_AGE_MS

    # --- spans

    def span(
        self,
        operation: str,
        message: Traced,
        parent: TraceContext | None,
        began_ns: int,
        ended_ns: int,
        more: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
        error_type: str = "",
        span_id: int = 0,
        trace_id: int = 0,
    ) -> TraceContext | None:
        """Make a span that has ended. Returns it, as the parent of others; None: too many spans were made lately.

        parent: None for the root of the trace `trace_id`. began_ns, ended_ns: since 1970. span_id: 0 for a new one.
        """
        if not self._admits():
            self.beyond_rate += 1
            return None
        template = f"{parent_of(message.topic).decode(errors='replace')[:_MAX_TEXT]}/#"
        attributes: Attributes = {
            "messaging.system": "sluice",
            "messaging.operation.name": operation,
            "messaging.destination.name": message.topic.decode(errors="replace"),
            "messaging.destination.template": template,
            "messaging.message.body.size": message.size,
            **more,
        }
        if message.message_id >= 0:
            attributes["messaging.message.id"] = str(message.message_id)
        if error_type:
            attributes["error.type"] = error_type
        context = trace.set_span_in_context(trace.INVALID_SPAN)
        if parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(_span_context(parent)))
        self._ids.next_trace, self._ids.next_span = trace_id, span_id
        made = self._tracer.start_span(
            f"{operation} {template}",
            context,
            kind,
            attributes,
            start_time=began_ns,
            record_exception=False,
        )
        if error:
            made.set_status(Status(StatusCode.ERROR, error[:_MAX_TEXT]))
        made.end(max(began_ns, ended_ns))
        found = made.get_span_context()
        return TraceContext(found.trace_id, found.span_id, True, parent.state if parent is not None else "")

    def _admits(self) -> bool:
        """Whether one more span may be made in this second."""
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._left = now, self._max_rate
        self._left -= 1
        return self._left >= 0


class _GivenIds(IdGenerator):
    """Ids that the caller has chosen, or random ones."""

    def __init__(self) -> None:
        self.next_trace = 0
        self.next_span = 0

    def generate_span_id(self) -> int:
        span_id, self.next_span = self.next_span, 0
        return span_id or _RANDOM.generate_span_id()

    def generate_trace_id(self) -> int:
        trace_id, self.next_trace = self.next_trace, 0
        return trace_id or _RANDOM.generate_trace_id()


def trace_of(block: bytes) -> TraceContext | None:
    """The trace that the properties of a message name."""
    if _NAME not in block:
        return None
    user = dict(read_message_block(block).user)
    return read_trace(user.get(TRACEPARENT, ""), user.get(TRACESTATE, ""))


def _span_context(context: TraceContext) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, True, _SAMPLED, state)


def _hash(position: int, store_time: int, size: int) -> int:
    """A number of so many bytes, which is not 0."""
    about = position.to_bytes(8, "big") + store_time.to_bytes(8, "big")
    return int.from_bytes(blake2b(about, digest_size=size).digest(), "big") or 1
