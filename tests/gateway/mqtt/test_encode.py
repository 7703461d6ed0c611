"""Packets that the server sends: byte by byte where the standard has a table, else read back by paho."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.client import CallbackAPIVersion, Client
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.mqtt import encode
from gateway.mqtt.decode import Decoder
from gateway.mqtt.packets import Publish
from gateway.mqtt.reasons import ReasonCode, connack_return_code
from tests.gateway.mqtt import wire

VERSIONS = pytest.mark.parametrize("version", [4, 5])
WHY = encode.Explanation(b"why", ((b"name", b"value"),))


class Socket:
    """Gives the bytes of the server to a paho client, and swallows what it answers."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def recv(self, size: int) -> bytes:
        if not self.data:
            raise BlockingIOError
        head, self.data = self.data[:size], self.data[size:]
        return head

    def send(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None: ...


def paho(version: int, data: bytes) -> tuple[Client, list[tuple[str, tuple[object, ...]]]]:
    """A paho client that has read `data`, and its callbacks."""
    client = Client(CallbackAPIVersion.VERSION2, "c", protocol=MQTTProtocolVersion(version))
    calls: list[tuple[str, tuple[object, ...]]] = []
    for name in ("on_connect", "on_message", "on_publish", "on_subscribe", "on_unsubscribe", "on_disconnect"):
        setattr(client, name, lambda *args, name=name: calls.append((name, args[2:])))
    client._sock = Socket(data)
    while client._sock is not None and client._sock.data:
        assert client._packet_read() == 0 or client._sock is None
    return client, calls


@pytest.mark.mqtt311("3.2.2-4")
def test_connack_311() -> None:
    success = ReasonCode.SUCCESS
    assert encode.connack(4, success) == b"\x20\x02\x00\x00"
    assert encode.connack(4, success, session_present=True) == b"\x20\x02\x01\x00"
    assert encode.connack(4, ReasonCode.NOT_AUTHORIZED, session_present=True) == b"\x20\x02\x00\x05"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        *((0x00, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x97, 3), (0x9C, 3), (0x86, 4), (0x8C, 4), (0x87, 5), (0x8A, 5)),
        *((0x81, None), (0x82, None), (0x90, None), (0x95, None)),
    ],
)
def test_return_codes_311(reason: int, code: int | None) -> None:
    """Where none applies there is no CONNACK (3.1.1: MQTT-3.2.2-6)."""
    assert connack_return_code(ReasonCode(reason)) == code
    assert encode.connack(4, ReasonCode(reason)) == (b"" if code is None else bytes((0x20, 2, 0, code)))


@pytest.mark.mqtt5("3.2.2-6")
def test_connack_5() -> None:
    assert encode.connack(5, ReasonCode.SUCCESS, session_present=True) == b"\x20\x03\x01\x00\x00"
    assert encode.connack(5, ReasonCode.SERVER_BUSY, session_present=True) == b"\x20\x03\x00\x89\x00"
    said = encode.ConnackProperties()
    said.session_expiry_interval = 3600
    said.receive_maximum = 20
    said.maximum_qos = 1
    said.retain_available = False
    said.maximum_packet_size = 1 << 20
    said.topic_alias_maximum = 16
    said.server_keep_alive = 30
    said.assigned_client_id = b"auto-1"
    said.response_information = b"r"
    said.server_reference = b"other"
    said.authentication_method = b"M"
    said.authentication_data = b"\x00"
    why = encode.Explanation("schön".encode(), ((b"limit", b"7"),))
    _, calls = paho(5, encode.connack(5, ReasonCode.SUCCESS, properties=said, why=why))
    ((name, (flags, reason, properties)),) = calls
    assert name == "on_connect"
    assert not flags.session_present
    assert reason.value == 0
    assert properties.json() == {
        "SessionExpiryInterval": 3600,
        "ReceiveMaximum": 20,
        "MaximumQoS": 1,
        "RetainAvailable": 0,
        "MaximumPacketSize": 1 << 20,
        "TopicAliasMaximum": 16,
        "ServerKeepAlive": 30,
        "AssignedClientIdentifier": "auto-1",
        "ReasonString": "schön",
        "UserProperty": [("limit", "7")],
        "ResponseInformation": "r",
        "ServerReference": "other",
        "AuthenticationMethod": "M",
        "AuthenticationData": bytearray(1),
    }


