"""Decoding of correct packets, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.mqtt.decode import MAX_CONNECT_SIZE, Decoder
from gateway.mqtt.errors import QuotaExceeded
from gateway.mqtt.packets import (
    NEVER,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from gateway.mqtt.reasons import ReasonCode
from tests.gateway.mqtt import wire

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def connected(version: int, **limits: int) -> Decoder:
    decoder = Decoder(**limits)
    assert len(decoder.feed(wire.connect_packet(version))) == 1
    assert decoder.error is None
    assert decoder.version == version
    return decoder


def one(version: int, data: bytes, **limits: int) -> Packet:
    decoder = connected(version, **limits)
    packets = decoder.feed(data)
    assert decoder.error is None
    assert len(packets) == 1
    return packets[0]


def first(data: bytes) -> Connect:
    decoder = Decoder()
    (packet,) = decoder.feed(data)
    assert decoder.error is None
    assert isinstance(packet, Connect)
    return packet


def test_connect_311() -> None:
    rest = wire.text(b"will/t") + wire.text(b"gone") + wire.text("jürgen".encode()) + wire.text(b"\0\xff")
    connect = first(wire.connect(4, b"dev", flags=0xC4 | 0x28, keep_alive=300, rest=rest))
    assert (connect.version, connect.client_id, connect.clean_start, connect.keep_alive) == (4, b"dev", False, 300)
    assert (connect.username, connect.password) == ("jürgen".encode(), b"\0\xff")
    assert connect.will is not None
    assert wire.fields(connect.will) == {
        "type": "Will",
        "topic": b"will/t",
        "payload": b"gone",
        "qos": 1,
        "retain": True,
        "properties": b"",
        "delay_interval": 0,
    }
    assert connect.session_expiry_interval == NEVER
    assert first(wire.connect(4, b"dev", flags=2)).session_expiry_interval == 0


def test_connect_5_defaults() -> None:
    assert wire.fields(first(wire.connect(5, b"", flags=0, keep_alive=0))) == {
        "type": "Connect",
        "version": 5,
        "client_id": b"",
        "clean_start": False,
        "keep_alive": 0,
        "username": None,
        "password": None,
        "will": None,
        "session_expiry_interval": 0,
        "receive_maximum": 65535,
        "maximum_packet_size": 0,
        "topic_alias_maximum": 0,
        "request_problem_information": True,
        "request_response_information": False,
        "authentication_method": None,
        "authentication_data": None,
        "user_properties": [],
    }


def test_connect_5_with_everything() -> None:
    properties = b"\x11" + wire.u32(3600) + b"\x21" + wire.u16(20) + b"\x27" + wire.u32(70000) + b"\x22" + wire.u16(7)
    properties += b"\x19\x01\x17\x00" + wire.pair(b"a", b"1") + wire.pair(b"a", b"2")
    properties += b"\x15" + wire.text(b"SCRAM") + b"\x16" + wire.text(b"\x00\x01")
    expiry, kind = b"\x02" + wire.u32(9), b"\x03" + wire.text(b"text/plain")
    will = wire.sized(expiry + b"\x18" + wire.u32(30) + kind) + wire.text(b"w") + wire.text(b"p")
    connect = first(wire.connect(5, flags=0x40 | 0x04 | 0x10, properties=properties, rest=will + wire.text(b"pw")))
    assert connect.session_expiry_interval == 3600
    assert (connect.receive_maximum, connect.maximum_packet_size, connect.topic_alias_maximum) == (20, 70000, 7)
    assert (connect.request_response_information, connect.request_problem_information) == (True, False)
    assert connect.user_properties == [(b"a", b"1"), (b"a", b"2")]
    assert (connect.authentication_method, connect.authentication_data) == (b"SCRAM", b"\x00\x01")
    assert (connect.username, connect.password) == (None, b"pw")
    assert connect.will is not None
    assert (connect.will.qos, connect.will.retain, connect.will.delay_interval) == (2, False, 30)
    assert connect.will.properties == expiry + kind


@VERSIONS
@pytest.mark.parametrize(
    ("qos", "retain", "dup"), [(0, False, False), (0, True, False), (1, False, True), (2, True, True)]
)
@pytest.mark.parametrize("size", [0, 1, 100, 130, 20_000, 300_000])
def test_publish(version: int, qos: int, retain: bool, dup: bool, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    packet = one(version, wire.publish(version, b"home/t", payload, qos, 0x1234, retain=retain, dup=dup))
    assert wire.fields(packet) == {
        "type": "Publish",
        "topic": b"home/t",
        "payload": payload,
        "qos": qos,
        "retain": retain,
        "dup": dup,
        "packet_id": 0x1234 if qos else 0,
        "properties": b"",
        "is_text": False,
    }


@pytest.mark.mqtt5("3.3.2-18")
def test_publish_keeps_the_properties_that_are_forwarded_in_their_order() -> None:
    before = wire.pair(b"b", b"2") + b"\x08" + wire.text(b"reply/to") + wire.pair(b"a", b"1")
    after = b"\x01\x01\x02" + wire.u32(60) + b"\x09" + wire.text(b"\0id") + b"\x03" + wire.text(b"json")
    for alias in (b"", b"\x23\x00\x03"):
        packet = one(5, wire.publish(5, b"t", b"p", properties=before + alias + after), topic_alias_maximum=3)
        assert isinstance(packet, Publish)
        assert packet.properties == before + after


def test_topics_of_aliases_are_bounded() -> None:
    """A connection may not keep 64 topics of 64 KiB."""
    decoder = connected(5, topic_alias_maximum=64)
    for alias in range(1, 64):
        topic = b"%d" % alias + b"t" * 1000
        assert len(decoder.feed(wire.publish(5, topic, properties=b"\x23" + wire.u16(alias)))) == 1
    assert len(decoder.feed(wire.publish(5, b"u" * 1100, properties=b"\x23" + wire.u16(1)))) == 1
    assert decoder.error is None
    decoder.feed(wire.publish(5, b"v" * 60_000, properties=b"\x23" + wire.u16(64)))
    assert isinstance(decoder.error, QuotaExceeded)


def test_one_alias_may_have_the_longest_topic() -> None:
    decoder = connected(5, topic_alias_maximum=1)
    for text in (b"t", b"u"):
        assert len(decoder.feed(wire.publish(5, text * 65_000, properties=b"\x23" + wire.u16(1)))) == 1


@pytest.mark.mqtt5("3.3.2-12")
def test_topic_alias_is_resolved_and_can_be_changed() -> None:
    """MQTT-3.3.2-12: the alias is the connection's, and a new topic takes its place."""
    decoder = connected(5, topic_alias_maximum=2)
    steps = [(b"a", 1), (b"b", 2), (b"", 1), (b"", 2), (b"c", 1), (b"", 1), (b"c", 1)]
    data = b"".join(wire.publish(5, topic, properties=b"\x23" + wire.u16(alias)) for topic, alias in steps)
    topics = [packet.topic for packet in decoder.feed(data) if isinstance(packet, Publish)]
    assert topics == [b"a", b"b", b"a", b"b", b"c", b"c", b"c"]
    assert decoder.error is None


