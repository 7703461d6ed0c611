"""Wills and messages under way over `kill -9` of the node: wills and QoS 2 once each, QoS 1 again with DUP."""

import asyncio
from itertools import count

import pytest

from tests.gateway.device import EVER, Device
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack, connect
from tests.system.conftest import NodeProcess
from tests.system.test_session_kills import kill, small_segments

__all__ = ["small_segments"]  # the fixture

ROUNDS = 2


def delayed_will(delay: int, expiry: int, payload: bytes) -> bytes:
    """CONNECT of `late` with a will that has a delay."""
    rest = wire.sized(b"\x18" + wire.u32(delay)) + wire.text(b"wills/late") + wire.text(payload)
    return wire.connect(5, b"late", flags=0x0C, properties=b"\x11" + wire.u32(expiry), rest=rest)


def with_will_of_qos_2(version: int, payload: bytes) -> bytes:
    """CONNECT of `clean`."""
    packet = bytearray(connect(version, b"clean", will=(b"wills/clean", payload)))
    packet[9] ^= 0x18
    return bytes(packet)


async def take(device: Device, payloads: list[bytes]) -> None:
    """The device's application gets these, in this order, and no more."""
    while len(device.seen) < len(payloads) or device.unsettled or device.earlier:
        await device.read()
        device.acknowledge(len(device.owed))
    await device.poll()
    device.acknowledge(len(device.owed))
    assert [payload for _, payload, _ in device.seen] == payloads


@pytest.mark.mqtt5("3.1.2-8", "3.1.2-10", "3.1.3-9", "4.3.3-3")
@pytest.mark.mqtt311("3.1.2-8", "4.3.3-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_every_death_sends_the_wills_of_connected_clients_once(node: NodeProcess, version: int) -> None:
    """To a session that was itself connected, with QoS 2; a delayed one is given up when its client is back."""
    watcher = Device(node.mqtt_port, b"watcher", version, 10)
    await watcher.connect()
    await watcher.subscribe(b"wills/+", 2)
    expected: list[bytes] = []
    for number in range(ROUNDS):
        clean = await RawClient.open(node.mqtt_port, version)
        clean.send(with_will_of_qos_2(version, b"%d" % number))
        await clean.packet()
        left = await RawClient.connect(node.mqtt_port, b"left", version, will=(b"wills/left", b"never"))
        await left.disconnect()
        late = await RawClient.open(node.mqtt_port, 5)
        late.send(delayed_will(1000, 1000, b"never, its client comes back"))
        await late.packet()
        await kill(node)
        for client in (clean, late):
            await client.drop()
        await watcher.drop()
        await watcher.connect()
        expected.append(b"%d" % number)
        if number % 2:
            await take(watcher, expected)  # else they are still under way when the node dies the next time
    await take(watcher, expected)
    assert node.stop() == 0
    await asyncio.to_thread(node.start)
    await watcher.drop()
    await watcher.connect()
    await take(watcher, expected)


@pytest.mark.mqtt5("3.1.3-9")
async def test_a_delayed_will_is_sent_after_its_delay_though_the_node_died_meanwhile(node: NodeProcess) -> None:
    """Twice: with the connection open, and while the will waits."""
    watcher = Device(node.mqtt_port, b"watcher", 5, 10)
    await watcher.connect()
    await watcher.subscribe(b"wills/+", 1)
    late = await RawClient.open(node.mqtt_port, 5)
    late.send(delayed_will(1, 1000, b"late"))
    await late.packet()
    for _ in range(2):
        await kill(node)
        await watcher.killed()
    await late.drop()
    await watcher.connect()
    while not watcher.seen:
        await watcher.read()
    watcher.acknowledge(len(watcher.owed))
    await watcher.poll()
    assert [payload for _, payload, _ in watcher.seen] == [b"late"]


@pytest.mark.mqtt5("3.3.1-1", "4.4.0-1", "4.6.0-1")
@pytest.mark.mqtt311("3.3.1-1", "4.4.0-1", "4.6.0-1")
@pytest.mark.parametrize("version", [4, 5])
async def test_nothing_of_qos_1_comes_twice_without_dup(node: NodeProcess, version: int) -> None:
    """Over many deaths, with some of it acknowledged; what comes again has the packet id of before, in order."""
    options = {"expiry": EVER} if version == 5 else {}
    publisher = await RawClient.connect(node.mqtt_port, b"p")
    client = await RawClient.connect(node.mqtt_port, b"d", version, False, **options)
    await client.subscribe((b"t", 1))
    seen: dict[bytes, int] = {}  # payload → packet id
    numbers = count(1)
    for _ in range(ROUNDS):
        new = [b"%05d" % next(numbers) for _ in range(30)]
        for number, payload in enumerate(new):
            publisher.send(wire.publish(4, b"t", payload, 1, number + 1))
        for _ in new:
            await publisher.expect(PUBACK)
        order = []
        while not order or order[-1] != new[-1]:
            message = await client.message()
            order.append(message.payload)
            assert message.dup == (message.payload in seen), message
            assert seen.setdefault(message.payload, message.packet_id) == message.packet_id
            if len(order) <= 20:
                client.send(ack(PUBACK, message.packet_id))
        assert order == sorted(order)
        await client.quiet()
        await kill(node)
        await publisher.drop()
        await client.drop()
        publisher = await RawClient.connect(node.mqtt_port, b"p")
        client = await RawClient.connect(node.mqtt_port, b"d", version, False, **options)
        assert client.session_present
    assert len(seen) == ROUNDS * 30
