"""Messages that a member of a shared subscription does not finish go to another member."""

import asyncio
from typing import Any

import pytest

from gateway.node.node import Node
from store.api import PopRequest, PopResult, Start, dead_letter_queue
from store.errors import StoreFailed
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBREC, RawClient, ack
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP, gather, held, members, together, until_groups, until_tick
from tests.waiting import until


async def test_broken_connection_gives_back_at_once(node: Node) -> None:
    """Everything that was not acknowledged goes to the others, in the middle of the window."""
    clients = await members(node, 3)
    await publish(node, b"t/x", *numbers(0, 60))
    lost = await clients[0].take(5)
    await held(clients[0], 15)
    await clients[0].drop()
    got = await gather(clients[1:], 55)
    assert sorted(together(got) + [m.payload for m in lost]) == numbers(0, 60)
    assert min(map(len, got)) > 20
    await until_groups(node, {GROUP: 0})


async def test_a_silent_member_loses_its_messages(make_node: MakeNode) -> None:
    """It is connected, and acknowledges nothing for a while; then it is late, and nobody minds."""
    node = await make_node(mqtt__shared_ack_timeout=1)
    silent, other = await members(node, 2)
    await publish(node, b"t/x", *numbers(0, 10))
    kept = await held(silent, 5)
    got = together(await gather([other], 10))
    assert sorted(got) == numbers(0, 10)
    await until_groups(node, {GROUP: 0})
    await publish(node, b"t/x", *numbers(10, 14))
    assert together(await gather([other], 4)) == numbers(10, 14)
    silent.send(*[ack(PUBACK, m.packet_id) for m in kept])
    await silent.quiet()
    await publish(node, b"t/x", *numbers(14, 18))
    assert sorted(together(await gather([silent, other], 4))) == numbers(14, 18)
    assert node.counters.shared_returned == 5


async def test_the_only_member_keeps_its_messages(make_node: MakeNode) -> None:
    """Nobody else could have it: it is not sent twice over one connection (MQTT-4.4.0-1), and stays leased."""
    node = await make_node(mqtt__shared_ack_timeout=1, store__max_deliveries=1)
    only = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    message = await only.message()
    await until_tick(node, 12)
    assert node.counters.shared_returned == 0
    only.send(ack(PUBACK, message.packet_id))
    await only.quiet()
    await until_groups(node, {GROUP: 0})


async def test_member_that_continues_to_acknowledge_keeps_the_rest(make_node: MakeNode) -> None:
    node = await make_node(mqtt__shared_ack_timeout=1)
    slow, other = await members(node, 2)
    await publish(node, b"t/x", *numbers(0, 24))
    kept = await held(slow, 12)
    await other.take(12)
    for number, message in enumerate(kept):
        slow.send(ack(PUBACK, message.packet_id))
        await until_tick(node, number + 1)
    await slow.quiet()
    await other.quiet()
    await until_groups(node, {GROUP: 0})
    assert node.counters.shared_returned == 0


@pytest.mark.mqtt5("4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
async def test_refused_message_goes_to_no_other(node: Node, qos: int) -> None:
    clients = await members(node, 2, 5, qos)
    await publish(node, b"t/x", b"1", qos=qos)
    packet_id = (await clients[0].message()).packet_id
    clients[0].send(wire.packet((PUBACK if qos == 1 else PUBREC) << 4, packet_id.to_bytes(2, "big") + b"\x80"))
    await clients[0].quiet()
    await until_groups(node, {GROUP: 0})
    await clients[0].drop()
    await publish(node, b"t/x", b"2", qos=qos)
    assert [m.payload for m in await clients[1].take(1)] == [b"2"]


async def test_an_unsubscribed_member_may_finish_its_messages(node: Node) -> None:
    """MQTT-3.10.4-3; when it is gone without, the others get it."""
    leaving, other = await members(node, 2)
    await publish(node, b"t/x", *numbers(0, 4))
    kept = await held(leaving, 2)
    await other.take(2)
    assert await leaving.unsubscribe(GROUP) == b"\x00"
    leaving.send(ack(PUBACK, kept[0].packet_id))
    await publish(node, b"t/x", b"new")
    assert [m.payload for m in await other.take(1)] == [b"new"]
    await leaving.drop()
    assert [m.payload for m in await other.take(1)] == [kept[1].payload]
    await other.quiet()
    await until_groups(node, {GROUP: 0})


async def test_an_unsubscribed_member_gives_its_messages_back_at_once(make_node: MakeNode) -> None:
    """Not when it is found silent: the session keeps no place for memberships any more."""
    node = await make_node(mqtt__shared_ack_timeout=3600)
    leaving = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    assert (await leaving.message()).payload == b"1"
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await other.subscribe((GROUP, 1))
    assert await leaving.unsubscribe(GROUP) == b"\x00"
    await leaving.subscribe((b"plain", 0))
    assert node._sessions.open_sessions[b"m0"][0]._shares is None
    await leaving.drop()
    assert [m.payload for m in await other.take(1)] == [b"1"]
    await until_groups(node, {GROUP: 0})


async def test_given_up_after_too_many_deliveries(make_node: MakeNode) -> None:
    """It becomes a dead letter of the group, which cloud services may receive."""
    node = await make_node(store__max_deliveries=2)
    keeper = await durable(node)
    await keeper.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"poison")
    for _ in range(2):
        assert (await keeper.message()).payload == b"poison"
        await keeper.drop()
        keeper = await durable(node)
    await publish(node, b"t/x", b"next")
    assert [m.payload for m in await keeper.take(1)] == [b"next"]
    engine = node._engine
    assert engine is not None
    popped = await engine.pop(PopRequest(GROUP, [dead_letter_queue(GROUP)], 10, 1 << 20, 1000, Start.EARLIEST))
    assert [run.count for run in popped.runs] == [1]
    assert b"poison" in popped.runs[0].data


