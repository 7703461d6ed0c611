"""Running the works: every broker in turn within each round, so that whatever else the machine does hits all alike."""

import json
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.brokers import SHARE, Broker, BrokerUnavailable
from benchmarks.works import Work

LOADER: Final = Path(__file__).parent / "load" / "mqttload"
PHASE_LIMIT: Final = 60  # seconds that a warm-up or a measured part may take
STALL_LIMIT: Final = 8  # seconds without progress: the rest was lost, or will not come
MIN_COUNT: Final = 20


class LoadFailed(Exception):
    """The load generator ended without a result: the broker refused or dropped a connection. It says so on stderr."""


@dataclass(slots=True)
class Sample:
    """One run of one work on one broker."""

    complete: bool  # all that was owed arrived in time
    units: int  # messages or deliveries that did arrive
    seconds: float
    broker_cpu: float  # seconds
    loader_cpu: float  # seconds
    p50_us: float | None
    p99_us: float | None


@dataclass(slots=True)
class Figure:
    """The medians over the rounds of one work on one broker."""

    work: str
    unit: str
    broker: str
    complete: bool
    cpu_us: float  # of the broker, per unit
    cpu_us_low: float
    cpu_us_high: float
    per_second: float
    p50_us: float | None
    p99_us: float | None
    loader_us: float  # CPU of the load generator, per unit
    samples: list[Sample]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def run_rounds(
    works: Sequence[Work], brokers: Sequence[Broker], rounds: int, scale: float, tell: Callable[[str], None]
) -> list[Figure]:
    """Measure every work on every broker, `rounds` times. `scale` multiplies the message counts."""
    figures = []
    for work in works:
        samples: dict[str, list[Sample]] = {broker.name: [] for broker in brokers}
        for number in range(rounds):
            turn = number % len(brokers)  # nobody is always first
            for broker in [*brokers[turn:], *brokers[:turn]]:
                tell(f"{work.name}: round {number + 1} of {rounds}, {broker.name}")
                samples[broker.name].append(measured(work, broker, scale))
        figures += [figure(work, broker.name, samples[broker.name]) for broker in brokers]
    return figures


def measured(work: Work, broker: Broker, scale: float) -> Sample:
    """One run; a broker that fails it gets a sample without units, and the others go on.

    Raises `BrokerUnavailable` when the broker itself has ended.
    """
    try:
        return measure(work, broker, scale)
    except LoadFailed:
        if broker.process.poll() is not None:
            raise BrokerUnavailable(f"{broker.name} ended in {work.name}") from None
        return Sample(False, 0, 0.0, 0.0, 0.0, None, None)


def measure(work: Work, broker: Broker, scale: float) -> Sample:
    """One run. Raises `LoadFailed`."""
    count = max(MIN_COUNT, int(work.count * scale * SHARE[broker.name]))
    command = [str(LOADER), "--mode", work.mode, "--port", str(broker.port), "--qos", str(work.qos)]
    command += ["--connections", str(work.connections), "--inflight", str(work.inflight)]
    command += ["--count", str(count), "--warmup", str(max(MIN_COUNT, count // 10))]
    command += ["--limit", str(PHASE_LIMIT), "--stall", str(STALL_LIMIT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loader:
        assert loader.stdin is not None
        assert loader.stdout is not None
        if loader.stdout.readline() != "warm\n":
            raise LoadFailed(f"{work.name} on {broker.name}: the load generator did not get warm")
        before = broker.cpu_seconds()
        loader.stdin.write("go\n")
        loader.stdin.flush()
        line = loader.stdout.readline()
        cpu = broker.cpu_seconds() - before
        if not line:
            raise LoadFailed(f"{work.name} on {broker.name}: the load generator gave no result")
        return sample(work, line, cpu)


def sample(work: Work, line: str, broker_cpu: float) -> Sample:
    """What the load generator's JSON `line` says, beside the broker's CPU seconds."""
    told = json.loads(line)
    latency = told["latency_us"] or {}
    return Sample(
        complete=told["complete"],
        units=told["acked"] if work.mode == "ingest" else told["received"],
        seconds=told["seconds"],
        broker_cpu=broker_cpu,
        loader_cpu=told["cpu_seconds"],
        p50_us=latency.get("p50"),
        p99_us=latency.get("p99"),
    )


def figure(work: Work, broker: str, samples: list[Sample]) -> Figure:
    """The medians of those `samples` that got anything through; zeros when none did."""
    worked = [each for each in samples if each.units]
    costs = [each.broker_cpu / each.units * 1e6 for each in worked] or [0.0]
    return Figure(
        work=work.name,
        unit=work.unit,
        broker=broker,
        complete=all(each.complete for each in samples),
        cpu_us=statistics.median(costs),
        cpu_us_low=min(costs),
        cpu_us_high=max(costs),
        per_second=_median(each.units / each.seconds for each in worked) or 0.0,
        p50_us=_median(each.p50_us for each in worked),
        p99_us=_median(each.p99_us for each in worked),
        loader_us=_median(each.loader_cpu / each.units * 1e6 for each in worked) or 0.0,
        samples=samples,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
