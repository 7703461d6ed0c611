"""A node that stood still for a while (a moved virtual machine, SIGSTOP) does not blame its clients."""

import asyncio
import random
import signal
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.device import EVER
from tests.gateway.raw import DISCONNECT, PUBACK, PUBLISH, RawClient, ack
from tests.system.test_kill import Publisher, stored
from tests.waiting import patience, until

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"


def connect_packet(client_id: bytes, keep_alive: int) -> bytes:
    body = b"\x00\x04MQTT\x04\x02" + struct.pack("!HH", keep_alive, len(client_id)) + client_id
    return b"\x10" + bytes([len(body)]) + body


@pytest.mark.slow
async def test_clients_that_pinged_while_the_node_was_stopped_stay_connected(make_node: Callable[..., Any]) -> None:
    node = make_node()
    node.start()
    clients = []
    for number in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.mqtt_port)
        writer.write(connect_packet(b"c%d" % number, 1))
        assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
        clients.append((reader, writer))
    node.process.send_signal(signal.SIGSTOP)
    try:
        for _, writer in clients:
            writer.write(PINGREQ)
        await asyncio.sleep(2.5)  # keep-alive is over one and a half seconds after the last packet read
    finally:
        node.process.send_signal(signal.SIGCONT)
    for reader, writer in clients:
        async with patience():
            assert await reader.readexactly(2) == PINGRESP
        writer.close()


class Subscriber:
    """A durable session that acknowledges what it gets, and counts its connections."""

    def __init__(self, port: int, client_id: bytes) -> None:
        self.port = port
        self.client_id = client_id
        self.seen: dict[bytes, list[int]] = {}
        self.client: RawClient | None = None

    async def connect(self, keep_alive: int = 0) -> None:
        self.client = await RawClient.connect(self.port, self.client_id, 5, False, expiry=EVER, keep_alive=keep_alive)

    async def take(self) -> None:
        assert self.client is not None
        packet = await self.client.packet()
        if packet.kind == PUBLISH:
            message = self.client.parse(packet)
            self.seen.setdefault(message.topic, []).append(int(message.payload))
            self.client.send(ack(PUBACK, message.packet_id))

    async def ping(self) -> None:
        """Send what keeps the connection, for ever."""
        assert self.client is not None
        while True:
            self.client.send(PINGREQ)
            await asyncio.sleep(0.3)

    async def read(self) -> None:
        while True:
            await self.take()


class Counted(Publisher):
    """A publisher that counts its connections."""

    connections = 0

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stop: asyncio.Event) -> None:
        self.connections += 1
        await super()._session(reader, writer, stop)


async def pause(node: Any, seconds: float) -> None:
    node.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)  # the length of the pause is the point of the test
    finally:
        node.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_pauses_under_load_lose_nothing_and_end_no_session(make_node: Callable[..., Any]) -> None:
    """Whoever goes on sending stays connected, however long the node stood still, and gets everything, in order."""
    node = make_node()
    node.start()
    chance = random.Random(7)
    subscriber = Subscriber(node.mqtt_port, b"subscriber")
    await subscriber.connect(keep_alive=1)
    assert subscriber.client is not None
    await subscriber.client.subscribe((b"load/#", 1))
    publishers = [Counted(f"p{number}", node.mqtt_port) for number in range(6)]
    stop = asyncio.Event()
    going = [asyncio.create_task(work) for work in (subscriber.ping(), subscriber.read())]
    async with asyncio.TaskGroup() as group:
        for publisher in publishers:
            group.create_task(publisher.run(stop))
        for seconds in (2.5, *(chance.uniform(0, 0.3) for _ in range(15))):
            before = sum(len(publisher.acknowledged) for publisher in publishers)
            await until(lambda: sum(len(publisher.acknowledged) for publisher in publishers) >= before + 100)
            await pause(node, seconds)
        stop.set()
    found = await stored(node.endpoint)
    for publisher in publishers:
        assert publisher.connections == 1
        assert publisher.acknowledged == set(range(publisher.sent))
        assert found[publisher.topic.decode()] == list(range(publisher.sent))
    await until(lambda: sum(map(len, subscriber.seen.values())) >= sum(publisher.sent for publisher in publishers))
    for task in going:
        assert not task.done()  # its connection is the first one
        task.cancel()
    for publisher in publishers:
        assert subscriber.seen[publisher.topic] == list(range(publisher.sent))


@pytest.mark.slow
async def test_a_client_that_was_silent_is_closed_and_its_session_kept(
    make_node: Callable[..., Any],
) -> None:
    """MQTT-3.1.2-22, also over a pause: what it has missed waits for it."""
    node = make_node()
    node.start()
    subscriber = Subscriber(node.mqtt_port, b"silent")
    await subscriber.connect(keep_alive=1)
    assert subscriber.client is not None
    await subscriber.client.subscribe((b"t", 1))
    publisher = await RawClient.connect(node.mqtt_port, b"p")
    await pause(node, 2.5)
    packet = await subscriber.client.packet()
    assert (packet.kind, packet.reason) == (DISCONNECT, 0x8D)
    await subscriber.client.closed()
    for number in range(5):
        await publisher.publish(b"t", b"%d" % number)
    await subscriber.connect()
    assert subscriber.client.session_present
    while len(subscriber.seen.get(b"t", ())) < 5:
        await subscriber.take()
    assert subscriber.seen == {b"t": [0, 1, 2, 3, 4]}
