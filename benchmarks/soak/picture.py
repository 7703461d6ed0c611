"""The picture of a soak: memory, disk and latency over time, as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.demo.picture import Panel, draw


@dataclass(slots=True, frozen=True)
class Sample:
    """What was seen at one moment."""

    seconds: float  # since the start
    memory: int  # bytes that the processes have for themselves
    disk: int  # bytes
    p50: float | None  # seconds of a PUBACK since the sample before; None: there was none
    p99: float | None


def drawn(samples: Sequence[Sample]) -> str:
    """An SVG with a panel each for memory, disk and latency."""
    p50, p99 = [_ms(each.p50) for each in samples], [_ms(each.p99) for each in samples]
    panels = [
        Panel("memory, MB", {"": [each.memory / 1e6 for each in samples]}),
        Panel("disk, MB", {"": [each.disk / 1e6 for each in samples]}),
        Panel("time until PUBACK, ms", {"p50": p50, "p99": p99}),
    ]
    title = "A node while topics, sessions, clients and groups come and go"
    return draw(title, [each.seconds for each in samples], panels, unit=("min", 60))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
