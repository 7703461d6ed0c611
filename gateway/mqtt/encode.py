"""Packets in, bytes out: what a server sends, for MQTT 3.1.1 and 5.0.

What 3.1.1 has no field for is left out: its acknowledgements carry no reason, its SUBACK knows one failure,
and it has no DISCONNECT from the server at all.
"""

from typing import Final

from mypy_extensions import i64

from gateway.mqtt.packets import MQTT_5
from gateway.mqtt.properties import (
    ASSIGNED_CLIENT_ID,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RESPONSE_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SERVER_REFERENCE,
    SESSION_EXPIRY,
    SHARED_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    number_property,
    text_property,
    user_property,
    varint,
)
from gateway.mqtt.reasons import CONNACK_REASONS, DISCONNECT_REASONS, ReasonCode, connack_return_code

_SUBACK_FAILURE_311: Final = 0x80

PINGRESP: Final = b"\xd0\x00"


class Explanation:
    """What a packet may say beside its reason code: a text for people, user properties for programs."""

    __slots__ = ("text_block", "user_block")

    def __init__(self, text: bytes, user: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.text_block = text_property(REASON_STRING, text[:0xFFFF])
        self.user_block = b"".join([user_property(name, value) for name, value in user])


class ConnackProperties:
    """What the server tells in CONNACK (section 3.2.2.3); None is left out. `block` encodes it."""

    __slots__ = (
        "assigned_client_id",
        "authentication_data",
        "authentication_method",
        "maximum_packet_size",
        "maximum_qos",
        "receive_maximum",
        "response_information",
        "retain_available",
        "server_keep_alive",
        "server_reference",
        "session_expiry_interval",
        "shared_subscription_available",
        "topic_alias_maximum",
    )

    def __init__(self) -> None:
        self.session_expiry_interval: int | None = None  # seconds, where it is not what the client asked for
        self.receive_maximum: int | None = None
        self.maximum_qos: int | None = None  # 0 or 1; 2 is said by leaving it out
        self.retain_available: bool | None = None
        self.maximum_packet_size: int | None = None  # bytes
        self.topic_alias_maximum: int | None = None
        self.server_keep_alive: int | None = None  # seconds
        self.shared_subscription_available: bool | None = None
        self.assigned_client_id: bytes | None = None
        self.response_information: bytes | None = None
        self.server_reference: bytes | None = None
        self.authentication_method: bytes | None = None
        self.authentication_data: bytes | None = None

    def block(self) -> bytes:
        retain = None if self.retain_available is None else int(self.retain_available)
        shared = None if self.shared_subscription_available is None else int(self.shared_subscription_available)
        numbers = (
            (SESSION_EXPIRY, self.session_expiry_interval),
            (RECEIVE_MAXIMUM, self.receive_maximum),
            (MAXIMUM_QOS, self.maximum_qos),
            (RETAIN_AVAILABLE, retain),
            (MAXIMUM_PACKET_SIZE, self.maximum_packet_size),
            (TOPIC_ALIAS_MAXIMUM, self.topic_alias_maximum),
            (SERVER_KEEP_ALIVE, self.server_keep_alive),
            (SHARED_AVAILABLE, shared),
        )
        texts = (
            (ASSIGNED_CLIENT_ID, self.assigned_client_id),
            (RESPONSE_INFORMATION, self.response_information),
            (SERVER_REFERENCE, self.server_reference),
            (AUTHENTICATION_METHOD, self.authentication_method),
            (AUTHENTICATION_DATA, self.authentication_data),
        )
        parts = [number_property(identifier, value) for identifier, value in numbers if value is not None]
        parts.extend([text_property(identifier, text) for identifier, text in texts if text is not None])
        return b"".join(parts)


def connack(
    version: int,
    reason: ReasonCode,
    session_present: bool = False,
    properties: ConnackProperties | None = None,
    why: Explanation | None = None,
    limit: int = 0,
) -> bytes:
    """CONNACK (section 3.2). A refused client has no session (MQTT-3.2.2-6).

    Nothing for a refusal that 3.1.1 has no code for: the server just closes (3.1.1: MQTT-3.2.2-6).
    """
    present = session_present and reason == ReasonCode.SUCCESS
    if version != MQTT_5:
        code = connack_return_code(reason)
        return b"" if code is None else bytes((0x20, 2, present, code))
    block = b"" if properties is None else properties.block()
    code = reason if reason in CONNACK_REASONS else ReasonCode.UNSPECIFIED_ERROR
    return _explained(0x20, bytes((present, code)), block, b"", why, limit)


def publish(
    version: int,
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
    subscription_ids: tuple[int, ...] = (),
) -> bytes:
    """PUBLISH (section 3.3). `packet_id` is not 0 where `qos` is not."""
    head, tail = publish_parts(version, topic, payload, qos, retain, dup, properties, subscription_ids)
    return head + packet_id.to_bytes(2, "big") + tail if qos else head


def publish_parts(
    version: int,
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    dup: bool = False,
    properties: bytes = b"",
    subscription_ids: tuple[int, ...] = (),
) -> tuple[bytes, bytes]:
    """PUBLISH before and behind its packet id, to be shared by subscribers; all of it in front with QoS 0.

    `properties` is a block as `Publish.properties`. Raises `ValueError` beyond the 256 MiB of a packet.
    """
    first: i64 = 0x30 | qos << 1
    if retain:
        first |= 1
    if dup:
        first |= 8
    size: i64 = len(topic)
    if size > 0xFFFF:
        raise ValueError("a topic longer than 65535 bytes")
    block = b""
    if version == MQTT_5:
        if subscription_ids:
            properties = _with_identifiers(properties, subscription_ids)
        block = b"\x00" if not properties else _sized(properties)
    length: i64 = size + len(payload) + len(block) + (4 if qos else 2)
    if length < 0x80:
        header = bytes((first, length, size >> 8, size & 0xFF))
    elif length < 0x4000:
        header = bytes((first, length & 0x7F | 0x80, length >> 7, size >> 8, size & 0xFF))
    else:
        header = bytes((first,)) + varint(length) + bytes((size >> 8, size & 0xFF))
    if qos:
        return header + topic, block + payload
    return b"".join((header, topic, block, payload)), b""


def aliased_parts(
    payload: bytes, qos: int, retain: bool, dup: bool, properties: bytes, subscription_ids: tuple[int, ...]
) -> tuple[bytes, bytes, bytes]:
    """PUBLISH with an alias in place of its topic: before the packet id, from there to the alias, and behind it.

    The alias is two bytes; it is what differs between clients that know the topic by one.
    """
    if subscription_ids:
        properties = _with_identifiers(properties, subscription_ids)
    prefix = varint(len(properties) + 3) + bytes((TOPIC_ALIAS,))
    first = 0x30 | qos << 1 | (1 if retain else 0) | (8 if dup else 0)
    length = (4 if qos else 2) + len(prefix) + 2 + len(properties) + len(payload)
    return bytes((first,)) + varint(length) + b"\x00\x00", prefix, properties + payload


def puback(
    version: int,
    packet_id: int,
    reason: ReasonCode = ReasonCode.SUCCESS,
    why: Explanation | None = None,
    limit: int = 0,
) -> bytes:
    """PUBACK (section 3.4). Of `why`, a failure says what keeps it within `limit` bytes; 0: no limit."""
    if int(reason) == 0 or version != MQTT_5:
        return b"\x40\x02" + packet_id.to_bytes(2, "big")
    return _failure(0x40, packet_id, reason, why, limit)


def pubrec(
    version: int,
    packet_id: int,
    reason: ReasonCode = ReasonCode.SUCCESS,
    why: Explanation | None = None,
    limit: int = 0,
) -> bytes:
    """PUBREC (section 3.5); `why` and `limit` as for PUBACK."""
    if int(reason) == 0 or version != MQTT_5:
        return b"\x50\x02" + packet_id.to_bytes(2, "big")
    return _failure(0x50, packet_id, reason, why, limit)


def pubrel(
    version: int,
    packet_id: int,
    reason: ReasonCode = ReasonCode.SUCCESS,
    why: Explanation | None = None,
    limit: int = 0,
) -> bytes:
    """PUBREL (section 3.6); `why` and `limit` as for PUBACK."""
    if int(reason) == 0 or version != MQTT_5:
        return b"\x62\x02" + packet_id.to_bytes(2, "big")
    return _failure(0x62, packet_id, reason, why, limit)


def pubcomp(
    version: int,
    packet_id: int,
    reason: ReasonCode = ReasonCode.SUCCESS,
    why: Explanation | None = None,
    limit: int = 0,
) -> bytes:
    """PUBCOMP (section 3.7); `why` and `limit` as for PUBACK."""
    if int(reason) == 0 or version != MQTT_5:
        return b"\x70\x02" + packet_id.to_bytes(2, "big")
    return _failure(0x70, packet_id, reason, why, limit)


def suback(
    version: int, packet_id: int, reasons: list[ReasonCode], why: Explanation | None = None, limit: int = 0
) -> bytes:
    """SUBACK (section 3.9): a reason for each filter of the SUBSCRIBE, in its order."""
    if version == MQTT_5:
        return _explained(0x90, packet_id.to_bytes(2, "big"), b"", bytes(reasons), why, limit)
    codes = bytes([min(int(reason), _SUBACK_FAILURE_311) for reason in reasons])
    return _packet(0x90, packet_id.to_bytes(2, "big") + codes)


def unsuback(
    version: int, packet_id: int, reasons: list[ReasonCode], why: Explanation | None = None, limit: int = 0
) -> bytes:
    """UNSUBACK (section 3.11): a reason for each filter of the UNSUBSCRIBE, in its order."""
    if version == MQTT_5:
        return _explained(0xB0, packet_id.to_bytes(2, "big"), b"", bytes(reasons), why, limit)
    return b"\xb0\x02" + packet_id.to_bytes(2, "big")


def pingresp() -> bytes:
    """PINGRESP (section 3.13)."""
    return PINGRESP


def disconnect(
    version: int,
    reason: ReasonCode,
    why: Explanation | None = None,
    server_reference: bytes = b"",
    limit: int = 0,
) -> bytes:
    """DISCONNECT (section 3.14); nothing for 3.1.1, where the server just closes."""
    if version != MQTT_5:
        return b""
    code = reason if reason in DISCONNECT_REASONS else ReasonCode.UNSPECIFIED_ERROR
    block = text_property(SERVER_REFERENCE, server_reference) if server_reference else b""
    if why is None and not block:
        return bytes((0xE0, 1, code))
    return _explained(0xE0, bytes((code,)), block, b"", why, limit)


def auth(
    reason: ReasonCode,
    authentication_method: bytes,
    authentication_data: bytes | None = None,
    why: Explanation | None = None,
    limit: int = 0,
) -> bytes:
    """AUTH (section 3.15), of MQTT 5 only."""
    block = text_property(AUTHENTICATION_METHOD, authentication_method)
    if authentication_data is not None:
        block += text_property(AUTHENTICATION_DATA, authentication_data)
    return _explained(0xF0, bytes((reason,)), block, b"", why, limit)


def _failure(first: int, packet_id: int, reason: ReasonCode, why: Explanation | None, limit: int) -> bytes:
    head = packet_id.to_bytes(2, "big") + bytes((reason,))
    return bytes((first, 3)) + head if why is None else _explained(first, head, b"", b"", why, limit)


def _explained(first: int, head: bytes, properties: bytes, tail: bytes, why: Explanation | None, limit: int) -> bytes:
    """A packet that says as much of `why` as keeps it within `limit` bytes (MQTT-3.4.2-2, -3 and their like)."""
    if why is not None:
        for block in (why.text_block + why.user_block, why.text_block):
            packet = _packet(first, head + _sized(properties + block) + tail)
            if not limit or len(packet) <= limit:
                return packet
    return _packet(first, head + _sized(properties) + tail)


def _with_identifiers(properties: bytes, subscription_ids: tuple[int, ...]) -> bytes:
    """One Subscription Identifier for each subscription that matched (MQTT-3.3.4-3, -4)."""
    parts = [number_property(SUBSCRIPTION_IDENTIFIER, identifier) for identifier in subscription_ids]
    parts.append(properties)
    return b"".join(parts)


def _sized(block: bytes) -> bytes:
    return varint(len(block)) + block


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body