@VERSIONS
def test_acknowledgements(version: int) -> None:
    for function, first in (
        (encode.puback, b"\x40"),
        (encode.pubrec, b"\x50"),
        (encode.pubrel, b"\x62"),
        (encode.pubcomp, b"\x70"),
    ):
        assert function(version, 0x1234) == first + b"\x02\x12\x34"
        failed = function(version, 0xFFFF, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
        assert failed == (first + b"\x03\xff\xff\x92" if version == 5 else first + b"\x02\xff\xff")


def test_suback_and_unsuback() -> None:
    reasons = [ReasonCode.GRANTED_QOS_2, ReasonCode.NOT_AUTHORIZED, ReasonCode.SUCCESS]
    assert encode.suback(4, 258, reasons) == b"\x90\x05\x01\x02\x02\x80\x00"
    assert encode.suback(5, 258, reasons) == b"\x90\x06\x01\x02\x00\x02\x87\x00"
    assert encode.suback(5, 1, reasons[:1], encode.Explanation(b"no")) == b"\x90\x09\x00\x01\x05\x1f\x00\x02no\x02"
    reasons = [ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED]
    assert encode.unsuback(4, 258, reasons) == b"\xb0\x02\x01\x02"
    assert encode.unsuback(5, 258, reasons) == b"\xb0\x05\x01\x02\x00\x00\x11"
    _, calls = paho(5, encode.suback(5, 7, [ReasonCode.GRANTED_QOS_1]) + encode.unsuback(5, 8, reasons, WHY))
    assert [(name, args[0], [reason.value for reason in args[1]]) for name, args in calls] == [
        ("on_subscribe", 7, [1]),
        ("on_unsubscribe", 8, [0, 0x11]),
    ]


SUCCESS, FAILURE = ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED
SAID = encode.ConnackProperties()
SAID.assigned_client_id = b"auto-1"
EXPLAINED: dict[str, Callable[[encode.Explanation | None, int], bytes]] = {
    "CONNACK": lambda why, limit: encode.connack(5, SUCCESS, True, SAID, why, limit),
    "PUBACK": lambda why, limit: encode.puback(5, 7, FAILURE, why, limit),
    "PUBREC": lambda why, limit: encode.pubrec(5, 7, FAILURE, why, limit),
    "PUBREL": lambda why, limit: encode.pubrel(5, 7, FAILURE, why, limit),
    "PUBCOMP": lambda why, limit: encode.pubcomp(5, 7, FAILURE, why, limit),
    "SUBACK": lambda why, limit: encode.suback(5, 7, [FAILURE] * 100, why, limit),
    "UNSUBACK": lambda why, limit: encode.unsuback(5, 7, [FAILURE] * 100, why, limit),
    "DISCONNECT": lambda why, limit: encode.disconnect(5, ReasonCode.SERVER_MOVED, why, b"elsewhere", limit),
    "AUTH": lambda why, limit: encode.auth(ReasonCode.CONTINUE_AUTHENTICATION, b"M", b"data", why, limit),
}


@pytest.mark.mqtt5(
    "3.2.2-19", "3.4.2-2", "3.5.2-2", "3.6.2-2", "3.7.2-2", "3.9.2-1", "3.11.2-1", "3.14.2-3", "3.15.2-2"
)
@pytest.mark.mqtt5(
    "3.2.2-20", "3.4.2-3", "3.5.2-3", "3.6.2-3", "3.7.2-3", "3.9.2-2", "3.11.2-2", "3.14.2-4", "3.15.2-3"
)
@pytest.mark.parametrize("name", EXPLAINED)
@pytest.mark.parametrize("length", [1, 40, 400])
def test_no_explanation_makes_a_packet_too_large(name: str, length: int) -> None:
    """First the user properties stay away, then the reason string."""
    make = EXPLAINED[name]
    text, user = b"x" * length, (b"limit", b"7" * length)
    whole = make(encode.Explanation(text, (user,)), 0)
    plain = make(encode.Explanation(text), 0)
    silent = make(encode.Explanation(text), 1)
    assert wire.pair(*user) in whole
    assert wire.text(text) in plain
    assert wire.pair(*user) not in plain
    assert wire.text(text) not in silent
    assert len(whole) > len(plain) > len(silent)
    why = encode.Explanation(text, (user,))
    assert make(why, len(whole)) == whole
    assert make(why, len(whole) - 1) == make(why, len(plain)) == plain
    assert make(why, len(plain) - 1) == make(why, len(silent)) == silent
    assert make(None, 0)[0] == silent[0]


@pytest.mark.mqtt5("3.2.2-8", "3.14.2-1")
def test_connack_and_disconnect_have_reasons_of_their_tables() -> None:
    """Table 2-6; what is none of theirs becomes 0x80."""
    connack = {encode.connack(5, reason)[3] for reason in ReasonCode}
    assert sorted(connack) == [
        *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99),
        *(0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
    ]
    disconnect = {encode.disconnect(5, reason)[2] for reason in ReasonCode}
    assert sorted(disconnect) == [
        *(0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97),
        *(0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2),
    ]


def test_ping_disconnect_and_auth() -> None:
    assert encode.pingresp() == b"\xd0\x00"
    assert encode.disconnect(4, ReasonCode.SERVER_SHUTTING_DOWN) == b""
    assert encode.disconnect(5, ReasonCode.SERVER_SHUTTING_DOWN) == b"\xe0\x01\x8b"
    full = encode.disconnect(5, ReasonCode.SERVER_MOVED, encode.Explanation(b"bye"), b"elsewhere")
    assert full == wire.packet(
        0xE0, b"\x9d" + wire.sized(b"\x1c" + wire.text(b"elsewhere") + b"\x1f" + wire.text(b"bye"))
    )
    _, ((name, (_, reason, properties)),) = paho(5, full)
    assert (name, reason.value, properties.ServerReference) == ("on_disconnect", 0x9D, "elsewhere")
    block = b"\x15" + wire.text(b"M") + b"\x16" + wire.text(b"\x01") + b"\x1f" + wire.text(b"go")
    expected = wire.packet(0xF0, b"\x18" + wire.sized(block))
    assert encode.auth(ReasonCode.CONTINUE_AUTHENTICATION, b"M", b"\x01", encode.Explanation(b"go")) == expected
    assert encode.auth(ReasonCode.SUCCESS, b"M") == b"\xf0\x06\x00\x04\x15\x00\x01M"


@pytest.mark.mqtt5("1.5.5-1", "2.2.1-2", "2.2.2-1", "3.3.1-2")
@pytest.mark.mqtt311("2.3.1-5", "3.3.1-2")
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([4, 5]),
    st.text("ab/ü", min_size=1, max_size=40).map(str.encode),
    st.binary(max_size=40) | st.integers(80, 40_000).map(bytes),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([b"", wire.pair(b"k", b"v"), b"\x01\x01\x02" + wire.u32(5), b"\x09" + wire.text(bytes(200))]),
    st.integers(1, 65535),
)
def test_an_encoded_publish_is_decoded_to_the_same_packet(
    version: int, topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, block: bytes, packet_id: int
) -> None:
    dup = dup and qos > 0
    data = encode.publish(version, topic, payload, qos, retain, dup, packet_id, block)
    assert data == wire.publish(version, topic, payload, qos, packet_id, block, retain, dup)
    decoder = Decoder()
    _, packet = decoder.feed(wire.connect_packet(version) + data)
    assert isinstance(packet, Publish)
    assert (packet.topic, packet.payload, packet.qos, packet.retain, packet.dup) == (topic, payload, qos, retain, dup)
    assert (packet.packet_id, packet.properties) == (packet_id if qos else 0, block if version == 5 else b"")


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_encoded_parts_equal_the_whole_packet(version: int, qos: int) -> None:
    head, tail = encode.publish_parts(version, b"a/b", b"payload", qos, True, True, wire.pair(b"a", b"b"), (1, 300))
    packet_id = b"\x00\x07" if qos else b""
    block = b"\x0b\x01\x0b\xac\x02" + wire.pair(b"a", b"b")
    assert head + packet_id + tail == wire.publish(version, b"a/b", b"payload", qos, 7, block, retain=True, dup=True)
    assert bool(tail) == bool(qos)


