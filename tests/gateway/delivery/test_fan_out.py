"""One message to many: encoded once per shape of subscriber, and those who do not read cost the others nothing."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from gateway.mqtt.encode import publish_parts
from gateway.mqtt.properties import with_message_expiry
from gateway.node.node import Node
from gateway.session.message_encoding import Message
from record.layout import Kind
from tests.gateway.mqtt import wire
from tests.gateway.raw import SUBACK, RawClient, connect

EXPIRY = b"\x02"
SLOW = 500
NOW = 1_700_000_000_000  # ms


def message(properties: bytes = b"", qos: int = 1) -> Message:
    framed = record.frame(int(Kind.MESSAGE), qos, 0, b"home/kitchen/temp", b"p", properties, b"21.5")
    return Message(record.seal([framed], 0, 1, NOW, 0), 0)


def are_same(one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> bool:
    """Not only equal; compiled code makes the pair itself anew."""
    return one[0] is other[0] and one[1] is other[1]


@pytest.mark.parametrize("identifiers", [(), (7,), (7, 9)])
@pytest.mark.parametrize("waited", [0, 999, 1000, 5500])
@pytest.mark.parametrize("expires", [False, True])
def test_subscribers_of_one_shape_share_one_encoding(identifiers: tuple[int, ...], waited: int, expires: bool) -> None:
    sent = message(EXPIRY + wire.u32(60) if expires else b"")
    for retain in (False, True):
        for qos in (0, 1, 2):
            first = sent.parts(5, qos, retain, False, identifiers, NOW + waited)
            assert are_same(sent.parts(5, qos, retain, False, identifiers, NOW + waited), first)
            assert (
                sent.aliased_parts(1, retain, False, identifiers, NOW + waited, 3)[0]
                is (sent.aliased_parts(1, retain, False, identifiers, NOW + waited, 4)[0])
            )
            old = sent.parts(4, qos, retain, False, (), NOW + waited)
            assert are_same(sent.parts(4, qos, retain, False, (), NOW), old)


def test_shapes_without_number_are_not_kept_without_end() -> None:
    sent = message()
    first = sent.parts(5, 1, False, False, (1,), NOW)
    for identifier in range(2, 1000):
        sent.parts(5, 1, False, False, (identifier,), NOW)
    assert are_same(sent.parts(5, 1, False, False, (1,), NOW), first)
    assert sent._variants is not None
    assert len(sent._variants) <= 16


@pytest.mark.parametrize("identifiers", [(), (7,)])
@pytest.mark.parametrize("behind", [1, 5000])
def test_a_clock_that_is_behind_adds_nothing_to_the_expiry(behind: int, identifiers: tuple[int, ...]) -> None:
    """The store may be another machine, or somebody sets the clock; the longest expiry has no room for more."""
    late, sent = message(EXPIRY + wire.u32(0xFFFF_FFFF)), message(EXPIRY + wire.u32(0xFFFF_FFFF))
    shape = (1, False, False, identifiers)
    assert late.parts(5, *shape, NOW - behind) == sent.parts(5, *shape, NOW)
    assert late.naming_parts(*shape, NOW - behind, 3) == sent.naming_parts(*shape, NOW, 3)
    assert late.aliased_parts(*shape, NOW - behind, 3) == sent.aliased_parts(*shape, NOW, 3)


SHAPES = st.tuples(
    st.sampled_from([4, 5]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (1,), (2,), (1, 2)]),
    st.integers(0, 70_000),
)


@given(st.lists(SHAPES, max_size=40), st.booleans())
def test_a_shared_encoding_is_what_each_would_get_alone(
    shapes: list[tuple[int, int, bool, bool, tuple[int, ...], int]], expires: bool
) -> None:
    block = EXPIRY + wire.u32(60) if expires else b""
    sent = message(block, 2)
    for version, qos, retain, dup, identifiers, waited in shapes:
        properties, known = block, identifiers if version == 5 else ()
        if expires:
            properties = with_message_expiry(block, max(0, (60_000 - waited + 999) // 1000))
        if waited < 1000 and not known:
            properties = block
        alone = publish_parts(version, sent.topic, sent.payload, qos, retain, dup, properties, known)
        assert sent.parts(version, qos, retain, dup, known, NOW + waited) == alone


async def test_each_subscriber_gets_the_message_as_it_asked_for_it(node: Node) -> None:
    kept, plain = 0x08, 0  # Retain As Published
    clients = {}
    for version in (4, 5):
        for qos in (0, 1, 2):
            for option in (plain, kept) if version == 5 else (plain,):
                for identifier in (0, 5) if version == 5 else (0,):
                    client = await RawClient.connect(node.ports.mqtt, b"", version)
                    properties = b"\x0b" + wire.varint(identifier) if identifier else b""
                    client.send(wire.subscribe(version, 1, (b"home/+/temp", qos | option), properties=properties))
                    await client.expect(SUBACK)
                    clients[client] = (qos, option == kept, identifier)
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await publisher.publish(b"home/bath/temp", b"20", 2, 1, True, EXPIRY + wire.u32(100))
    for client, (qos, keeps, identifier) in clients.items():
        (got,) = await client.take(1)
        assert (got.topic, got.payload, got.qos, got.retain) == (b"home/bath/temp", b"20", qos, keeps)
        found = dict(wire.properties(got.properties))
        assert found.get(0x0B, 0) == identifier
        assert client.version == 4 or found[0x02] in (99, 100)


def silent(port: int, number: int, qos: int) -> socket.socket:
    """A subscriber that never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    client.sendall(connect(4, b"slow%d" % number, True) + wire.subscribe(4, 1, (b"news/#", qos)))
    return client


@pytest.mark.slow
async def test_subscribers_that_do_not_read_do_not_delay_others(node: Node) -> None:
    quick = [await RawClient.connect(node.ports.mqtt, b"quick%d" % number) for number in range(3)]
    slow = [silent(node.ports.mqtt, number, number % 2) for number in range(SLOW)]
    try:
        while len(node._router.trie.match(b"news/today")) < SLOW:
            await (await RawClient.connect(node.ports.mqtt, b"", 4)).disconnect()  # a turn of the loop, and its sockets
        for client in quick:
            await client.subscribe((b"news/#", 1))
        publisher = await RawClient.connect(node.ports.mqtt, b"p")
        count = 0
        slow_sessions = [node._sessions.open_sessions[b"slow%d" % number][0] for number in range(SLOW)]
        while not all(s.write_buffer.congested for s in slow_sessions):
            assert count < 5000
            await publisher.publish(b"news/today", b"%06d" % count + b"." * 16_000, 1, 1)
            for client in quick:
                (got,) = await client.take(1)
                assert got.payload.startswith(b"%06d" % count)
            count += 1
        # What waits for a socket is bounded, and so is what is in flight; the rest of the backlog is the log.
        before = [session.exchanges.in_window for session in slow_sessions]
        for _ in range(10):
            await publisher.publish(b"news/today", b"more", 1, 1)
            for client in quick:
                await client.take(1)
        assert [session.exchanges.in_window for session in slow_sessions] == before
        assert all(session.behind is not None for session in slow_sessions[1::2])
        assert node.counters.dropped_qos0 >= 10 * SLOW // 2
    finally:
        for sleeper in slow:
            sleeper.close()
