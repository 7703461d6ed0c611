"""`kill -9` at random moments under load, again and again: nothing acknowledged is lost, nothing is out of order."""

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

import cloud_sdk
from tests.waiting import until

PUBLISHERS = 8
WINDOW = 50


def connect_packet(client_id: bytes) -> bytes:
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack("!H", len(client_id)) + client_id
    return b"\x10" + bytes([len(body)]) + body


def publish_packet(topic: bytes, packet_id: int, payload: bytes) -> bytes:
    body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", packet_id) + payload
    assert len(body) < 128
    return b"\x32" + bytes([len(body)]) + body


@dataclass
class Publisher:
    """A QoS 1 publisher that numbers its messages and sends again, in order, what was not acknowledged."""

    name: str
    port: int
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    unacknowledged: list[int] = field(default_factory=list)

    @property
    def topic(self) -> bytes:
        return f"load/{self.name}".encode()

    async def run(self, stop: asyncio.Event) -> None:
        while not (stop.is_set() and not self.unacknowledged):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            try:
                await self._session(reader, writer, stop)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stop: asyncio.Event) -> None:
        writer.write(connect_packet(self.name.encode()))
        assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
        for number in self.unacknowledged:
            writer.write(publish_packet(self.topic, number % 65_535 + 1, str(number).encode()))
        while True:
            while len(self.unacknowledged) < WINDOW and not stop.is_set():
                number = self.sent
                self.sent += 1
                self.unacknowledged.append(number)
                writer.write(publish_packet(self.topic, number % 65_535 + 1, str(number).encode()))
            if not self.unacknowledged:
                return
            ack = await reader.readexactly(4)
            assert ack[:2] == b"\x40\x02"
            number = self.unacknowledged.pop(0)
            # Acknowledgements come in the order of the messages (MQTT-4.6.0-2).
            assert struct.unpack("!H", ack[2:])[0] == number % 65_535 + 1
            self.acknowledged.add(number)


async def stored(endpoint: str) -> dict[str, list[int]]:
    """The numbers that the messages of the parent topic begin with, in the log's order, by topic."""
    found: dict[str, list[int]] = {}
    async with cloud_sdk.Client(endpoint) as client:
        for bounds in await client.partitions("load"):
            offset = bounds.begin
            while offset < bounds.end:
                batch = await client.pull("load", bounds.partition, offset, max_records=5000)
                for message in batch.messages():
                    found.setdefault(message.topic, []).append(int(message.payload.split(b" ")[0]))
                assert batch.next_offset > offset
                offset = batch.next_offset
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.nightly)])
async def test_nothing_acknowledged_is_lost_over_kills(make_node: Callable[..., object], kills: int) -> None:
    node = make_node()
    node.start()
    chance = random.Random(kills)
    publishers = [Publisher(f"p{i}", node.mqtt_port) for i in range(PUBLISHERS)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for publisher in publishers:
            group.create_task(publisher.run(stop))
        for _ in range(kills):
            before = sum(len(p.acknowledged) for p in publishers)
            await until(lambda: sum(len(p.acknowledged) for p in publishers) >= before + 200)
            await asyncio.sleep(chance.uniform(0, 0.3))  # the moment of the kill is the point of the test
            node.kill()
            await asyncio.to_thread(node.start)
        stop.set()
    found = await stored(node.endpoint)
    for publisher in publishers:
        numbers = found[publisher.topic.decode()]
        assert publisher.acknowledged <= set(numbers), f"{publisher.name}: acknowledged messages are missing"
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == sorted(first_seen), f"{publisher.name}: out of order"
        assert set(numbers) <= set(range(publisher.sent)), f"{publisher.name}: a message nobody sent"
