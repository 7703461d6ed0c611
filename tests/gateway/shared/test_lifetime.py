"""A shared subscription begins with its first member and ends with its last; which there may be."""

import asyncio
import gc

import pytest

from gateway.node.node import Node
from gateway.shared.group import SharedGroup
from store import control
from store.api import Appended, Done, Receipts, filter_queue
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, PUBACK, SUBACK, RawClient, ack, connect
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP, gather, groups, held, members, until_groups
from tests.waiting import until


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
    await until_groups(node, {GROUP: 0})  # it begins behind SUBACK
    engine = node._engine
    assert engine is not None
    append, busy, left = engine.append, True, control.ShareLeft().frame(GROUP)
    refused: list[bytes] = []

    def full(frames: list[bytes], done: Done) -> None:
        if busy and frames == [left]:
            refused.extend(frames)
            asyncio.get_running_loop().call_soon(done, Appended(error=StoreBusy("no room")))
        else:
            append(frames, done)

    monkeypatch.setattr(engine, "append", full)
    await last.drop()
    await until(lambda: len(refused) >= 2)
    assert await groups(node) == {GROUP: 0}
    if comes_back:
        last = (await members(node, 1))[0]
    busy = False
    if not comes_back:
        await until_groups(node, {})
        return
    node._sessions.shared_subscriptions._record_left(GROUP)  # as it is called in a moment
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


async def test_offline_members_lose_nothing(make_node: MakeNode) -> None:
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


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("version", "reason"), [(4, 0x80), (5, 0x97)])
async def test_too_many_groups_are_refused(make_node: MakeNode, version: int, reason: int, clean: bool) -> None:
    node = await make_node(mqtt__max_shared_groups=2)
    client = await RawClient.connect(node.ports.mqtt, b"c", version, clean, expiry=0 if clean else 100)
    assert await client.subscribe((b"$share/a/t", 1), (b"$share/b/t", 1)) == b"\x01\x01"
    assert await client.subscribe((b"$share/c/t", 1), (b"$share/a/t", 1), (b"t", 1)) == bytes([reason, 1, 1])
    await client.unsubscribe(b"$share/a/t")
    assert await client.subscribe((b"$share/c/t", 1)) == b"\x01"


@pytest.mark.parametrize(("version", "reason"), [(4, 3), (5, 0x97)])
async def test_sessions_that_come_back_are_held_to_the_limit_too(
    make_node: MakeNode, version: int, reason: int
) -> None:
    """Groups in the log are kept and served when there is room."""
    node = await make_node(mqtt__max_shared_groups=2)

    async def comes(name: bytes) -> RawClient:
        return await RawClient.connect(node.ports.mqtt, name, version, clean=False, expiry=100)

    one = await comes(b"one")
    assert await one.subscribe((b"$share/a/t", 1), (b"$share/b/t", 1)) == b"\x01\x01"
    await one.disconnect()
    two = await comes(b"two")
    assert await two.subscribe((b"$share/b/t", 1), (b"$share/c/t", 1)) == b"\x01\x01"
    for _ in range(2):
        refused = await RawClient.open(node.ports.mqtt, version)
        refused.send(connect(version, b"one", clean=False, expiry=100 if version == 5 else None))
        assert (await refused.expect(CONNACK)).reason == reason
    await two.unsubscribe(b"$share/c/t")
    one = await comes(b"one")
    assert one.session_present
    assert sorted(node._sessions.shared_subscriptions._groups) == [b"$share/a/t", b"$share/b/t"]


@pytest.mark.parametrize(("version", "reason"), [(4, 0x80), (5, 0x8F)])
@pytest.mark.parametrize(
    "name", [b"$replay/earliest/t", b"$replay", b"$share/h/t", b"$delayed/1/t", b"$SYS/#", b"$topics/+"]
)
async def test_names_to_which_nobody_publishes_are_not_shared(
    node: Node, version: int, reason: int, name: bytes
) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    assert await client.subscribe((b"$share/g/" + name, 1), (b"$share/g/$other/t", 1)) == bytes([reason, 1])
    assert list(node._sessions.open_sessions[b"c"][0].shares) == [b"$share/g/$other/t"]


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


@pytest.mark.parametrize("clean", [True, False])
async def test_the_groups_of_one_packet_are_counted(make_node: MakeNode, clean: bool) -> None:
    """And those of packets that come at the same time."""
    node = await make_node(mqtt__max_shared_groups=3)
    options = {"clean": clean, "expiry": 0 if clean else 100}
    clients = [await RawClient.connect(node.ports.mqtt, b"c%d" % i, 5, **options) for i in range(2)]
    names = [b"$share/g%d/t" % i for i in range(6)]
    wanted = [(name, 1) for name in (names[0], *names[:5])]
    assert await clients[0].subscribe(*wanted) == b"\x01\x01\x01\x01\x97\x97"
    for name in names[:3]:
        await clients[0].unsubscribe(name)
    for client in clients:
        client.send(*[wire.subscribe(5, 10 + i, (name, 1)) for i, name in enumerate(names)])
    granted = [(await client.expect(SUBACK)).body[-1] for client in clients for _ in names]
    assert [granted.count(code) for code in (1, 0x97)] == [6, 6]
    assert sorted(node._sessions.shared_subscriptions._groups) == names[:3]
    assert node._sessions.shared_subscriptions._granted == {}


async def test_ended_groups_leave_no_garbage_cycles(node: Node) -> None:
    """A node that has served for long collects cycles seldom."""
    gc.collect()
    before = groups_alive()  # of nodes that earlier tests still hold
    gc.disable()
    try:
        for number in range(3):
            client = await RawClient.connect(node.ports.mqtt, b"c")
            await client.subscribe((b"$share/g%d/t" % number, 1))
            await publish(node, b"t", b"1")
            assert [m.payload for m in await client.take(1)] == [b"1"]
            await client.settle()
            await client.disconnect()
        await until(lambda: all(any(each is old for old in before) for each in groups_alive()))
    finally:
        gc.enable()


def groups_alive() -> list[SharedGroup]:
    return [each for each in gc.get_objects() if isinstance(each, SharedGroup)]