def test_messages_of_one_topic_share_its_name() -> None:
    topics = [one(version, wire.publish(version, b"shared/name")) for version in (4, 5)]
    assert isinstance(topics[0], Publish)
    assert isinstance(topics[1], Publish)
    assert topics[0].topic is topics[1].topic


@pytest.mark.parametrize(("byte", "kind"), [(0x40, PubAck), (0x50, PubRec), (0x62, PubRel), (0x70, PubComp)])
def test_acknowledgements(byte: int, kind: type[PubAck]) -> None:
    failure = 0x92 if byte in (0x62, 0x70) else 0x97
    properties = b"\x1f" + wire.text(b"why") + wire.pair(b"k", b"v")
    for version, rest, reason in [
        (4, b"", 0),
        (5, b"", 0),
        (5, b"\x00", 0),
        (5, bytes([failure]), failure),
        (5, bytes([failure, 0]), failure),
        (5, bytes([failure]) + wire.sized(properties), failure),
    ]:
        packet = one(version, wire.packet(byte, b"\x12\x34" + rest))
        assert type(packet) is kind
        assert (packet.packet_id, packet.reason) == (0x1234, reason)
        assert isinstance(packet.reason, ReasonCode)


def test_subscribe() -> None:
    requests = ((b"a/+", 0x2E), (b"$share/g/#", 0x19), (b"c", 0))
    packet = one(
        5, wire.subscribe(5, 10, *requests, properties=b"\x0b" + wire.varint(268_435_455) + wire.pair(b"", b""))
    )
    assert isinstance(packet, Subscribe)
    assert (packet.packet_id, packet.identifier) == (10, 268_435_455)
    got = [(r.topic_filter, r.qos, r.no_local, r.retain_as_published, r.retain_handling) for r in packet.requests]
    assert got == [(b"a/+", 2, True, True, 2), (b"$share/g/#", 1, False, True, 1), (b"c", 0, False, False, 0)]
    packet = one(4, wire.subscribe(4, 11, (b"a", 1), (b"b", 2)))
    assert isinstance(packet, Subscribe)
    assert packet.identifier == 0
    assert [(r.topic_filter, r.qos) for r in packet.requests] == [(b"a", 1), (b"b", 2)]


