"""Options and expiry of offline sessions, over restarts of the node."""

import time

import pytest

from gateway.node.node import Ports
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, SUBACK, RawClient

NO_LOCAL, RETAIN_AS_PUBLISHED, IF_NEW, NEVER = 0x04, 0x08, 0x10, 0x20
EXPIRY = b"\x02"


@pytest.mark.mqtt5("3.3.1-9", "3.3.1-10", "3.3.1-11")
@pytest.mark.parametrize("restart", [False, True])
async def test_a_subscription_that_a_session_brought_along_is_not_new(make_node: MakeNode, restart: bool) -> None:
    """Retain handling 1 sends nothing for it, until the session begins anew; nor does coming back by itself."""
    node = await make_node()
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for topic in (b"a", b"b", b"c"):
        await publisher.publish(topic, topic, retain=True)
    filters = [(b"a", 1), (b"b", 1 | IF_NEW), (b"c", 1 | NEVER)]
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    await client.subscribe(*filters)
    assert sorted(m.payload for m in await client.take(2)) == [b"a", b"b"]
    await client.disconnect()
    if restart:
        await node.stop()
        node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    assert client.session_present
    await client.quiet()
    await client.subscribe(*filters)
    assert [m.payload for m in await client.take(1)] == [b"a"]
    await client.unsubscribe(b"b")
    await client.subscribe(*filters[1:])
    assert [m.payload for m in await client.take(1)] == [b"b"]
    await client.disconnect()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, True, expiry=100)
    await client.subscribe(*filters)
    assert sorted(m.payload for m in await client.take(2)) == [b"a", b"b"]


@pytest.mark.mqtt5("3.8.3-3", "3.3.1-12", "3.3.1-13", "3.3.4-3")
async def test_the_options_of_a_subscription_are_kept_with_its_session(make_node: MakeNode) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    for packet_id, (topic_filter, options) in enumerate(
        [(b"own/#", 1 | NO_LOCAL), (b"kept/#", 1 | RETAIN_AS_PUBLISHED), (b"plain/+", 2)], 1
    ):
        client.send(
            wire.subscribe(5, packet_id, (topic_filter, options), properties=b"\x0b" + bytes((40 + packet_id,)))
        )
        await client.expect(SUBACK)
    await client.disconnect()
    await node.stop()
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100)
    client.send(wire.publish(5, b"own/x", b"mine", 1, 7))
    await client.expect(PUBACK)
    other = await RawClient.connect(node.ports.mqtt, b"o", 5)
    await other.publish(b"own/x", b"another's", 1)
    await other.publish(b"kept/x", b"1", 1, retain=True)
    await other.publish(b"plain/x", b"2", 2, retain=True)
    got = [(m.payload, m.retain, m.qos, wire.properties(m.properties)) for m in await client.take(3)]
    assert got == [
        (b"another's", False, 1, [(0x0B, 41)]),
        (b"1", True, 1, [(0x0B, 42)]),
        (b"2", False, 2, [(0x0B, 43)]),
    ]


@pytest.mark.mqtt5("3.3.4-2", "3.3.1-12", "3.3.1-13", "3.8.3-3")
@pytest.mark.parametrize("expiry", [0, 100])
async def test_options_where_filters_overlap(ports: Ports, expiry: int) -> None:
    """The one copy has the highest QoS, and RETAIN if any filter asks for it; no local is for all or for none."""
    client = await RawClient.connect(ports.mqtt, b"c", 5, False, expiry=expiry)
    await client.subscribe((b"t/#", 0 | RETAIN_AS_PUBLISHED | NO_LOCAL), (b"t/a", 2), (b"+/b", 1 | NO_LOCAL))
    other = await RawClient.connect(ports.mqtt, b"o", 5)
    await other.publish(b"t/a", b"1", 2, retain=True)
    await other.publish(b"t/b", b"2", 2, retain=True)
    await other.publish(b"t/c", b"3", 2, retain=True)
    got = [(m.payload, m.qos, m.retain) for m in await client.take(3)]
    assert got == [(b"1", 2, True), (b"2", 1, True), (b"3", 0, True)]
    await client.settle()
    client.send(wire.publish(5, b"t/b", b"nobody's", 0))
    client.send(wire.publish(5, b"t/a", b"own", 0))
    assert [m.payload for m in await client.take(1)] == [b"own"]
    await client.quiet()


