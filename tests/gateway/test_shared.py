"""Shared subscriptions: each message to one member, and to another where that one does not finish it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.node import Node
from store import control
from store.api import Appended, Done, Handed, Popped, Receipts, Start, dead_letter_queue, filter_queue
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Message, RawClient, ack
from tests.gateway.test_durable import durable, numbers, publish

GROUP = b"$share/g/t/#"
MAXIMUM = b"\x27"  # the property Maximum Packet Size


async def members(node: Node, count: int, version: int = 5, qos: int = 1, **options: int) -> list[RawClient]:
    found = []
    for number in range(count):
        client = await RawClient.connect(node.ports.mqtt, b"m%d" % number, version, **options)
        assert await client.subscribe((GROUP, qos)) == bytes([qos])
        found.append(client)
    return found


async def held(client: RawClient, count: int) -> list[Message]:
    """The next messages, not acknowledged; no more come."""
    found = [await client.message() for _ in range(count)]
    await client.quiet()
    return found


async def gather(clients: list[RawClient], count: int) -> list[list[bytes]]:
    """Have all of them acknowledge what comes, until there are so many messages in all. What each got."""
    got: list[list[bytes]] = [[] for _ in clients]
    enough = asyncio.Event()

    async def read(client: RawClient, own: list[bytes]) -> None:
        while True:
            own.extend([message.payload for message in await client.take(1)])
            if sum(map(len, got)) >= count:
                enough.set()

    tasks = [asyncio.create_task(read(client, own)) for client, own in zip(clients, got, strict=True)]
    waits = asyncio.create_task(enough.wait())
    done, _ = await asyncio.wait([waits, *tasks], return_when=asyncio.FIRST_COMPLETED, timeout=20)
    for task in [*tasks, waits]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert waits in done, f"{sum(map(len, got))} of {count} came"
    return got


def together(got: list[list[bytes]]) -> list[bytes]:
    return [payload for each in got for payload in each]


async def groups(node: Node) -> dict[bytes, int]:
    """The groups there are, with what each has not finished."""
    assert node._engine is not None
    return {each.group: sum(queue.lag for queue in each.queues) for each in await node._engine.groups(None, 100)}


async def until_groups(node: Node, wanted: dict[bytes, int]) -> None:
    async with asyncio.timeout(10):
        while await groups(node) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_round(node: Node, number: int) -> None:
    """Four rounds are `mqtt.shared_ack_timeout`."""
    async with asyncio.timeout(20):
        while node._sessions.shares.round < number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


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
    await plain.subscribe((GROUP, 0x09))  # retain as published
    await plain.quiet()
    await publisher.publish(b"t/x", b"new", retain=True)
    message = (await plain.take(1))[0]
    assert (message.payload, message.retain) == (b"new", True)


@pytest.mark.parametrize("version", [4, 5])
async def test_begins_with_the_first_member_and_ends_with_the_last(node: Node, version: int) -> None:
    await publish(node, b"t/x", b"before")
    first = await durable(node, b"first", version)
    await first.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"1")
    assert [m.payload for m in await first.take(1)] == [b"1"]
    await until_groups(node, {GROUP: 0})
    await first.disconnect()
    await publish(node, b"t/x", b"2")
    second = await durable(node, b"second", version)
    await second.subscribe((GROUP, 1))
    assert [m.payload for m in await second.take(1)] == [b"2"]
    assert await second.unsubscribe(GROUP) == (b"\x00" if version == 5 else b"")
    await publish(node, b"t/x", b"3")
    await second.quiet()
    first = await durable(node, b"first", version)
    assert [m.payload for m in await first.take(1)] == [b"3"]
    assert await first.unsubscribe(GROUP) == (b"\x00" if version == 5 else b"")
    assert await groups(node) == {}
    await publish(node, b"t/x", b"missed")
    await first.subscribe((GROUP, 1))
    await first.quiet()
    assert await groups(node) == {GROUP: 0}


async def test_group_of_clean_sessions_ends_with_the_last_of_them(make_node: MakeNode) -> None:
    node = await make_node()
    clients = await members(node, 2)
    await publish(node, b"t/x", b"1", b"2")
    await gather(clients, 2)
    await until_groups(node, {GROUP: 0})
    await clients[0].drop()
    await clients[1].unsubscribe(GROUP)
    await until_groups(node, {})
    others = await members(node, 1)
    await until_groups(node, {GROUP: 0})
    await publish(node, b"t/x", b"3")
    assert [m.payload for m in await others[0].take(1)] == [b"3"]
    await node.stop()
    node = await make_node()
    assert await groups(node) == {}


@pytest.mark.parametrize("comes_back", [False, True])
async def test_group_ends_though_the_store_has_no_room_for_it_at_first(
    node: Node, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """Unless it has a member again by then."""
    last = (await members(node, 1))[0]
    engine = node._engine
    assert engine is not None
    append, busy, left = engine.append, True, control.share_left(GROUP)
    refused: list[bytes] = []

    def full(frames: list[bytes], done: Done) -> None:
        if busy and frames == [left]:
            refused.extend(frames)
            asyncio.get_running_loop().call_soon(done, Appended(error=StoreBusy("no room")))
        else:
            append(frames, done)

    monkeypatch.setattr(engine, "append", full)
    await last.drop()
    async with asyncio.timeout(10):
        while len(refused) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await groups(node) == {GROUP: 0}
    if comes_back:
        last = (await members(node, 1))[0]
    busy = False
    if not comes_back:
        await until_groups(node, {})
        return
    node._sessions.shares._record_left(GROUP)  # as it is called in a moment
    await publish(node, b"t/x", b"1")
    assert [m.payload for m in await last.take(1)] == [b"1"]


async def test_clean_session_beside_a_durable_one(node: Node) -> None:
    kept = await durable(node, b"kept")
    await kept.subscribe((GROUP, 1))
    await kept.disconnect()
    other = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    assert [m.payload for m in await other.take(1)] == [b"1"]
    await other.disconnect()
    await publish(node, b"t/x", b"2")
    kept = await durable(node, b"kept")
    assert [m.payload for m in await kept.take(1)] == [b"2"]
    await kept.quiet()


async def test_expired_session_leaves_its_groups(node: Node) -> None:
    client = await durable(node, expiry=1)
    await client.subscribe((GROUP, 1))
    await client.disconnect()
    assert await groups(node) == {GROUP: 0}
    await until_groups(node, {})


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


async def test_silent_member_loses_what_it_has(make_node: MakeNode) -> None:
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


async def test_only_member_keeps_what_it_has(make_node: MakeNode) -> None:
    """Nobody else could have it: it is not sent twice over one connection (MQTT-4.4.0-1), and stays leased."""
    node = await make_node(mqtt__shared_ack_timeout=1, store__max_deliveries=1)
    only = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    message = await only.message()
    await until_round(node, 12)
    only.send(ack(PUBACK, message.packet_id))
    await only.quiet()
    await until_groups(node, {GROUP: 0})


async def test_member_that_goes_on_acknowledging_keeps_the_rest(make_node: MakeNode) -> None:
    node = await make_node(mqtt__shared_ack_timeout=1)
    slow, other = await members(node, 2)
    await publish(node, b"t/x", *numbers(0, 24))
    kept = await held(slow, 12)
    await other.take(12)
    for number, message in enumerate(kept):
        slow.send(ack(PUBACK, message.packet_id))
        await until_round(node, number + 1)
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
    shares = node._sessions.shares
    shares._shares[GROUP].flush()
    async with asyncio.timeout(10):
        while len(shares._tasks) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    go_on.set()
    got = [m.payload for client in (guessing, other) for m in await client.take(5)]
    assert sorted(got) == numbers(0, 10)
    for client in (guessing, other):
        await client.settle()
    await until_groups(node, {GROUP: 0})
    session = node._sessions.held[b"m0"][0]
    assert (session.in_window, session.inflight) == (0, {})


@pytest.mark.parametrize("error", [StoreBusy("no room"), None])
async def test_hand_over_that_is_refused_is_tried_again_at_once(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, error: StoreBusy | None
) -> None:
    """Not when the lease has run out."""
    node = await make_node(mqtt__shared_ack_timeout=3600)
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


async def test_what_waits_is_handed_over_when_its_lease_would_be_renewed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not both: the store refuses what is about to be renewed."""
    node = await make_node(mqtt__shared_ack_timeout=3600, mqtt__max_shared_in_flight=4)
    full = (await members(node, 1, 5, 2))[0]
    await publish(node, b"t/x", *numbers(0, 4))
    kept = await held(full, 4)
    leaving = await RawClient.connect(node.ports.mqtt, b"leaving", 5)
    await leaving.subscribe((GROUP, 2))
    engine = node._engine
    assert engine is not None
    pop, popped, has_left = engine.pop, asyncio.Event(), asyncio.Event()

    async def late(*args: Any, **more: Any) -> Popped:
        found = await pop(*args, **more)
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
    shares = node._sessions.shares
    share = shares._shares[GROUP]
    async with asyncio.timeout(10):
        while not share._waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    shares.round += 2
    share.tick()
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


