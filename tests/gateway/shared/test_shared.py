"""Shared subscriptions: each message to one member, as it was granted, whoever else there is."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from gateway.node.node import Node
from store.api import PopResult
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP, gather, held, members, together, until_groups
from tests.waiting import until


@pytest.mark.mqtt5("4.8.2-3")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_goes_to_one_member_in_turn(node: Node, version: int, qos: int) -> None:
    clients = await members(node, 4, version, qos)
    assert version == 4 or b"\x2a" not in clients[0].connack.body[2:]
    await publish(node, b"t/x", *numbers(0, 40), qos=2)
    got = [await client.take(10) for client in clients]
    assert sorted(m.payload for each in got for m in each) == numbers(0, 40)
    assert {(m.qos, m.dup, m.retain) for each in got for m in each} == {(qos, False, False)}
    for client in clients:
        await client.settle()
    await until_groups(node, {GROUP: 0})


@pytest.mark.mqtt5("4.8.2-3", "3.8.4-8")
async def test_each_member_has_the_qos_it_was_granted(node: Node) -> None:
    granted = {0: b"zero", 1: b"one", 2: b"two"}
    clients = {}
    for qos, name in granted.items():
        clients[qos] = await RawClient.connect(node.ports.mqtt, name, 5)
        assert await clients[qos].subscribe((GROUP, qos)) == bytes([qos])
    for sent in (0, 1, 2):
        publisher = await RawClient.connect(node.ports.mqtt, b"p")
        for number in range(6):
            await publisher.publish(b"t", b"%d" % number, sent, number + 1)
        for qos, client in clients.items():
            assert [m.qos for m in await client.take(2)] == [min(sent, qos)] * 2
            await client.settle()


async def test_topic_without_wildcard_and_two_groups(node: Node) -> None:
    """Each group has every message."""
    first = [await RawClient.connect(node.ports.mqtt, b"a%d" % i) for i in range(2)]
    second = await RawClient.connect(node.ports.mqtt, b"b")
    for client in first:
        await client.subscribe((b"$share/a/t", 1))
    await second.subscribe((b"$share/b/t", 1))
    await publish(node, b"t", *numbers(0, 6))
    assert [m.payload for m in await second.take(6)] == numbers(0, 6)
    assert sorted(together(await gather(first, 6))) == numbers(0, 6)


@pytest.mark.mqtt5("3.3.4-3", "3.3.4-2")
async def test_beside_other_subscriptions_of_the_session(node: Node) -> None:
    """Both deliver, each with its own identifier."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(wire.subscribe(5, 1, (GROUP, 1), properties=b"\x0b\x07"))
    await client.packet()
    client.send(wire.subscribe(5, 2, (b"t/x", 1), properties=b"\x0b\x09"))
    await client.packet()
    await publish(node, b"t/x", b"1")
    assert sorted(m.properties for m in await client.take(2)) == [b"\x0b\x07", b"\x0b\x09"]
    await client.quiet()


async def test_no_retained_messages_at_subscribe_and_retain_as_published(node: Node) -> None:
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    await publisher.publish(b"t/x", b"old", retain=True)
    plain = await RawClient.connect(node.ports.mqtt, b"a", 5)
    await plain.subscribe((GROUP, 1))
    await plain.quiet()
    await publisher.publish(b"t/x", b"mid", retain=True)
    message = (await plain.take(1))[0]
    assert (message.payload, message.retain) == (b"mid", False)
    await plain.subscribe((GROUP, 0x09))  # retain as published
    await plain.quiet()
    await publisher.publish(b"t/x", b"new", retain=True)
    message = (await plain.take(1))[0]
    assert (message.payload, message.retain) == (b"new", True)


