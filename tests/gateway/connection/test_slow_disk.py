"""Packets that wait for a slow disk, and packets that do not."""

import asyncio
from threading import Event

import pytest

from gateway.node.node import Node
from store.log.disk import Disk
from tests.gateway.mqtt import wire
from tests.gateway.raw import PINGRESP, PUBREC, PUBREL, ack
from tests.gateway.session.test_durable import durable, publish


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
