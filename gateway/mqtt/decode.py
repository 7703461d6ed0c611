"""Bytes in, packets out: `Decoder`, one for each connection.

The rules of this file:

* A packet is parsed where it lies in the bytes that the socket gave. Only the start of a packet whose end
  has not come is kept, and nothing is kept of a packet that is too large.
* What a peer sends is never trusted before it is checked, and never raises: it sets `Decoder.error`.
* Topics and property blocks repeat. What was found valid once is found again in a bounded cache, which
  also gives all messages of a topic the same `bytes` object, hashed once.
* A topic with many levels is expensive to match, so each message to it weighs more (`_SHALLOW`).
"""

from typing import Final

from mypy_extensions import i64

from gateway.mqtt.connect import read_connect, read_protocol_level
from gateway.mqtt.errors import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    QuotaExceeded,
    ReceiveMaximumExceeded,
    TopicAliasInvalid,
    TopicNameInvalid,
    UnsupportedProtocolVersion,
)
from gateway.mqtt.packets import (
    MQTT_5,
    MQTT_311,
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from gateway.mqtt.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAX_USER_PROPERTIES,
    SESSION_EXPIRY,
    read_properties,
    read_publish_block,
)
from gateway.mqtt.reader import Reader, check_text
from gateway.mqtt.reasons import BY_CODE, ReasonCode
from gateway.mqtt.subscribe import MAX_FILTERS, read_packet_id, read_subscribe, read_unsubscribe
from matcher.names import MAX_LENGTH, MAX_LEVELS, is_valid_topic

DEFAULT_MAX_PACKET_SIZE: Final = 1 << 20  # bytes
MAX_CONNECT_SIZE: Final = 512 << 10  # bytes: five fields of 64 KiB and properties. Nobody is known yet.

# What one `feed` returns at the most, so that who sends a great many small packets does not keep the others waiting:
# a message, a ping, a bare acknowledgement and a user property that is read weigh 1, what takes longer weighs more.
_MAX_WEIGHT: Final = 4096
_BLOCK_BYTES: Final = 256  # of properties that are read, for each of which a message weighs 1 more
_SHALLOW: Final = 8  # levels of a topic; with each further one twice as many filters may match it, and it weighs twice
_DEEPEST_WEIGHT: Final = 256
_OTHER_WEIGHT: Final = 128
_OTHER_BYTES: Final = 2  # for each of which it weighs 1 more

_CACHE_LIMIT: Final = 8 << 20  # bytes, of each cache, about
_CACHE_OVERHEAD: Final = 150  # bytes an entry costs beside its key
_ALIAS_BYTES: Final = 1024  # bytes of topics for each topic alias that is allowed
_CACHED_BLOCK: Final = 512  # bytes: a longer property block is hardly one that repeats

_CONNECT: Final = 0x10  # first bytes
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x62
_PUBCOMP: Final = 0x70
_PINGREQ: Final = 0xC0
_PUBLISH: Final = 3  # the upper half of one
# First bytes that a client may send behind CONNECT: a packet type of its own, with the flags of that (section 2.1).
_FLAGS: Final = {3: (0, 1, 2, 3, 4, 5, 10, 11, 12, 13), 6: (2,), 8: (2,), 10: (2,)}  # others: 0
_FIRST_BYTES: Final = frozenset(
    [kind << 4 | flags for kind in (3, 4, 5, 6, 7, 8, 10, 12, 14, 15) for flags in _FLAGS.get(kind, (0,))]
)
_NO_CONNECT: Final = bytes([first == _CONNECT for first in range(256)])  # tables: 1 for what may come
_BEHIND_CONNECT_5: Final = bytes([first in _FIRST_BYTES for first in range(256)])
_BEHIND_CONNECT_311: Final = bytes([first in _FIRST_BYTES and first != 0xF0 for first in range(256)])

# Reason codes that clients may use (table 2-6), by packet type.
_ACK_REASONS: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_REASONS: Final = frozenset((0x00, 0x92))
_DISCONNECT_REASONS: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)
_AUTH_REASONS: Final = frozenset((0x18, 0x19))

_PING: Final = PingReq()


