"""Sessions that end with their connection: they write nothing, and read on from the log when they fall behind."""

import asyncio
import socket

import pytest

from gateway.node.node import Node
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.waiting import until

SIZE = 20_000  # bytes of a message that is to fill a socket


async def flood(node: Node, topic: bytes, qos: int, first: int, last: int, size: int = 0) -> None:
    """Publish numbered messages, 50 in flight."""
    client = await RawClient.connect(node.ports.mqtt, b"")
    for start in range(first, last, 50):
        part = range(start, min(start + 50, last))
        client.send(*[wire.publish(4, topic, b"%06d" % i + b"." * size, 1 if qos else 0, i % 50 + 1) for i in part])
        for _ in part if qos else ():
            await client.expect(PUBACK)
    if not qos:  # nobody acknowledges those: what is committed behind them does
        await client.publish(b"$flood/end", b"")
    await client.disconnect()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_clean_session_leaves_no_record(node: Node, version: int) -> None:
    engine = node._engine
    assert engine is not None
    before = engine.stats().records
    client = await RawClient.connect(node.ports.mqtt, b"c", version)
    await client.subscribe((b"t/+", 2), (b"u", 1))
    client.send(wire.unsubscribe(version, 2, b"u"))
    await client.expect(11)
    await client.disconnect()
    broken = await RawClient.connect(node.ports.mqtt, b"c", version)
    await broken.drop()
    await RawClient.connect(node.ports.mqtt, b"c", version)
    assert engine.stats().records == before


async def test_a_full_window_catches_up_from_the_log_while_publishing_continues(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=7)
    await client.subscribe((b"t/#", 1), (b"t/+", 0))
    other = await RawClient.connect(node.ports.mqtt, b"other")
    await other.subscribe((b"noise", 0))
    publishing = asyncio.create_task(flood(node, b"t/x", 1, 0, 1500))
    first = [await client.message() for _ in range(7)]
    await flood(node, b"noise", 0, 0, 50)
    client.send(*[ack(PUBACK, m.packet_id) for m in first])
    messages = first + await client.take(600)
    await publishing
    messages += await client.take(1500 - 607)
    assert [m.payload for m in messages] == [b"%06d" % i for i in range(1500)]
    assert not any(m.dup for m in messages)
    await client.quiet()
    await flood(node, b"t/x", 0, 1500, 1502)
    assert [m.payload for m in await client.take(2)] == [b"001500", b"001501"]


async def test_qos_0_and_1_keep_their_order_behind_a_full_window(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=1)
    await client.subscribe((b"t", 1))
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for i in range(30):
        await publisher.publish(b"t", b"%d" % i, i % 2, i + 1)
    assert [m.payload for m in await client.take(30)] == [b"%d" % i for i in range(30)]


async def test_a_new_subscription_of_a_client_that_is_behind_brings_nothing_older(node: Node) -> None:
    """Section 3.8.4: a subscription is for messages from then on."""
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, receive_maximum=1)
    await client.subscribe((b"t", 1))
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    for topic, payload in ((b"t", b"1"), (b"t", b"2"), (b"u", b"old"), (b"t", b"3")):
        await publisher.publish(topic, payload)
    first = await client.message()
    await client.subscribe((b"u", 1))
    await publisher.publish(b"u", b"new")
    client.send(ack(PUBACK, first.packet_id))
    assert [m.payload for m in await client.take(3)] == [b"2", b"3", b"new"]
    await client.quiet()


async def test_a_full_socket_drops_qos_0_and_counts_it(node: Node) -> None:
    """Design section 5.4."""
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"t", 1))
    client.writer.transport.pause_reading()
    total = 0
    while not node.counters.dropped_qos0:
        await flood(node, b"t", 0, total, total + 200, SIZE)
        total += 200
        assert total < 20_000
    client.writer.transport.resume_reading()
    received = total - node.counters.dropped_qos0
    numbers = [int(m.payload[:6]) for m in await client.take(received)]
    assert numbers == sorted(numbers)
    await client.quiet()


async def test_a_full_socket_loses_no_qos_1(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"t", 1))
    client.writer.transport.pause_reading()
    session = node._sessions.open_sessions[b"c"][0]
    total = 0
    while session.behind is None:
        await flood(node, b"t", 1, total, total + 200, SIZE)
        total += 200
    await flood(node, b"t", 1, total, total + 100, SIZE)
    client.writer.transport.resume_reading()
    messages = await client.take(total + 100)
    assert [int(m.payload[:6]) for m in messages] == list(range(total + 100))
    assert session.behind is None


async def test_a_client_that_never_reads_is_not_read_from_without_end(node: Node) -> None:
    """Design section 8: what a peer can grow has a limit, here the answers it does not take."""
    client = await RawClient.connect(node.ports.mqtt, b"c")
    client.writer.transport.pause_reading()
    connection = node._sessions.open_sessions[b"c"][1]
    pings = b"\xc0\x00" * 100_000
    sent = 0
    while not connection.reading_paused:
        client.send(pings)
        sent += 100_000
        await asyncio.sleep(0)
        assert sent < 50_000_000, "the node goes on reading"
    client.writer.transport.resume_reading()
    for _ in range(sent):
        assert await client.reader.readexactly(2) == b"\xd0\x00"
    await client.quiet()


async def test_a_closed_connection_that_takes_nothing_is_gone_soon(node: Node) -> None:
    """It must not hold a connection's place until TCP gives up."""
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"t", 0))
    client.writer.transport.pause_reading()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while not node._sessions.open_sessions[b"c"][1].congested:
        await flood(node, b"t", 0, 0, 200, SIZE)
    old = node._sessions.open_sessions[b"c"][1]
    new = await RawClient.connect(node.ports.mqtt, b"c")
    assert old in node._front.connections
    await until(lambda: old not in node._front.connections)
    await new.quiet()
