"""The client's side of MQTT, written plainly and apart from the code under test: packets as a device sends them."""

from typing import Any

CONNECT_311 = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"
CONNECT_5 = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c"


def connect_packet(version: int) -> bytes:
    """A small CONNECT of client `c` with a clean start."""
    return CONNECT_5 if version == 5 else CONNECT_311


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, digit = divmod(value, 128)
        out += bytes([digit | (0x80 if value else 0)])
        if not value:
            return out


def u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def text(value: bytes) -> bytes:
    return u16(len(value)) + value


def pair(name: bytes, value: bytes) -> bytes:
    return b"\x26" + text(name) + text(value)


def sized(block: bytes) -> bytes:
    return varint(len(block)) + block


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + sized(body)


def connect(
    version: int = 5,
    client_id: bytes = b"c",
    flags: int = 0x02,
    keep_alive: int = 60,
    properties: bytes = b"",
    rest: bytes = b"",
    name: bytes = b"MQTT",
) -> bytes:
    block = sized(properties) if version == 5 else b""
    return packet(0x10, text(name) + bytes([version, flags]) + u16(keep_alive) + block + text(client_id) + rest)


def publish(
    version: int,
    topic: bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    properties: bytes = b"",
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    block = sized(properties) if version == 5 else b""
    first = 0x30 | dup << 3 | qos << 1 | retain
    return packet(first, text(topic) + (u16(packet_id) if qos else b"") + block + payload)


def subscribe(version: int, packet_id: int, *requests: tuple[bytes, int], properties: bytes = b"") -> bytes:
    block = sized(properties) if version == 5 else b""
    body = b"".join(text(topic_filter) + bytes([options]) for topic_filter, options in requests)
    return packet(0x82, u16(packet_id) + block + body)


def unsubscribe(version: int, packet_id: int, *topic_filters: bytes, properties: bytes = b"") -> bytes:
    block = sized(properties) if version == 5 else b""
    return packet(0xA2, u16(packet_id) + block + b"".join(map(text, topic_filters)))


def fields(thing: object) -> dict[str, Any]:
    """The fields of a packet, compiled or not, for comparing."""
    found: dict[str, Any] = {"type": type(thing).__name__}
    for name in dir(thing):
        value = None if name.startswith("_") else getattr(thing, name)
        if not name.startswith("_") and not callable(value):
            if isinstance(value, list):
                value = [fields(item) if hasattr(item, "topic_filter") else item for item in value]
            found[name] = fields(value) if name == "will" and value is not None else value
    return found
