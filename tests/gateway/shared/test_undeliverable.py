"""Messages of shared subscriptions that expired, are too large for members, or are gone from the log."""

import asyncio

import pytest

import record
from gateway.node.node import Node
from gateway.session.message_encoding import Message
from store.api import PopRequest, Start, dead_letter_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.gateway.session.test_durable import durable, numbers, publish
from tests.gateway.sharing import GROUP, MAXIMUM, members, until_groups
from tests.waiting import patience


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


async def small_member(node: Node, name: bytes = b"small") -> RawClient:
    """A member that accepts packets of up to 100 bytes."""
    client = await RawClient.connect(node.ports.mqtt, name, 5, properties=MAXIMUM + wire.u32(100))
    await client.subscribe((GROUP, 1))
    return client


async def dead_letters(node: Node, count: int) -> list[bytes]:
    """The payloads of the group's dead letters, once there are so many."""
    engine, queue = node._engine, dead_letter_queue(GROUP)
    assert engine is not None
    async with patience():
        while (await engine.bounds(queue)).end < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    popped = await engine.pop(PopRequest(GROUP, [queue], 100, 1 << 20, 1000, Start.EARLIEST))
    return [Message(run.data, start).payload for run in popped.runs for start in record.split(run.data)]


@pytest.mark.mqtt5("3.1.2-24")
async def test_a_message_too_large_for_one_member_goes_to_another_and_for_all_becomes_a_dead_letter(node: Node) -> None:
    small = await small_member(node)
    await publish(node, b"t/x", b"." * 200, b"fits")
    assert [m.payload for m in await small.take(1)] == [b"fits"]
    assert await dead_letters(node, 1) == [b"." * 200]
    assert node.counters.dropped_oversized == 1
    large = (await members(node, 1))[0]
    await publish(node, b"t/x", *[b"." * 200] * 4)
    assert [len(m.payload) for m in await large.take(4)] == [200] * 4
    await small.quiet()
    assert node.counters.dropped_oversized == 1


@pytest.mark.mqtt5("3.1.2-24")
async def test_a_message_too_large_for_ready_members_does_not_wait_for_a_busy_one(node: Node) -> None:
    """It is a dead letter at once, and the others go on."""
    busy = await RawClient.connect(node.ports.mqtt, b"busy", 5, receive_maximum=1)
    await busy.subscribe((GROUP, 1))
    await publish(node, b"t/x", b"kept")
    kept = await busy.message()
    small = await small_member(node)
    await publish(node, b"t/x", *[b"." * 200] * 3, b"fits")
    assert (await small.message()).payload == b"fits"
    assert await dead_letters(node, 3) == [b"." * 200] * 3
    busy.send(ack(PUBACK, kept.packet_id))
    await busy.quiet()
    assert node.counters.dropped_oversized == 3


async def test_a_message_too_large_for_all_waits_while_no_member_has_room(node: Node) -> None:
    """A member that is full now may accept it later."""
    busy = await RawClient.connect(node.ports.mqtt, b"busy", 5, receive_maximum=1)
    await busy.subscribe((GROUP, 1))
    await publish(node, b"t/x", *[payload + bytes(200) for payload in numbers(0, 5)])
    assert len(await busy.take(5)) == 5
    await until_groups(node, {GROUP: 0})
    assert node.counters.dropped_oversized == 0


async def test_only_the_next_members_are_offered_a_large_message(node: Node) -> None:
    """The cost of a message does not grow with the number of members. A member that was offered it has had its turn."""
    small = [await small_member(node, b"small%d" % number) for number in range(33)]
    large = (await members(node, 1))[0]
    await publish(node, b"t/x", b"1" * 200)
    assert await dead_letters(node, 1) == [b"1" * 200]
    await publish(node, b"t/x", b"2" * 200)
    assert [m.payload for m in await large.take(1)] == [b"2" * 200]
    await small[0].quiet()


async def test_messages_that_retention_removed_are_counted(make_node: MakeNode) -> None:
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
    await node._engine._retention.enforce()
    client = await durable(node)
    left = 0
    async with patience():
        while node.counters.dropped_reclaimed + left < 800:
            left += len(await client.take(1))
    assert 0 < left < 800
    await client.quiet()
    await until_groups(node, {GROUP: 0})


async def test_a_member_that_subscribes_again_is_measured_again(node: Node) -> None:
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
