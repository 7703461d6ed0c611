"""Spans of what devices are sent and acknowledge. `gateway.session.traced_exchanges` tells of it."""

from time import time_ns
from typing import Final

from opentelemetry.trace import SpanKind

from gateway.observe.trace_context import TraceContext
from gateway.tracing.tracer import Attributes, Traced, Tracer

_PROTOCOL: Final = "mqtt"


class Delivered:
    """A traced message that a client was sent and has not acknowledged."""

    __slots__ = ("message", "more", "sent_ns", "span")

    def __init__(self, message: Traced, span: TraceContext, more: Attributes, sent_ns: int) -> None:
        self.message = message
        self.span = span  # of the delivery
        self.more = more
        self.sent_ns = sent_ns


class DeviceSpans:
    """Makes the spans of one process's sessions."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def is_traced(self, block: bytes, position: int) -> bool:
        """Whether a message may be traced. block: its MQTT 5 properties."""
        tracer = self._tracer
        return (bool(block) and tracer.any_names_trace(block)) or tracer.begins_trace(position)

    def sent(
        self,
        topic: bytes,
        block: bytes,
        size: int,
        position: int,
        store_time: int,
        client_id: bytes,
        version: int,
        qos: int,
        dup: bool,
        group: bytes,
        began_ms: int,
    ) -> Delivered | None:
        """A client was sent a message. group: the shared subscription that it came by. began_ms: when the node set
        about it. Returns what `acknowledged` or `lost` ends; None: the message is not traced."""
        tracer, now_ns = self._tracer, time_ns()
        parent = tracer.parent_of(block, position, store_time)
        if parent is None or tracer.is_too_old(store_time, began_ms):
            return None
        message = Traced(parent, topic, size, position)
        more: Attributes = {
            "network.protocol.name": _PROTOCOL,
            "network.protocol.version": "5.0" if version == 5 else "3.1.1",
            "messaging.client.id": client_id.decode(errors="replace"),
            "sluice.mqtt.qos": qos,
        }
        if group:
            more["messaging.consumer.group.name"] = group.decode(errors="replace")
        own: Attributes = {
            **more,
            "messaging.operation.type": "receive",
            "sluice.message.age_ms": max(now_ns // 1_000_000 - store_time, 0),
            "sluice.mqtt.dup": int(dup),
        }
        span = tracer.span("deliver", message, parent, began_ms * 1_000_000, now_ns, own, kind=SpanKind.CLIENT)
        return Delivered(message, span, more, now_ns) if span is not None and qos else None

    def acknowledged(self, delivered: Delivered) -> None:
        """The client has acknowledged it: with QoS 2, the exchange is over."""
        self._end(delivered, "", "")

    def lost(self, delivered: Delivered) -> None:
        """The connection ended before that."""
        self._end(delivered, "the connection ended before the acknowledgement", "connection_lost")

    def _end(self, delivered: Delivered, error: str, error_type: str) -> None:
        self._tracer.span(
            "acknowledge",
            delivered.message,
            delivered.span,
            delivered.sent_ns,
            time_ns(),
            {**delivered.more, "messaging.operation.type": "settle"},
            kind=SpanKind.CLIENT,
            error=error,
            error_type=error_type,
        )
