"""Packets that wait for a slow disk, and packets that do not."""

import asyncio
from pathlib import Path
from threading import Event

import pytest

from gateway.listen import mqtt_front
from gateway.node.node import Node
from store.log.disk import Disk
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack
from tests.gateway.session.test_durable import durable, publish
from tests.gateway.several import Several
from tests.store.remote.middle import Middle
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("interpreted_flushes")


def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Nothing is durable until it is set."""
    write, go_on = Disk.write_durable, Event()

    def slow(disk: Disk, fd: int, data: bytes, offset: int) -> None:
        go_on.wait(10)
        write(disk, fd, data, offset)

    monkeypatch.setattr(Disk, "write_durable", slow)
    return go_on


@pytest.mark.mqtt5("3.12.4-1", "4.3.3-3", "4.3.3-4")
async def test_pubrel_waits_for_the_disk_and_pingresp_does_not(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a client that has its PINGRESP may be sent PUBREL yet, up to its DISCONNECT."""
    client = await durable(node)
    await client.subscribe((b"t", 2))
    await publish(node, b"t", b"1", qos=2)
    message = await client.message()
    go_on = slow_disk(monkeypatch)
    client.send(ack(PUBREC, message.packet_id))
    client.send(wire.packet(0xC0, b""))
    await client.expect(PINGRESP)
    settling = asyncio.create_task(client.settle())
    for _ in range(100):
        await asyncio.sleep(0)
    assert client.unreleased == {message.packet_id}
    go_on.set()
    await settling
    assert not client.unreleased
    await client.disconnect()


async def test_nothing_is_sent_after_a_disconnect(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PUBREL that waited for the disk does not come any more: it is sent when the client is back."""
    client = await durable(node)
    await client.subscribe((b"t", 2))
    await publish(node, b"t", b"1", qos=2)
    message = await client.message()
    go_on = slow_disk(monkeypatch)
    client.send(ack(PUBREC, message.packet_id), b"\xe0\x00")
    await client.closed()
    go_on.set()
    again = await durable(node)
    assert (await again.expect(PUBREL)).packet_id == message.packet_id
    await again.disconnect()


@pytest.mark.parametrize("limit", [1 << 25, 0])  # bytes that wait in the store before further ones wait in the gateway
async def test_messages_that_would_wait_too_long_are_refused(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(mqtt_front, "_MAX_UNCOMMITTED", limit)
    node = await make_node(store__max_wait_ms=50)
    waiting = await RawClient.connect(node.ports.mqtt, b"waiting", 5)
    client = await RawClient.connect(node.ports.mqtt, b"refused", 5)
    old = await RawClient.connect(node.ports.mqtt, b"old", 4)
    go_on = slow_disk(monkeypatch)
    log = node._engine._log
    waiting.send(wire.publish(5, b"t", b"accepted", 1, 1))
    await until(lambda: log.pending_bytes > 0 and (limit == 0 or log._waits.room == 0))
    client.send(wire.publish(5, b"t", b"refused", 1, 7))
    refused = await client.expect(PUBACK)
    assert (refused.packet_id, refused.reason) == (7, 0x97)
    client.send(wire.publish(5, b"t", b"refused", 2, 8))
    refused = await client.expect(PUBREC)
    assert (refused.packet_id, refused.reason) == (8, 0x97)
    client.send(wire.publish(5, b"t", b"dropped", 0, 0))
    old.send(wire.publish(4, b"t", b"refused", 1, 7))
    await old.closed()  # 3.1.1 has no acknowledgement that refuses
    go_on.set()
    assert (await waiting.expect(PUBACK)).reason == 0
    client.send(wire.publish(5, b"t", b"accepted", 1, 7), wire.publish(5, b"t", b"accepted", 2, 8))
    assert (await client.expect(PUBACK)).reason == 0
    assert (await client.expect(PUBREC)).reason == 0
    client.send(ack(PUBREL, 8))
    assert (await client.expect(PUBCOMP)).packet_id == 8
    assert node.counters.messages_refused >= 3


async def test_messages_wait_for_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most clients of version 5 drop a message that is refused, so it waits, also beyond the bytes that may wait."""
    monkeypatch.setattr(mqtt_front, "_MAX_UNCOMMITTED", 0)
    several = await Several(tmp_path / "data", far=True, store__max_wait_ms=100).open()
    middle = Middle(several.address.removeprefix("unix:"))
    several.address = await middle.start()
    await several.join("a")
    clients = [await RawClient.connect(several.ports["a"], b"client %d" % number, 5) for number in range(3)]
    middle.hold()
    middle.cut()
    await until(lambda: not several.remote["a"].is_connected)
    for client in clients:
        client.send(wire.publish(5, b"t", b"waits", 1, 1))
        await asyncio.sleep(0.2)
    middle.let()
    for client in clients:
        assert (await client.expect(PUBACK)).reason == 0
    await several.close()
    await middle.stop()
