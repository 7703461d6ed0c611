"""Properties of MQTT 5 (section 2.2.2): what there is, reading and checking it, and the block of a message.

A *block* is the properties of a packet without the length in front. The block of a message holds only what
travels with it (`FORWARDED`), in the publisher's order; it is stored and sent on as it is.
"""

from typing import Final

from mypy_extensions import i64

from gateway.mqtt.errors import MalformedPacket, ProtocolError, QuotaExceeded, TopicAliasInvalid, TopicNameInvalid
from gateway.mqtt.packets import PacketType
from gateway.mqtt.reader import Reader
from matcher.names import is_valid_topic

MAX_USER_PROPERTIES: Final = 256  # of a packet or a will, unless the caller allows another number
_UNLIMITED: Final = 1 << 30  # for what is in the log, or was counted before

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

_BYTE: Final = 1  # data types; those of a fixed size are their size
_U16: Final = 2
_U32: Final = 4
_VARINT: Final = 5
_BINARY: Final = 6
_TEXT: Final = 7
_PAIR: Final = 8

_TYPES: Final[dict[int, int]] = {
    PAYLOAD_FORMAT: _BYTE,
    MESSAGE_EXPIRY: _U32,
    CONTENT_TYPE: _TEXT,
    RESPONSE_TOPIC: _TEXT,
    CORRELATION_DATA: _BINARY,
    SUBSCRIPTION_IDENTIFIER: _VARINT,
    SESSION_EXPIRY: _U32,
    ASSIGNED_CLIENT_ID: _TEXT,
    SERVER_KEEP_ALIVE: _U16,
    AUTHENTICATION_METHOD: _TEXT,
    AUTHENTICATION_DATA: _BINARY,
    REQUEST_PROBLEM_INFORMATION: _BYTE,
    WILL_DELAY: _U32,
    REQUEST_RESPONSE_INFORMATION: _BYTE,
    RESPONSE_INFORMATION: _TEXT,
    SERVER_REFERENCE: _TEXT,
    REASON_STRING: _TEXT,
    RECEIVE_MAXIMUM: _U16,
    TOPIC_ALIAS_MAXIMUM: _U16,
    TOPIC_ALIAS: _U16,
    MAXIMUM_QOS: _BYTE,
    RETAIN_AVAILABLE: _BYTE,
    USER_PROPERTY: _PAIR,
    MAXIMUM_PACKET_SIZE: _U32,
    WILDCARD_AVAILABLE: _BYTE,
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: _BYTE,
    SHARED_AVAILABLE: _BYTE,
}

FORWARDED: Final = frozenset(
    (PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, USER_PROPERTY)
)

# What a client may send in a packet (table 2-4). A will is no packet, but has a table column all the same.
_WILL: Final = 0
_PUBLISH: Final = FORWARDED | {TOPIC_ALIAS}
_ACK_PROPERTIES: Final = frozenset((REASON_STRING, USER_PROPERTY))
_ALLOWED: Final[dict[int, frozenset[int]]] = {
    PacketType.CONNECT.value: frozenset(
        (
            SESSION_EXPIRY,
            AUTHENTICATION_METHOD,
            AUTHENTICATION_DATA,
            REQUEST_PROBLEM_INFORMATION,
            REQUEST_RESPONSE_INFORMATION,
            RECEIVE_MAXIMUM,
            TOPIC_ALIAS_MAXIMUM,
            USER_PROPERTY,
            MAXIMUM_PACKET_SIZE,
        )
    ),
    _WILL: FORWARDED | {WILL_DELAY},
    PacketType.PUBLISH.value: _PUBLISH,
    PacketType.PUBACK.value: _ACK_PROPERTIES,
    PacketType.PUBREC.value: _ACK_PROPERTIES,
    PacketType.PUBREL.value: _ACK_PROPERTIES,
    PacketType.PUBCOMP.value: _ACK_PROPERTIES,
    PacketType.SUBSCRIBE.value: frozenset((SUBSCRIPTION_IDENTIFIER, USER_PROPERTY)),
    PacketType.UNSUBSCRIBE.value: frozenset((USER_PROPERTY,)),
    PacketType.DISCONNECT.value: frozenset((SESSION_EXPIRY, REASON_STRING, USER_PROPERTY)),
    PacketType.AUTH.value: frozenset((AUTHENTICATION_METHOD, AUTHENTICATION_DATA, REASON_STRING, USER_PROPERTY)),
}

_BOOLEANS: Final = frozenset((PAYLOAD_FORMAT, REQUEST_PROBLEM_INFORMATION, REQUEST_RESPONSE_INFORMATION))
_NOT_ZERO: Final = frozenset((RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, SUBSCRIPTION_IDENTIFIER))


class Properties:
    """The properties of one packet, by identifier."""

    __slots__ = ("numbers", "texts", "user", "user_count")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, bytes] = {}  # texts and binary data
        self.user: list[tuple[bytes, bytes]] = []  # unless they are only checked
        self.user_count: int = 0

    def number(self, identifier: int, default: int) -> int:
        return self.numbers.get(identifier, default)

    def text(self, identifier: int) -> bytes | None:
        return self.texts.get(identifier)