@VERSIONS
def test_unsubscribe_and_ping(version: int) -> None:
    packet = one(version, wire.unsubscribe(version, 3, b"a/#", b"b", properties=wire.pair(b"x", b"y")))
    assert isinstance(packet, Unsubscribe)
    assert (packet.packet_id, packet.topic_filters) == (3, [b"a/#", b"b"])
    assert isinstance(one(version, b"\xc0\x00"), PingReq)


@pytest.mark.parametrize(
    ("version", "data", "reason", "expiry"),
    [
        (4, b"\xe0\x00", 0, None),
        (5, b"\xe0\x00", 0, None),
        (5, b"\xe0\x01\x04", 4, None),
        (5, b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00", 0, 0),
        (5, wire.packet(0xE0, b"\x00" + wire.sized(b"\x1f" + wire.text(b"bye") + wire.pair(b"", b""))), 0, None),
    ],
)
def test_disconnect_is_the_last_word(version: int, data: bytes, reason: int, expiry: int | None) -> None:
    """MQTT-3.14.4-2."""
    decoder = connected(version)
    (packet,) = decoder.feed(data + b"\xc0\x00" + b"\xff\xff\xff\xff\xff\xff")
    assert isinstance(packet, Disconnect)
    assert (packet.reason, packet.session_expiry_interval) == (reason, expiry)
    assert decoder.feed(b"\xc0\x00") == []
    assert decoder.error is None


def test_disconnect_may_change_an_expiry_that_is_not_0() -> None:
    decoder = Decoder()
    data = wire.connect(5, properties=b"\x11" + wire.u32(5)) + b"\xe0\x07\x00\x05\x11" + wire.u32(9)
    packet = decoder.feed(data)[1]
    assert isinstance(packet, Disconnect)
    assert packet.session_expiry_interval == 9


def test_auth() -> None:
    method = b"\x15" + wire.text(b"M")
    decoder = Decoder()
    again = wire.packet(0xF0, b"\x19" + wire.sized(method))
    answer = wire.packet(0xF0, b"\x18" + wire.sized(method + b"\x16" + wire.text(b"\x00proof")))
    _, first_auth, second_auth = decoder.feed(wire.connect(5, properties=method) + again + answer)
    assert isinstance(first_auth, Auth)
    assert isinstance(second_auth, Auth)
    assert (first_auth.reason, first_auth.authentication_data) == (ReasonCode.REAUTHENTICATE, None)
    assert (second_auth.reason, second_auth.authentication_data) == (ReasonCode.CONTINUE_AUTHENTICATION, b"\x00proof")
    assert second_auth.authentication_method == b"M"


def test_receive_maximum_counts_what_is_not_acknowledged() -> None:
    decoder = connected(5, receive_maximum=2)
    message = wire.publish(5, b"t", qos=1)
    assert len(decoder.feed(message + message + wire.publish(5, b"t"))) == 3
    assert decoder.unacknowledged == 2
    decoder.acknowledged(2)
    assert len(decoder.feed(message + message)) == 2
    assert decoder.error is None
    decoder.feed(message)
    assert decoder.error is not None
    assert decoder.error.reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_311_has_no_receive_maximum() -> None:
    decoder = connected(4, receive_maximum=1)
    assert len(decoder.feed(wire.publish(4, b"t", qos=2) * 3)) == 3
    assert decoder.error is None
    assert decoder.unacknowledged == 3


def stream(version: int) -> bytes:
    """One of each packet."""
    reason = b"\x00\x00" if version == 5 else b""
    return b"".join(
        [
            wire.connect_packet(version),
            wire.publish(version, b"a/b", b"x" * 3),
            wire.publish(version, b"a/b", b"x" * 300, qos=1, properties=wire.pair(b"a", b"b")),
            wire.publish(version, b"a/b", b"x" * 17_000, qos=2),
            *(wire.packet(byte, b"\x00\x01" + reason) for byte in (0x40, 0x50, 0x62, 0x70)),
            wire.subscribe(version, 2, (b"a/#", 1)),
            wire.unsubscribe(version, 2, b"a/#"),
            b"\xc0\x00\xc0\x00",
            b"\xe0\x00",
        ]
    )


@VERSIONS
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_chunk_size_gives_the_same_packets(version: int, size: int) -> None:
    data = stream(version)
    whole = Decoder().feed(data)
    assert len(whole) == 13
    decoder = Decoder()
    pieces = [decoder.feed(data[i : i + size]) for i in range(0, len(data), size)]
    assert decoder.error is None
    assert [wire.fields(packet) for packet in itertools.chain(*pieces)] == [wire.fields(packet) for packet in whole]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([4, 5]), st.lists(st.integers(0, 17_700), max_size=12))
