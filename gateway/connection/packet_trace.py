"""The packets of one client as text, for somebody who looks for what goes wrong.

A line has the type of a packet, packet id, topic or filters, QoS, flags, reason codes and sizes. It has no password, no
payload and no property but those that say how the protocol is used.
"""

from collections.abc import Iterator, Sequence
from time import time
from typing import Final, NamedTuple

from gateway.mqtt.packets import (
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from gateway.mqtt.reasons import BY_CODE

CLIENT: Final = "client"  # who sent a packet
NODE: Final = "node"
_MAX_LINES: Final = 1000  # that nobody has read
_MAX_NAME: Final = 256  # characters of a topic, a filter or a name
_MAX_FILTERS: Final = 8  # that a line names
_TYPES: Final = {PubAck: "PUBACK", PubRec: "PUBREC", PubRel: "PUBREL", PubComp: "PUBCOMP"}
_NAMES: Final = {int(each): each.name for each in PacketType}
_ACKS: Final = frozenset((PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP))


class TraceLine(NamedTuple):
    """One packet, or something else that happened."""

    at_ms: int
    sender: str  # CLIENT or NODE; "": it is no packet
    text: str


class PacketTrace:
    """What was sent and received since somebody asked last. Beyond a thousand packets are only counted."""

    def __init__(self) -> None:
        self._lines: list[TraceLine] = []
        self._dropped = 0

    def take(self) -> tuple[list[TraceLine], int]:
        """The lines since the last call, and how many packets were only counted."""
        taken = self._lines, self._dropped
        self._lines, self._dropped = [], 0
        return taken

    def note(self, text: str) -> None:
        """Add a line about something that is no packet."""
        self._add("", text)

    def received(self, packets: Sequence[Packet]) -> None:
        """The client has sent these packets."""
        for packet in packets:
            if self._has_room():
                self._add(CLIENT, _from_client(packet))

    def sent(self, version: int, data: bytes) -> None:
        """The client is sent these packets, which are whole."""
        for first, at, end in _split(data):
            if self._has_room():
                self._add(NODE, _from_node(version, first, data[at:end]))

    def _has_room(self) -> bool:
        if len(self._lines) < _MAX_LINES:
            return True
        self._dropped += 1
        return False

    def _add(self, sender: str, text: str) -> None:
        if len(self._lines) < _MAX_LINES:
            self._lines.append(TraceLine(int(time() * 1000), sender, text))


# --- from the client


def _from_client(packet: Packet) -> str:
    if isinstance(packet, Publish):
        shape = packet.qos << 1 | packet.retain | packet.dup << 3
        sizes = f"{_bytes(packet.payload)} of payload, {_bytes(packet.properties)} of properties"
        return f"PUBLISH{_id(packet.packet_id)} {_flags(shape)} to {_name(packet.topic)}, {sizes}"
    if isinstance(packet, Ack):
        return f"{_TYPES[type(packet)]}{_id(packet.packet_id)}{_reason(int(packet.reason))}"
    if isinstance(packet, Connect):
        return _connect(packet)
    if isinstance(packet, Subscribe):
        wanted = [f"{_name(each.topic_filter)} qos {each.qos}" for each in packet.requests[:_MAX_FILTERS]]
        return f"SUBSCRIBE{_id(packet.packet_id)} {_listed(wanted, len(packet.requests))}"
    if isinstance(packet, Unsubscribe):
        names = [_name(each) for each in packet.topic_filters[:_MAX_FILTERS]]
        return f"UNSUBSCRIBE{_id(packet.packet_id)} {_listed(names, len(packet.topic_filters))}"
    if isinstance(packet, Disconnect):
        expiry = packet.session_expiry_interval
        return f"DISCONNECT{_reason(int(packet.reason))}" + ("" if expiry is None else f", session expiry {expiry} s")
    if isinstance(packet, Auth):
        return f"AUTH{_reason(int(packet.reason))}, {_bytes(packet.authentication_data or b'')} of data"
    return "PINGREQ"


def _connect(packet: Connect) -> str:
    parts = [
        f"CONNECT of MQTT {'5.0' if packet.version == 5 else '3.1.1'}",
        "clean start" if packet.clean_start else "no clean start",
        f"keep alive {packet.keep_alive} s",
        f"session expiry {packet.session_expiry_interval} s",
    ]
    if packet.username is not None:
        parts.append(f"user {_name(packet.username)}")
    if packet.password is not None:
        parts.append("a password")
    if packet.authentication_method is not None:
        parts.append(f"authentication method {_name(packet.authentication_method)}")
    if packet.will is not None:
        will = packet.will
        flags = _flags(will.qos << 1 | will.retain)
        parts.append(f"will to {_name(will.topic)} {flags}, {_bytes(will.payload)} of payload")
    return ", ".join(parts)


# --- from the node


def _split(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the first byte of each packet, and where its body begins and ends."""
    at = 0
    while at < len(data):
        length, begin = _varint(data, at + 1)
        yield data[at], begin, begin + length
        at = begin + length


def _from_node(version: int, first: int, body: bytes) -> str:
    kind = first >> 4
    if kind == PacketType.PUBLISH:
        return _publish(version, first & 15, body)
    name = _NAMES[kind]
    if kind == PacketType.CONNACK:
        present = "session present" if body[0] & 1 else "no session present"
        return f"{name}{_reason(body[1]) if version == 5 else f' return code {body[1]}'}, {present}"
    if kind in _ACKS:
        return f"{name}{_id(_number(body))}{_reason(body[2] if len(body) > 2 else 0)}"
    if kind in (PacketType.SUBACK, PacketType.UNSUBACK):
        at = 2
        if version == 5:
            length, begin = _varint(body, 2)
            at = begin + length
        codes = [f"0x{code:02x}" for code in body[at : at + _MAX_FILTERS]]
        return f"{name}{_id(_number(body))} {_listed(codes, len(body) - at)}"
    if kind in (PacketType.DISCONNECT, PacketType.AUTH):
        return f"{name}{_reason(body[0] if body else 0)}"
    return name


def _publish(version: int, shape: int, body: bytes) -> str:
    at = 2 + _number(body)
    topic = body[2:at]
    packet_id = 0
    if shape & 6:
        packet_id = _number(body[at : at + 2])
        at += 2
    properties = 0
    if version == 5:
        properties, at = _varint(body, at)
        at += properties
    where = _name(topic) if topic else "the topic of an alias"
    sizes = f"{len(body) - at} bytes of payload, {properties} bytes of properties"
    return f"PUBLISH{_id(packet_id)} {_flags(shape)} to {where}, {sizes}"


# --- parts of lines


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer of a packet that this node has made, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _number(body: bytes) -> int:
    return int.from_bytes(body[:2], "big")


def _id(packet_id: int) -> str:
    return f" {packet_id}" if packet_id else ""


def _flags(shape: int) -> str:
    """The lower half of the first byte of a PUBLISH."""
    return f"qos {shape >> 1 & 3}{' retain' if shape & 1 else ''}{' dup' if shape & 8 else ''}"


def _reason(code: int) -> str:
    known = BY_CODE.get(code)
    return f" 0x{code:02x}" + (f" ({known.name.lower().replace('_', ' ')})" if known is not None else "")


def _bytes(value: bytes) -> str:
    return f"{len(value)} bytes"


def _name(name: bytes) -> str:
    text = name[: 4 * _MAX_NAME].decode(errors="replace")
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}…"


def _listed(parts: list[str], count: int) -> str:
    return ", ".join(parts) + (f" and {count - len(parts)} more" if count > len(parts) else "")
