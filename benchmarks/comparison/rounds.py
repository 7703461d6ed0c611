"""Runs the works on every broker in turn within each round, so that other load on the machine affects all alike."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, BrokerUnavailable
from benchmarks.comparison.figures import NOTHING, Figure, Sample, figure
from benchmarks.comparison.peers import PEERS
from benchmarks.comparison.works import Work

LOADER: Final = Path(__file__).parents[1] / "load" / "mqttload"
PHASE_LIMIT: Final = 60  # seconds that a warm-up or a measured part may take
STALL_LIMIT: Final = 8  # seconds without progress: the rest was lost, or will not come
MIN_COUNT: Final = 20
REST_STEP: Final = 0.05  # seconds; a broker rests that used less than 2 % of a core in it
REST_LIMIT: Final = 1.0  # seconds after which it is taken as it is: RabbitMQ never rests


class LoadFailed(Exception):
    """The load generator ended without a result, because the broker refused or closed a connection. Its stderr has the
    reason."""


def run_rounds(
    works: Sequence[Work], brokers: Sequence[Broker], rounds: int, scale: float, report: Callable[[str], None]
) -> list[Figure]:
    """Measure every work on every broker, `rounds` times. `scale` multiplies the message counts."""
    figures = []
    for work in works:
        samples: dict[str, list[Sample]] = {broker.name: [] for broker in brokers}
        for number in range(rounds):
            turn = number % len(brokers)  # nobody is always first
            for broker in [*brokers[turn:], *brokers[:turn]]:
                taken = samples[broker.name]
                if taken and not taken[-1].units:
                    continue  # it cannot do this work, and would only take its time
                report(f"{work.name}: round {number + 1} of {rounds}, {broker.name}")
                taken.append(measured(work, broker, scale))
        figures += [figure(work.name, work.unit, name, taken, work.targets) for name, taken in samples.items()]
    return figures


def measured(work: Work, broker: Broker, scale: float) -> Sample:
    """Run a work on a broker. If that fails, the sample has no units and the other brokers go on.

    Raises `BrokerUnavailable` if the broker has ended.
    """
    try:
        return measure(work, broker, scale)
    except LoadFailed:
        if broker.process.poll() is not None:
            raise BrokerUnavailable(f"{broker.name} ended in {work.name}") from None
        return NOTHING


def measure(work: Work, broker: Broker, scale: float) -> Sample:
    """Run a work on a broker once. Raises `LoadFailed`."""
    share = 1.0 if work.rate else PEERS[broker.name].share
    count = max(MIN_COUNT, int(work.count * scale * share))
    command = [str(LOADER), "--mode", work.mode, "--port", str(broker.port), "--qos", str(work.qos)]
    command += ["--connections", str(work.connections), "--inflight", str(work.inflight)]
    command += ["--count", str(count), "--warmup", str(max(MIN_COUNT, count // 10))]
    command += ["--limit", str(PHASE_LIMIT), "--stall", str(STALL_LIMIT), *work.options]
    if work.rate:
        command += ["--rate", str(work.rate)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as loader:
        assert loader.stdin is not None
        assert loader.stdout is not None
        if loader.stdout.readline() != "warm\n":
            raise LoadFailed(f"{work.name} on {broker.name}: the load generator did not get warm")
        before = broker.cpu_seconds()
        loader.stdin.write("go\n")
        loader.stdin.flush()
        line = loader.stdout.readline()
        cpu = settled_cpu(broker) - before
        if not line:
            raise LoadFailed(f"{work.name} on {broker.name}: the load generator gave no result")
        return sample(work, line, cpu)


def settled_cpu(broker: Broker) -> float:
    """The broker's CPU seconds when it is idle again. They include what it does for messages after it has answered
    them, and for messages of QoS 0 after it has read them."""
    cpu = broker.cpu_seconds()
    deadline = time.monotonic() + REST_LIMIT
    while time.monotonic() < deadline:
        time.sleep(REST_STEP)
        before, cpu = cpu, broker.cpu_seconds()
        if cpu - before < REST_STEP / 50:
            break
    return cpu


def sample(work: Work, line: str, broker_cpu: float) -> Sample:
    """Parse a line of the load generator, and add the broker's CPU seconds."""
    report = json.loads(line)
    latency = report["latency_us"] or {}
    return Sample(
        complete=report["complete"],
        units=report["received"] if work.unit == "delivery" else report["acked"],
        seconds=report["seconds"],
        broker_cpu=broker_cpu,
        loader_cpu=report["cpu_seconds"],
        p50_us=latency.get("p50"),
        p99_us=latency.get("p99"),
    )
