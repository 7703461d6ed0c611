"""Clients that send without end and read nothing: they are read less, the node stays small, and others are served."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack
from tests.system.conftest import NodeProcess

CLIENTS = 8
BYTES = 1 << 20  # that each sends, unless it is not read any more
GROWTH = 160 << 20  # bytes that the node may grow by


def ids() -> Iterator[int]:
    return itertools.cycle(range(1, 0x10000))


FLOODS: dict[str, Callable[[int], bytes]] = {
    "subscribe": lambda number: wire.subscribe(5, number, (b"a/filter/of/some/length/%d" % (number % 1000), 1)),
    "subscribe to thousands": lambda number: wire.subscribe(5, number, *[(b"%d" % each, 1) for each in range(8000)]),
    "unsubscribe": lambda number: wire.unsubscribe(5, number, b"f%d" % (number % 1000)),
    "pubrel": lambda number: ack(PUBREL, number),
    "pubrec": lambda number: ack(PUBREC, number),
    "puback": lambda number: ack(PUBACK, number),
    "ping": lambda number: b"\xc0\x00" * 2000,
    "publish where nobody may": lambda number: wire.publish(5, b"$SYS/x", b"", 1, number),
    "publish": lambda number: wire.publish(5, b"flood/%d" % (number % 100), b"x", 0),
    "publish thousands of user properties": lambda number: wire.publish(
        5, b"flood/t", b"", 1, number, properties=b"\x26\0\0\0\0" * 10_000
    ),
    "publish the longest topics": lambda number: wire.publish(5, (b"%d/" % number).ljust(65_535, b"x"), b"", 0),
    "subscribe to the deepest": lambda number: wire.subscribe(
        5, number, *[(b"/".join([b"+a"[(number >> i) & 1 :][:1] for i in range(each)]), 0) for each in range(28, 128)]
    ),
    "begin a large packet": lambda number: wire.publish(5, b"t", bytes(1_000_000), 1, number)[:-1],
    "publish what all get": lambda number: wire.publish(5, b"to/all", b"x" * 1000, 0),
}


def peak(node: NodeProcess) -> int:
    """The most memory that the node ever had, in bytes."""
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


async def flood(port: int, number: int, one: Callable[[int], bytes]) -> None:
    """Send until it is all sent, the node does not read for a while, or it closes the connection."""
    client = await RawClient.connect(port, b"flood-%d" % number, 5, False, expiry=600)
    await client.subscribe((b"to/all", 0))
    client.writer.transport.pause_reading()
    data = b""
    for packet_id in ids():
        data += one(packet_id)
        if len(data) > 1 << 16:
            break
    try:
        for _ in range(BYTES // len(data)):
            client.writer.write(data)
            async with asyncio.timeout(2):
                await client.writer.drain()
    except (TimeoutError, ConnectionError):
        pass
    finally:
        client.writer.transport.abort()


async def serve(port: int, until: "asyncio.Event") -> int:
    """A client that does nothing wrong; how often it was served."""
    client = await RawClient.connect(port, b"bystander", 5, False, expiry=600)
    await client.subscribe((b"mine", 1))
    served = 0
    while not until.is_set() or not served:
        client.send(wire.publish(5, b"mine", b"x", 1, 1))
        kinds = [(await client.packet()) for _ in range(2)]
        for packet in kinds:
            if packet.kind != PUBACK:
                client.send(ack(PUBACK, client.parse(packet).packet_id))
        served += 1
    await client.disconnect()
    return served


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_is_held_back_and_others_are_served(node: NodeProcess, kind: str) -> None:
    before = peak(node)
    over = asyncio.Event()
    bystander = asyncio.create_task(serve(node.mqtt_port, over))
    await asyncio.gather(*[flood(node.mqtt_port, number, FLOODS[kind]) for number in range(CLIENTS)])
    over.set()
    assert await bystander > 0
    assert peak(node) < before + GROWTH
    assert node.stop() == 0


async def test_all_packet_ids_in_qos_2_exchanges_at_once(node: NodeProcess) -> None:
    """A 3.1.1 client may open 65,535 of them: each message is taken once, however often it is sent."""
    before = peak(node)
    count = 0xFFFF
    client = await RawClient.connect(node.mqtt_port, b"c", 4, False)
    watcher = await RawClient.connect(node.mqtt_port, b"w")
    await watcher.subscribe((b"last", 0))
    for again in (False, True):
        for first in range(1, count + 1, 1000):
            numbers = range(first, min(first + 1000, count + 1))
            client.send(*[wire.publish(4, b"t", b"%d" % n, 2, n, dup=again) for n in numbers])
            for n in numbers:
                assert (await client.expect(PUBREC)).packet_id == n
        if not again:
            await client.drop()
            client = await RawClient.connect(node.mqtt_port, b"c", 4, False)
            assert client.session_present
    for first in range(1, count + 1, 1000):
        numbers = range(first, min(first + 1000, count + 1))
        client.send(*[ack(PUBREL, n) for n in numbers])
        for n in numbers:
            assert (await client.expect(PUBCOMP)).packet_id == n
    # Once each: the next message of the topic is the one behind them.
    await client.publish(b"last", b"x", 1)
    await watcher.take(1)
    assert peak(node) < before + GROWTH
    reader = await RawClient.connect(node.mqtt_port, b"r")
    await reader.publish(b"last", b"y", 0)
    await reader.quiet()
