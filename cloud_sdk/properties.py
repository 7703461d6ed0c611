"""The MQTT 5 properties of an application message, as the block that a record carries (MQTT 5.0, 2.2.2).

The block has no length prefix and holds only what travels with a message: payload format, message expiry,
content type, response topic, correlation data and user properties.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from record import layout

# Names of user properties:
KEY: Final = "key"  # `Client.find` finds messages by it
TAG: Final = "tag"  # consumers select messages by it
MAX_KEY: Final = layout.MAX_KEY  # bytes of a key by which a message is found
MAX_KEYS: Final = layout.MAX_KEYS  # of one message
ORDERING_KEY: Final = "ordering_key"  # ordered consumers handle messages with the same one in order

_PAYLOAD_FORMAT: Final = 0x01
_MESSAGE_EXPIRY: Final = 0x02
_CONTENT_TYPE: Final = 0x03
_RESPONSE_TOPIC: Final = 0x08
_CORRELATION_DATA: Final = 0x09
_USER_PROPERTY: Final = 0x26

UserProperties = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(slots=True)
class Properties:
    """The properties of one message; None: the publisher did not set it."""

    payload_format: int | None = None  # 1: the payload is UTF-8 text
    message_expiry: int | None = None  # seconds
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user: list[tuple[str, str]] = field(default_factory=list)  # in order; a name may repeat

    @classmethod
    def of_user(cls, user: UserProperties | None) -> "Properties":
        """Properties that hold the given user properties and nothing else."""
        pairs = user.items() if isinstance(user, Mapping) else user
        return cls(user=list(pairs or ()))


def encode(properties: Properties) -> bytes:
    """Write a block. Raises `ValueError` for a string or data of more than 65,535 bytes, and a string with U+0000."""
    block = bytearray()
    if properties.payload_format is not None:
        block += bytes((_PAYLOAD_FORMAT, properties.payload_format))
    if properties.message_expiry is not None:
        if not 0 <= properties.message_expiry <= 0xFFFF_FFFF:
            raise ValueError("a message expiry is a number of seconds in 32 bits")
        block.append(_MESSAGE_EXPIRY)
        block += properties.message_expiry.to_bytes(4, "big")
    if properties.content_type is not None:
        block.append(_CONTENT_TYPE)
        block += _text(properties.content_type)
    if properties.response_topic is not None:
        block.append(_RESPONSE_TOPIC)
        block += _text(properties.response_topic)
    if properties.correlation_data is not None:
        block.append(_CORRELATION_DATA)
        block += _binary(properties.correlation_data)
    for name, value in properties.user:
        block.append(_USER_PROPERTY)
        block += _text(name)
        block += _text(value)
    return bytes(block)


def decode(block: bytes) -> Properties:
    """Read a block. Raises `ValueError` if it is cut short or has a property that application messages do not have."""
    properties = Properties()
    at, end = 0, len(block)
    while at < end:
        identifier = block[at]
        at += 1
        if identifier == _PAYLOAD_FORMAT:
            properties.payload_format = _number(block, at, 1)
            at += 1
        elif identifier == _MESSAGE_EXPIRY:
            properties.message_expiry = _number(block, at, 4)
            at += 4
        elif identifier == _CORRELATION_DATA:
            properties.correlation_data, at = _read(block, at)
        elif identifier in (_CONTENT_TYPE, _RESPONSE_TOPIC, _USER_PROPERTY):
            raw, at = _read(block, at)
            text = raw.decode()
            if identifier == _CONTENT_TYPE:
                properties.content_type = text
            elif identifier == _RESPONSE_TOPIC:
                properties.response_topic = text
            else:
                raw, at = _read(block, at)
                properties.user.append((text, raw.decode()))
        else:
            raise ValueError(f"property 0x{identifier:02x} does not travel with a message")
    return properties


def _text(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("a string holds U+0000")  # MQTT-1.5.4-2
    return _binary(text.encode())


def _binary(data: bytes) -> bytes:
    if len(data) > 0xFFFF:
        raise ValueError(f"a string or binary property has {len(data)} bytes, at most 65535 fit")
    return len(data).to_bytes(2, "big") + data


def _number(block: bytes, at: int, size: int) -> int:
    if at + size > len(block):
        raise ValueError("the block is cut short")
    return int.from_bytes(block[at : at + size], "big")


def _read(block: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + _number(block, at, 2)
    if end > len(block):
        raise ValueError("the block is cut short")
    return block[start:end], end
