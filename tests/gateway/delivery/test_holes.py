"""Readers pass over records that are gone before their neighbours, and what they missed is counted."""

import asyncio

import pytest

from cloud_sdk import Client
from gateway.node.node import Node
from gateway.session.queue_cursor import MAX_SPREAD, QueueCursor
from record import tag_of
from store.api import partition_queue
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBLISH, RawClient, ack
from tests.store.moves import enter
from tests.waiting import until

SETTINGS = {
    "store__segment_size": 68 << 10,
    "store__retention_bytes": 100 << 10,
    "store__partitions": 1,
    "mqtt__max_packet_size": 1024,
}


async def publish(node: Node, topic: bytes, *payloads: bytes) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"publisher")
    for number, payload in enumerate(payloads):
        client.send(wire.publish(4, topic, payload, 1, number + 1))
    for _ in payloads:
        await client.expect(PUBACK)
    await client.disconnect()


async def with_holes(node: Node) -> list[int]:
    """The queues of `home/t` get ten messages, five of which are gone. Returns the offsets of the others."""
    engine = node._engine
    assert engine is not None
    await publish(node, b"old", b"gone")
    await publish(node, b"other", *[bytes(900)] * 300)
    for offset in range(10):
        if offset in (0, 1, 2, 5, 8):
            enter(engine, b"home/t", 0, 52)
        else:
            await publish(node, b"home/t", b"%d" % offset)
    await engine._retention.enforce()
    assert engine.stats().log_begin > 0
    return [3, 4, 6, 7, 9]


@pytest.mark.parametrize("topic_filter", [b"home/+", b"home/t"])
@pytest.mark.parametrize("window", [1, 100])
async def test_a_durable_session_passes_over_holes(make_node: MakeNode, topic_filter: bytes, window: int) -> None:
    node = await make_node(**SETTINGS)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    await client.subscribe((topic_filter, 1))
    await client.drop()
    there = await with_holes(node)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF, receive_maximum=window)
    first = await client.message()  # in flight while its neighbours are passed over
    client.send(ack(PUBACK, first.packet_id))
    messages = [first, *await client.take(len(there) - 1)]
    assert [int(message.payload) for message in messages] == there
    await client.quiet()
    assert node.counters.dropped_reclaimed == 5
    await client.disconnect()
    assert node._engine is not None
    while (state := await node._engine.session(b"d")) is None or not state.closed_at:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert state.subscriptions[0].offset == 10


async def test_messages_in_flight_in_front_of_a_hole_are_resent(make_node: MakeNode) -> None:
    node = await make_node(**SETTINGS)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    await client.subscribe((b"home/t", 1))
    await client.drop()
    there = await with_holes(node)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    messages = [client.parse(await client.expect(PUBLISH)) for _ in there]
    for message in messages[2:]:
        client.send(ack(PUBACK, message.packet_id))
    await client.quiet()
    await client.drop()
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    assert [int(message.payload) for message in await client.take(2)] == there[:2]
    await client.quiet()
    await client.disconnect()


def test_a_cursor_skips_only_what_it_has_not_sent() -> None:
    cursor = QueueCursor(b"f", b"tf", 5, 0)
    cursor.resend = {7: 1, 9: 2}
    assert cursor.skip(8) == [1]
    assert (cursor.floor, cursor.next, cursor.resend) == (8, 8, {9: 2})
    cursor.ack(8)
    cursor.next = 9
    cursor.next = 11  # 9 and 10 are on their way
    assert cursor.skip(14) == [2]
    assert (cursor.floor, cursor.next) == (9, 14)
    cursor.ack(9)
    assert cursor.floor == 10
    cursor.ack(10)
    assert (cursor.floor, cursor.acked) == (14, set())
    cursor.next = 15
    cursor.skip(1 << 40)
    assert (cursor.floor, cursor.next, cursor.must_wait) == (14, 14 + MAX_SPREAD, True)
    cursor.ack(14)
    assert cursor.floor == cursor.next
    cursor.skip(1 << 40)
    assert cursor.next == 1 << 40


async def test_a_pull_skips_holes_and_waits_behind_them(make_node: MakeNode) -> None:
    node = await make_node(**SETTINGS)
    there = await with_holes(node)
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        (bounds,) = await client.partitions("home")
        assert (bounds.begin, bounds.end) == (3, 10)
        found, offset = [], 3
        while offset < 10:
            page = await client.pull("home", 0, offset, max_records=100)
            assert page.offset >= offset
            found += [message.offset for message in page]
            assert [int(message.payload) for message in page] == [message.offset for message in page]
            offset = page.next_offset
        assert found == there
        engine = node._engine
        assert engine is not None
        enter(engine, b"home/t", 0, 52)
        waiting = asyncio.create_task(client.pull("home", 0, 10, wait_seconds=20))
        queue = partition_queue(b"home", 0)
        assert tag_of(b"home/t", b"") % engine.partitions.default == 0
        service = node._services.rpc._service
        assert service is not None
        await until(lambda: service._wakeups._waiting)
        await publish(node, b"home/t", b"11")
        page = await waiting
        assert (page.offset, page.count) == (11, 1)
        assert (await engine.fetch(queue, 10, 1, 1)).offset == 11
        page = await client.pull("home", 0, 12)
        assert (page.offset, page.count) == (12, 0)
