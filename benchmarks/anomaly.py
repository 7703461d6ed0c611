"""Anomalies in series with labelled windows: the detector of `sluice stream anomalies` beside a plain 3-sigma rule.

    make bench-anomaly NAB=folder

The data are series of the Numenta Anomaly Benchmark: a folder with `timestamp,value` files and `windows.json`, in which
people have labelled when something was wrong. Both methods see one reading after the other and know nothing of what
comes; both are silent for a day after an alarm, so an incident is one alarm. A window is found when an alarm lies in
it (recall); an alarm is right when it lies in a window (precision). The rule: further than three standard deviations
from the mean of everything before.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from streaming.pipelines.detector import Detector, Settings

Series = Sequence[tuple[float, float]]  # seconds since 1970, value
Windows = Sequence[tuple[float, float]]

_LEARNED: Final = 30  # readings until the rule may speak
_SIGMAS: Final = 3.0


@dataclass(slots=True, frozen=True)
class Score:
    """What a method found of one series, or of several."""

    found: int  # windows with an alarm in them
    windows: int
    right: int  # alarms in a window
    alarms: int

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.found + other.found,
            self.windows + other.windows,
            self.right + other.right,
            self.alarms + other.alarms,
        )

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


def detector_alarms(series: Series) -> Iterator[float]:
    """When the detector speaks, with the settings that it has by default."""
    detector = Detector(Settings())
    for time, value in series:
        found = detector.observe(time, value)
        if found is not None:
            yield found.time


def sigma_alarms(series: Series) -> Iterator[float]:
    """When a reading is further than three standard deviations from the mean of all before it (Welford)."""
    mean = squares = 0.0
    quiet = -math.inf
    for count, (time, value) in enumerate(series):
        deviation = math.sqrt(squares / count) if count >= _LEARNED else 0.0
        if deviation and abs(value - mean) > _SIGMAS * deviation and time >= quiet:
            quiet = time + Settings().rest_s
            yield time
        step = value - mean
        mean += step / (count + 1)
        squares += step * (value - mean)


def score(alarms: Iterable[float], windows: Windows) -> Score:
    times = list(alarms)
    return Score(
        found=sum(any(begin <= time <= end for time in times) for begin, end in windows),
        windows=len(windows),
        right=sum(any(begin <= time <= end for begin, end in windows) for time in times),
        alarms=len(times),
    )


METHODS: Final[dict[str, Callable[[Series], Iterator[float]]]] = {
    "detector": detector_alarms,
    "3 sigma": sigma_alarms,
}


def compare(folder: Path) -> dict[str, dict[str, Score]]:
    """By series, then by method; the sum of all is the series `all`. Raises OSError without the data."""
    labels: dict[str, list[list[str]]] = json.loads((folder / "windows.json").read_text())
    scores: dict[str, dict[str, Score]] = {}
    total = dict.fromkeys(METHODS, Score(0, 0, 0, 0))
    for name, spans in labels.items():
        series, windows = _series(folder / name), [(_seconds(begin), _seconds(end)) for begin, end in spans]
        scores[name] = {method: score(alarms(series), windows) for method, alarms in METHODS.items()}
        total = {method: total[method] + scores[name][method] for method in METHODS}
    return {**scores, "all": total}


def table(scores: dict[str, dict[str, Score]]) -> str:
    """As Markdown."""
    lines = [
        "| series | method | windows found | alarms right | recall | precision | F1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, by_method in scores.items():
        for method, each in by_method.items():
            found, right = f"{each.found} of {each.windows}", f"{each.right} of {each.alarms}"
            lines.append(
                f"| {name.removesuffix('.csv')} | {method} | {found} | {right}"
                f" | {each.recall:.2f} | {each.precision:.2f} | {each.f1:.2f} |"
            )
    return "\n".join(lines)


def _series(path: Path) -> list[tuple[float, float]]:
    with path.open(newline="") as file:
        return [(_seconds(row["timestamp"]), float(row["value"])) for row in csv.DictReader(file)]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.anomaly", description=__doc__)
    parser.add_argument("folder", type=Path, help="with the series and windows.json")
    folder = parser.parse_args().folder
    try:
        print(table(compare(folder)))
    except OSError as error:
        print(f"there are no series in {folder}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
