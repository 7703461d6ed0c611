"""Will messages (section 3.1.2.5): when they are sent, and when not."""

import pytest

from gateway.node.node import Node, Ports
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, DISCONNECT, RawClient, connect

WILL = (b"wills/d", b"gone")


async def watcher(ports: Ports) -> RawClient:
    client = await RawClient.connect(ports.mqtt, b"watcher", 5)
    await client.subscribe((b"wills/#", 1))
    return client


def delayed(client_id: bytes, delay: int, expiry: int, clean: bool = False) -> bytes:
    """CONNECT of version 5 with a delayed will."""
    body = wire.text(b"MQTT") + bytes((5, 0x0E if clean else 0x0C)) + wire.u16(0)
    body += wire.sized(b"\x11" + wire.u32(expiry)) + wire.text(client_id)
    body += wire.sized(b"\x18" + wire.u32(delay)) + wire.text(WILL[0]) + wire.text(WILL[1])
    return wire.packet(0x10, body)


async def device(ports: Ports, packet: bytes) -> RawClient:
    client = await RawClient.open(ports.mqtt, 5)
    client.send(packet)
    assert (await client.expect(CONNACK)).reason == 0
    return client


@pytest.mark.mqtt5("3.1.2-7", "3.1.2-8", "3.14.4-3")
@pytest.mark.mqtt311("3.1.2-8", "3.1.2-9", "3.14.4-3")
@pytest.mark.parametrize("version", [4, 5])
async def test_a_broken_connection_sends_the_will_and_disconnect_does_not(ports: Ports, version: int) -> None:
    """MQTT-3.1.2-8, -10, 3.14.4-3."""
    watching = await watcher(ports)
    client = await RawClient.connect(ports.mqtt, b"d", version, will=WILL)
    await client.disconnect()
    await watching.quiet()
    client = await RawClient.connect(ports.mqtt, b"d", version, will=WILL)
    await client.drop()
    message = (await watching.take(1))[0]
    assert (message.topic, message.payload, message.qos, message.retain) == (*WILL, 1, False)


@pytest.mark.mqtt5("3.1.2-8")
async def test_disconnect_with_will_message_sends_the_will(ports: Ports) -> None:
    """Reason 0x04 (section 3.14.2.1)."""
    watching = await watcher(ports)
    client = await RawClient.connect(ports.mqtt, b"d", 5, will=WILL)
    client.send(b"\xe0\x01\x04")
    await client.closed()
    assert (await watching.take(1))[0].payload == b"gone"


@pytest.mark.mqtt5("3.1.2-8", "3.1.2-22")
async def test_silence_sends_the_will(ports: Ports) -> None:
    """MQTT-3.1.2-22: after one and a half keep-alive periods; PINGREQ counts as a sign of life."""
    watching = await watcher(ports)
    client = await RawClient.connect(ports.mqtt, b"d", 5, will=WILL, keep_alive=1)
    await client.quiet()
    assert (await client.expect(DISCONNECT)).reason == 0x8D
    await client.closed()
    assert (await watching.take(1))[0].payload == b"gone"


@pytest.mark.mqtt5("3.1.2-8")
async def test_a_protocol_error_and_a_takeover_send_the_will(ports: Ports) -> None:
    """MQTT-3.1.2-8: anything but a DISCONNECT of the client."""
    watching = await watcher(ports)
    client = await RawClient.connect(ports.mqtt, b"d", 5, will=WILL)
    client.send(b"\xf5\x00")
    await client.expect(DISCONNECT)
    assert (await watching.take(1))[0].payload == b"gone"
    old = await RawClient.connect(ports.mqtt, b"d", 5, will=WILL)
    new = await RawClient.connect(ports.mqtt, b"d", 5)
    assert (await old.expect(DISCONNECT)).reason == 0x8E
    await new.quiet()
    assert (await watching.take(1))[0].payload == b"gone"


@pytest.mark.mqtt5("3.1.2-8", "3.1.3-9")
async def test_a_reconnect_cancels_a_delayed_will(node: Node) -> None:
    """MQTT-3.1.3-9."""
    watching = await watcher(node.ports)
    client = await device(node.ports, delayed(b"d", 1000, 1000))
    await client.drop()
    engine = node._engine
    assert engine is not None
    while not await engine.wills_waiting(9):
        await watching.quiet()
    client = await device(node.ports, connect(5, b"d", False, expiry=1000))
    assert await engine.wills(None, 9) == []
    await client.disconnect()
    client = await device(node.ports, delayed(b"e", 1, 1000))
    await client.drop()
    assert (await watching.take(1))[0].payload == b"gone"