class MessageProperties:
    """The block of a message as values, for fronts that do not speak MQTT."""

    __slots__ = (
        "content_type",
        "correlation_data",
        "is_text",
        "message_expiry",
        "response_topic",
        "user",
    )

    def __init__(
        self,
        content_type: str | None = None,
        response_topic: bytes | None = None,
        correlation_data: bytes | None = None,
        user: list[tuple[str, str]] | None = None,
        message_expiry: int | None = None,
        is_text: bool = False,
    ) -> None:
        self.content_type = content_type
        self.response_topic = response_topic
        self.correlation_data = correlation_data
        self.user: list[tuple[str, str]] = [] if user is None else user
        self.message_expiry = message_expiry  # seconds
        self.is_text = is_text  # payload format indicator: the payload is UTF-8


def read_properties(reader: Reader, packet_type: int, max_user: int = MAX_USER_PROPERTIES) -> Properties:
    """Read the length and the block of a packet that a client sent, and check it.

    Raises `MalformedPacket` for what can not be read, `ProtocolError` for what may not be there (MQTT-2.2.2), and
    `QuotaExceeded` at the first user property beyond `max_user`, without reading on.
    """
    length: i64 = reader.varint()
    if length > reader.stop - reader.at:
        raise MalformedPacket("the properties end beyond their packet")
    stop = reader.at + length
    block = Reader(reader.data, reader.at, stop)
    reader.at = stop
    return _read_block(block, _ALLOWED[packet_type], True, max_user)


def read_will_properties(reader: Reader, max_user: int = MAX_USER_PROPERTIES) -> tuple[bytes, int, bool]:
    """The message block of a will, its delay in seconds, and whether its payload says that it is UTF-8."""
    length: i64 = reader.varint()
    if length > reader.stop - reader.at:
        raise MalformedPacket("the properties of the will end beyond their packet")
    block = reader.data[reader.at : reader.at + length]
    reader.at += length
    properties = _read_block(Reader(block, 0, length), _ALLOWED[_WILL], False, max_user)
    is_text = properties.number(PAYLOAD_FORMAT, 0) == 1
    return _without(block, WILL_DELAY), properties.number(WILL_DELAY, 0), is_text


def read_publish_block(block: bytes, max_user: int = MAX_USER_PROPERTIES) -> tuple[bytes, int, bool, int]:
    """Check the block of a client's PUBLISH.

    Returns what is forwarded of it, the topic alias or 0, whether the payload says that it is UTF-8, and the number of
    user properties.
    """
    properties = _read_block(Reader(block, 0, len(block)), _PUBLISH, False, max_user)
    alias = properties.numbers.get(TOPIC_ALIAS)
    is_text = properties.number(PAYLOAD_FORMAT, 0) == 1
    if alias is None:
        return block, 0, is_text, properties.user_count
    if alias == 0:
        raise TopicAliasInvalid("a topic alias of 0 (MQTT-3.3.2-8)")
    return _without(block, TOPIC_ALIAS), alias, is_text, properties.user_count


def message_expiry(block: bytes) -> int | None:
    """Message Expiry Interval of a message's block, in seconds."""
    at = _find(block, MESSAGE_EXPIRY)
    return None if at < 0 else int.from_bytes(block[at + 1 : at + 5], "big")


def with_message_expiry(block: bytes, seconds: int) -> bytes:
    """The block with its Message Expiry Interval replaced by what is left of it (MQTT-3.3.2-6), or added."""
    at = _find(block, MESSAGE_EXPIRY)
    value = seconds.to_bytes(4, "big")
    return b"\x02" + value + block if at < 0 else block[: at + 1] + value + block[at + 5 :]


def build_message_block(message: MessageProperties) -> bytes:
    """The block of a message. Raises `ValueError` for what MQTT can not say."""
    parts: list[bytes] = []
    if message.is_text:
        parts.append(number_property(PAYLOAD_FORMAT, 1))
    if message.message_expiry is not None:
        parts.append(number_property(MESSAGE_EXPIRY, message.message_expiry))
    if message.content_type is not None:
        parts.append(text_property(CONTENT_TYPE, message.content_type.encode()))
    if message.response_topic is not None:
        parts.append(text_property(RESPONSE_TOPIC, message.response_topic))
    if message.correlation_data is not None:
        parts.append(text_property(CORRELATION_DATA, message.correlation_data))
    for name, value in message.user:
        parts.append(user_property(name.encode(), value.encode()))
    block = b"".join(parts)
    try:
        _read_block(Reader(block, 0, len(block)), FORWARDED, False, _UNLIMITED)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    return block


