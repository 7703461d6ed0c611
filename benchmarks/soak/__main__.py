"""`make soak`: a node under churn for an hour, sampled; fails if its memory grows.

Memory at the end, after the load, may be 15 % over that at ten minutes. In a shorter soak it is compared with that at a
sixth of the time. The node's bounds are small, so that it reaches them before.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from benchmarks.soak.churn import Churn
from benchmarks.soak.picture import Sample, drawn
from sluice.kernel import release

BEGIN_S: Final = 600.0  # from when on memory may hardly grow
MAX_GROWTH: Final = 0.15
SAMPLE_S: Final = 5.0
SETTLE_S: Final = 15.0  # from the end of the load to the last samples
WINDOW: Final = 6  # samples whose median is compared
SETTINGS: Final = """
[store]
segment_size = 16_777_216
retention_bytes = 134_217_728
tail_cache_bytes = 16_777_216
view_cache_bytes = 16_777_216
max_queue_ends = 131_072
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak ARGS=…", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="in the first ten minutes caches fill")
    parser.add_argument("--messages", type=int, default=0, help="end after as many messages (default: no limit)")
    parser.add_argument("--rate", type=float, default=2000.0, help="messages a second; 0: as many as possible")
    parser.add_argument("--settings", type=Path, help="a TOML file in place of the soak's settings of the node")
    parser.add_argument("--picture", type=Path, default=Path("build/soak.svg"))
    arguments = parser.parse_args()
    settings = SETTINGS if arguments.settings is None else arguments.settings.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="sluice-soak-") as name:
        mqtt, grpc = free_port(), free_port()
        try:
            node = _start(Path(name), mqtt, grpc, settings)
        except BrokerUnavailable as error:
            print(error, file=sys.stderr)
            return 1
        churn = Churn(mqtt, grpc, arguments.rate)
        try:
            samples = asyncio.run(_soak(node, Path(name), churn, arguments.seconds, arguments.messages))
        finally:
            node.stop()
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(drawn(samples), encoding="utf-8")
    print(f"{churn.messages:,} messages, {churn.sessions:,} sessions, {churn.groups:,} groups: {arguments.picture}")
    before, after = compared(samples)
    print(f"memory {before / 1e6:.1f} MB, in the end {after / 1e6:.1f} MB: {after / before - 1:+.1%}")
    return int(after > before * (1 + MAX_GROWTH))


def compared(samples: Sequence[Sample]) -> tuple[float, float]:
    """Bytes of memory at `BEGIN_S`, or at a sixth of a shorter soak, and in the end."""
    begin = min(BEGIN_S, samples[-1].seconds / 6)
    early = [each for each in samples if each.seconds >= begin][:WINDOW]
    return statistics.median(each.memory for each in early), statistics.median(
        each.memory for each in samples[-WINDOW:]
    )


def _start(folder: Path, mqtt: int, grpc: int, settings: str) -> Broker:
    config = folder / "sluice.toml"
    head = f'data_dir = "{folder / "data"}"\nlog_level = "warning"\n'
    ports = f"[mqtt]\nport = {mqtt}\nws_port = -1\n[grpc]\nport = {grpc}\n[http]\nport = 0\n"
    config.write_text(head + ports + settings, encoding="utf-8")
    return run(
        "sluice", Launch([sys.executable, "-m", "sluice", "serve", "--config", str(config)], release()), mqtt, folder
    )


async def _soak(node: Broker, folder: Path, churn: Churn, seconds: float, messages: int) -> list[Sample]:
    began = time.monotonic()
    samples: list[Sample] = []
    load = asyncio.create_task(churn.run(seconds, messages))
    while not load.done():
        await asyncio.wait([load], timeout=SAMPLE_S)
        samples.append(_sample(node, folder, churn, time.monotonic() - began))
    await load
    await asyncio.sleep(SETTLE_S)
    for _ in range(WINDOW):
        await asyncio.sleep(SAMPLE_S)
        samples.append(_sample(node, folder, churn, time.monotonic() - began))
    return samples


def _sample(node: Broker, folder: Path, churn: Churn, seconds: float) -> Sample:
    latencies = sorted(churn.latencies)
    churn.latencies.clear()
    disk = 0
    for each in (folder / "data").rglob("*"):
        with suppress(FileNotFoundError):  # retention or a compaction has removed it meanwhile
            disk += each.stat().st_blocks * 512
    p50, p99 = (latencies[int(len(latencies) * part)] if latencies else None for part in (0.5, 0.99))
    sample = Sample(seconds, node.memory(), disk, p50, p99)
    print(
        f"{seconds:.0f} s: {churn.messages:,} messages, {sample.memory / 1e6:.1f} MB, disk {disk / 1e6:.0f} MB",
        file=sys.stderr,
    )
    return sample


if __name__ == "__main__":
    sys.exit(main())