class _Cache:
    """What was found valid, of all connections of this process. Full, it starts over."""

    __slots__ = ("blocks", "blocks_cost", "topics", "topics_cost")

    def __init__(self) -> None:
        self.topics: dict[bytes, bytes] = {}  # a topic to itself
        self.topics_cost: i64 = 0
        self.blocks: dict[
            bytes, tuple[bytes, int, bool, int]
        ] = {}  # a PUBLISH's block to what `read_publish_block` says
        self.blocks_cost: i64 = 0

    def add_topic(self, raw: bytes) -> None:
        self.topics_cost += len(raw) + _CACHE_OVERHEAD
        if self.topics_cost > _CACHE_LIMIT:
            self.topics.clear()
            self.topics_cost = len(raw) + _CACHE_OVERHEAD
        self.topics[raw] = raw

    def add_block(self, raw: bytes, max_user: int) -> tuple[bytes, int, bool, int]:
        read = read_publish_block(raw, max_user)
        if len(raw) <= _CACHED_BLOCK:
            self.blocks_cost += 2 * len(raw) + _CACHE_OVERHEAD
            if self.blocks_cost > _CACHE_LIMIT:
                self.blocks.clear()
                self.blocks_cost = 2 * len(raw) + _CACHE_OVERHEAD
            self.blocks[raw] = read
        return read


_cache: Final = _Cache()


