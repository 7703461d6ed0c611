"""One message on its way out: decoded once per node, encoded once per shape of subscriber.

A shape is a protocol version, QoS, RETAIN and DUP. Subscribers of one shape share one encoding. Subscribers that know
the topic by an alias share another one, which leaves room for the number of the alias. Subscription identifiers
(MQTT-3.3.4-3) and a running message expiry make many more shapes. A message keeps the first few of those, for fleets
whose clients all use the same identifier, and encodes the others for each subscriber.
"""

from typing import Final

from gateway.mqtt.encode import aliased_parts, publish_parts
from gateway.mqtt.properties import (
    TOPIC_ALIAS,
    message_expiry,
    number_property,
    user_property,
    with_message_expiry,
)
from record import decode, position_of, store_time_of
from record.layout import FLAG_HELD, FLAG_QOS, FLAG_RETAIN

_SHAPES: Final = 24  # version × QoS × RETAIN × DUP
_VARIANTS: Final = 16  # shapes with identifiers or an expiry that are kept of a message

_Variant = tuple[int, tuple[int, ...], int]  # shape, identifiers, seconds until the expiry or -1


class Message:
    """A stored message with its shared encodings."""

    __slots__ = (
        "_aliased",
        "_aliased_variants",
        "_encoded",
        "_variants",
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
        self.held: bool = (flags & FLAG_HELD) != 0  # it was held, and entered its queues behind younger messages
        self.position: int = position_of(data, start)
        self.store_time: int = store_time_of(data, start)  # ms
        self.expires_at: int = 0  # ms; 0: never
        if properties:
            expiry = message_expiry(properties)
            if expiry is not None:
                self.expires_at = self.store_time + expiry * 1000
        self._encoded: list[tuple[bytes, bytes] | None] | None = None
        self._aliased: list[tuple[bytes, bytes, bytes] | None] | None = None
        self._variants: dict[_Variant, tuple[bytes, bytes]] | None = None
        self._aliased_variants: dict[_Variant, tuple[bytes, bytes, bytes]] | None = None

    def expired(self, now_ms: int) -> bool:
        """Whether its message expiry interval has passed (MQTT-3.3.2-5)."""
        return self.expires_at != 0 and now_ms >= self.expires_at

    def parts(
        self, version: int, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> tuple[bytes, bytes]:
        """The bytes of the PUBLISH before its packet id, and those after it. With QoS 0: all bytes, and none.

        At `now_ms` the message expiry is less by the time since the message was stored (MQTT-3.3.2-6).
        """
        shape = qos * 8 + (4 if version == 5 else 0) + (2 if retain else 0) + (1 if dup else 0)
        if version == 5 and (identifiers or (self.expires_at and now_ms - self.store_time >= 1000)):
            return self._variant((shape, identifiers, self._left(now_ms)), qos, retain, dup, now_ms)
        encoded = self._encoded
        if encoded is None:
            encoded = [None] * _SHAPES
            self._encoded = encoded
        shared = encoded[shape]
        if shared is None:
            shared = self._encode(version, qos, retain, dup, identifiers, self.store_time)
            encoded[shape] = shared
        return shared

    def naming_parts(
        self, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...], now_ms: int, alias: int
    ) -> tuple[bytes, bytes]:
        """As `parts`, and define `alias` for the topic."""
        properties = number_property(TOPIC_ALIAS, alias) + self._properties(5, now_ms)
        return publish_parts(5, self.topic, self.payload, qos, retain, dup, properties, identifiers)

    def aliased_parts(
        self, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...], now_ms: int, alias: int
    ) -> tuple[bytes, bytes]:
        """As `parts`, for a client that knows the topic by `alias`."""
        shape = qos * 8 + (2 if retain else 0) + (1 if dup else 0)
        if identifiers or (self.expires_at and now_ms - self.store_time >= 1000):
            pieces = self._aliased_variant((shape, identifiers, self._left(now_ms)), qos, retain, dup, now_ms)
        else:
            aliased = self._aliased
            if aliased is None:
                aliased = [None] * _SHAPES
                self._aliased = aliased
            shared = aliased[shape]
            if shared is None:
                properties = self._properties(5, self.store_time)
                shared = aliased_parts(self.payload, qos, retain, dup, properties, identifiers)
                aliased[shape] = shared
            pieces = shared
        head, prefix, rest = pieces
        number = alias.to_bytes(2, "big")
        if qos:
            return head, b"".join((prefix, number, rest))
        return b"".join((head, prefix, number, rest)), b""

    def _variant(self, key: _Variant, qos: int, retain: bool, dup: bool, now_ms: int) -> tuple[bytes, bytes]:
        variants = self._variants
        if variants is None:
            variants = self._variants = {}
        shared = variants.get(key)
        if shared is None:
            shared = self._encode(5, qos, retain, dup, key[1], now_ms)
            if len(variants) < _VARIANTS:
                variants[key] = shared
        return shared

    def _aliased_variant(
        self, key: _Variant, qos: int, retain: bool, dup: bool, now_ms: int
    ) -> tuple[bytes, bytes, bytes]:
        variants = self._aliased_variants
        if variants is None:
            variants = self._aliased_variants = {}
        shared = variants.get(key)
        if shared is None:
            shared = aliased_parts(self.payload, qos, retain, dup, self._properties(5, now_ms), key[1])
            if len(variants) < _VARIANTS:
                variants[key] = shared
        return shared

    def _encode(
        self, version: int, qos: int, retain: bool, dup: bool, identifiers: tuple[int, ...], now_ms: int
    ) -> tuple[bytes, bytes]:
        properties = self._properties(version, now_ms)
        return publish_parts(version, self.topic, self.payload, qos, retain, dup, properties, identifiers)

    def _properties(self, version: int, now_ms: int) -> bytes:
        """The properties to send, with what is left of the expiry. A message may have expired if it is sent again."""
        if not self.expires_at or version != 5:
            return self.properties
        return with_message_expiry(self.properties, self._left(now_ms))

    def _left(self, now_ms: int) -> int:
        """Seconds until the message expires, -1 for never. Never more than its publisher said, even if the store's
        clock is ahead of this one."""
        if not self.expires_at:
            return -1
        return max(0, (self.expires_at - max(now_ms, self.store_time) + 999) // 1000)


class PlacedMessage(Message):
    """A message that says when and where it was stored, by user properties that follow the publisher's own."""

    __slots__ = ()

    def __init__(self, message: Message, offset: int) -> None:
        """`offset`: in the queue of its topic; -1: it is not known."""
        self.topic = message.topic
        self.publisher = message.publisher
        self.payload = message.payload
        self.qos = message.qos
        self.retain = message.retain
        self.held = message.held
        self.position = message.position
        self.store_time = message.store_time
        self.expires_at = message.expires_at
        self._encoded = None
        self._aliased = None
        self._variants = None
        self._aliased_variants = None
        added = [message.properties, user_property(b"replay-time", b"%d" % message.store_time)]
        if offset >= 0:
            added.append(user_property(b"replay-offset", b"%d" % offset))
        added.append(user_property(b"replay-position", b"%d" % message.position))
        self.properties = b"".join(added)
