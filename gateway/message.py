"""One message on its way out: decoded once per node, encoded once per shape of subscriber.

The shapes are few: protocol version, QoS, RETAIN and DUP. Subscribers of one shape share one encoding
(design section 5.3); only subscription identifiers (MQTT-3.3.4-3) and a running message expiry make
an encoding of its own.
"""

from gateway.mqtt.encode import publish_parts
from gateway.mqtt.properties import message_expiry, with_message_expiry
from record import decode, position_of, store_time_of
from record.layout import FLAG_HELD, FLAG_QOS, FLAG_RETAIN

_SHAPES = 24  # version × QoS × RETAIN × DUP


class Message:
    """A stored message with its shared encodings."""

    __slots__ = (
        "_encoded",
        "expires_at",
        "held",
        "payload",
        "position",
        "properties",
        "publisher",
        "qos",
        "retain",
        "store_time",
        "topic",
    )

    def __init__(self, data: bytes, start: int) -> None:
        _kind, flags, _packet_id, topic, publisher, properties, payload = decode(data, start)
        self.topic: bytes = topic
        self.publisher: bytes = publisher
        self.properties: bytes = properties  # MQTT 5 block, no length prefix
        self.payload: bytes = payload
        self.qos: int = flags & FLAG_QOS
        self.retain: bool = (flags & FLAG_RETAIN) != 0
        self.held: bool = (flags & FLAG_HELD) != 0  # for a while: it entered its queues behind younger ones
        self.position: int = position_of(data, start)
        self.store_time: int = store_time_of(data, start)  # ms
        self.expires_at: int = 0  # ms; 0: never
        if properties:
            expiry = message_expiry(properties)
            if expiry is not None:
                self.expires_at = self.store_time + expiry * 1000
        self._encoded: list[tuple[bytes, bytes] | None] | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether its message expiry interval has passed (MQTT-3.3.2-5)."""
        return self.expires_at != 0 and now_ms >= self.expires_at

    def parts(
        self, version: int, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> tuple[bytes, bytes]:
        """The PUBLISH up to its packet id, and from behind it; for QoS 0 all of it and nothing.

        `now_ms` counts the message expiry down by the time spent here (MQTT-3.3.2-6).
        """
        if identifiers or (self.expires_at and now_ms - self.store_time >= 1000):
            return self._encode(version, qos, retain, dup, identifiers, now_ms)
        encoded = self._encoded
        if encoded is None:
            encoded = [None] * _SHAPES
            self._encoded = encoded
        shape = qos * 8 + (4 if version == 5 else 0) + (2 if retain else 0) + (1 if dup else 0)
        shared = encoded[shape]
        if shared is None:
            shared = self._encode(version, qos, retain, dup, identifiers, self.store_time)
            encoded[shape] = shared
        return shared

    def _encode(
        self, version: int, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> tuple[bytes, bytes]:
        properties = self.properties
        if self.expires_at and version == 5:
            left = max(1, (self.expires_at - now_ms + 999) // 1000)
            properties = with_message_expiry(properties, left)
        return publish_parts(version, self.topic, self.payload, qos, retain, dup, properties, identifiers)
