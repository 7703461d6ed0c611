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


NUMBERS = {0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x2A: 1}
TEXTS = (0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F)

Property = tuple[int, int | bytes | tuple[bytes, bytes]]


def properties(block: bytes) -> list[Property]:
    """The properties of a block that the server sent, in their order."""
    found: list[Property] = []
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        assert at + size <= len(block), "a property ends beyond its block"
        at += size
        return block[at - size : at]

    def take_text() -> bytes:
        return take(int.from_bytes(take(2), "big"))

    while at < len(block):
        identifier = take(1)[0]
        if identifier in NUMBERS:
            found.append((identifier, int.from_bytes(take(NUMBERS[identifier]), "big")))
        elif identifier in TEXTS:
            found.append((identifier, take_text()))
        elif identifier == 0x26:
            found.append((identifier, (take_text(), take_text())))
        else:
            assert identifier == 0x0B, f"the server does not send property {identifier:#04x}"
            value, shift = 0, 0
            while (byte := take(1)[0]) >= 0x80:
                value |= (byte & 0x7F) << shift
                shift += 7
            found.append((identifier, value | byte << shift))
    return found


def split_sized(data: bytes) -> tuple[bytes, bytes]:
    """The block that `data` begins with, without its length, and what is behind it."""
    length, at, shift = 0, 0, 0
    while True:
        length |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return data[at : at + length], data[at + length :]


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
