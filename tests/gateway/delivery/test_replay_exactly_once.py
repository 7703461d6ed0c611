"""A replay where one record of the log let several messages in: QoS 2 comes once, whatever happens on the way."""

import asyncio
import random
from collections import Counter

import pytest

import record
from gateway.node.node import Node
from record.layout import FLAG_DELAYED, Kind
from store import control
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.delivery.test_released_messages import FAR, append
from tests.gateway.delivery.test_replay import replay
from tests.gateway.device import EVER, Device
from tests.gateway.mqtt import wire
from tests.gateway.raw import UNSUBACK, RawClient

FILTER = b"a/+"


def message(payload: bytes, qos: int, is_delayed: bool = False) -> bytes:
    flags = qos | (FLAG_DELAYED if is_delayed else 0)
    return record.frame(Kind.MESSAGE, flags, 0, b"a/t", b"p", b"", payload, FAR if is_delayed else None)


async def history(node: Node, qos: int) -> list[bytes]:
    """Ten messages of one record, some before and behind, then five that were held before all of them."""
    early = await append(node, *[message(b"early%d" % i, qos, True) for i in range(5)])
    held = await append(node, *[message(b"held%d" % i, qos, True) for i in range(10)])
    await append(node, *[message(b"m%d" % i, qos) for i in range(3)])
    await append(node, control.timers_fired(held))
    await append(node, *[message(b"n%d" % i, qos) for i in range(3)], control.timers_fired(early), message(b"end", qos))
    return [
        *[b"m%d" % i for i in range(3)],
        *[b"held%d" % i for i in range(10)],
        *[b"n%d" % i for i in range(3)],
        *[b"early%d" % i for i in range(5)],
        b"end",
    ]


async def is_over(node: Node, device: Device) -> None:
    """The history is, and no packet id is left, once the device has answered what is asked again."""
    engine = node._engine
    assert engine is not None
    session = node._sessions.held[b"d"][0]
    async with asyncio.timeout(10):
        while True:
            state = await engine.session(b"d")
            assert state is not None
            if not state.outbound and not session.inflight and not any(s.replay >= 0 for s in state.subscriptions):
                break
            device.acknowledge(len(device.owed))
            await device.poll()
            await asyncio.sleep(0.02)
    assert all(s.history is None for s in session.subscriptions.values())


async def end(make_node: MakeNode, node: Node, device: Device, how: str, name: str) -> Node:
    """End the device's connection, and have it come back. Returns the node that it came back to."""
    if how == "crash":
        node = await crashed(make_node, node, name)
        await device.killed()
        device.port = node.ports.mqtt
    elif how == "disconnect":
        await device.disconnect()
    else:
        await device.drop()
    await device.connect()
    return node


async def finish(device: Device, count: int) -> None:
    """Take all that is to come, and answer it."""
    while len(device.seen) < count or device.owed or device.held or device.unsettled or device.earlier:
        device.acknowledge(len(device.owed))
        await device.poll()


@pytest.mark.mqtt5("4.3.3-3", "4.3.3-5")
@pytest.mark.parametrize("how", ["crash", "disconnect", "drop"])
async def test_what_is_done_of_a_record_does_not_come_again(make_node: MakeNode, how: str) -> None:
    """The connection, or the node, ends after each single exchange, with a window of one."""
    node = await make_node()
    expected = await history(node, 2)
    device = Device(node.ports.mqtt, b"d", 5, 1)
    await device.connect()
    await device.subscribe(b"$replay/earliest/" + FILTER, 2)
    for number in range(len(expected)):
        for _ in range(4):
            await device.poll()
            device.acknowledge(1)
        session = node._sessions.held[b"d"][0]
        async with asyncio.timeout(10):
            while session.changed or session.staging:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        node = await end(make_node, node, device, how, f"after{number}")
    await finish(device, len(expected))
    assert Counter(payload for _, payload, _ in device.seen) == Counter(expected)
    await is_over(node, device)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_random_ends(make_node: MakeNode, seed: int) -> None:
    chance = random.Random(seed)
    node = await make_node()
    expected = await history(node, 2)
    device = Device(node.ports.mqtt, b"d", 4 + seed % 2, [1, 2, 4, 30][seed % 4])
    await device.connect()
    assert device.client is not None
    await device.subscribe(b"$replay/earliest/" + FILTER, 2)
    for number in range(14):
        for _ in range(chance.randrange(6)):
            await device.poll()
            device.acknowledge(chance.randrange(4))
        how = chance.choice(["crash", "disconnect", "drop"])
        await asyncio.sleep(chance.choice([0, 0, 0.12]))  # acknowledgements are gathered for a while
        node = await end(make_node, node, device, how, f"after{number}")
    await finish(device, len(expected))
    assert Counter(payload for _, payload, _ in device.seen) == Counter(expected)
    await is_over(node, device)


@pytest.mark.parametrize("how", ["disconnect", "drop"])
async def test_of_a_record_that_was_left_half_way_what_comes_again_says_so(make_node: MakeNode, how: str) -> None:
    """With QoS 1 it may."""
    node = await make_node()
    expected = await history(node, 1)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=EVER, receive_maximum=1)
    assert await replay(client, FILTER, b"earliest") == b"\1"
    seen = [found.payload for found in await client.take(7)]
    open_one = await client.message()
    await (client.disconnect() if how == "disconnect" else client.drop())
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=EVER, receive_maximum=100)
    while set(seen) != set(expected):
        (found,) = await client.take(1)
        assert found.dup or found.payload not in seen
        if found.payload == open_one.payload:
            assert (found.packet_id, found.dup) == (open_one.packet_id, True)
        seen.append(found.payload)
    await client.quiet()
    assert max(Counter(seen).values()) <= 2


@pytest.mark.parametrize("again", [False, True])
async def test_unsubscribing_half_way_frees_the_packet_ids(node: Node, again: bool) -> None:
    expected = await history(node, 2)
    device = Device(node.ports.mqtt, b"d", 5, 2)
    await device.connect()
    await device.subscribe(b"$replay/earliest/" + FILTER, 2)
    while len(device.seen) < 8:
        await device.read()
        device.acknowledge(len(device.owed))
    assert device.client is not None
    device.client.send(wire.unsubscribe(5, 9, FILTER))
    while (packet := await device.client.packet()).kind != UNSUBACK:
        device._take(packet)
    if again:
        device.seen.clear()
        await device.subscribe(b"$replay/earliest/" + FILTER, 2)
        await finish(device, len(expected))
        assert {payload for _, payload, _ in device.seen} == set(expected)
        await is_over(node, device)
        return
    await finish(device, 8)
    await is_over(node, device)