async def test_members_that_left_stand_in_no_line(node: Node) -> None:
    """Though nothing is published that would go along it."""
    staying = (await members(node, 1))[0]
    for number in range(3):
        other = await RawClient.connect(node.ports.mqtt, b"other", 5)
        await other.subscribe((GROUP, 1))
        if number:
            await other.disconnect()
        else:
            await other.unsubscribe(GROUP)
    share = node._sessions.shares._shares[GROUP]
    async with asyncio.timeout(10):
        while len(share.members) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [member.session.client_id for member in share._line] == [b"m0"]
    await publish(node, b"t/x", b"1")
    assert [m.payload for m in await staying.take(1)] == [b"1"]


async def test_unsubscribed_member_may_finish_what_it_has(node: Node) -> None:
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


async def test_unsubscribed_member_gives_back_at_once_whatever_else_it_did(make_node: MakeNode) -> None:
    """Not when it is found silent: the session keeps no place for memberships any more."""
    node = await make_node(mqtt__shared_ack_timeout=3600)
    leaving = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    assert (await leaving.message()).payload == b"1"
    other = await RawClient.connect(node.ports.mqtt, b"other", 5)
    await other.subscribe((GROUP, 1))
    assert await leaving.unsubscribe(GROUP) == b"\x00"
    await leaving.subscribe((b"plain", 0))
    assert not node._sessions.held[b"m0"][0].has_shares
    await leaving.drop()
    assert [m.payload for m in await other.take(1)] == [b"1"]
    await until_groups(node, {GROUP: 0})


