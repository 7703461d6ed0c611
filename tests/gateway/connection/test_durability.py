"""An acknowledgement means on disk: while the write of a batch is under way, nothing about it leaves the node."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from cloud_sdk import Client
from store.log.disk import Disk
from tests.gateway.conftest import MakeNode
from tests.gateway.raw import PUBACK, PUBREC, RawClient, publish
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("interpreted_flushes")


class Gate:
    """Lets the log's durable writes pass only while it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = 0


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    inner = Disk.write_durable

    def write_durable(disk: Disk, fd: int, data: bytes, offset: int) -> None:
        gate.waiting += not gate.open.is_set()
        assert gate.open.wait(30)
        inner(disk, fd, data, offset)

    monkeypatch.setattr(Disk, "write_durable", write_durable)
    yield gate
    gate.open.set()


async def test_nothing_leaves_the_node_before_the_write_has_returned(gate: Gate, make_node: MakeNode) -> None:
    node = await make_node()
    subscriber = await RawClient.connect(node.ports.mqtt, b"s")
    await subscriber.subscribe((b"t/#", 0))
    publisher = await RawClient.connect(node.ports.mqtt, b"p")
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        await client.send("t/0", b"opens the stream")
        await subscriber.message()
        gate.open.clear()
        publisher.send(publish(4, b"t/1", b"x", 1, 1), publish(4, b"t/2", b"x", 2, 2))
        sent = asyncio.create_task(client.send("t/3", b"x"))
        await until(lambda: gate.waiting)
        for _ in range(20):
            await publisher.quiet()
            await subscriber.quiet()
        assert not sent.done()
        gate.open.set()
        assert (await publisher.expect(PUBACK)).packet_id == 1
        assert (await publisher.expect(PUBREC)).packet_id == 2
        assert len(await subscriber.take(3)) == 3
        await sent
