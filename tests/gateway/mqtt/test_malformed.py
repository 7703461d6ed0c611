"""Each way to break the protocol, by its clause, and the reason code that answers it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mqtt.decode import Decoder
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Packet
from gateway.mqtt.properties import MAX_USER_PROPERTIES
from gateway.mqtt.subscribe import MAX_FILTERS
from tests.gateway.mqtt import wire

MALFORMED, PROTOCOL, VERSION, CLIENT_ID = 0x81, 0x82, 0x84, 0x85
FILTER, NAME, ALIAS, QUOTA = 0x8F, 0x90, 0x94, 0x97

T = wire.text(b"t")
EXPIRY = b"\x02" + wire.u32(1)


def bad(clause: str, reason: int, data: bytes, version: int = 5) -> object:
    """A case. The statements that its name cites are those it proves: of 3.1.1 if it begins with that."""
    marker = pytest.mark.mqtt311 if clause.startswith("3.1.1 ") else pytest.mark.mqtt5
    cited = re.findall(r"MQTT-([\d.]+-\d+)", clause)
    return pytest.param(data, reason, version, id=clause, marks=[marker(*cited)] if cited else [])


def prop(block: bytes) -> bytes:
    return wire.publish(5, b"t", properties=block)


def will(topic: bytes = b"t", flags: int = 0x06, rest: bytes = T) -> bytes:
    """A CONNECT of 3.1.1 with a will and what is behind its topic."""
    return wire.connect(4, flags=flags, rest=wire.text(topic) + rest)


# What is behind the last user property that may be there is malformed: the error shows that nobody has read it.
BOMB = wire.pair(b"", b"") * (MAX_USER_PROPERTIES + 1) + b"\xff"

SURROGATE, NOT_SHORTEST = b"\xed\xa0\x80", b"\xc0\xaf"

AS_FIRST = [
    bad("MQTT-3.1.0-1 the first packet is CONNECT", PROTOCOL, b"\xc0\x00", 0),
    bad("MQTT-2.1.3-1 flags of CONNECT", PROTOCOL, b"\x11\x00", 0),
    bad("MQTT-3.1.2-1 protocol name", VERSION, wire.connect(name=b"MQTX"), 0),
    bad("MQTT-3.1.2-1 protocol name in lower case", VERSION, wire.connect(name=b"mqtt"), 0),
    bad("MQTT-3.1.2-2 version 3.1", VERSION, wire.connect(3, name=b"MQIsdp"), 4),
    bad("MQTT-3.1.2-2 version 6", VERSION, wire.connect(6), 5),
    bad("MQTT-3.1.2-2 bridge bit", VERSION, wire.connect(0x84), 5),
    bad("MQTT-3.1.2-3 reserved flag", MALFORMED, wire.connect(flags=3)),
    bad("MQTT-3.1.2-11 will QoS without will", MALFORMED, wire.connect(flags=0x0A)),
    bad("MQTT-3.1.2-13 will retain without will", MALFORMED, wire.connect(flags=0x22)),
    bad("MQTT-3.1.2-12 will QoS 3", MALFORMED, wire.connect(flags=0x1E, rest=b"\x00" + T + T)),
    bad("too many user properties in CONNECT", QUOTA, wire.connect(properties=BOMB)),
    bad("too many user properties in a will", QUOTA, wire.connect(flags=6, rest=wire.sized(BOMB) + T + T)),
    bad("MQTT-3.1.3-4 client id not UTF-8", MALFORMED, wire.connect(client_id=b"\xff")),
    bad("MQTT-1.5.4-2 NUL in client id", MALFORMED, wire.connect(client_id=b"\0")),
    bad(
        "MQTT-1.5.4-1 MQTT-3.1.3-12 surrogate in user name",
        MALFORMED,
        wire.connect(flags=0x82, rest=wire.text(SURROGATE)),
    ),
    bad("MQTT-3.1.3-11 will topic not UTF-8", MALFORMED, wire.connect(flags=6, rest=b"\x00" + wire.text(b"\xff") + T)),
    bad("will topic with wildcard", NAME, wire.connect(flags=6, rest=b"\x00" + wire.text(b"a/#") + T)),
    bad("MQTT-3.1.2-9 missing will", MALFORMED, wire.connect(flags=6)),
    bad("MQTT-3.1.2-9 missing will payload", MALFORMED, wire.connect(flags=6, rest=b"\x00" + T)),
    bad("MQTT-3.1.2-17 missing user name", MALFORMED, wire.connect(flags=0x82)),
    bad("MQTT-3.1.2-19 missing password", MALFORMED, wire.connect(flags=0x42)),
    bad("MQTT-3.1.2-16 MQTT-3.1.2-18 text that no flag announces", MALFORMED, wire.connect(rest=T)),
    bad("bytes after the payload", MALFORMED, wire.connect(rest=b"x")),
    bad(
        "MQTT-3.1.3-3 missing client id",
        MALFORMED,
        wire.packet(0x10, wire.text(b"MQTT") + b"\x05\x02\x00\x3c\x00"),
        5,
    ),
    bad("missing protocol name", MALFORMED, b"\x10\x00", 0),
    bad("property twice", PROTOCOL, wire.connect(properties=(b"\x11" + wire.u32(1)) * 2)),
    bad("receive maximum 0", PROTOCOL, wire.connect(properties=b"\x21\x00\x00")),
    bad("maximum packet size 0", PROTOCOL, wire.connect(properties=b"\x27" + wire.u32(0))),
    bad("request problem information 2", PROTOCOL, wire.connect(properties=b"\x17\x02")),
    bad("request response information 2", PROTOCOL, wire.connect(properties=b"\x19\x02")),
    bad("authentication data without method", PROTOCOL, wire.connect(properties=b"\x16" + T)),
    bad("property of another packet", PROTOCOL, wire.connect(properties=EXPIRY)),
    bad("will delay among the properties of CONNECT", PROTOCOL, wire.connect(properties=b"\x18" + wire.u32(1))),
    bad("unknown property", MALFORMED, wire.connect(properties=b"\x7f\x00")),
    bad("property cut", MALFORMED, wire.connect(properties=b"\x11\x00")),
    bad("will property twice", PROTOCOL, wire.connect(flags=6, rest=wire.sized(EXPIRY * 2) + T + T)),
    bad("will properties too long", MALFORMED, wire.connect(flags=6, rest=b"\x7f" + T + T)),
    bad(
        "MQTT-3.1.3-1 will behind the user name",
        MALFORMED,
        wire.connect(flags=0x86, rest=wire.text(b"user") + b"\x00" + T + T),
    ),
    bad("3.1.1 MQTT-3.1.0-1 the first packet is CONNECT", PROTOCOL, wire.subscribe(4, 1, (b"a", 0)), 0),
    bad("3.1.1 MQTT-3.1.2-1 protocol name", VERSION, wire.connect(4, name=b"MQTX"), 0),
    bad("3.1.1 MQTT-3.1.2-3 reserved flag", MALFORMED, wire.connect(4, flags=3), 4),
    bad("3.1.1 MQTT-3.1.2-11 MQTT-3.1.2-13 will QoS without will", MALFORMED, wire.connect(4, flags=0x0A), 4),
    bad("3.1.1 MQTT-3.1.2-11 MQTT-3.1.2-15 will retain without will", MALFORMED, wire.connect(4, flags=0x22), 4),
    bad("3.1.1 MQTT-3.1.2-11 will without its flag", MALFORMED, wire.connect(4, rest=T + T), 4),
    bad("3.1.1 MQTT-3.1.2-14 will QoS 3", MALFORMED, will(flags=0x1E), 4),
    bad("3.1.1 MQTT-3.1.2-9 missing will", MALFORMED, wire.connect(4, flags=6), 4),
    bad("3.1.1 MQTT-3.1.2-9 missing will message", MALFORMED, will(rest=b""), 4),
    bad("3.1.1 MQTT-3.1.2-19 missing user name", MALFORMED, wire.connect(4, flags=0x82), 4),
    bad("3.1.1 MQTT-3.1.2-21 missing password", MALFORMED, wire.connect(4, flags=0xC2, rest=T), 4),
    bad("3.1.1 MQTT-3.1.2-18 MQTT-3.1.2-20 text that no flag announces", MALFORMED, wire.connect(4, rest=T), 4),
    bad("3.1.1 MQTT-3.1.2-22 password without name", MALFORMED, wire.connect(4, flags=0x42, rest=T), 4),
    bad("3.1.1 MQTT-3.1.3-7 MQTT-3.1.3-8 empty client id", CLIENT_ID, wire.connect(4, b"", flags=0), 4),
    bad("3.1.1 MQTT-1.5.3-1 MQTT-3.1.3-4 client id not UTF-8", MALFORMED, wire.connect(4, b"\xff"), 4),
    bad("3.1.1 MQTT-1.5.3-1 not in shortest form", MALFORMED, wire.connect(4, NOT_SHORTEST), 4),
    bad("3.1.1 MQTT-1.5.3-2 NUL in client id", MALFORMED, wire.connect(4, b"a\0"), 4),
    bad(
        "3.1.1 MQTT-1.5.3-1 MQTT-3.1.3-11 surrogate in user name",
        MALFORMED,
        wire.connect(4, flags=0x82, rest=wire.text(SURROGATE)),
        4,
    ),
    bad("3.1.1 MQTT-3.1.3-10 will topic not UTF-8", MALFORMED, will(b"\xff"), 4),
    bad("3.1.1 MQTT-4.7.3-1 will topic empty", NAME, will(b""), 4),
    bad("3.1.1 MQTT-4.7.1-1 will topic with wildcard", NAME, will(b"a/#"), 4),
    bad(
        "3.1.1 MQTT-3.1.3-3 missing client id",
        MALFORMED,
        wire.packet(0x10, wire.text(b"MQTT") + b"\x04\x02\x00\x3c"),
        4,
    ),
    bad(
        "3.1.1 MQTT-3.1.3-1 will behind the user name",
        MALFORMED,
        will(b"user", 0x86, wire.text(b"") + wire.text(b"\xff")),
        4,
    ),
]


def flags(clause: str, byte: int) -> list[object]:
    """A packet of either version with flags that its type does not have."""
    body = b"\x02\x00\x01"
    in_311 = {"3.15.1-1": "2.2.2-2", "2.1.3-1": "2.2.2-2"}.get(clause, clause)
    return [
        bad(f"MQTT-2.1.3-1 MQTT-{clause} flags {byte:#04x}", MALFORMED, bytes([byte]) + body),
        bad(f"3.1.1 MQTT-2.2.2-1 MQTT-2.2.2-2 MQTT-{in_311} flags {byte:#04x}", MALFORMED, bytes([byte]) + body, 4),
    ]


AFTER_CONNECT = [
    bad("MQTT-3.1.0-2 second CONNECT", PROTOCOL, wire.CONNECT_5),
    bad("3.1.1 MQTT-3.1.0-2 second CONNECT", PROTOCOL, wire.CONNECT_311, 4),
    bad("packet type 0", MALFORMED, b"\x00\x00"),
    bad("AUTH in 3.1.1", MALFORMED, b"\xf0\x00", 4),
    *(bad(f"type {kind} is the server's", PROTOCOL, bytes([kind << 4, 0])) for kind in (2, 9, 11, 13)),
    *flags("3.6.1-1", 0x60),
    *flags("3.6.1-1", 0x63),
    *flags("3.8.1-1", 0x80),
    *flags("3.8.1-1", 0x8A),
    *flags("3.10.1-1", 0xA0),
    *flags("3.10.1-1", 0xA3),
    *flags("3.14.1-1", 0xE8),
    *flags("3.15.1-1", 0xF1),
    *(case for byte in (0x41, 0x52, 0x72, 0xC1) for case in flags("2.1.3-1", byte)),
    bad("MQTT-1.5.5-1 length not in shortest form", MALFORMED, b"\xc0\x80\x00"),
    bad("length of five bytes", MALFORMED, b"\x30\xff\xff\xff\xff\x01"),
    bad("MQTT-3.3.1-4 QoS 3", MALFORMED, wire.publish(5, b"t", qos=3)),
    bad("3.1.1 MQTT-3.3.1-4 QoS 3", MALFORMED, wire.publish(4, b"t", qos=3), 4),
    bad("MQTT-3.3.1-2 DUP with QoS 0", MALFORMED, wire.publish(5, b"t", dup=True)),
    bad("3.1.1 MQTT-3.3.1-2 DUP with QoS 0", MALFORMED, wire.publish(4, b"t", dup=True), 4),
    bad("MQTT-2.2.1-3 packet id 0", PROTOCOL, wire.publish(5, b"t", qos=1, packet_id=0)),
    bad("3.1.1 MQTT-2.3.1-1 packet id 0", PROTOCOL, wire.publish(4, b"t", qos=2, packet_id=0), 4),
    bad("MQTT-3.3.2-2 MQTT-4.7.0-1 wildcard #", NAME, wire.publish(5, b"a/#")),
    bad("MQTT-3.3.2-2 MQTT-4.7.0-1 wildcard +", NAME, wire.publish(5, b"+/b")),
    bad("3.1.1 MQTT-3.3.2-2 MQTT-4.7.1-1 wildcard +", NAME, wire.publish(4, b"a/+"), 4),
    bad("3.1.1 MQTT-3.3.2-2 MQTT-4.7.1-1 wildcard #", NAME, wire.publish(4, b"#"), 4),
    bad("MQTT-3.3.2-1 topic not UTF-8", MALFORMED, wire.publish(5, b"\xc3\x28")),
    bad("3.1.1 MQTT-3.3.2-1 topic not UTF-8", MALFORMED, wire.publish(4, b"\xc3\x28"), 4),
    bad("MQTT-1.5.4-1 topic with surrogate", MALFORMED, wire.publish(5, SURROGATE)),
    bad("MQTT-1.5.4-1 topic not in shortest form", MALFORMED, wire.publish(5, NOT_SHORTEST)),
    bad("MQTT-1.5.4-2 MQTT-4.7.3-2 NUL in topic", MALFORMED, wire.publish(5, b"a\0")),
    bad("3.1.1 MQTT-1.5.3-2 MQTT-4.7.3-2 NUL in topic", MALFORMED, wire.publish(4, b"a\0"), 4),
    bad("too many levels", NAME, wire.publish(5, b"/" * 128)),
    bad("3.1.1 MQTT-4.7.3-1 empty topic", PROTOCOL, wire.publish(4, b""), 4),
    bad("MQTT-4.7.3-1 empty topic without alias", PROTOCOL, wire.publish(5, b"")),
    bad("empty PUBLISH", MALFORMED, b"\x30\x00"),
    bad("topic ends beyond packet", MALFORMED, b"\x30\x04\x00\x03ab"),
    bad("packet id cut", MALFORMED, b"\x32\x04\x00\x01a\x00"),
    bad("MQTT-2.2.2-1 no properties", MALFORMED, b"\x30\x03\x00\x01a"),
    bad("properties end beyond packet", MALFORMED, b"\x30\x05\x00\x01a\x05\x01"),
    bad("MQTT-1.5.5-1 properties' length not in shortest form", MALFORMED, b"\x30\x06\x00\x01a\x80\x00x"),
    bad("properties' length of five bytes", MALFORMED, b"\x30\x09\x00\x01a\xff\xff\xff\xff\x01x"),
    bad("MQTT-3.3.2-8 alias 0", ALIAS, prop(b"\x23\x00\x00")),
    bad("MQTT-3.3.2-9 MQTT-3.2.2-17 alias above the maximum", ALIAS, prop(b"\x23\x00\x06")),
    bad("MQTT-3.3.2-7 alias without topic", PROTOCOL, wire.publish(5, b"", properties=b"\x23\x00\x01")),
    bad("alias twice", PROTOCOL, prop(b"\x23\x00\x01" * 2)),
    bad("payload format 2", PROTOCOL, prop(b"\x01\x02")),
    bad("payload format twice", PROTOCOL, prop(b"\x01\x01\x01\x01")),
    bad("message expiry twice", PROTOCOL, prop(EXPIRY * 2)),
    bad("content type twice", PROTOCOL, prop((b"\x03" + T) * 2)),
    bad("MQTT-3.3.2-19 content type not UTF-8", MALFORMED, prop(b"\x03" + wire.text(b"\xff"))),
    bad("correlation data twice", PROTOCOL, prop((b"\x09" + T) * 2)),
    bad("response topic twice", PROTOCOL, prop((b"\x08" + T) * 2)),
    bad("MQTT-3.3.2-14 response topic with wildcard", NAME, prop(b"\x08" + wire.text(b"a/+"))),
    bad("MQTT-3.3.2-13 response topic not UTF-8", MALFORMED, prop(b"\x08" + wire.text(b"\xff"))),
    bad("MQTT-3.3.4-6 subscription identifier from a client", PROTOCOL, prop(b"\x0b\x01")),
    bad("MQTT-1.5.7-1 user property whose value is not UTF-8", MALFORMED, prop(wire.pair(b"a", b"\xff"))),
    bad("MQTT-1.5.7-1 user property whose name is not UTF-8", MALFORMED, prop(wire.pair(SURROGATE, b"a"))),
    bad("MQTT-1.5.7-1 user property with NUL", MALFORMED, prop(wire.pair(b"a", b"\0"))),
    bad("user property cut", MALFORMED, prop(b"\x26\x00\x01a\x00\x02b")),
    bad("no property number", MALFORMED, prop(b"\x00")),
    bad("identifier of two bytes", MALFORMED, prop(b"\x81\x01\x00")),
    *(
        bad(f"packet id 0 in type {byte >> 4}", PROTOCOL, bytes([byte]) + b"\x02\x00\x00")
        for byte in (0x40, 0x50, 0x62, 0x70)
    ),
    bad("PUBACK without packet id", MALFORMED, b"\x40\x01\x00"),
    bad("PUBACK of 3.1.1 with reason", MALFORMED, b"\x40\x03\x00\x01\x00", 4),
    bad("MQTT-3.4.2-1 PUBACK with unknown reason", PROTOCOL, b"\x40\x03\x00\x01\x7f"),
    bad("MQTT-3.5.2-1 PUBREC with unknown reason", PROTOCOL, b"\x50\x03\x00\x01\x92"),
    bad("MQTT-3.6.2-1 PUBREL with a reason of PUBACK", PROTOCOL, b"\x62\x03\x00\x01\x97"),
    bad("MQTT-3.7.2-1 PUBCOMP with a reason of PUBACK", PROTOCOL, b"\x70\x03\x00\x01\x80"),
    bad("PUBACK with foreign property", PROTOCOL, wire.packet(0x40, b"\x00\x01\x00" + wire.sized(EXPIRY))),
    bad("PUBACK with more", MALFORMED, b"\x40\x05\x00\x01\x00\x00\x00"),
    bad("MQTT-2.2.1-3 SUBSCRIBE with id 0", PROTOCOL, wire.subscribe(5, 0, (b"a", 0))),
    bad("3.1.1 MQTT-2.3.1-1 SUBSCRIBE with id 0", PROTOCOL, wire.subscribe(4, 0, (b"a", 0)), 4),
    bad("MQTT-3.8.3-2 no filter", PROTOCOL, wire.subscribe(5, 1)),
    bad("3.1.1 MQTT-3.8.3-3 no filter", PROTOCOL, wire.subscribe(4, 1), 4),
    bad("MQTT-3.8.3-5 reserved options", MALFORMED, wire.subscribe(5, 1, (b"a", 0x40))),
    bad("MQTT-3.8.3-5 the other reserved option", MALFORMED, wire.subscribe(5, 1, (b"a", 0x80))),
    *(
        bad(f"3.1.1 MQTT-3.8.3-4 reserved bit {bit}", MALFORMED, wire.subscribe(4, 1, (b"a", 1 << bit)), 4)
        for bit in range(2, 8)
    ),
    bad("subscription QoS 3", MALFORMED, wire.subscribe(5, 1, (b"a", 3))),
    bad("3.1.1 MQTT-3.8.3-4 subscription QoS 3", MALFORMED, wire.subscribe(4, 1, (b"a", 3)), 4),
    bad("retain handling 3", PROTOCOL, wire.subscribe(5, 1, (b"a", 0x30))),
    bad("MQTT-3.8.3-4 no local and shared", PROTOCOL, wire.subscribe(5, 1, (b"$share/g/a", 4))),
    bad("subscription identifier 0", PROTOCOL, wire.subscribe(5, 1, (b"a", 0), properties=b"\x0b\x00")),
    bad("subscription identifier twice", PROTOCOL, wire.subscribe(5, 1, (b"a", 0), properties=b"\x0b\x01\x0b\x01")),
    bad("MQTT-4.7.1-1 # not last", FILTER, wire.subscribe(5, 1, (b"a/#/b", 0))),
    bad("3.1.1 MQTT-4.7.1-2 # not last", FILTER, wire.subscribe(4, 1, (b"a/#/b", 0)), 4),
    bad("MQTT-4.7.1-2 + within a level", FILTER, wire.subscribe(5, 1, (b"a+", 0))),
    bad("3.1.1 MQTT-4.7.1-3 + within a level", FILTER, wire.subscribe(4, 1, (b"a+", 0)), 4),
    bad("MQTT-4.7.3-1 empty filter", FILTER, wire.subscribe(5, 1, (b"", 0))),
    bad("3.1.1 MQTT-4.7.3-1 empty filter", FILTER, wire.subscribe(4, 1, (b"", 0)), 4),
    bad("MQTT-4.8.2-1 empty share name", FILTER, wire.subscribe(5, 1, (b"$share//a", 0))),
    bad("MQTT-4.8.2-2 wildcard in share name", FILTER, wire.subscribe(5, 1, (b"$share/g+/a", 0))),
    bad("MQTT-4.8.2-2 nothing behind the share name", FILTER, wire.subscribe(5, 1, (b"$share/g", 0))),
    bad("MQTT-3.8.3-1 filter not UTF-8", MALFORMED, wire.subscribe(5, 1, (b"\xff", 0))),
    bad("3.1.1 MQTT-3.8.3-1 filter not UTF-8", MALFORMED, wire.subscribe(4, 1, (b"\xff", 0)), 4),
    bad("MQTT-4.7.3-2 NUL in filter", MALFORMED, wire.subscribe(5, 1, (b"a\0", 0))),
    bad("3.1.1 MQTT-4.7.3-2 NUL in filter", MALFORMED, wire.subscribe(4, 1, (b"a\0", 0)), 4),
    bad("SUBSCRIBE without options", MALFORMED, wire.packet(0x82, b"\x00\x01\x00" + T)),
    bad("too many filters", QUOTA, wire.subscribe(5, 1, *[(b"a", 0)] * (MAX_FILTERS + 1))),
    bad("MQTT-3.10.3-2 UNSUBSCRIBE without filter", PROTOCOL, wire.unsubscribe(5, 1)),
    bad("3.1.1 MQTT-3.10.3-2 UNSUBSCRIBE without filter", PROTOCOL, wire.unsubscribe(4, 1), 4),
    bad("MQTT-2.2.1-3 UNSUBSCRIBE with id 0", PROTOCOL, wire.unsubscribe(5, 0, b"a")),
    bad("3.1.1 MQTT-2.3.1-1 UNSUBSCRIBE with id 0", PROTOCOL, wire.unsubscribe(4, 0, b"a"), 4),
    bad("UNSUBSCRIBE of an invalid filter", FILTER, wire.unsubscribe(5, 1, b"#a")),
    bad("MQTT-3.10.3-1 UNSUBSCRIBE of what is not UTF-8", MALFORMED, wire.unsubscribe(5, 1, b"\xff")),
    bad("3.1.1 MQTT-3.10.3-1 UNSUBSCRIBE of what is not UTF-8", MALFORMED, wire.unsubscribe(4, 1, b"\xff"), 4),
    bad("UNSUBSCRIBE with foreign property", PROTOCOL, wire.unsubscribe(5, 1, b"a", properties=b"\x0b\x01")),
    bad("too many filters to unsubscribe", QUOTA, wire.unsubscribe(5, 1, *[b"a"] * (MAX_FILTERS + 1))),
    *[
        bad(f"too many user properties in {name}", QUOTA, packet)
        for name, packet in (
            ("PUBLISH", wire.publish(5, b"t", properties=BOMB)),
            ("SUBSCRIBE", wire.subscribe(5, 1, (b"a", 0), properties=BOMB)),
            ("UNSUBSCRIBE", wire.unsubscribe(5, 1, b"a", properties=BOMB)),
            ("PUBACK", wire.packet(0x40, b"\x00\x01\x00" + wire.sized(BOMB))),
            ("PUBREC", wire.packet(0x50, b"\x00\x01\x00" + wire.sized(BOMB))),
            ("PUBREL", wire.packet(0x62, b"\x00\x01\x00" + wire.sized(BOMB))),
            ("PUBCOMP", wire.packet(0x70, b"\x00\x01\x00" + wire.sized(BOMB))),
            ("DISCONNECT", wire.packet(0xE0, b"\x00" + wire.sized(BOMB))),
            ("AUTH", wire.packet(0xF0, b"\x18" + wire.sized(BOMB))),
        )
    ],
    bad("PINGREQ with content", MALFORMED, b"\xc0\x01\x00"),
    bad("DISCONNECT of 3.1.1 with reason", MALFORMED, b"\xe0\x01\x00", 4),
    bad("MQTT-3.14.2-1 DISCONNECT with a reason of the server", PROTOCOL, b"\xe0\x01\x8b"),
    bad("DISCONNECT with more", MALFORMED, b"\xe0\x03\x00\x00\x00"),
    bad("DISCONNECT with server reference", PROTOCOL, wire.packet(0xE0, b"\x00" + wire.sized(b"\x1c" + T))),
    bad("session expiry that CONNECT did not have", PROTOCOL, b"\xe0\x07\x00\x05\x11" + wire.u32(1)),
    bad("MQTT-4.12.0-7 AUTH without method in CONNECT", PROTOCOL, wire.packet(0xF0, b"\x18\x04\x15" + T)),
    bad("AUTH without reason", MALFORMED, b"\xf0\x00"),
    bad("MQTT-3.15.2-1 AUTH with reason of the server", PROTOCOL, b"\xf0\x02\x00\x00"),
]


@pytest.mark.parametrize(("data", "reason", "version"), AS_FIRST)
def test_a_malformed_connect_is_refused(data: bytes, reason: int, version: int) -> None:
    decoder = Decoder()
    assert decoder.feed(data) == []
    assert isinstance(decoder.error, ProtocolError)
    assert (decoder.error.reason, decoder.version) == (reason, version)


@pytest.mark.parametrize(("data", "reason", "version"), AFTER_CONNECT)
@pytest.mark.parametrize("size", [1 << 20, 1])
def test_packets_before_a_malformed_one_are_delivered(data: bytes, reason: int, version: int, size: int) -> None:
    decoder = Decoder(topic_alias_maximum=5)
    data = wire.connect_packet(version) + b"\xc0\x00" + wire.publish(version, b"t") + data + b"\xc0\x00"
    packets: list[Packet] = []
    for at in range(0, len(data), size):
        packets += decoder.feed(data[at : at + size])
    assert [type(packet).__name__ for packet in packets] == ["Connect", "PingReq", "Publish"]
    assert isinstance(decoder.error, ProtocolError)
    assert decoder.error.reason == reason
    assert decoder.feed(b"\xc0\x00") == []


@pytest.mark.mqtt5("2.1.3-1", "3.1.0-1", "3.1.0-2", "3.3.1-2", "3.3.1-4")
@pytest.mark.mqtt311("2.2.2-2", "3.1.0-1", "3.1.0-2", "3.3.1-2", "3.3.1-4")
@pytest.mark.parametrize("version", [0, 4, 5])
def test_a_wrong_first_byte_is_refused_at_that_byte(version: int) -> None:
    """Nobody waits for the rest of a packet that no client may send."""
    right = {0x10}
    if version:
        right = {0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, *([0xF0] if version == 5 else [])}
        right |= {0x30 | flags for flags in range(16) if flags & 6 != 6 and flags not in (8, 9)}
    for first in range(256):
        decoder = Decoder()
        decoder.feed(wire.connect_packet(version) if version else b"")
        assert decoder.feed(bytes([first])) == []
        assert (decoder.error is None) == (first in right), hex(first)


SEEDS = [
    wire.publish(5, b"a/b", b"xyz", 1, properties=wire.pair(b"a", b"b") + b"\x23\x00\x01" + EXPIRY),
    wire.subscribe(5, 1, (b"a/#", 1), properties=b"\x0b\x05"),
    wire.packet(0x40, b"\x00\x01\x00" + wire.sized(b"\x1f" + T)),
    wire.connect(5, flags=0xC6, rest=b"\x05" + EXPIRY + T * 4),
    b"\xe0\x07\x00\x05\x11" + wire.u32(0),
]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([b"", wire.CONNECT_311, wire.CONNECT_5]), st.lists(st.binary(max_size=60), max_size=8))
def test_random_bytes_never_raise(start: bytes, chunks: list[bytes]) -> None:
    decoder = Decoder(topic_alias_maximum=5, receive_maximum=2, max_packet_size=200)
    decoder.feed(start)
    for chunk in chunks:
        decoder.feed(chunk)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from([4, 5]), st.sampled_from(SEEDS), st.data())
def test_damaged_packets_never_raise(version: int, seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(seed) - 1))] = data.draw(st.integers(0, 255))
    start = b"" if seed[0] == 0x10 else wire.connect_packet(version)
    stream = start + bytes(damaged) + b"\xc0\x00"
    whole, bytewise = Decoder(topic_alias_maximum=5), Decoder(topic_alias_maximum=5)
    packets = whole.feed(stream)
    dripped = [packet for byte in stream for packet in bytewise.feed(bytes([byte]))]
    assert [wire.fields(packet) for packet in packets] == [wire.fields(packet) for packet in dripped]
    assert str(whole.error) == str(bytewise.error)
