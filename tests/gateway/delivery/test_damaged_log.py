"""A node whose log is damaged: who reads across the damage is told, and everybody else is served."""

import asyncio
import os
from pathlib import Path

import pytest

import record
from gateway.node.node import Node
from record.layout import Kind
from store.api import partition_queue
from store.errors import LogCorrupt
from store.log.segments import segment_name
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import copy_log
from tests.gateway.delivery.test_released_messages import append
from tests.gateway.http.test_front import get
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.waiting import patience

SETTINGS = {"store__segment_size": 68 << 10, "store__partitions": 1, "mqtt__max_packet_size": 1024}
REPLAY = wire.sized(wire.pair(b"replay", b"earliest"))


async def publish(node: Node, first: int, end: int) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"publisher")
    for number in range(first, end):
        client.send(wire.publish(4, b"home/t", b"%04d" % number + bytes(200), 1, number + 1))
    for _ in range(first, end):
        await client.expect(PUBACK)
    await client.disconnect()


def harm(path: Path, position: int, data: bytes, size: int = 68 << 10) -> None:
    fd = os.open(path / "log" / segment_name(position - position % size), os.O_RDWR)
    os.pwrite(fd, data, position % size)
    os.close(fd)


async def positions(node: Node) -> list[int]:
    """Of the messages published so far."""
    assert node._engine is not None
    refs = node._engine._views.references(partition_queue(b"home", 0), 0, 10_000)
    return [int.from_bytes(refs[at : at + 8], "little") for at in range(0, len(refs), 24)]


async def test_sessions_skip_damage_that_the_node_is_configured_to_serve_around(make_node: MakeNode) -> None:
    node = await make_node(**SETTINGS)
    durable = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    await durable.subscribe((b"home/+", 1))
    await durable.drop()
    await publish(node, 0, 100)
    where = await positions(node)
    assert node._engine is not None
    path = node._engine._folder.path
    await node.stop()
    for number in (10, 11, 40):
        harm(path, where[number] + 60, b"\xff")
    node = await make_node(**SETTINGS, store__serve_damaged="true")
    there = [number for number in range(100) if number not in (10, 11, 40)]
    durable = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF)
    assert [int(message.payload[:4]) for message in await durable.take(97)] == there
    assert node.counters.dropped_reclaimed == 3
    await durable.quiet()
    _, body = await get(node, "/metrics")
    values = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
    assert values["sluice_store_damaged_places"] == "2.0"
    assert float(values["sluice_store_damaged_bytes"]) == where[12] - where[10] + where[41] - where[40]
    assert values["sluice_store_damage_met"] == "0.0"
    assert '"damaged_places": 2' in (await get(node, "/health"))[1]


@pytest.mark.parametrize("told", [False, True])
async def test_a_session_that_reads_the_log_itself(make_node: MakeNode, told: bool) -> None:
    node = await make_node(**SETTINGS, store__serve_damaged="true")
    await publish(node, 0, 400)  # opening does not look into the first segment
    where = await positions(node)
    assert node._engine is not None
    path = node._engine._folder.path
    await node.stop()
    harm(path, where[40] + 60, b"\xff")
    node = await make_node(**SETTINGS, store__serve_damaged=str(told))
    client = await RawClient.connect(node.ports.mqtt, b"t", 5, receive_maximum=1)
    await client.subscribe((b"home/#", 1))
    session = node._sessions.open_sessions[b"t"][0]
    session.subscriptions[b"home/#"].route.start = 0
    await publish(node, 400, 401)
    first = await client.message()
    session.fall_behind(where[30])  # as if it had stood still since then
    client.send(ack(PUBACK, first.packet_id))
    expected = [number for number in range(30, 401) if number != 40] if told else list(range(30, 40))
    assert [int(message.payload[:4]) for message in await client.take(len(expected))] == expected
    assert node.counters.dropped_reclaimed == told
    assert node._engine is not None
    if not told:
        with pytest.raises(LogCorrupt):
            await node._engine.read(where[40], 100)
    assert node._engine.stats().damage_met == (not told)
    await publish(node, 401, 402)  # the node lives on


