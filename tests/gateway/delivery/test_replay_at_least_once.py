"""Replays whose connections and nodes end on the way: nothing is lost, order is kept, repeats begin at one place."""

import asyncio
import random
from collections import Counter

import pytest

import record
from gateway.delivery.released_messages import Released, ReleasedMessages
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
from tests.waiting import patience, until

FILTER = b"a/+"


def message(payload: bytes, qos: int, is_delayed: bool = False) -> bytes:
    flags = qos | (FLAG_DELAYED if is_delayed else 0)
    return record.frame(Kind.MESSAGE, flags, 0, b"a/t", b"p", b"", payload, FAR if is_delayed else None)


async def history(node: Node, qos: int) -> list[bytes]:
    """Ten messages of one record, some before and behind, then five that were held before all of them."""
    early = await append(node, *[message(b"early%d" % i, qos, True) for i in range(5)])
    held = await append(node, *[message(b"held%d" % i, qos, True) for i in range(10)])
    await append(node, *[message(b"m%d" % i, qos) for i in range(3)])
    await append(node, control.TimersFired(held).frame())
    await append(
        node, *[message(b"n%d" % i, qos) for i in range(3)], control.TimersFired(early).frame(), message(b"end", qos)
    )
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
    session = node._sessions.open_sessions[b"d"][0]
    async with patience():
        while True:
            state = await engine.session(b"d")
            assert state is not None
            if (
                not state.outbound
                and not session.exchanges.inflight
                and not any(s.replay >= 0 for s in state.subscriptions)
            ):
                break
            device.acknowledge(len(device.owed))
            await device.poll()
            await asyncio.sleep(0.02)
    assert all(s.replay_cursor is None for s in session.subscriptions.values())


async def end(make_node: MakeNode, node: Node, device: Device, how: str, name: str) -> Node:
    """End the device's connection, and have it come back. Returns the node that it came back to."""
    if how == "crash":
        node = await crashed(make_node, node, name)
        await device.killed()
        device.port = node.ports.mqtt
    elif how == "disconnect":
        await device.disconnect()
        device.settled.clear()  # messages of a record among which the connection ended come again
    else:
        await device.drop()
    await device.connect()
    return node


async def finish(device: Device, count: int) -> None:
    """Take all that is to come, and answer it."""
    while len(payloads(device)) < count or device.owed or device.held or device.unsettled or device.earlier:
        device.acknowledge(len(device.owed))
        await device.poll()


def payloads(device: Device) -> set[bytes]:
    return {payload for _, payload, _ in device.seen}


def check(device: Device, expected: list[bytes]) -> None:
    """Each connection gets what was open before with DUP, and then the log from one place on: without a gap, in order,
    each message once, and from no later place than it has seen all of."""
    assert payloads(device) == set(expected)
    known: set[bytes] = set()
    for messages in device.arrived:
        known.update([message.payload for message in messages if message.dup])
        new = [message.payload for message in messages if not message.dup]
        if new:
            first = expected.index(new[0])
            assert known.issuperset(expected[:first])
            assert new == expected[first : first + len(new)]
            known.update(new)


@pytest.mark.mqtt5("4.3.3-3", "4.3.3-5")
@pytest.mark.parametrize("how", ["crash", "disconnect", "drop"])
async def test_a_wildcard_replay_continues_where_it_was(make_node: MakeNode, how: str) -> None:
    """The connection, or the node, ends in each part of the log, with a window of one."""
    node = await make_node()
    expected = await history(node, 2)
    device = Device(node.ports.mqtt, b"d", 5, 1)
    await device.connect()
    await device.subscribe(b"$replay/earliest/" + FILTER, 2)
    for goal in (1, 2, 3, 8, 12, 14, 16, 18, 21):
        while len(payloads(device)) < goal:
            await device.poll()
            device.acknowledge(1)
        session = node._sessions.open_sessions[b"d"][0]
        await until(lambda: not (session.changed or session.exchanges.staging))
        node = await end(make_node, node, device, how, f"after{goal}")
    await finish(device, len(expected))
    check(device, expected)
    counts = Counter(payload for _, payload, _ in device.seen)
    if how == "disconnect":  # but for messages of one record, where the connection ended among them
        assert {counts[payload] for payload in expected if payload[:1] in (b"m", b"n")} == {1}
    await is_over(node, device)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_lost_when_connections_end_at_random_moments(make_node: MakeNode, seed: int) -> None:
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
    check(device, expected)
    await is_over(node, device)


@pytest.mark.parametrize("how", ["disconnect", "drop"])
async def test_a_record_that_was_left_half_way_begins_again(make_node: MakeNode, how: str) -> None:
    """Open exchanges come first, under their packet ids; then all messages that the record released, as new ones."""
    node = await make_node()
    expected = await history(node, 1)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=EVER, receive_maximum=1)
    assert await replay(client, FILTER, b"earliest") == b"\1"
    assert [found.payload for found in await client.take(7)] == expected[:7]
    open_one = await client.message()
    await (client.disconnect() if how == "disconnect" else client.drop())
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=EVER, receive_maximum=100)
    found = await client.take(1 + len(expected) - 3)
    assert (found[0].payload, found[0].packet_id, found[0].dup) == (open_one.payload, open_one.packet_id, True)
    assert [(message.payload, message.dup) for message in found[1:]] == [(payload, False) for payload in expected[3:]]
    await client.quiet()


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


@pytest.mark.parametrize("how", ["disconnect", "drop"])
async def test_a_record_that_was_sent_does_not_come_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Though the connection ends while the messages that the next record released are looked up."""
    expected = await history(node, 2)
    by_record = ReleasedMessages.by_record
    calls = 0

    async def slow(self: ReleasedMessages, data: bytes, start: int) -> Released:
        nonlocal calls
        calls += 1
        if calls == 2:  # of the early messages, behind 16 others
            await asyncio.sleep(0.5)
        return await by_record(self, data, start)

    monkeypatch.setattr(ReleasedMessages, "by_record", slow)
    device = Device(node.ports.mqtt, b"d", 5, 30)
    await device.connect()
    await device.subscribe(b"$replay/earliest/" + FILTER, 2)
    while calls < 2 or len(device.seen) < 16:
        await device.poll()
    assert len(device.seen) == 16
    await (device.disconnect() if how == "disconnect" else device.drop())
    await device.connect()
    await finish(device, len(expected))
    assert [payload for _, payload, _ in device.seen] == expected
    await is_over(node, device)