@pytest.mark.mqtt5("3.1.2-8")
async def test_the_end_of_the_session_sends_a_delayed_will(node: Node) -> None:
    """MQTT-3.1.3-9: whichever comes first, by expiry or by a clean start."""
    watching = await watcher(node.ports)
    client = await device(node.ports, delayed(b"d", 1000, 0))
    await client.drop()
    assert (await watching.take(1))[0].payload == b"gone"
    client = await device(node.ports, delayed(b"d", 1000, 1))
    await client.drop()
    assert (await watching.take(1))[0].payload == b"gone"
    client = await device(node.ports, delayed(b"d", 1000, 1000))
    await client.drop()
    while b"d" in node._sessions.open_sessions:
        await watching.quiet()
    await RawClient.connect(node.ports.mqtt, b"d", 5, True)
    assert (await watching.take(1))[0].payload == b"gone"


@pytest.mark.mqtt5("3.1.2-14", "3.1.2-15")
@pytest.mark.mqtt311("3.1.2-16", "3.1.2-17")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("retain", [False, True])
async def test_a_will_may_be_retained(ports: Ports, version: int, retain: bool) -> None:
    """MQTT-3.1.2-14, -15."""
    packet = bytearray(connect(version, b"d", will=WILL))
    packet[9] |= 0x20 if retain else 0
    client = await RawClient.open(ports.mqtt, version)
    client.send(bytes(packet))
    await client.expect(CONNACK)
    watching = await watcher(ports)
    await client.drop()
    assert not (await watching.take(1))[0].retain
    late = await RawClient.connect(ports.mqtt, b"late")
    await late.subscribe((b"wills/d", 0))
    if retain:
        assert (await late.message()).retain
    await late.quiet()


@pytest.mark.parametrize(("version", "reason"), [(4, 5), (5, 0x87)])
async def test_a_will_to_the_nodes_own_topics_is_refused(ports: Ports, version: int, reason: int) -> None:
    client = await RawClient.open(ports.mqtt, version)
    client.send(connect(version, b"d", will=(b"$SYS/x", b"mine")))
    assert (await client.expect(CONNACK)).body[1] == reason
    await client.closed()


@pytest.mark.mqtt5("3.1.2-10", "3.1.2-8")
@pytest.mark.mqtt311("3.1.2-10", "3.1.2-12")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [True, False])
async def test_a_will_is_for_one_connection(ports: Ports, version: int, clean: bool) -> None:
    """Published or given up it is gone: the next connection of the session has none unless it brings one."""
    watching = await watcher(ports)
    options = {"expiry": 0 if clean else 1000}
    for ends_well in (False, True):
        client = await RawClient.connect(ports.mqtt, b"d", version, clean, will=WILL, **options)
        if ends_well:
            await client.disconnect()
        else:
            await client.drop()
            assert (await watching.take(1))[0].payload == b"gone"
        client = await RawClient.connect(ports.mqtt, b"d", version, clean, **options)
        await client.drop()
        client = await RawClient.connect(ports.mqtt, b"d", version, clean, **options)
        await client.publish(b"wills/end", b"nothing before this")
        assert (await watching.take(1))[0].topic == b"wills/end"
        await client.disconnect()
    await watching.quiet()


@pytest.mark.mqtt5("3.1.3-10", "3.1.2-7")
async def test_the_properties_of_a_will_are_those_of_its_message(ports: Ports) -> None:
    """In their order; the delay is not of the message."""
    before = wire.pair(b"b", b"2") + b"\x03" + wire.text(b"text/plain") + wire.pair(b"a", b"1")
    after = b"\x01\x01" + b"\x08" + wire.text(b"reply") + b"\x09" + wire.text(b"\0id") + wire.pair(b"b", b"2")
    delay = b"\x18" + wire.u32(0)
    rest = wire.sized(before + delay + after) + wire.text(WILL[0]) + wire.text(WILL[1])
    watching = await watcher(ports)
    client = await device(ports, wire.connect(5, b"d", flags=0x0E, rest=rest))
    await client.drop()
    message = (await watching.take(1))[0]
    assert (message.payload, message.properties) == (b"gone", before + after)