@pytest.mark.parametrize("expiry", [0, 0xFFFF_FFFF])
@pytest.mark.parametrize("harmed", [[10, 11, 40], [99], list(range(95, 100)), [0], list(range(100))])
async def test_a_replay_passes_over_damage_and_comes_to_the_present(
    make_node: MakeNode, expiry: int, harmed: list[int]
) -> None:
    node = await make_node(**SETTINGS)
    await publish(node, 0, 100)
    where = await positions(node)
    assert node._engine is not None
    path = node._engine._folder.path
    await publish(node, 100, 400)  # opening does not look into the first segment
    await node.stop()
    for number in harmed:
        harm(path, where[number] + 60, b"\xff")
    node = await make_node(**SETTINGS, store__serve_damaged="true")
    there = [number for number in range(400) if number not in harmed]
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=expiry, receive_maximum=7)
    client.send(wire.packet(0x82, wire.u16(1) + REPLAY + wire.text(b"home/+") + b"\1"))
    await client.packet()
    assert [int(message.payload[:4]) for message in await client.take(len(there))] == there
    await publish(node, 400, 402)
    assert [int(message.payload[:4]) for message in await client.take(2)] == [400, 401]
    await client.quiet()


async def test_an_unacknowledged_replayed_message_that_is_damaged_is_counted_and_frees_its_packet_id(
    make_node: MakeNode,
) -> None:
    node = await make_node(**SETTINGS)
    frames = [record.frame(Kind.MESSAGE, 2, 0, b"home/t", b"p", b"", b"%04d" % i + bytes(200)) for i in range(400)]
    for first in range(0, 400, 100):
        await append(node, *frames[first : first + 100])
    where = await positions(node)
    assert node._engine is not None
    path = node._engine._folder.path
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF, receive_maximum=5)
    client.send(wire.packet(0x82, wire.u16(1) + REPLAY + wire.text(b"home/+") + b"\2"))
    await client.packet()
    for _ in range(5):
        await client.message()
    copy_log(path, path.parent / "copy")
    for number in range(1, 4):
        harm(path.parent / "copy", where[number] + 60, b"\xff")
    node = await make_node("copy", **SETTINGS, store__serve_damaged="true")
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF, receive_maximum=5)
    there = [0, 4, 0, *range(4, 400)]  # exchanges that were open, then all behind the position recorded last
    assert [int(message.payload[:4]) for message in await client.take(len(there))] == there
    assert node.counters.dropped_reclaimed == 4  # three exchanges, and one place of the log
    session = node._sessions.open_sessions[b"d"][0]
    async with patience():
        while session.exchanges.inflight or session.subscriptions[b"home/+"].replay_cursor is not None:
            await client.settle()
            await asyncio.sleep(0.02)


async def test_damage_that_reaches_over_the_end_of_a_history(make_node: MakeNode) -> None:
    """The record that made the subscription is damaged, and its neighbours on both sides."""
    node = await make_node(**SETTINGS)
    await publish(node, 0, 100)
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF, receive_maximum=1)
    client.send(wire.packet(0x82, wire.u16(1) + REPLAY + wire.text(b"home/+") + b"\1"))
    await client.packet()
    await client.message()
    await publish(node, 100, 400)
    where = await positions(node)
    assert node._engine is not None
    path = node._engine._folder.path
    await client.drop()
    await node.stop()
    harm(path, where[90] + 60, bytes(where[110] - where[90] - 60))
    node = await make_node(**SETTINGS, store__serve_damaged="true")
    client = await RawClient.connect(node.ports.mqtt, b"d", 5, False, expiry=0xFFFF_FFFF, receive_maximum=7)
    there = [*range(90), *range(110, 400)]
    assert [int(message.payload[:4]) for message in await client.take(len(there))] == there
    await publish(node, 400, 402)
    assert [int(message.payload[:4]) for message in await client.take(2)] == [400, 401]
    await client.quiet()
