"""Spark's source against a node in a process of its own, and against local Parquet, in one run."""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from benchmarks.stream.history import HISTORY_WORKS, export
from benchmarks.stream.lag import measured as measured_lag
from benchmarks.stream.works import DEVICES, PARENT, WORKS, Site, Work
from cloud_sdk import Client, OutgoingMessage
from streaming.session import spark_session, stop

_BATCH: Final = 4_096
_PAYLOAD: Final = 256
_LAG_P95: Final = 4.0  # seconds, wanted
_TRIGGERS: Final = (128 << 20, 512 << 20)  # maxBytesPerTrigger, for the memory of a task


@dataclass(slots=True)
class Row:
    """The median of the rounds."""

    name: str
    per_second: float
    target: str
    is_met: bool | None  # None: it is there to be compared with


async def fill(endpoint: str, rows: int) -> None:
    """Readings as JSON, padded to 256 bytes."""
    now = time.time()

    def message(number: int) -> OutgoingMessage:
        device = f"device-{number % DEVICES}"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + number / 1_000))
        text = f'{{"device": "{device}", "time": "{stamp}", "value": {number % 977 / 10}, "unit": "°C", "note": "'
        return OutgoingMessage(f"{PARENT}/{device}", text.encode().ljust(_PAYLOAD - 2, b"x") + b'"}')

    async with Client(endpoint, name="filler") as client:
        left = iter(range(0, rows, _BATCH))

        async def sender() -> None:
            for first in left:
                await client.send_many([message(number) for number in range(first, min(first + _BATCH, rows))])

        await asyncio.gather(*(sender() for _ in range(4)))


def chosen(works: Sequence[Work], part: str) -> list[Work]:
    """Those whose names contain `part`, and those that they are compared with."""
    names = {name for work in works if part in work.name for name in (work.name, work.of)}
    return [work for work in works if work.name in names]


def measured(site: Site, works: list[Work], node: Broker, rounds: int) -> list[Row]:
    """Run all works in turn, `rounds` times."""
    rates: dict[str, list[float]] = {work.name: [] for work in works}
    for number in range(rounds):
        for work in works:
            began, cpu = time.perf_counter(), node.cpu_seconds()
            work.body(site)
            took = time.perf_counter() - began
            rates[work.name].append(site.rows / took)
            per_record = (node.cpu_seconds() - cpu) / site.rows * 1e6
            text = f"round {number + 1} of {rounds}: {work.name}: {site.rows / took:,.0f} rows/s"
            print(f"{text}, {per_record:.2f} µs of the node", file=sys.stderr)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return [_row(work, medians) for work in works]


def _row(work: Work, medians: dict[str, float]) -> Row:
    rate = medians[work.name]
    if work.per_second is not None:
        return Row(work.name, rate, f"≥ {work.per_second:,.0f}", rate >= work.per_second)
    if work.of is not None and work.of in medians:
        ratio = rate / medians[work.of]
        return Row(work.name, rate, f"≥ {work.ratio:g} × {work.of}: {ratio:.2f}", ratio >= work.ratio)
    return Row(work.name, rate, "", None)


def table(rows: list[Row]) -> str:
    lines = ["| work | rows per second | target | |", "| --- | ---: | --- | --- |"]
    marks = {True: "✓", False: "✗", None: ""}
    lines += [f"| {row.name} | {row.per_second:,.0f} | {row.target} | {marks[row.is_met]} |" for row in rows]
    return "\n".join(lines)


def memory(endpoint: str) -> str:
    """Measure the memory of a task by the bytes of a micro-batch, over a much larger backlog."""
    lines = ["", "| maxBytesPerTrigger | memory of a task | its records | records of all | |"]
    lines.append("| ---: | ---: | ---: | ---: | --- |")
    for size in _TRIGGERS:
        command = [sys.executable, "-m", "benchmarks.stream.memory", endpoint, PARENT, str(size)]
        grown, largest, rows = map(int, subprocess.run(command, check=True, capture_output=True).stdout.split())
        mark = "✓" if grown <= size else "✗"
        lines.append(f"| {size >> 20} MiB | {grown / (1 << 20):.1f} MiB | {largest:,} | {rows:,} | {mark} |")
    return "\n".join(lines)


def bench(node: Broker, endpoint: str, mqtt_port: int, folder: Path, arguments: argparse.Namespace) -> list[Row]:
    works = chosen((*WORKS, *HISTORY_WORKS), arguments.work)
    asyncio.run(fill(endpoint, arguments.records))
    spark = spark_session("sluice-bench", config={"spark.local.dir": str(folder), "spark.driver.memory": "2g"})
    try:
        site = Site(spark, endpoint, folder / "parquet", folder / "history", arguments.records)
        if any("Parquet" in work.name for work in works):
            site.log().write.parquet(str(site.parquet))
        if any("history" in work.name for work in works):
            export(endpoint, site.history)
        rows = measured(site, works, node, arguments.rounds)
        print(table(rows))
        print(memory(endpoint))
        if arguments.lag_seconds:
            first, second, count = measured_lag(spark, endpoint, mqtt_port, arguments.rate, arguments.lag_seconds)
            is_whole = count >= arguments.rate * arguments.lag_seconds
            mark = "✓" if is_whole and max(first, second) <= _LAG_P95 else "✗"
            print(
                f"\nMQTT publish to sink at {arguments.rate:,}/s for {arguments.lag_seconds} s, {count:,} records: "
                f"p95 {first:.2f} s in the first half, {second:.2f} s in the second (≤ {_LAG_P95:g} s) {mark}"
            )
    finally:
        stop(spark)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-stream ARGS=…", description=__doc__)
    parser.add_argument("--work", default="", help="only works whose names contain this")
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=5_000, help="MQTT messages a second, for the lag")
    parser.add_argument("--lag-seconds", type=int, default=600, help="how long the lag is watched; 0: not at all")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    mqtt, websocket, grpc, http = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        folder = Path(name)
        ports = {"--mqtt-port": mqtt, "--ws-port": websocket, "--grpc-port": grpc, "--http-port": http}
        command = [sys.executable, "-m", "sluice", "serve", "--data-dir", str(folder / "data")]
        command += [text for flag, port in ports.items() for text in (flag, str(port))]
        try:
            node = run("sluice", Launch(command, "", dict(os.environ)), grpc, folder)
        except BrokerUnavailable as error:
            print(error, file=sys.stderr)
            return 1
        try:
            rows = bench(node, f"127.0.0.1:{grpc}", mqtt, folder, arguments)
        finally:
            node.stop()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