class Decoder:
    """What one client sends, as packets.

    `version` is 0 until the client has said it: an error before that is answered with silence.
    """

    __slots__ = (
        "_alias_bytes",
        "_aliases",
        "_blocks",
        "_ended",
        "_first_bytes",
        "_heavy",
        "_keeps_session",
        "_limit",
        "_max_filters",
        "_max_packet_size",
        "_max_topic_length",
        "_max_topic_levels",
        "_max_user_properties",
        "_method",
        "_needed",
        "_pending",
        "_topics",
        "error",
        "has_more",
        "partial_size",
        "receive_maximum",
        "topic_alias_maximum",
        "unacknowledged",
        "version",
    )

    def __init__(
        self,
        max_packet_size: int = DEFAULT_MAX_PACKET_SIZE,
        receive_maximum: int = 0xFFFF,
        topic_alias_maximum: int = 0,
        max_topic_length: int = MAX_LENGTH,
        max_topic_levels: int = MAX_LEVELS,
        max_user_properties: int = MAX_USER_PROPERTIES,
        max_filters: int = MAX_FILTERS,
    ) -> None:
        """The first three limits are what the server says in CONNACK; packet sizes include the fixed header. The last
        two are limits of one packet."""
        self.error: ProtocolError | None = None  # what ended the stream: nothing is parsed after it
        self.has_more = False  # `feed` has stopped before the end: `feed(b"")` goes on
        self.version = 0  # MQTT_311 or MQTT_5
        self.receive_maximum: i64 = receive_maximum
        self.topic_alias_maximum: i64 = topic_alias_maximum
        self.unacknowledged: i64 = 0  # QoS 1 and 2 messages received and not yet `acknowledged`
        self._max_packet_size: i64 = max_packet_size
        self._max_topic_length: i64 = max_topic_length  # bytes
        self._max_topic_levels: i64 = max_topic_levels
        self._max_user_properties = max_user_properties
        self._max_filters = max_filters
        self._limit: i64 = min(max_packet_size, MAX_CONNECT_SIZE)  # bytes of the next packet
        self._first_bytes = _NO_CONNECT  # a table of those that may come
        self._keeps_session = False  # its session outlives the connection
        self._method: bytes | None = None  # of authentication, in CONNECT
        self._ended = False  # DISCONNECT came
        self.partial_size: i64 = 0  # bytes of a packet whose end has not come
        self._pending: bytearray | None = None  # the start of that packet
        self._heavy: i64 = 0  # what the last PUBLISH weighs beyond others
        self._needed: i64 = 0  # bytes in `_pending` that are worth a new attempt
        self._aliases: dict[int, bytes] | None = None
        self._alias_bytes: i64 = 0  # of the topics in `_aliases`
        self._topics = _cache.topics
        self._blocks = _cache.blocks

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that end in `data`, or the first of them (`has_more`). If `error` is set after it, they came
        before the error."""
        packets: list[Packet] = []
        self.has_more = False
        if self.error is not None or self._ended:
            return packets
        pending = self._pending
        if pending is not None:
            if len(pending) + len(data) < self._needed:
                pending += data
                self.partial_size = len(pending)
                return packets
            data = b"".join((pending, data))
            self._pending = None
            self.partial_size = 0
        try:
            at = self._parse(data, packets)
        except ProtocolError as error:
            self.error = error
            return packets
        if at < len(data):
            self._pending = bytearray(data[at:])
            self.partial_size = len(data) - at
        return packets

    def stop(self) -> None:
        """Drop the start of the packet whose end has not come, and parse nothing more."""
        self._pending = None
        self.partial_size = 0
        self._ended = True

    def acknowledged(self, count: int) -> None:
        """That many received messages of QoS 1 and 2 have been answered (PUBACK, PUBCOMP, PUBREC that fails)."""
        self.unacknowledged -= count
        assert self.unacknowledged >= 0, "acknowledged more messages than were received"

    def _parse(self, data: bytes, packets: list[Packet]) -> i64:
        """Append the packets in `data`, and return where the one begins that is not complete."""
        at: i64 = 0
        end: i64 = len(data)
        weight: i64 = 0
        first_bytes = self._first_bytes
        while at < end:
            first: i64 = data[at]
            if not first_bytes[first]:
                raise self._wrong_first_byte(first)
            if end - at < 2:
                break
            start = at + 2
            length: i64 = data[at + 1]
            if length >= 0x80:
                start = _after_length(data, at, end)
                if start == 0:
                    self._needed = end - at + 1
                    return at
                length = _length(data, at, start)
            stop = start + length
            if stop - at > self._limit:
                text = f"a packet of {stop - at} bytes, more than {self._limit} (MQTT-3.2.2-15)"
                raise PacketTooLarge(text, self._limit)
            if stop > end:
                self._needed = stop - at
                return at
            if first >> 4 == _PUBLISH:
                packets.append(self._publish(data, start, stop, first))
            elif length == 2 and first in (_PUBACK, _PUBREC, _PUBREL, _PUBCOMP):
                packets.append(_ack(first, _packet_id(data, start), ReasonCode.SUCCESS))
            elif first == _PINGREQ and length == 0:
                packets.append(_PING)
            else:
                packets.append(self._other(Reader(data, start, stop), first))
                first_bytes = self._first_bytes
                if self._ended:
                    return end
                weight += _OTHER_WEIGHT + length // _OTHER_BYTES
            at = stop
            weight += 1 + self._heavy
            self._heavy = 0
            if weight >= _MAX_WEIGHT:
                self.has_more = at < end
                break
        self._needed = 2
        return at

    def _publish(self, data: bytes, at: i64, stop: i64, first: i64) -> Publish:
        """PUBLISH (section 3.3)."""
        qos = (first >> 1) & 3
        if stop - at < 2:
            raise MalformedPacket("PUBLISH ends before its topic")
        topic_start = at + 2
        at = topic_start + (i64(data[at]) << 8 | i64(data[at + 1]))
        if at + (2 if qos else 0) > stop:
            raise MalformedPacket("PUBLISH ends within its topic")
        raw = data[topic_start:at]
        if at - topic_start > self._max_topic_length:
            raise TopicNameInvalid(f"a topic of more than {self._max_topic_length} bytes", self._max_topic_length)
        if self._max_topic_levels < _SHALLOW:
            self._check_levels(raw)  # the cache may have it from a node with another limit
        packet_id: i64 = 0
        if qos:
            packet_id = _packet_id(data, at)
            at += 2
            self._count_in()
        block = b""
        alias: i64 = 0
        is_text = False
        if self.version == MQTT_5:
            if at < stop and data[at] == 0:
                at += 1
            else:
                reader = Reader(data, at, stop)
                block, alias, is_text, _ = self._block(reader)
                at = reader.at
        topic = self._topic(raw, alias) if alias or not raw else self._topics.get(raw)
        if topic is None:
            topic = self._new_topic(raw)
        return Publish(topic, data[at:stop], qos, first & 1 != 0, first & 8 != 0, packet_id, block, is_text)

    def _new_topic(self, raw: bytes) -> bytes:
        """Check a topic that the cache does not have. Deep ones never enter it, so that each message weighs."""
        levels = self._check_levels(raw)
        check_text(raw)
        if not is_valid_topic(raw):
            raise TopicNameInvalid("not a topic name (MQTT-3.3.2-2, 4.7.3-1)")
        if levels <= _SHALLOW:
            _cache.add_topic(raw)
        self._weigh(levels)
        return raw

    def _weigh(self, levels: i64) -> None:
        """Note what a message to a topic of so many levels weighs beyond others."""
        if levels > _SHALLOW:
            self._heavy += min(1 << (levels - _SHALLOW), _DEEPEST_WEIGHT)

    def _check_levels(self, raw: bytes) -> int:
        levels = raw.count(b"/") + 1
        if levels > self._max_topic_levels:
            raise TopicNameInvalid(f"a topic of more than {self._max_topic_levels} levels", self._max_topic_levels)
        return levels

    def _count_in(self) -> None:
        self.unacknowledged += 1
        if self.unacknowledged > self.receive_maximum and self.version == MQTT_5:
            text = f"more than {self.receive_maximum} messages in flight (MQTT-3.3.4-7)"
            raise ReceiveMaximumExceeded(text, self.receive_maximum)

    def _block(self, reader: Reader) -> tuple[bytes, int, bool, int]:
        """What `read_publish_block` says of a PUBLISH's properties."""
        length: i64 = reader.varint()
        if length > reader.stop - reader.at:
            raise MalformedPacket("the properties end beyond their packet")
        raw = reader.data[reader.at : reader.at + length]
        reader.at += length
        read = self._blocks.get(raw)
        if read is None:
            read = _cache.add_block(raw, self._max_user_properties)
            self._heavy = read[3] + length // _BLOCK_BYTES
        return read

    def _topic(self, raw: bytes, alias: i64) -> bytes:
        """The topic of a PUBLISH with an alias, or without a name (section 3.3.2.3.4)."""
        if alias == 0:
            raise ProtocolError("PUBLISH with neither a topic nor an alias (MQTT-3.3.2-8)")
        if alias > self.topic_alias_maximum:
            raise TopicAliasInvalid(f"topic alias {alias}, more than {self.topic_alias_maximum} (MQTT-3.3.2-9)")
        aliases = self._aliases
        if aliases is None:
            aliases = self._aliases = {}
        if not raw:
            known = aliases.get(alias)
            if known is None:
                raise ProtocolError(f"topic alias {alias} was never given a topic (MQTT-3.3.2-7)")
            self._weigh(known.count(b"/") + 1)
            return known
        topic = self._topics.get(raw) or self._new_topic(raw)
        self._alias_bytes += len(topic) - len(aliases.get(alias, b""))
        limit = max(_ALIAS_BYTES * self.topic_alias_maximum, MAX_LENGTH)
        if self._alias_bytes > limit:
            raise QuotaExceeded(f"topics with more than {limit} bytes for topic aliases", limit)
        aliases[alias] = topic
        return topic

    def _other(self, reader: Reader, first: i64) -> Packet:
        """Every packet that needs no haste."""
        kind: i64 = first >> 4
        if kind == PacketType.CONNECT.value:
            return self._read_connect(reader)
        if PacketType.PUBACK.value <= kind <= PacketType.PUBCOMP.value:
            return _read_ack(reader, first, self.version, self._max_user_properties)
        if kind == PacketType.SUBSCRIBE.value:
            return read_subscribe(reader, self.version, self._max_user_properties, self._max_filters)
        if kind == PacketType.UNSUBSCRIBE.value:
            return read_unsubscribe(reader, self.version, self._max_user_properties, self._max_filters)
        if kind == PacketType.PINGREQ.value:
            raise MalformedPacket("PINGREQ has no content (section 3.12.1)")
        if kind == PacketType.DISCONNECT.value:
            return self._read_disconnect(reader)
        return self._read_auth(reader)

    def _wrong_first_byte(self, first: i64) -> ProtocolError:
        """Why no packet that begins with this byte may come."""
        kind: i64 = first >> 4
        flags = first & 0x0F
        if self._first_bytes is _NO_CONNECT:
            return ProtocolError("the first packet is not CONNECT (MQTT-3.1.0-1)")
        if kind == PacketType.PUBLISH.value:
            if flags >> 1 & 3 == 3:
                return MalformedPacket("PUBLISH of QoS 3 (MQTT-3.3.1-4)")
            return MalformedPacket("DUP with QoS 0 (MQTT-3.3.1-2)")
        if kind == 0 or (kind == PacketType.AUTH.value and self.version != MQTT_5):
            return MalformedPacket(f"packet type {kind} is reserved (section 2.1.2)")
        if flags != (2 if kind in (6, 8, 10) else 0):
            return MalformedPacket(f"reserved flags of packet type {kind} (MQTT-2.1.3-1)")
        if kind == PacketType.CONNECT.value:
            return ProtocolError("a second CONNECT (MQTT-3.1.0-2)")
        return ProtocolError(f"a client does not send packet type {kind} (section 2.1.2)")

    def _read_connect(self, reader: Reader) -> Connect:
        level = read_protocol_level(reader)
        self.version = MQTT_311 if level < MQTT_5 else MQTT_5
        if level != self.version:
            raise UnsupportedProtocolVersion(f"protocol level {level} (MQTT-3.1.2-2)")
        connect = read_connect(reader, level, self._max_user_properties)
        self._first_bytes = _BEHIND_CONNECT_5 if self.version == MQTT_5 else _BEHIND_CONNECT_311
        self._keeps_session = connect.session_expiry_interval != 0
        self._method = connect.authentication_method
        self._limit = self._max_packet_size
        return connect

    def _read_disconnect(self, reader: Reader) -> Disconnect:
        """DISCONNECT, after which a client sends nothing (MQTT-3.14.4-2), and is not heard if it does."""
        disconnect = Disconnect()
        if self.version == MQTT_5 and not reader.is_at_end():
            disconnect.reason = _reason(reader, _DISCONNECT_REASONS)
            if not reader.is_at_end():
                properties = read_properties(reader, PacketType.DISCONNECT.value, self._max_user_properties)
                expiry = properties.numbers.get(SESSION_EXPIRY)
                if expiry and not self._keeps_session:
                    raise ProtocolError("a session expiry that CONNECT did not have (section 3.14.2.2.2)")
                disconnect.session_expiry_interval = expiry
        reader.expect_end()
        self._ended = True
        return disconnect

    def _read_auth(self, reader: Reader) -> Auth:
        reason = _reason(reader, _AUTH_REASONS)
        properties = read_properties(reader, PacketType.AUTH.value, self._max_user_properties)
        reader.expect_end()
        method = properties.text(AUTHENTICATION_METHOD)
        if method is None or method != self._method:
            raise ProtocolError("AUTH of another method than CONNECT's (MQTT-4.12.0-5, -6)")
        return Auth(reason, method, properties.text(AUTHENTICATION_DATA))


