"""What a node carries on a machine of the size of a Raspberry Pi: `python -m benchmarks.small_machine`.

Simulated: the node has one core and a share of its time, and each flush of the log takes 10 ms more, as on an SD card
(`slow_disk`). The share is held with SIGSTOP and SIGCONT, a thousand times a second, so it needs no rights.
A slow core is not simulated in all respects: short bursts of work are as quick as on the fast one.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable, Launch, free_port, run
from benchmarks.comparison.idle import connected
from benchmarks.comparison.rounds import LOADER, LoadFailed, measure
from benchmarks.comparison.works import Work

_STEP: Final = 0.001  # seconds between two looks at the CPU time used
_BURST: Final = 0.002  # seconds of CPU time that a node may use at once after it was idle
_SETTLE: Final = 2.0  # seconds for idle connections to come to rest
_IDLE_SECONDS: Final = 5.0

WORKS: Final = (
    Work("ingest QoS 1, 20 devices, 1 in flight", "ingest", 1, 20, 1, 4_000),
    Work("ingest QoS 1, 200 devices, 1 in flight", "ingest", 1, 200, 1, 40_000),
    Work("ingest QoS 1, 20 devices, 20 in flight", "ingest", 1, 20, 20, 100_000),
    Work("ingest QoS 0, 20 devices", "ingest", 0, 20, 1, 600_000),
    Work("pipe 10 → 10 QoS 1, 100 a second", "pipe", 1, 10, 1, 500, rate=100),
    Work("pipe 10 → 10 QoS 1, 500 a second", "pipe", 1, 10, 1, 2_500, rate=500),
    Work("pipe 10 → 10 QoS 1, 1,000 a second", "pipe", 1, 10, 1, 5_000, rate=1_000),
    Work("pipe 10 → 10 QoS 1, 2,000 a second", "pipe", 1, 10, 1, 10_000, rate=2_000),
    Work("pipe 50 → 50 QoS 1, 1 in flight", "pipe", 1, 50, 1, 10_000),
    Work("fan-out 1 → 100 QoS 1, 1 in flight", "fanout", 1, 100, 1, 300),
    Work("connect, 20 at a time", "connect", 0, 1, 20, 4_000),
)


class Governor:
    """Holds a process to a share of one core's time: the process is stopped while it has used more."""

    def __init__(self, broker: Broker, share: float) -> None:
        self._broker = broker
        self._share = share
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._govern)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._broker.process.send_signal(signal.SIGCONT)

    def _govern(self) -> None:
        process = self._broker.process
        is_stopped = False
        credit, used, now = 0.0, self._broker.cpu_seconds(), time.monotonic()
        while not self._ended.wait(_STEP):
            last, now = now, time.monotonic()
            before, used = used, self._broker.cpu_seconds()
            credit = min(credit + self._share * (now - last), _BURST) - (used - before)
            if is_stopped != (credit < 0):
                is_stopped = credit < 0
                process.send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_machine", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--share", type=float, default=0.2, help="of one core (default: 0.2)")
    parser.add_argument(
        "--flush-ms", type=float, default=10.0, help="of one flush, beyond the disk's own (default: 10)"
    )
    parser.add_argument("--connections", type=int, default=2_000, help="idle ones (default: 2,000)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk to measure on (default: build)")
    arguments = parser.parse_args()
    if not LOADER.exists():
        print(f"the load generator is not built: make {LOADER.relative_to(Path.cwd())}", file=sys.stderr)
        return 1
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="small-", dir=arguments.folder)).absolute()
    try:
        broker = start(folder, arguments.flush_ms)
        governor = Governor(broker, arguments.share)
        try:
            print(f"simulated: {arguments.share:g} of one core, {arguments.flush_ms:g} ms for each flush\n")
            print(idle(broker, arguments.connections, arguments.share) + "\n", flush=True)
            print("| work | per second | p50, p99 ms | CPU µs each | of its share |\n| --- | --- | --- | --- | --- |")
            for work in WORKS:
                print(row(work, broker, arguments.scale, arguments.share), flush=True)
        finally:
            governor.stop()
            broker.stop()
    except (BrokerUnavailable, LoadFailed, OSError) as error:
        print(f"small_machine: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def start(folder: Path, flush_ms: float) -> Broker:
    """A node on one core, with a slow disk and small segments. Raises `BrokerUnavailable`."""
    port = free_port()
    config = folder / "sluice.toml"
    lines = [f'data_dir = "{folder / "data"}"', 'log_level = "warning"', "[store]", f"segment_size = {16 << 20}"]
    lines += ["[mqtt]", f"port = {port}", "ws_port = -1", "[grpc]", "port = 0", "[http]", "port = 0"]
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-m", "benchmarks.small_machine.slow_disk"]
    return run("sluice", Launch([*command, str(flush_ms), "serve", "--config", str(config)], ""), port, folder)


def row(work: Work, broker: Broker, scale: float, share: float) -> str:
    """Measure a work, as a row of the table. Raises `LoadFailed`."""
    taken = measure(work, broker, scale)
    latency = "–" if taken.p50_us is None else f"{taken.p50_us / 1000:,.1f}, {(taken.p99_us or 0) / 1000:,.1f}"
    lost = "" if taken.complete else " (not all arrived)"
    cpu_us = f"{taken.broker_cpu / max(taken.units, 1) * 1e6:.3g}"
    busy = f"{taken.broker_cpu / taken.seconds / share:.0%}"
    return f"| {work.name} | {taken.units / taken.seconds:,.0f}{lost} | {latency} | {cpu_us} | {busy} |"


def idle(broker: Broker, count: int, share: float) -> str:
    """Open connections that do nothing. Returns what they cost, as a sentence. Raises OSError."""
    with ExitStack() as held:
        memory = broker.memory()
        for number in range(count):
            held.enter_context(connected(broker, False, f"small-{number}"))
        time.sleep(_SETTLE)
        grown, cpu = broker.memory() - memory, broker.cpu_seconds()
        time.sleep(_IDLE_SECONDS)
        busy = (broker.cpu_seconds() - cpu) / _IDLE_SECONDS / share
    cost = f"{max(grown, 0) / count:,.0f} bytes each, {busy:.1%} of its share"
    return f"{count:,} idle connections: {cost}; {broker.memory() / (1 << 20):.0f} MB in all"


if __name__ == "__main__":
    sys.exit(main())
