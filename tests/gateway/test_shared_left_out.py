"""Messages of shared subscriptions that expired, are too large for members, or are gone from the log."""

import asyncio

from gateway.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.gateway.sharing import GROUP, MAXIMUM, members, until_groups, until_round
from tests.gateway.test_durable import durable, numbers, publish


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
    assert len(share._aside) == 64
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
