"""Benchmarks of cloud services: the SDK in this process, and a node in another one, over the loopback interface.

Rates are measured by the client. CPU time is per message, of all threads of the node and of the client. Payloads have
256 bytes.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from benchmarks.cloud import rocketmq
from cloud_sdk import Client, OutgoingMessage

PAYLOAD: Final = bytes(256)
TOPICS: Final = 1_000
BATCH: Final = 2_048  # messages in one send_many
IN_FLIGHT: Final = 64  # single sends
MEMBERS: Final = 8  # of the group


@dataclass(slots=True, frozen=True)
class Work:
    """One measurement: its name, its number of messages and its targets."""

    name: str
    count: int
    per_second: float  # at least
    node_us: float | None  # CPU a message, at most
    body: Callable[[Client, int], Awaitable[int]]  # returns how many messages there were


@dataclass(slots=True)
class Row:
    """The medians over the rounds of one work."""

    name: str
    per_second: float
    node_us: float
    client_us: float
    target: str
    is_met: bool


async def produced(client: Client, count: int) -> int:
    """Send batches, four at a time. Each is awaited until it is on disk."""
    batches = [[OutgoingMessage(f"load/{n % TOPICS}", PAYLOAD) for n in range(BATCH)]] * (count // BATCH)
    left = iter(batches)

    async def sender() -> None:
        for batch in left:
            await client.send_many(batch)

    await asyncio.gather(*(sender() for _ in range(4)))
    return len(batches) * BATCH


async def sent_singly(client: Client, count: int) -> int:
    """Send single messages from 64 tasks. Each task awaits its message before it sends the next one."""

    async def sender(number: int) -> None:
        for _ in range(count // IN_FLIGHT):
            await client.send(f"load/{number}", PAYLOAD)

    await asyncio.gather(*(sender(number) for number in range(IN_FLIGHT)))
    return count // IN_FLIGHT * IN_FLIGHT


async def consumed(client: Client, count: int, leased: int) -> int:
    """Consume in a new group. Its members lease `leased` messages at once and acknowledge them together."""
    group = f"bench-{time.time_ns()}"
    got = 0

    async def member() -> None:
        nonlocal got
        async with client.consumer(group, "load", max_records=leased) as consumer:
            while got < count:
                deliveries = await consumer.batch(0.5)
                got += len(deliveries)
                await consumer.ack(deliveries)

    await asyncio.gather(*(member() for _ in range(MEMBERS)))
    return got


async def pulled(client: Client, count: int) -> int:
    """Pull every partition from its beginning, batch by batch, and look at each payload."""
    got = 0

    async def reader(partition: int, offset: int, end: int) -> None:
        nonlocal got
        while offset < end and got < count:
            batch = await client.pull("load", partition, offset)
            got += sum(1 for message in batch if message.payload)
            offset = batch.next_offset

    bounds = await client.partitions("load")
    await asyncio.gather(*(reader(each.partition, each.begin, each.end) for each in bounds))
    return got


def works_of(endpoint: str, folder: Path) -> list[Work]:
    """The works for the node at the endpoint. Targets of the last two are what RocketMQ's client can do on this
    machine."""
    sync, many = (rocketmq.sender(endpoint, folder, PAYLOAD, is_async=is_async) for is_async in (False, True))
    return [
        Work("producer, batched and durable", 200 * BATCH, 150_000, 5.0, produced),
        Work("single awaited sends, 64 in flight", 64 * 500, 10_000, None, sent_singly),
        Work("group, acknowledged in batches of 32", 50_000, 80_000, None, partial(consumed, leased=32)),
        Work("group, acknowledged in batches of 256", 150_000, 80_000, None, partial(consumed, leased=256)),
        Work("pull by offset", 300_000, 300_000, None, pulled),
        Work("RocketMQ's Python client, send", 1_000, 640, None, sync),
        Work("RocketMQ's Python client, send_async, 64 in flight", 3_000, 1_540, None, many),
    ]


async def measured(works: list[Work], node: Broker, endpoint: str, rounds: int, scale: float) -> list[Row]:
    """Run all works in turn, `rounds` times. Producers come first, so that readers find messages."""
    samples: dict[str, list[tuple[float, float, float]]] = {work.name: [] for work in works}
    async with Client(endpoint) as client:
        await produced(client, max(int(300_000 * scale), BATCH))
        for number in range(rounds):
            for work in works:
                print(f"round {number + 1} of {rounds}: {work.name}", file=sys.stderr)
                began, theirs, own = time.perf_counter(), node.cpu_seconds(), time.process_time()
                count = await work.body(client, int(work.count * scale))
                took = time.perf_counter() - began
                node_us = (node.cpu_seconds() - theirs) / count * 1e6
                client_us = (time.process_time() - own) / count * 1e6
                samples[work.name].append((count / took, node_us, client_us))
    return [_row(work, samples[work.name]) for work in works]


def _row(work: Work, samples: list[tuple[float, float, float]]) -> Row:
    rate, node_us, client_us = (statistics.median(column) for column in zip(*samples, strict=True))
    target = f"≥ {work.per_second:,.0f}/s"
    is_met = rate >= work.per_second
    if work.node_us is not None:
        target += f", ≤ {work.node_us:g} µs"
        is_met = is_met and node_us <= work.node_us
    return Row(work.name, rate, node_us, client_us, target, is_met)


def table(rows: list[Row]) -> str:
    lines = [
        "| work | per second | CPU µs of the node | of the client | target | |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.per_second:,.0f} | {row.node_us:.1f} | {row.client_us:.1f} | {row.target} |"
            f" {'✓' if row.is_met else '✗'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-cloud ARGS=…", description=__doc__)
    parser.add_argument("--work", default="", help="only works whose names contain this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of messages")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    mqtt, websocket, grpc, http = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        works = [work for work in works_of(f"127.0.0.1:{grpc}", folder) if arguments.work in work.name]
        command = [
            *(sys.executable, "-m", "sluice", "serve", "--data-dir", str(folder / "data")),
            *(
                "--mqtt-port",
                str(mqtt),
                "--ws-port",
                str(websocket),
                "--grpc-port",
                str(grpc),
                "--http-port",
                str(http),
            ),
        ]
        try:
            node = run("sluice", Launch(command, ""), grpc, folder)
        except BrokerUnavailable as error:
            print(error, file=sys.stderr)
            return 1
        try:
            rows = asyncio.run(measured(works, node, f"127.0.0.1:{grpc}", arguments.rounds, arguments.scale))
        finally:
            node.stop()
    print(table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
