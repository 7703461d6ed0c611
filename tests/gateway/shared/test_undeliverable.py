"""Messages of shared subscriptions that expired, are too large for members, or are gone from the log."""

import asyncio

import pytest

from gateway.node.node import Node
from store.api import dead_letter_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP, MAXIMUM, members, until_groups, until_round


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


async def test_many_that_only_a_silent_one_takes_do_not_hold_up_the_rest(make_node: MakeNode) -> None:
    node = await make_node(mqtt__shared_ack_timeout=1)
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    slow = await RawClient.connect(node.ports.mqtt, b"slow", 5, receive_maximum=1)
    for client in (small, slow):
        await client.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"held")
    await publish(node, b"t/x", b"held")
    async with asyncio.timeout(10):
        first = await slow.message()
    await small.take(1)
    await until_round(node, node._sessions.shares.round + 6)
    await small.take(1)
    large = [payload + bytes(200) for payload in numbers(0, 600)]
    await publish(node, b"t/x", *large, *numbers(0, 5))
    assert sorted(m.payload for m in await small.take(5)) == numbers(0, 5)
    share = node._sessions.shares._shares[GROUP]
    assert len(share._aside.items) == 64
    slow.send(ack(PUBACK, first.packet_id))
    got = await slow.take(40)
    assert len({m.payload for m in got}) == 40
    assert node.counters.dropped_oversized == 0


async def test_what_retention_took_is_counted(make_node: MakeNode) -> None:
    node = await make_node(
        store__segment_size=68 << 10,
        store__retention_bytes=100 << 10,
        store__partitions=1,
        mqtt__max_packet_size=1024,
    )
    client = await durable(node)
    await client.subscribe((GROUP, 1))
    await client.disconnect()
    await publish(node, b"t/x", *[b"%03d" % number + bytes(400) for number in range(800)])
    assert node._engine is not None
    await node._engine.enforce_retention()
    client = await durable(node)
    left = 0
    async with asyncio.timeout(20):
        while node.counters.dropped_reclaimed + left < 800:
            left += len(await client.take(1))
    assert 0 < left < 800
    await client.quiet()
    await until_groups(node, {GROUP: 0})


async def test_what_only_a_busy_one_takes_is_not_tried_in_vain(make_node: MakeNode) -> None:
    """However long it takes it: it works, and nobody was ever given the others."""
    node = await make_node(mqtt__shared_ack_timeout=1, store__max_deliveries=1)
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    busy = await RawClient.connect(node.ports.mqtt, b"busy", 5, receive_maximum=1)
    for client in (small, busy):
        await client.subscribe((GROUP, 1))
    large = [payload + bytes(200) for payload in numbers(0, 100)]
    await publish(node, b"t/x", *large, b"small")
    first = await busy.message()
    await small.take(1)
    share = node._sessions.shares._shares[GROUP]
    assert len(share._aside.items) == 64
    busy.send(ack(PUBACK, first.packet_id))
    rest = await busy.take(99)
    assert sorted([first.payload, *[m.payload for m in rest]]) == sorted(large)
    await until_groups(node, {GROUP: 0})


async def test_what_only_silent_ones_take_is_given_up_in_the_end(make_node: MakeNode) -> None:
    """Else what is not finished would hold the group up one day (`store.max_group_window`)."""
    node = await make_node(mqtt__shared_ack_timeout=1, store__max_deliveries=1, store__retry_delays_s=[0])
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    silent = await RawClient.connect(node.ports.mqtt, b"silent", 5, receive_maximum=1)
    for client in (small, silent):
        await client.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"0" * 200, b"1" * 200)
    await silent.message()
    await until_groups(node, {GROUP: 0})
    assert node._engine is not None
    assert (await node._engine.bounds(dead_letter_queue(GROUP))).end == 2
    await publish(node, b"t/x", b"small")
    await small.take(1)


async def test_a_member_that_subscribes_again_is_measured_anew(node: Node) -> None:
    """An identifier makes a message larger, QoS 0 makes it smaller."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=MAXIMUM + wire.u32(40))
    fits = bytes(40 - 2 - 5 - 2 - 1)  # head, topic, packet id, properties
    await client.subscribe((GROUP, 1))
    await publish(node, b"t/x", fits)
    assert [m.payload for m in await client.take(1)] == [fits]
    await client.subscribe((GROUP, 1), properties=b"\x0b\x01")
    await publish(node, b"t/x", fits)
    await until_groups(node, {GROUP: 0})
    assert node.counters.dropped_oversized == 1
    await client.subscribe((GROUP, 0), properties=b"\x0b\x01")
    await publish(node, b"t/x", fits)
    assert (await client.message()).payload == fits


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_waits_here_and_is_leased_anew_comes_once(node: Node, qos: int) -> None:
    """Its lease had run out: the node was away for long."""
    small = await RawClient.connect(node.ports.mqtt, b"small", 5, properties=MAXIMUM + wire.u32(100))
    busy = await RawClient.connect(node.ports.mqtt, b"busy", 5, receive_maximum=1)
    for client in (small, busy):
        await client.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"1", b"2")
    kept = await busy.message()
    await small.take(1)
    await publish(node, b"t/x", bytes(200))
    await publish(node, b"t/x", b"3")
    await small.take(1)
    share = node._sessions.shares._shares[GROUP]
    assert [item.deliveries for item in share._aside.items] == [1]
    if qos == 0:
        await busy.subscribe((GROUP, 0))
    await until_groups(node, {GROUP: 2})  # the store has heard what is finished
    assert node._engine is not None
    await node._engine.release_leases(GROUP, share.queue)
    share.wake()
    await publish(node, b"t/x", b"4")
    assert {m.payload for m in await small.take(2)} == {kept.payload, b"4"}  # what was busy's, leased anew as well
    assert [item.deliveries for item in share._aside.items] == [2]
    busy.send(ack(PUBACK, kept.packet_id))
    (large,) = await busy.take(1)
    assert (large.payload, large.qos) == (bytes(200), qos)
    await busy.quiet()
    await until_groups(node, {GROUP: 0})