@pytest.mark.mqtt5("3.10.4-1")
@pytest.mark.mqtt311("3.10.4-1")
@pytest.mark.parametrize(("version", "expiry"), [(4, None), (5, 0), (5, 100)])
async def test_only_the_identical_filter_is_unsubscribed(ports: Ports, version: int, expiry: int | None) -> None:
    """Not one that matches it, that it matches, or that looks like it."""
    client = await RawClient.connect(ports.mqtt, b"c", version, False, expiry=expiry)
    await client.subscribe((b"a/b", 1))
    near = [b"a/b/", b"/a/b", b"A/b", b"a/+", b"#", b"a/b/#", "a/b\ufeff".encode()]
    assert await client.unsubscribe(*near) == (b"\x11" * len(near) if version == 5 else b"")
    await client.publish(b"other", b"", 1)
    publisher = await RawClient.connect(ports.mqtt, b"p")
    await publisher.publish(b"a/b", b"x")
    assert [m.payload for m in await client.take(1)] == [b"x"]
    assert await client.unsubscribe(b"a/b") == (b"\x00" if version == 5 else b"")
    await publisher.publish(b"a/b", b"y")
    await client.quiet()


@pytest.mark.mqtt5("3.3.2-5", "3.3.2-6")
async def test_a_message_expires_also_while_the_node_is_down(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining expiry counts from the publication, by the store's clock."""
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=1000)
    await client.subscribe((b"#", 1))
    await client.disconnect()
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    for seconds in (30, 100, 60):
        await publisher.publish(b"t/%d" % seconds, b"", 1, properties=EXPIRY + wire.u32(seconds))
    await publisher.publish(b"kept", b"x", 1, retain=True, properties=EXPIRY + wire.u32(100))
    await publisher.publish(b"kept/short", b"x", 1, retain=True, properties=EXPIRY + wire.u32(30))
    await node.stop()
    node = await make_node()
    for module in ("gateway.delivery.catch_up", "gateway.delivery.retained"):
        monkeypatch.setattr(f"{module}.time", lambda: time.time() + 40)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=1000)
    late = await RawClient.connect(node.ports.mqtt, b"late", 5)
    await late.subscribe((b"kept/#", 1))
    got = await client.take(3) + await late.take(1)
    assert sorted(m.topic for m in got) == [b"kept", b"kept", b"t/100", b"t/60"]
    for message in got:
        published = 60 if message.topic == b"t/60" else 100
        ((identifier, left),) = wire.properties(message.properties)
        assert identifier == 0x02
        assert isinstance(left, int)
        assert published - 60 < left <= published - 40
    await client.quiet()
    await late.quiet()


@pytest.mark.mqtt5("3.14.4-3", "3.1.2-8", "4.13.1-1")
async def test_a_session_expiry_out_of_nothing_is_a_protocol_error(ports: Ports) -> None:
    """Section 3.14.2.2.2: a session that ends with its connection cannot be kept by DISCONNECT, whose will is sent."""
    watcher = await RawClient.connect(ports.mqtt, b"w")
    await watcher.subscribe((b"will", 1))
    client = await RawClient.connect(ports.mqtt, b"c", 5, will=(b"will", b"sent"))
    client.send(wire.packet(0xE0, b"\x00" + wire.sized(b"\x11" + wire.u32(10))))
    assert (await client.expect(DISCONNECT)).reason == 0x82
    await client.closed()
    assert (await watcher.take(1))[0].payload == b"sent"
    assert not (await RawClient.connect(ports.mqtt, b"c", 5, False)).session_present


@pytest.mark.mqtt5("3.2.2-22", "3.1.2-22")
async def test_the_keep_alive_in_connack_replaces_that_of_the_client(make_node: MakeNode) -> None:
    node = await make_node(mqtt__max_keep_alive=1)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, keep_alive=600)
    assert (0x13, 1) in client.connack.properties
    assert (await client.expect(DISCONNECT)).reason == 0x8D
    await client.closed()


@pytest.mark.mqtt5("3.3.4-9", "4.9.0-1", "4.9.0-2")
async def test_the_receive_maximum_is_that_of_the_connection(make_node: MakeNode) -> None:
    """It is said anew each time, and counts what is sent again; a refusal gives room as any acknowledgement does."""
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100, receive_maximum=5)
    await client.subscribe((b"t", 2))
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for number in range(9):
        await publisher.publish(b"t", b"%d" % number, 1 + number % 2)
    first = [await client.message() for _ in range(5)]
    await client.quiet()
    await client.drop()
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=100, receive_maximum=2)
    again = [await client.message() for _ in range(2)]
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(m.payload, m.packet_id, True) for m in first[:2]]
    await client.quiet()
    client.send(b"\x40\x03" + wire.u16(again[0].packet_id) + b"\x80")  # QoS 1
    assert (await client.message()).payload == b"2"
    client.send(b"\x50\x03" + wire.u16(again[1].packet_id) + b"\x97")  # QoS 2: no PUBREL follows
    assert (await client.message()).payload == b"3"
    await client.quiet()
