"""Labelled series of the Numenta Anomaly Benchmark, how they are divided, and how alarms are counted.

A window is found when an alarm lies in it (recall). An alarm is right when it lies in a window (precision). The delay
is from the begin of a window, which is before anything can be seen, to the first alarm in it.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from streaming.pipelines.detector import Detector, Settings

DAY_S: Final = 86_400.0
Series = Sequence[tuple[float, float]]  # seconds since 1970, value
Windows = Sequence[tuple[float, float]]


@dataclass(slots=True, frozen=True)
class Score:
    """The results of a method on one series, or on several."""

    found: int  # windows with an alarm in them
    windows: int
    right: int  # alarms in a window
    alarms: int
    delay_s: float = 0.0  # of the windows found, together
    days: float = 0.0  # of the series

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.found + other.found,
            self.windows + other.windows,
            self.right + other.right,
            self.alarms + other.alarms,
            self.delay_s + other.delay_s,
            self.days + other.days,
        )

    @property
    def false_alarms(self) -> float:
        """Alarms outside of windows in 30 days of a device."""
        return (self.alarms - self.right) * 30 / self.days if self.days else 0.0

    @property
    def recall(self) -> float:
        return self.found / self.windows if self.windows else 1.0

    @property
    def precision(self) -> float:
        return self.right / self.alarms if self.alarms else 0.0

    @property
    def f1(self) -> float:
        both = self.recall + self.precision
        return 2 * self.recall * self.precision / both if both else 0.0


@dataclass(slots=True, frozen=True)
class Labelled:
    """A series and its labelled windows."""

    series: Series
    windows: Windows

    @property
    def days(self) -> float:
        return (self.series[-1][0] - self.series[0][0]) / DAY_S

    def score(self, alarms: Iterable[float]) -> Score:
        """Count the alarms of a method."""
        return replace(score(alarms, self.windows), days=self.days)


def detector_alarms(series: Series, settings: Settings | None = None) -> Iterator[float]:
    """Yield the times of the detector's alarms."""
    detector = Detector(settings or Settings())
    for time, value in series:
        found = detector.observe(time, value)
        if found is not None:
            yield found.time


def score(alarms: Iterable[float], windows: Windows) -> Score:
    times = list(alarms)
    first = [min((time for time in times if begin <= time <= end), default=None) for begin, end in windows]
    return Score(
        found=sum(time is not None for time in first),
        windows=len(windows),
        right=sum(any(begin <= time <= end for begin, end in windows) for time in times),
        alarms=len(times),
        delay_s=sum(time - begin for time, (begin, _) in zip(first, windows, strict=True) if time is not None),
    )


def labelled(folder: Path) -> dict[str, Labelled]:
    """The series by name. Raises OSError without the data."""
    labels: dict[str, list[list[str]]] = json.loads((folder / "windows.json").read_text())
    return {
        name.removesuffix(".csv"): Labelled(
            _series(folder / name), [(_seconds(begin), _seconds(end)) for begin, end in spans]
        )
        for name, spans in labels.items()
    }


def chosen_on(first: dict[str, Labelled], more: dict[str, Labelled]) -> dict[str, Labelled]:
    """The series that settings are chosen on: all of the first folder, and every other one of the second, in the order
    of their names."""
    return first | {name: more[name] for name in sorted(more)[::2]}


def held_out(more: dict[str, Labelled]) -> dict[str, Labelled]:
    """The other series of the second folder."""
    return {name: more[name] for name in sorted(more)[1::2]}


def total(scores: Iterable[Score]) -> Score:
    return sum(scores, start=Score(0, 0, 0, 0))


def _series(path: Path) -> list[tuple[float, float]]:
    with path.open(newline="") as file:
        return [(_seconds(row["timestamp"]), float(row["value"])) for row in csv.DictReader(file)]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
