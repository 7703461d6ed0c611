"""`kill -9` of the node in the middle of a replay: nothing is missing, and nothing is out of order.

A replay of one topic is an ordinary cursor: with QoS 2 nothing comes twice. A replay of a wildcard filter is at least
once: each connection reads on from one place, which is none that the client has not come to."""

import asyncio
import random
from collections import Counter

import pytest

from tests.gateway.device import Device
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBCOMP, PUBREC, PUBREL, RawClient, ack
from tests.system.conftest import NodeProcess

COUNT = 120
KILLS = 3


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that start fast."""
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))


async def publish(node: NodeProcess, first: int, end: int) -> None:
    """With QoS 2, every third of them to come in a second: those enter with few records, many with each."""
    client = await RawClient.connect(node.mqtt_port, b"p")
    for number in range(first, end):
        topic = b"$delayed/1/a/b" if number % 3 == 2 else b"a/b"
        client.send(wire.publish(4, topic, b"%d" % number, 2, number + 1))
    left = end - first
    while left:
        packet = await client.packet()
        assert packet.kind in (PUBREC, PUBCOMP)
        if packet.kind == PUBREC:
            client.send(ack(PUBREL, packet.packet_id))
        else:
            left -= 1
    await client.disconnect()


async def entered(node: NodeProcess, count: int) -> list[bytes]:
    """Wait until so many messages are in their queue. Returns their payloads, in order."""
    watcher = await RawClient.connect(node.mqtt_port, b"w", 5)
    watcher.send(wire.subscribe(5, 1, (b"$replay/earliest/a/b", 0)))
    await watcher.packet()
    found = await watcher.take(count)
    await watcher.disconnect()
    return [message.payload for message in found]


def check_order(device: Device, order: list[bytes]) -> None:
    """What a connection gets, but for exchanges that were open before, is a part of the queue without a gap. It begins
    no later than where the connections before it have come to."""
    known: set[bytes] = set()
    for number, messages in enumerate(device.arrived):
        # With QoS 1 what may have been sent has DUP, too: after a kill, all that is left of the replay.
        new = [m.payload for m in messages if not (m.dup and m.qos == 2)]
        known.update([m.payload for m in messages if m.dup and m.qos == 2])
        if new:
            first = order.index(new[0])
            assert known.issuperset(order[:first]), f"connection {number} begins behind what is missing"
            assert new == order[first : first + len(new)], f"connection {number}"
            known.update(new)


@pytest.mark.mqtt5("4.1.0-1", "4.3.2-2", "4.3.3-3", "4.4.0-1")
@pytest.mark.parametrize("window", [1, 30])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic_filter", [b"a/b", b"a/+"])
async def test_a_replay_over_kills(node: NodeProcess, topic_filter: bytes, qos: int, window: int) -> None:
    chance = random.Random(repr((topic_filter, qos, window)))
    await publish(node, 0, COUNT)
    await entered(node, COUNT)
    device = Device(node.mqtt_port, b"d", 5, window)
    await device.connect()
    await device.subscribe(b"$replay/earliest/" + topic_filter, qos)
    unacknowledged: list[set[bytes]] = []  # by kill
    for kill in range(KILLS):
        goal = COUNT * (kill + 1) // (KILLS + 2)
        while len({payload for _, payload, _ in device.seen}) < goal:
            await device.poll()
            device.acknowledge(chance.randrange(1, 8), chance)
        await asyncio.sleep(0.2 if kill else 0)  # acknowledgements are recorded ten times a second
        unacknowledged.append(set(device.unsettled.values()))
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await device.killed()
        await device.connect()
    await publish(node, COUNT, COUNT + 3)
    expected = {b"%d" % number for number in range(COUNT + 3)}
    while {payload for _, payload, _ in device.seen} != expected or device.owed or device.held or device.unsettled:
        device.acknowledge(len(device.owed))
        await device.poll()
    counts = Counter(payload for _, payload, _ in device.seen)
    assert set(counts) == expected
    if qos == 1:
        for number, open_ones in enumerate(unacknowledged):
            later = {message.payload for messages in device.arrived[number + 1 :] for message in messages}
            assert open_ones <= later
    if qos == 2 and topic_filter == b"a/b":
        assert set(counts.values()) == {1}
    else:
        check_order(device, await entered(node, COUNT + 3))
    await device.disconnect()