async def test_a_new_member_does_not_get_messages_that_a_disconnected_one_still_holds(make_node: MakeNode) -> None:
    """Though it was the last member here: nobody else has to do it again."""
    node = await make_node(mqtt__shared_ack_timeout=3600)
    away = await durable(node, b"away")
    await away.subscribe((GROUP, 1))
    await away.disconnect()
    leaving = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1", b"2")
    kept = await held(leaving, 2)
    assert await leaving.unsubscribe(GROUP) == b"\x00"
    assert node.counters.shared_groups == 0
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await other.subscribe((GROUP, 1))
    await other.quiet()
    assert node.counters.shared_groups == 1
    leaving.send(ack(PUBACK, kept[0].packet_id))
    await leaving.quiet()
    await other.quiet()
    await leaving.drop()
    assert [m.payload for m in await other.take(1)] == [b"2"]
    await other.unsubscribe(GROUP)
    await until_groups(node, {GROUP: 0})
    assert node._sessions.shared_subscriptions._groups == {}


async def test_a_disconnected_member_that_stays_away_loses_its_messages(make_node: MakeNode) -> None:
    node = await make_node(mqtt__shared_ack_timeout=1)
    away = await durable(node, b"away")
    await away.subscribe((GROUP, 1))
    await away.disconnect()
    leaving = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    await held(leaving, 1)
    await leaving.unsubscribe(GROUP)
    await until(lambda: not node._sessions.shared_subscriptions._groups)
    away = await durable(node, b"away")
    assert [m.payload for m in await away.take(1)] == [b"1"]


@pytest.mark.parametrize("failures", [1, 3])
async def test_messages_are_given_back_again_when_the_store_failed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    node = await make_node(mqtt__shared_ack_timeout=3600)
    leaving, other = await members(node, 2)
    await publish(node, b"t/x", *numbers(0, 4))
    kept = await held(leaving, 2)
    await other.take(2)
    engine = node._engine
    assert engine is not None
    settle, left = engine.settle, failures

    async def fails(group: bytes, done: Any, again: Any = (), *rest: Any) -> Any:
        nonlocal left
        if again and left:
            left -= 1
            raise StoreFailed("the disk fails")
        return await settle(group, done, again, *rest)

    monkeypatch.setattr(engine, "settle", fails)
    await leaving.drop()
    assert sorted([m.payload for m in await other.take(2)]) == sorted(m.payload for m in kept)
    assert left == 0
    await until_groups(node, {GROUP: 0})


async def test_messages_are_given_back_until_their_leases_end(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await make_node(mqtt__shared_ack_timeout=1)
    leaving = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    await held(leaving, 1)
    engine = node._engine
    assert engine is not None
    settle, calls = engine.settle, 0

    async def fails(group: bytes, done: Any, again: Any = (), *rest: Any) -> Any:
        nonlocal calls
        if again:
            calls += 1
            raise StoreFailed("the disk fails")
        return await settle(group, done, again, *rest)

    monkeypatch.setattr(engine, "settle", fails)
    await leaving.drop()
    await until(lambda: "cannot be settled" in caplog.text)
    assert calls == 3  # at once, after 0.5 s and 1 s more; the lease lasts for 2 s


async def test_messages_never_sent_do_not_count_as_delivered(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was leased for a member whose connection ended meanwhile, again and again."""
    node = await make_node(store__max_deliveries=2)
    engine = node._engine
    assert engine is not None
    pop, popped, has_left = engine.pop, asyncio.Event(), asyncio.Event()

    async def late(*args: Any, **options: Any) -> PopResult:
        found = await pop(*args, **options)
        if found.runs:
            popped.set()
            await has_left.wait()
        return found

    keeper = await durable(node)
    await keeper.subscribe((GROUP, 1))
    await keeper.disconnect()
    await publish(node, b"t/x", b"1")
    monkeypatch.setattr(engine, "pop", late)
    for _ in range(4):
        popped.clear()
        has_left.clear()
        keeper = await durable(node)
        await popped.wait()
        await keeper.drop()
        await until(lambda: not node.counters.shared_members)
        has_left.set()
    monkeypatch.undo()
    keeper = await durable(node)
    assert [m.payload for m in await keeper.take(1)] == [b"1"]
    await until_groups(node, {GROUP: 0})


async def test_messages_are_sent_before_their_lease_is_committed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And may be acknowledged before."""
    node = await make_node(mqtt__shared_ack_timeout=3600)
    client = (await members(node, 1))[0]
    engine = node._engine
    assert engine is not None
    await publish(node, b"t/x", b"first")
    assert [m.payload for m in await client.take(1)] == [b"first"]
    await until_groups(node, {GROUP: 0})
    later: list[Any] = []
    monkeypatch.setattr(engine._groups, "_offer_later", lambda *unit: later.append(unit))
    await publish(node, b"t/x", b"second")
    message = await client.message()
    assert (message.payload, len(later)) == (b"second", 1)
    client.send(ack(PUBACK, message.packet_id))
    monkeypatch.undo()
    for unit in later:
        engine._groups._offer_later(*unit)
    await until_groups(node, {GROUP: 0})