def read_message_block(block: bytes, max_user: int = _UNLIMITED) -> MessageProperties:
    """The values of a message's block. Raises `ProtocolError` if it is none or has too many user properties."""
    properties = _read_block(Reader(block, 0, len(block)), FORWARDED, True, max_user)
    content_type = properties.text(CONTENT_TYPE)
    return MessageProperties(
        content_type=None if content_type is None else content_type.decode(),
        response_topic=properties.text(RESPONSE_TOPIC),
        correlation_data=properties.text(CORRELATION_DATA),
        user=[(name.decode(), value.decode()) for name, value in properties.user],
        message_expiry=properties.numbers.get(MESSAGE_EXPIRY),
        is_text=properties.number(PAYLOAD_FORMAT, 0) == 1,
    )


def varint(value: int) -> bytes:
    """A Variable Byte Integer (section 1.5.5). Raises `ValueError` above 268,435,455."""
    if value < 0x80:
        return bytes((value,))
    if value > 0xFFF_FFFF:
        raise ValueError(f"{value} is more than a variable byte integer holds")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_property(identifier: int, value: int) -> bytes:
    """A property of a byte, two or four bytes, or a Variable Byte Integer. Raises `ValueError` out of range."""
    kind = _TYPES[identifier]
    if kind == _VARINT:
        return bytes((identifier,)) + varint(value)
    if not 0 <= value < 1 << 8 * kind:
        raise ValueError(f"{value} is out of the range of property {identifier:#04x}")
    return bytes((identifier,)) + value.to_bytes(kind, "big")


def text_property(identifier: int, value: bytes) -> bytes:
    """A property that is a text or binary data. Raises `ValueError` above 65,535 bytes."""
    return bytes((identifier,)) + prefixed(value)


def user_property(name: bytes, value: bytes) -> bytes:
    """A User Property (section 2.2.2.2)."""
    return b"\x26" + prefixed(name) + prefixed(value)


def prefixed(value: bytes) -> bytes:
    """A text or binary data with its length in front (sections 1.5.4 and 1.5.6)."""
    if len(value) > 0xFFFF:
        raise ValueError("a text or binary field is longer than 65535 bytes")
    return len(value).to_bytes(2, "big") + value


def _read_block(reader: Reader, allowed: frozenset[int], keep_user: bool, max_user: int) -> Properties:
    properties = Properties()
    while not reader.is_at_end():
        identifier = reader.u8()
        if identifier not in allowed:
            if identifier in _TYPES:
                raise ProtocolError(f"property {identifier:#04x} is not allowed in this packet (MQTT-2.2.2)")
            raise MalformedPacket(f"there is no property {identifier:#04x} (MQTT-2.2.2)")
        kind = _TYPES[identifier]
        if kind == _PAIR:
            properties.user_count += 1
            if properties.user_count > max_user:
                raise QuotaExceeded(f"more than {max_user} user properties in one packet", max_user)
            name, value = reader.text(), reader.text()
            if keep_user:
                properties.user.append((name, value))
            continue
        if identifier in properties.numbers or identifier in properties.texts:
            raise ProtocolError(f"property {identifier:#04x} is there twice (MQTT-2.2.2)")
        if kind <= _VARINT:
            properties.numbers[identifier] = _read_number(reader, identifier, kind)
        else:
            properties.texts[identifier] = _read_text(reader, identifier, kind)
    if AUTHENTICATION_DATA in properties.texts and AUTHENTICATION_METHOD not in properties.texts:
        raise ProtocolError("authentication data without a method (section 3.1.2.11.10)")
    return properties


def _read_number(reader: Reader, identifier: int, kind: int) -> int:
    if kind == _BYTE:
        value = reader.u8()
    elif kind == _U16:
        value = reader.u16()
    elif kind == _U32:
        value = reader.u32()
    else:
        value = reader.varint()
    if (value > 1 and identifier in _BOOLEANS) or (value == 0 and identifier in _NOT_ZERO):
        raise ProtocolError(f"property {identifier:#04x} may not be {value}")
    return value


def _read_text(reader: Reader, identifier: int, kind: int) -> bytes:
    if kind == _BINARY:
        return reader.binary()
    value = reader.text()
    if identifier == RESPONSE_TOPIC and not is_valid_topic(value):
        raise TopicNameInvalid("the response topic is not a topic name (MQTT-3.3.2-14)")
    return value


def _without(block: bytes, identifier: int) -> bytes:
    """A checked block without the property `identifier`."""
    at = _find(block, identifier)
    return block if at < 0 else block[:at] + block[_after(block, at) :]


def _find(block: bytes, identifier: int) -> i64:
    """Where the property begins in a checked block, or -1."""
    at: i64 = 0
    stop: i64 = len(block)
    while at < stop:
        if block[at] == identifier:
            return at
        at = _after(block, at)
    return -1


def _after(block: bytes, at: i64) -> i64:
    """Where the property that begins at `at` ends, in a checked block."""
    kind = _TYPES[block[at]]
    at += 1
    if kind < _VARINT:
        return at + kind
    if kind == _VARINT:
        while block[at] >= 0x80:
            at += 1
        return at + 1
    at += 2 + (block[at] << 8 | block[at + 1])
    if kind == _PAIR:
        at += 2 + (block[at] << 8 | block[at + 1])
    return at