def test_paho_reads_a_message() -> None:
    block = b"\x03" + wire.text(b"json") + wire.pair(b"a", b"b")
    _, calls = paho(5, encode.publish(5, b"t", b"x" * 70_000, 0, True, properties=block, subscription_ids=(9, 200)))
    ((_, (message,)),) = calls
    assert (message.topic, message.retain, len(message.payload)) == ("t", True, 70_000)
    assert message.properties.json() == {
        "ContentType": "json",
        "UserProperty": [("a", "b")],
        "SubscriptionIdentifier": [9, 200],
    }


def test_a_packet_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="65535"):
        encode.publish(5, b"t" * 65_536, b"")
    with pytest.raises(ValueError, match="variable byte integer"):
        encode.publish(4, b"t", bytes(1 << 28))


def sent_by_paho(version: int, action: str, *args: object, **kwargs: object) -> bytes:
    client = Client(CallbackAPIVersion.VERSION2, "dev", protocol=MQTTProtocolVersion(version))
    client.username_pw_set("user", "secret")
    client.will_set("will/t", b"gone", qos=1, retain=True)
    client._sock = Socket(b"")
    sent: list[bytes] = []
    client._packet_queue = lambda command, packet, *rest: sent.append(bytes(packet)) or 0
    getattr(client, action)(*args, **kwargs)
    return b"".join(sent)


@VERSIONS
def test_packets_of_paho_are_decoded(version: int) -> None:
    properties = None
    if version == 5:
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("a", "1"), ("b", "2")]
        properties.ResponseTopic = "reply"
        properties.MessageExpiryInterval = 77
    data = sent_by_paho(version, "_send_connect", 45)
    data += sent_by_paho(version, "_send_publish", 9, b"a/b", b"hello", 1, False, True, None, properties)
    data += sent_by_paho(version, "_send_pubrel", 10)
    data += sent_by_paho(version, "_send_puback", 11)
    data += sent_by_paho(version, "_send_pingreq")
    data += sent_by_paho(version, "_send_disconnect")
    decoder = Decoder()
    packets = [wire.fields(packet) for packet in decoder.feed(data)]
    assert decoder.error is None
    names = ["Connect", "Publish", "PubRel", "PubAck", "PingReq", "Disconnect"]
    assert [packet["type"] for packet in packets] == names
    connect, message = packets[:2]
    assert (connect["client_id"], connect["keep_alive"], connect["password"]) == (b"dev", 45, b"secret")
    assert (connect["will"]["topic"], connect["will"]["qos"], connect["will"]["retain"]) == (b"will/t", 1, True)
    assert (message["topic"], message["payload"], message["packet_id"], message["dup"]) == (b"a/b", b"hello", 9, True)
    assert message["properties"] == (b"" if properties is None else properties.pack()[1:])