def test_any_cut_gives_the_same_packets(version: int, cuts: list[int]) -> None:
    data = stream(version)
    decoder = Decoder()
    got: list[Packet] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        got += decoder.feed(data[at:cut])
        at = max(at, cut)
    assert decoder.error is None
    assert [wire.fields(packet) for packet in got] == [wire.fields(packet) for packet in Decoder().feed(data)]


def test_a_large_packet_in_small_pieces_is_joined_once() -> None:
    """Were it joined again with every piece, this would copy 64 GiB."""
    decoder = connected(5, max_packet_size=1 << 23)
    data = wire.publish(5, b"t", bytes(1 << 22))
    got = [decoder.feed(data[i : i + 128]) for i in range(0, len(data), 128)]
    assert [len(packets) for packets in got[:-1]] == [0] * (len(got) - 1)
    assert len(got[-1]) == 1


def test_a_packet_too_large_is_refused_by_its_header() -> None:
    decoder = connected(5, max_packet_size=1000)
    exact = wire.publish(5, b"t", b"x" * 993)
    assert len(exact) == 1000
    assert len(decoder.feed(exact)) == 1
    assert len(decoder.feed(b"\xc0\x00" + wire.publish(5, b"t", b"x" * 994)[:3])) == 1
    assert decoder.error is not None
    assert decoder.error.reason == ReasonCode.PACKET_TOO_LARGE


def test_connect_has_a_limit_of_its_own() -> None:
    decoder = Decoder(max_packet_size=1 << 28)
    assert decoder.feed(b"\x10" + wire.varint(MAX_CONNECT_SIZE)) == []
    assert decoder.error is not None
    assert decoder.error.reason == ReasonCode.PACKET_TOO_LARGE


def test_user_properties_are_work_of_a_turn() -> None:
    """However short the packets are; and those that are known already are not read again."""
    decoder = connected(5)
    each = 90
    blocks = [wire.pair(b"", b"%03d" % n) + wire.pair(b"", b"") * (each - 1) for n in range(500)]
    data = b"".join([wire.publish(5, b"t", properties=block) for block in blocks])
    counts = [len(decoder.feed(data))]
    while decoder.has_more:
        counts.append(len(decoder.feed(b"")))
    assert sum(counts) == len(blocks)
    assert max(counts) * each <= 2 * 4096
    assert len(decoder.feed(data)) == len(blocks)


def test_topics_with_many_levels_are_work_of_a_turn() -> None:
    """Also when they repeat: another client may change its subscriptions meanwhile, and they are matched again."""
    decoder = connected(5, topic_alias_maximum=1)
    deep = b"/".join([b"a"] * 20)
    alias = b"\x23\x00\x01"
    assert len(decoder.feed(wire.publish(5, deep, b"", properties=alias))) == 1
    for data in (
        b"".join([wire.publish(5, deep + b"%d" % (n % 2), b"") for n in range(100)]),
        wire.publish(5, b"", b"", properties=alias) * 100,
    ):
        counts = [len(decoder.feed(data))]
        while decoder.has_more:
            counts.append(len(decoder.feed(b"")))
        assert sum(counts) == 100
        assert max(counts) <= 16
    shallow = wire.publish(5, b"a/b/c/d/e/f/g/h", b"")
    assert len(decoder.feed(shallow * 1000)) == 1000


def test_as_many_user_properties_as_allowed() -> None:
    decoder = connected(5, max_user_properties=300, max_filters=2000)
    assert len(decoder.feed(wire.publish(5, b"t", properties=wire.pair(b"a", b"b") * 300))) == 1
    assert len(decoder.feed(wire.subscribe(5, 1, *[(b"a", 0)] * 2000))) == 1
    assert decoder.feed(wire.publish(5, b"t", properties=wire.pair(b"a", b"b") * 301)) == []
    assert decoder.error is not None
    assert (decoder.error.reason, decoder.error.limit) == (ReasonCode.QUOTA_EXCEEDED, 300)
