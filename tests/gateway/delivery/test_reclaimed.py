"""Readers whose backlog retention took go on at what is left, and what they missed is counted."""

import asyncio

import pytest

from cloud_sdk import Client, OffsetOutOfRange
from gateway.node.node import Node
from record import decode, split
from store.api import partition_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBREL, RawClient, ack
from tests.waiting import patience

SETTINGS = {
    "store__segment_size": 68 << 10,
    "store__retention_bytes": 100 << 10,
    "store__partitions": 1,
    "mqtt__max_packet_size": 1024,
}
COUNT = 800


async def publish(node: Node, count: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"publisher")
    for i in range(count):
        client.send(wire.publish(4, b"home/t", b"%05d" % i + bytes(400), 1, i + 1))
    for _ in range(count):
        await client.expect(PUBACK)
    await client.disconnect()


async def reclaim(node: Node) -> tuple[int, int]:
    """The bounds that are left of the partition."""
    assert node._engine is not None
    await node._engine._retention.enforce()
    bounds = await node._engine.bounds(partition_queue(b"home", 0))
    assert 0 < bounds.begin < bounds.end
    return bounds.begin, bounds.end


@pytest.mark.parametrize("topic_filter", [b"home/+", b"home/t"])
async def test_a_durable_session_continues_at_begin(make_node: MakeNode, topic_filter: bytes) -> None:
    node = await make_node(**SETTINGS)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    await client.subscribe((topic_filter, 1))
    await client.drop()
    await publish(node, COUNT)
    begin, end = await reclaim(node)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    messages = await client.take(end - begin)
    assert [int(m.payload[:5]) for m in messages] == list(range(begin, COUNT))
    assert node.counters.dropped_reclaimed == begin
    await client.quiet()
    await client.disconnect()


@pytest.mark.mqtt5("4.3.3-5")
async def test_of_qos_2_what_is_gone_before_its_pubrec_ends_with_pubrel(make_node: MakeNode) -> None:
    """The client has it, and would take another one with its packet id for the same."""
    node = await make_node(**SETTINGS)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    await client.subscribe((b"home/t", 2))
    publisher = await RawClient.connect(node.ports.mqtt, b"first")
    await publisher.publish(b"home/t", b"first", 2)
    message = await client.message()
    await client.drop()
    await publish(node, COUNT)
    begin, end = await reclaim(node)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    released, came = 0, 0
    while came < end - begin or not released:
        packet = await client.packet()
        if packet.kind == PUBREL:
            assert packet.packet_id == message.packet_id
            client.send(ack(PUBCOMP, packet.packet_id))
            released += 1
        else:
            came += 1
            client.send(ack(PUBACK, client.parse(packet).packet_id))
    await client.quiet()
    assert released == 1
    assert node._engine is not None
    async with patience():
        while (state := await node._engine.session(b"d")) is None or state.outbound:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_group_and_a_reader_of_ranges_continue_at_begin(make_node: MakeNode) -> None:
    node = await make_node(**SETTINGS)
    await publish(node, 1)
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        async with client.consumer("g", "home") as consumer:
            delivery = await consumer.next(10)
            assert delivery is not None
            await delivery.ack()
            await consumer.flush()
        await publish(node, COUNT)
        begin, end = await reclaim(node)
        async with client.consumer("g", "home") as consumer:
            for offset in range(begin, end):
                delivery = await consumer.next(10)
                assert delivery is not None
                assert int(delivery.payload[:5]) == offset - 1
                await delivery.ack()
        with pytest.raises(OffsetOutOfRange) as caught:
            await client.pull("home", 0, begin - 1)
        assert (caught.value.begin, caught.value.end) == (begin, end)
        page = await client.pull("home", 0, begin)
        assert int(decode(page.frames, split(page.frames)[0])[6][:5]) == begin - 1