async def test_absent_members_lose_nothing(make_node: MakeNode) -> None:
    """Over a restart of the node too: what was out comes at once, not when leases have run out."""
    node = await make_node(mqtt__shared_ack_timeout=3600)
    client = await durable(node)
    await client.subscribe((GROUP, 1))
    await publish(node, b"t/x", *numbers(0, 5))
    assert [m.payload for m in await held(client, 5)] == numbers(0, 5)
    await client.drop()
    await publish(node, b"t/x", *numbers(5, 10))
    await node.stop()
    node = await make_node(mqtt__shared_ack_timeout=3600)
    await publish(node, b"t/x", *numbers(10, 12))
    client = await durable(node)
    assert client.session_present
    assert sorted(m.payload for m in await client.take(12)) == numbers(0, 12)
    await until_groups(node, {GROUP: 0})


async def test_expired_messages_are_left_out_and_the_rest_counts_down(node: Node) -> None:
    client = await durable(node)
    await client.subscribe((GROUP, 1))
    await client.disconnect()
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await publisher.publish(b"t/x", b"gone", properties=b"\x02" + wire.u32(0))
    await publisher.publish(b"t/x", b"there", properties=b"\x02" + wire.u32(1000))
    await asyncio.sleep(1.01)
    client = await durable(node)
    message = (await client.take(1))[0]
    assert message.payload == b"there"
    assert 900 < dict(wire.properties(message.properties))[2] < 1000
    await client.quiet()
    await until_groups(node, {GROUP: 0})
    assert node.counters.dropped_expired == 1


