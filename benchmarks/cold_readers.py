"""How long a device waits for PUBACK beside services that read old messages: `python -m benchmarks.cold_readers`.

A node holds a topic of old messages. One device publishes with QoS 1 and one message in flight: by turns alone, beside
readers of another node with the same messages, and beside readers of its own. Each reader is a process with the SDK,
which pulls one partition from its beginning to its end, again and again, as fast as it can. The log is dropped from the
page cache all the time, unless `--warm` is given. With `--tier`, the old messages are in the tier only, a folder on the
same disk, and the nodes keep none of them in memory. With `--groups`, each reader is the only member of a group that
drains the topic in batches of 256, and goes on with a new group when it has come to the end. With `--spark`, each
reader is a program of Spark with one core, which counts the bytes of all payloads, again and again.

Readers of another node share the processors and the disk with the device, and nothing of the program. What the device
waits longer beside those of its own is the node's part, which the goal is about.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from benchmarks.comparison.figures import Sample
from benchmarks.comparison.rounds import LOADER, LoadFailed, measure
from benchmarks.comparison.works import Work
from cloud_sdk import Client, OutgoingMessage

_TOPIC: Final = "old"
_PAYLOAD: Final = bytes(256)
_SENT_AT_ONCE: Final = 2_000
_BATCH: Final = 256  # messages that a group leases at once
_TOPICS: Final = 100  # of the old messages, so that all partitions have some
_EVICT_S: Final = 0.1  # between two looks at what the page cache has of the log
_DEVICE: Final = Work("ingest QoS 1, 1 device, 1 in flight", "ingest", 1, 1, 1, 10_000)
_SEGMENT: Final = 32 << 20  # bytes, with `--tier`
_FILES: Final = 2  # of the log, if all else is in the tier
_GOAL: Final = 2.0  # p99 beside readers of the own node, as a multiple of that beside readers of another


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_readers", description=str(__doc__).splitlines()[0])
    parser.add_argument("--readers", type=int, default=4, help="services that read (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="of the three measurements (default: 5)")
    parser.add_argument("--messages", type=int, default=2_000_000, help="old ones (default: 2,000,000)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of the device's messages")
    parser.add_argument("--warm", action="store_true", help="leave the log in the page cache")
    parser.add_argument("--tier", action="store_true", help="keep the old messages in the tier only")
    parser.add_argument("--groups", action="store_true", help="readers drain the topic as groups")
    parser.add_argument("--spark", action="store_true", help="readers are programs of Spark")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk to measure on (default: build)")
    parser.add_argument("--read", nargs=2, metavar=("ENDPOINT", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        endpoint, number = arguments.read
        if arguments.spark:
            scan(endpoint)
        else:
            asyncio.run(drain(endpoint) if arguments.groups else read(endpoint, int(number)))
        return 0
    if not LOADER.exists():
        print("the load generator is not built: make bench builds it", file=sys.stderr)
        return 1
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cold-", dir=arguments.folder)).absolute()
    try:
        with running(folder / "own", arguments.tier) as own, running(folder / "other", arguments.tier) as other:
            for node in (own, other):
                asyncio.run(fill(node.endpoint, arguments.messages))
                while arguments.tier and len([*node.log.glob("*.log")]) > _FILES:
                    time.sleep(1)
            rows = list(rounds(own, other, arguments))
    except (BrokerUnavailable, LoadFailed) as error:
        print(f"cold_readers: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(rows))
    return 0


@dataclass(slots=True)
class Node:
    """A node that holds old messages."""

    broker: Broker
    endpoint: str
    log: Path


@dataclass(slots=True)
class Round:
    """What the device and the readers of its node saw."""

    alone: Sample
    beside_others: Sample  # beside readers of another node
    beside: Sample  # beside readers of its own node
    read_per_second: float  # by the latter, in messages


@contextmanager
def running(folder: Path, is_tiered: bool) -> Iterator[Node]:
    """Run a node with its data in `folder`. Raises `BrokerUnavailable`."""
    folder.mkdir()
    environment = dict(os.environ)
    if is_tiered:
        environment |= {
            "SLUICE_TIER_STORE": f"file://{folder}/tier",
            "SLUICE_TIER_RETENTION_LOCAL_BYTES": "0",
            "SLUICE_TIER_CACHE_BYTES": str(8 << 20),
            "SLUICE_STORE_SEGMENT_SIZE": str(_SEGMENT),
            "SLUICE_STORE_TAIL_CACHE_BYTES": str(1 << 20),
        }
    port, grpc = free_port(), free_port()
    command = [sys.executable, "-m", "sluice", "serve", "--data-dir", str(folder / "data"), "--grpc-port", str(grpc)]
    command += ["--mqtt-port", str(port), "--ws-port", str(free_port()), "--http-port", str(free_port())]
    broker = run("sluice", Launch(command, "", environment), port, folder)
    try:
        yield Node(broker, f"127.0.0.1:{grpc}", folder / "data" / "log")
    finally:
        broker.stop()


async def fill(endpoint: str, count: int) -> None:
    """Store the old messages."""
    async with Client(endpoint) as client:
        for first in range(0, count, _SENT_AT_ONCE):
            numbers = range(first, min(first + _SENT_AT_ONCE, count))
            await client.send_many([OutgoingMessage(f"{_TOPIC}/{number % _TOPICS}", _PAYLOAD) for number in numbers])


def rounds(own: Node, other: Node, arguments: argparse.Namespace) -> Iterator[Round]:
    """Measure the device of one node in each round. Raises `LoadFailed`."""
    flags = [flag for flag, is_set in (("--groups", arguments.groups), ("--spark", arguments.spark)) if is_set]

    def beside_readers(of: Node) -> tuple[Sample, float]:
        with (
            reading(of.endpoint, arguments.readers, flags) as readers,
            evicting(None if arguments.warm else of.log),
        ):
            before, began = read_so_far(readers), time.monotonic()
            sample = measure(_DEVICE, own.broker, arguments.scale)
            return sample, (read_so_far(readers) - before) / (time.monotonic() - began)

    for _ in range(arguments.rounds):
        alone = measure(_DEVICE, own.broker, arguments.scale)
        beside_others, _ = beside_readers(other)
        yield Round(alone, beside_others, *beside_readers(own))


# --- the readers


async def read(endpoint: str, number: int) -> None:
    """Read a partition until the process is ended. Prints the number of messages after each batch."""
    count = 0
    async with Client(endpoint, retry_seconds=1) as client:
        bounds = await client.partitions(_TOPIC)
        partition, offset = bounds[number % len(bounds)].partition, 0
        while True:
            batch = await client.pull(_TOPIC, partition, offset)
            count += batch.count
            offset = batch.next_offset if batch.next_offset < batch.end else batch.begin
            print(count, flush=True)


async def drain(endpoint: str) -> None:
    """Consume everything in one new group after the other until the process is ended. Prints as `read` does."""
    count = groups = 0
    async with Client(endpoint, retry_seconds=1) as client:
        while True:
            groups += 1
            async with client.consumer(f"drain-{os.getpid()}-{groups}", _TOPIC, max_records=_BATCH) as consumer:
                while deliveries := await consumer.batch(1.0):
                    await consumer.ack(deliveries)
                    count += len(deliveries)
                    print(count, flush=True)


def scan(endpoint: str) -> None:
    """Read everything with Spark until the process is ended. Prints as `read` does, after each scan."""
    from streaming.session import spark_session  # noqa: PLC0415 - the other readers need no Spark

    spark = spark_session("cold readers", master="local[1]", shuffle_partitions=1)
    spark.read.format("sluice").option("endpoint", endpoint).option("parent", _TOPIC).load().createTempView("old")
    count = 0
    while True:
        (row,) = spark.sql("SELECT count(*), sum(length(payload)) FROM old").collect()
        count += int(row[0])
        print(count, flush=True)


class Reader:
    """A process that reads, and what it has read so far."""

    def __init__(self, endpoint: str, number: int, flags: Sequence[str]) -> None:
        self.count = 0  # messages
        self._has_begun = threading.Event()
        command = [sys.executable, "-m", "benchmarks.cold_readers", "--read", endpoint, str(number), *flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def wait_until_it_reads(self) -> None:
        self._has_begun.wait()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):
                    self.count = int(line)
                self._has_begun.set()
        self._has_begun.set()  # it has ended


def read_so_far(readers: list[Reader]) -> int:
    return sum(reader.count for reader in readers)


@contextmanager
def reading(endpoint: str, count: int, flags: Sequence[str] = ()) -> Iterator[list[Reader]]:
    """Have so many processes read. flags: of this command. Raises `LoadFailed` if one of them does not."""
    readers = [Reader(endpoint, number, flags) for number in range(count)]
    try:
        for reader in readers:
            reader.wait_until_it_reads()
        if not all(reader.count for reader in readers):
            raise LoadFailed("a reader has ended before it read anything")
        yield readers
    finally:
        for reader in readers:
            reader.stop()


@contextmanager
def evicting(log: Path | None) -> Iterator[None]:
    """Keep a log out of the page cache. None: nothing is done."""
    ended = threading.Event()

    def evict() -> None:
        while log is not None and not ended.wait(_EVICT_S):
            for segment in (*log.glob("*.log"), *log.parents[1].glob("tier/logs/*/segments/*")):
                with suppress(FileNotFoundError), segment.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def table(rounds: list[Round]) -> str:
    """The rounds and their median, as a Markdown table. Times are p50 and p99 in ms, ratios those of p99."""
    lines = [
        "| round | alone | beside readers of another node | of its own | ÷ alone | ÷ another node | read a second |"
    ]
    lines.append("| --- | --- | --- | --- | ---: | ---: | ---: |")
    to_alone: list[float] = []
    to_others: list[float] = []
    for number, each in enumerate(rounds, 1):
        to_alone.append((each.beside.p99_us or 0) / (each.alone.p99_us or 1))
        to_others.append((each.beside.p99_us or 0) / (each.beside_others.p99_us or 1))
        samples = " | ".join(times(sample) for sample in (each.alone, each.beside_others, each.beside))
        ratios = f"{to_alone[-1]:.1f} | {to_others[-1]:.1f}"
        lines.append(f"| {number} | {samples} | {ratios} | {each.read_per_second:,.0f} |")
    middle = median(to_others)
    mark = f"{'✓' if middle <= _GOAL else '✗'} (≤ {_GOAL:g})"
    lines.append(f"| median | | | | {median(to_alone):.1f} | {middle:.1f} {mark} | |")
    return "\n".join(lines)


def times(sample: Sample) -> str:
    lost = "" if sample.complete else " (not all answered)"
    return f"{(sample.p50_us or 0) / 1000:.1f}, {(sample.p99_us or 0) / 1000:.1f}{lost}"


if __name__ == "__main__":
    sys.exit(main())
