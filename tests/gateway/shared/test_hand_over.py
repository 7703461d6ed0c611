"""Messages of QoS 2 of a shared subscription belong to the session that they are handed over to."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.node.node import Node
from store.api import Handed, PopResult
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RawClient, ack
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP, held, members, until_groups
from tests.waiting import until


@pytest.mark.mqtt5("4.8.2-4", "4.4.0-1")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("step", [PUBLISH, PUBREC])
async def test_qos_2_is_completed_with_the_same_client(node: Node, version: int, step: int) -> None:
    """Under its packet id, once it is back; the other member does not have it."""
    first = await durable(node, b"first", version)
    await first.subscribe((GROUP, 2))
    await publish(node, b"t/x", b"1", qos=2)
    sent = await first.message()
    if step == PUBREC:
        first.send(ack(PUBREC, sent.packet_id))
        assert (await first.expect(PUBREL)).packet_id == sent.packet_id
    other = await durable(node, b"other", version)
    await other.subscribe((GROUP, 2))
    await first.drop()
    await publish(node, b"t/x", b"2", qos=2)
    second = await other.message()
    assert second.payload == b"2"
    other.send(ack(PUBREC, second.packet_id))
    await other.expect(PUBREL)
    other.send(ack(PUBCOMP, second.packet_id))
    first = await durable(node, b"first", version)
    if step == PUBLISH:
        again = await first.message()
        assert (again.payload, again.packet_id, again.qos, again.dup) == (b"1", sent.packet_id, 2, True)
        first.send(ack(PUBREC, sent.packet_id))
    assert (await first.expect(PUBREL)).packet_id == sent.packet_id
    first.send(ack(PUBCOMP, sent.packet_id))
    await first.quiet()
    await other.quiet()
    await until_groups(node, {GROUP: 0})


async def test_acknowledgement_of_what_is_not_sent_yet_means_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under packet ids that it guesses, while the messages are on their way to be its session's."""
    guessing, other = await members(node, 2, 5, 2)
    engine = node._engine
    assert engine is not None
    hand_over, begun, go_on = engine.hand_over, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> list[int]:
        begun.set()
        await go_on.wait()
        return await hand_over(*args)

    monkeypatch.setattr(engine, "hand_over", slow)
    await publish(node, b"t/x", *numbers(0, 10), qos=2)
    await begun.wait()
    for number in range(1, 12):
        guess = number.to_bytes(2, "big")
        guessing.send(wire.packet(PUBREC << 4, guess + b"\x80"), ack(PUBACK, number), ack(PUBCOMP, number))
    guessing.send(wire.packet(0xC0, b""))
    while (await guessing.packet()).kind != PINGRESP:
        pass
    shared = node._sessions.shared_subscriptions
    shared._groups[GROUP].leases.flush()
    await until(lambda: len(shared._tasks) <= 1)
    go_on.set()
    got = [m.payload for client in (guessing, other) for m in await client.take(5)]
    assert sorted(got) == numbers(0, 10)
    for client in (guessing, other):
        await client.settle()
    await until_groups(node, {GROUP: 0})
    session = node._sessions.open_sessions[b"m0"][0]
    assert (session.exchanges.in_window, session.exchanges.inflight) == (0, {})


@pytest.mark.parametrize("error", [StoreBusy("no room"), None])
async def test_hand_over_that_is_refused_is_tried_again_at_once(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, error: StoreBusy | None
) -> None:
    """Not when the lease has run out; and it does not count as delivered."""
    node = await make_node(mqtt__shared_ack_timeout=3600, store__max_deliveries=1)
    client = (await members(node, 1, 5, 2, receive_maximum=1))[0]
    engine = node._engine
    assert engine is not None
    hand_over, refused = engine.hand_over, asyncio.Event()

    async def refuse(group: bytes, handed: Sequence[Handed]) -> list[int]:
        if refused.is_set():
            return await hand_over(group, handed)
        refused.set()
        if error is not None:
            raise error
        return [each.offset for each in handed]

    monkeypatch.setattr(engine, "hand_over", refuse)
    await publish(node, b"t/x", b"1", qos=2)
    assert [m.payload for m in await client.take(1)] == [b"1"]
    assert refused.is_set()
    await client.settle()
    await until_groups(node, {GROUP: 0})
    assert node.counters.shared_returned == 1


async def test_waiting_messages_go_to_a_member_with_room_at_a_tick(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is handed over, and neither renewed nor given back: the store would refuse to hand it over then."""
    node = await make_node(mqtt__shared_ack_timeout=3600, mqtt__max_shared_in_flight=4)
    full = (await members(node, 1, 5, 2))[0]
    await publish(node, b"t/x", *numbers(0, 4))
    kept = await held(full, 4)
    leaving = await RawClient.connect(node.ports.mqtt, b"leaving", 5)
    await leaving.subscribe((GROUP, 2))
    engine = node._engine
    assert engine is not None
    pop, popped, has_left = engine.pop, asyncio.Event(), asyncio.Event()

    async def late(*args: Any, **options: Any) -> PopResult:
        found = await pop(*args, **options)
        if found.runs:
            popped.set()
            await has_left.wait()
        return found

    monkeypatch.setattr(engine, "pop", late)
    await publish(node, b"t/x", b"waits", qos=2)
    await popped.wait()
    await leaving.unsubscribe(GROUP)
    has_left.set()
    full.send(ack(PUBACK, kept[0].packet_id))  # it has room, and more than half of what it may have
    await full.quiet()
    group = node._sessions.shared_subscriptions._groups[GROUP]
    await until(lambda: group._waiting)
    group.tick(2)
    assert [m.payload for m in await full.take(1)] == [b"waits"]
    assert node.counters.shared_returned == 0


@pytest.mark.mqtt5("4.8.2-5")
@pytest.mark.parametrize("clean", [True, False])
async def test_qos_2_goes_to_no_other_when_the_session_ends(node: Node, clean: bool) -> None:
    if clean:
        first = await RawClient.connect(node.ports.mqtt, b"first", 5)
    else:
        first = await durable(node, b"first")
    await first.subscribe((GROUP, 2))
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await publish(node, b"t/x", b"1", qos=2)
    assert (await first.message()).payload == b"1"
    await other.subscribe((GROUP, 2))
    await first.drop()
    if not clean:
        await (await RawClient.connect(node.ports.mqtt, b"first", 5)).disconnect()
    await publish(node, b"t/x", b"2", qos=2)
    assert [m.payload for m in await other.take(1)] == [b"2"]
    await other.settle()
    await until_groups(node, {GROUP: 0})


@pytest.mark.parametrize("clean", [True, False])
async def test_handed_over_messages_count_until_they_are_completed(make_node: MakeNode, clean: bool) -> None:
    node = await make_node(mqtt__max_shared_in_flight=3)
    first = await RawClient.connect(node.ports.mqtt, b"m", 5, clean, expiry=0 if clean else 100)
    await first.subscribe((GROUP, 2))
    await publish(node, b"t/x", *numbers(0, 10), qos=2)
    kept = await held(first, 3)
    first.send(ack(PUBREC, kept[0].packet_id))
    await first.expect(PUBREL)
    await first.quiet()
    first.send(ack(PUBCOMP, kept[0].packet_id), ack(PUBREC, kept[1].packet_id))
    await first.expect(PUBREL)
    await first.quiet()
    first.send(ack(PUBCOMP, kept[1].packet_id))
    assert len(await held(first, 2)) == 2
    (member,) = node._sessions.shared_subscriptions._groups[GROUP].members.values()
    assert member.in_flight == 3
