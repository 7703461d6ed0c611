"""Figures: the medians over the rounds of one work on one broker."""

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from benchmarks.comparison.works import Target


@dataclass(slots=True)
class Sample:
    """One run of one work on one broker."""

    complete: bool  # all that was owed arrived in time
    units: int  # messages, deliveries or connections that did arrive
    seconds: float
    broker_cpu: float  # seconds
    loader_cpu: float  # seconds
    p50_us: float | None
    p99_us: float | None
    memory: int = 0  # bytes that the broker grew by; 0: not measured


NOTHING = Sample(False, 0, 0.0, 0.0, 0.0, None, None)


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
    bytes_each: float | None  # memory per unit
    samples: list[Sample]
    targets: tuple[Target, ...] = field(default=())  # of Sluice in this work

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def measured(self, measure: str) -> float | None:
        """The measured value that a `Target` limits, or None."""
        if measure == "cpu":
            return self.cpu_us or None
        if measure == "per_second":
            return self.per_second or None
        if measure == "bytes_each":
            return self.bytes_each
        microseconds = self.p50_us if measure == "p50_ms" else self.p99_us
        return None if microseconds is None else microseconds / 1000


def figure(work: str, unit: str, broker: str, samples: list[Sample], targets: tuple[Target, ...] = ()) -> Figure:
    """The medians of the `samples` that completed any units; zeros if none did."""
    worked = [each for each in samples if each.units]
    costs = [each.broker_cpu / each.units * 1e6 for each in worked] or [0.0]
    return Figure(
        work=work,
        unit=unit,
        broker=broker,
        complete=bool(samples) and all(each.complete for each in samples),
        cpu_us=statistics.median(costs),
        cpu_us_low=min(costs),
        cpu_us_high=max(costs),
        per_second=_median(each.units / each.seconds for each in worked) or 0.0,
        p50_us=_median(each.p50_us for each in worked),
        p99_us=_median(each.p99_us for each in worked),
        loader_us=_median(each.loader_cpu / each.units * 1e6 for each in worked) or 0.0,
        bytes_each=_median(each.memory / each.units if each.memory else None for each in worked),
        samples=samples,
        targets=targets,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