def _read_ack(reader: Reader, first: i64, version: int, max_user: int) -> Ack:
    packet_id = read_packet_id(reader)
    reason = ReasonCode.SUCCESS
    if version == MQTT_5 and not reader.is_at_end():
        reason = _reason(reader, _ACK_REASONS if first in (_PUBACK, _PUBREC) else _RELEASE_REASONS)
        if not reader.is_at_end():
            read_properties(reader, int(first >> 4), max_user)
    reader.expect_end()
    return _ack(first, packet_id, reason)


def _ack(first: i64, packet_id: i64, reason: ReasonCode) -> Ack:
    if first == _PUBACK:
        return PubAck(packet_id, reason)
    if first == _PUBREC:
        return PubRec(packet_id, reason)
    if first == _PUBREL:
        return PubRel(packet_id, reason)
    return PubComp(packet_id, reason)


def _reason(reader: Reader, allowed: frozenset[int]) -> ReasonCode:
    code = reader.u8()
    if code not in allowed:
        raise ProtocolError(f"a client does not send reason code {code:#04x} in this packet (section 2.4)")
    return BY_CODE[code]


def _packet_id(data: bytes, at: i64) -> i64:
    packet_id = i64(data[at]) << 8 | i64(data[at + 1])
    if packet_id == 0:
        raise ProtocolError("a packet id of 0 (MQTT-2.2.1-3)")
    return packet_id


def _after_length(data: bytes, at: i64, end: i64) -> i64:
    """Where the Remaining Length of the packet at `at` ends; 0 if it is not complete (section 2.1.4)."""
    place = at + 1
    while place < end:
        if data[place] < 0x80:
            if data[place] == 0:
                raise MalformedPacket("a remaining length that is longer than it needs to be (MQTT-1.5.5-1)")
            return place + 1
        place += 1
        if place == at + 5:
            raise MalformedPacket("a remaining length of more than four bytes (section 2.1.4)")
    return 0


def _length(data: bytes, at: i64, start: i64) -> i64:
    """The Remaining Length between the first byte at `at` and the content at `start`."""
    length: i64 = 0
    place = start - 1
    while place > at:
        length = length << 7 | (i64(data[place]) & 0x7F)
        place -= 1
    return length
