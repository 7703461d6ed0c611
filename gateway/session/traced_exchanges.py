"""The exchanges of a session while traces are switched on: they tell `gateway.tracing` what is sent and acknowledged.

Without `[otel]` no session has these, and `QosExchanges` knows nothing of them.
"""

from typing import TYPE_CHECKING

from gateway.session.inflight import Inflight
from gateway.session.message_encoding import Message
from gateway.session.qos_exchanges import QosExchanges
from gateway.session.subscription import Subscriber

if TYPE_CHECKING:  # it loads OpenTelemetry
    from gateway.tracing.deliveries import Delivered, DeviceSpans


class TracedExchanges(QosExchanges):
    """Exchanges with spans of the messages that are traced."""

    __slots__ = ("_delivered", "_entered", "_spans")

    def __init__(self, subscriber: Subscriber, window: int, spans: "DeviceSpans") -> None:
        super().__init__(subscriber, window)
        self._spans = spans
        self._delivered: dict[int, Delivered] = {}  # traced messages in flight, by packet id
        self._entered: int = 0  # the packet id that was given last

    def send(
        self,
        message: Message,
        qos: int,
        retain: bool,
        dup: bool,
        identifiers: tuple[int, ...],
        entry: Inflight | None,
        now_ms: int,
    ) -> None:
        sent = self.subscriber.counters.messages_sent
        super().send(message, qos, retain, dup, identifiers, entry, now_ms)
        if self.subscriber.counters.messages_sent != sent:  # otherwise it was too large
            self._trace(self._entered, message, qos, dup, entry, now_ms)

    def send_reserved(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        sent = self.subscriber.counters.messages_sent
        super().send_reserved(packet_id, entry, message, retain, identifiers, now_ms)
        if self.subscriber.counters.messages_sent != sent:
            self._trace(packet_id, message, 2, False, entry, now_ms)

    def send_again(
        self, packet_id: int, entry: Inflight, message: Message, retain: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> None:
        sent = self.subscriber.counters.messages_sent
        super().send_again(packet_id, entry, message, retain, identifiers, now_ms)
        if self.subscriber.counters.messages_sent != sent:
            self._trace(packet_id, message, entry.qos, True, entry, now_ms)

    def release(self) -> None:
        for delivered in self._delivered.values():
            self._spans.lost(delivered)
        self._delivered = {}
        super().release()

    def _enter(self, entry: Inflight) -> int:
        self._entered = super()._enter(entry)
        return self._entered

    def _complete(self, packet_id: int, entry: Inflight) -> None:
        super()._complete(packet_id, entry)
        delivered = self._delivered.pop(packet_id, None)
        if delivered is not None:
            self._spans.acknowledged(delivered)

    def _trace(
        self, packet_id: int, message: Message, qos: int, dup: bool, entry: Inflight | None, now_ms: int
    ) -> None:
        if not self._spans.is_traced(message.properties, message.position):
            return
        subscriber = self.subscriber
        delivered = self._spans.sent(
            message.topic,
            message.properties,
            len(message.payload),
            message.position,
            message.store_time,
            subscriber.client_id,
            subscriber.write_buffer.version,
            qos,
            dup,
            entry.topic_filter if entry is not None and entry.leased else b"",
            now_ms,
        )
        if delivered is not None:
            self._delivered[packet_id] = delivered