async def test_too_large_for_one_goes_to_another_and_for_all_is_counted(node: Node) -> None:
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    await small.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"." * 200, b"fits")
    assert [m.payload for m in await small.take(1)] == [b"fits"]
    await until_groups(node, {GROUP: 0})
    assert node.counters.dropped_oversized == 1
    large = (await members(node, 1))[0]
    await publish(node, b"t/x", *[b"." * 200] * 4)
    assert [len(m.payload) for m in await large.take(4)] == [200] * 4
    await small.quiet()
    assert node.counters.dropped_oversized == 1


async def test_too_large_for_all_but_a_silent_one_waits_for_it(make_node: MakeNode) -> None:
    """It works for longer than the timeout, and then goes on. When it is gone nobody takes them."""
    node = await make_node(mqtt__shared_ack_timeout=1)
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    slow = await RawClient.connect(node.ports.mqtt, b"slow", 5, receive_maximum=1)
    for client in (small, slow):
        await client.subscribe((GROUP, 1))
    large = [payload + bytes(200) for payload in numbers(0, 5)]
    await publish(node, b"t/x", *large)
    message = await slow.message()
    await until_round(node, node._sessions.shares.round + 8)
    assert node.counters.shared_returned == 1
    slow.send(ack(PUBACK, message.packet_id))
    assert sorted(m.payload for m in await slow.take(5)) == large
    await until_groups(node, {GROUP: 0})
    assert node.counters.dropped_oversized == 0
    await publish(node, b"t/x", *large)
    await slow.message()
    await small.quiet()
    await slow.drop()
    await until_groups(node, {GROUP: 0})
    assert node.counters.dropped_oversized == 5


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
    popped = await engine.pop(GROUP, [dead_letter_queue(GROUP)], 10, 1 << 20, 1000, Start.EARLIEST)
    assert [run.count for run in popped.runs] == [1]
    assert b"poison" in popped.runs[0].data


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("version", "reason"), [(4, 0x80), (5, 0x97)])
async def test_too_many_groups_are_refused(make_node: MakeNode, version: int, reason: int, clean: bool) -> None:
    node = await make_node(mqtt__max_shared_groups=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    assert await client.subscribe((b"$share/a/t", 1), (b"$share/b/t", 1)) == b"\x01\x01"
    assert await client.subscribe((b"$share/c/t", 1), (b"$share/a/t", 1), (b"t", 1)) == bytes([reason, 1, 1])
    await client.unsubscribe(b"$share/a/t")
    assert await client.subscribe((b"$share/c/t", 1)) == b"\x01"


@pytest.mark.parametrize(("version", "reason"), [(4, 0x80), (5, 0x8F)])
@pytest.mark.parametrize(
    "name", [b"$replay/earliest/t", b"$replay", b"$share/h/t", b"$delayed/1/t", b"$SYS/#", b"$topics/+"]
)
async def test_names_to_which_nobody_publishes_are_not_shared(
    node: Node, version: int, reason: int, name: bytes
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    assert await client.subscribe((b"$share/g/" + name, 1), (b"$share/g/$other/t", 1)) == bytes([reason, 1])
    assert list(node._sessions.held[b"c"][0].shares) == [b"$share/g/$other/t"]


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


async def test_stale_acknowledgement_of_a_removed_group_does_nothing(node: Node) -> None:
    client = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1")
    message = await client.message()
    assert await client.unsubscribe(GROUP) == b"\x00"
    client.send(ack(PUBACK, message.packet_id))
    await client.quiet()
    await until_groups(node, {})
    engine = node._engine
    assert engine is not None
    queue = filter_queue(b"t/#")
    assert await engine.settle(GROUP, [Receipts(queue, 0, 1, 1)]) == [Receipts(queue, 0, 1, 1)]
    assert await groups(node) == {}


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

    async def late(*args: Any, **more: Any) -> Popped:
        found = await pop(*args, **more)
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