async def test_member_that_takes_nothing_gets_nothing(node: Node) -> None:
    """Its window is full: the others have the rest."""
    slow = await RawClient.connect(node.ports.mqtt, b"slow", 5, receive_maximum=2)
    await slow.subscribe((GROUP, 1))
    fast = (await members(node, 1))[0]
    await publish(node, b"t/x", *numbers(0, 300))
    kept = await held(slow, 2)
    got = together(await gather([fast], 298))
    assert sorted(got + [m.payload for m in kept]) == numbers(0, 300)
    await slow.quiet()
    slow.send(*[ack(PUBACK, m.packet_id) for m in kept])
    await publish(node, b"t/x", *numbers(300, 310))
    assert len(together(await gather([slow, fast], 10))) == 10
    await until_groups(node, {GROUP: 0})


async def test_many_messages_over_small_windows(node: Node) -> None:
    """More than fit into windows and pops, of all QoS, with members that come and go."""
    kept = await durable(node, b"kept", receive_maximum=3)
    await kept.subscribe((GROUP, 2))
    clients = [kept, *await members(node, 3, 5, 2, receive_maximum=7)]
    publishing = asyncio.create_task(publish(node, b"t/x", *numbers(0, 3000)))
    first = together(await gather(clients, 1000))
    await clients[1].drop()
    rest = together(await gather([clients[0], *clients[2:]], 3000 - len(first)))
    await publishing
    counted = Counter(first + rest)
    assert set(counted) == set(numbers(0, 3000))
    assert max(counted.values()) <= 2
    await until_groups(node, {GROUP: 0})


async def test_full_socket_takes_nothing_and_loses_nothing(node: Node) -> None:
    """With QoS 0 too: who does not read gets what its socket takes, the others the rest."""
    clients = await members(node, 2, 5, 0)
    stuck, reading = clients
    publishing = asyncio.create_task(publish(node, b"t/x", *[b"%05d" % i + bytes(20_000) for i in range(1000)]))
    got = [m.payload[:5] for m in await reading.take(600)]
    await publishing
    rest = await gather(clients, 400)
    assert sorted(got + [payload[:5] for each in rest for payload in each]) == numbers(0, 1000)
    assert len(rest[0]) < 500
    assert node.counters.dropped_qos0 == 0
    await publish(node, b"t/x", *numbers(0, 4))
    assert sorted(len(each) for each in await gather([stuck, reading], 4)) == [2, 2]
    await until_groups(node, {GROUP: 0})


async def test_message_that_waits_for_a_member_comes_behind_connack(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And under no packet id of an exchange that the session takes up again."""
    back = await durable(node, b"back")
    await back.subscribe((GROUP, 2))
    await publish(node, b"t/x", b"1", qos=2)
    first = await back.message()
    await back.drop()
    full = await RawClient.connect(node.ports.mqtt, b"full", 5, receive_maximum=1)
    await full.subscribe((GROUP, 1), (b"plain", 1))
    engine = node._engine
    assert engine is not None
    pop, popped, full_now = engine.pop, asyncio.Event(), asyncio.Event()

    async def late(*args: Any, **options: Any) -> PopResult:
        found = await pop(*args, **options)
        if found.runs:
            popped.set()
            await full_now.wait()
        return found

    monkeypatch.setattr(engine, "pop", late)
    await publish(node, b"t/x", b"2")
    await popped.wait()
    await publish(node, b"plain", b"window")
    assert (await full.message()).payload == b"window"
    full_now.set()
    await full.quiet()
    back = await durable(node, b"back")
    got = [await back.message() for _ in range(2)]
    assert {m.payload: (m.packet_id == first.packet_id, m.dup) for m in got} == {
        b"1": (True, True),
        b"2": (False, False),
    }


async def test_members_that_left_are_not_in_the_ready_queue(node: Node) -> None:
    """Not even while nothing is published."""
    staying = (await members(node, 1))[0]
    for number in range(3):
        other = await RawClient.connect(node.ports.mqtt, b"other", 5)
        await other.subscribe((GROUP, 1))
        if number:
            await other.disconnect()
        else:
            await other.unsubscribe(GROUP)
    group = node._sessions.shared_subscriptions._groups[GROUP]
    await until(lambda: len(group.members) <= 1)
    assert [member.session.client_id for member in group._ready] == [b"m0"]
    await publish(node, b"t/x", b"1")
    assert [m.payload for m in await staying.take(1)] == [b"1"]
