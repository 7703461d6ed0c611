"""Anomalies in series with labelled windows: the detector of `sluice stream anomalies` beside a plain 3-sigma rule.

    make bench-anomaly NAB=folder

The data are series of the Numenta Anomaly Benchmark: a folder with `timestamp,value` files and `windows.json`, in which
people have labelled when something was wrong. Both methods see one reading after the other and know nothing of what
comes; both are silent for a day after an alarm, so an incident is one alarm. A window is found when an alarm lies in
it (recall); an alarm is right when it lies in a window (precision). The delay is from the begin of a window, which
is before anything can be seen, to the first alarm in it. The rule: further than three standard deviations from the
mean of everything before.

Were the settings chosen for these series? Two more lists say how much that may be: each setting 30 % less and more; and
each series with the settings that are the best for the others.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Final

from streaming.pipelines.detector import Detector, Settings

Series = Sequence[tuple[float, float]]  # seconds since 1970, value
Windows = Sequence[tuple[float, float]]

_LEARNED: Final = 30  # readings until the rule may speak
_SIGMAS: Final = 3.0
_VARIED: Final = (
    "spike",
    "threshold",
    "drift",
    "span_s",
    "louder",
    "settle_s",
    "memory_s",
    "rest_s",
    "warm_up",
    "flat",
)
_FACTORS: Final = (0.7, 1.3)


@dataclass(slots=True, frozen=True)
class Score:
    """The results of a method on one series, or on several."""

    found: int  # windows with an alarm in them
    windows: int
    right: int  # alarms in a window
    alarms: int
    delay_s: float = 0.0  # of the windows found, together

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.found + other.found,
            self.windows + other.windows,
            self.right + other.right,
            self.alarms + other.alarms,
            self.delay_s + other.delay_s,
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


@dataclass(slots=True, frozen=True)
class Labelled:
    """A series and its labelled windows."""

    series: Series
    windows: Windows


def detector_alarms(series: Series, settings: Settings | None = None) -> Iterator[float]:
    """The alarms of the detector with its default settings."""
    detector = Detector(settings or Settings())
    for time, value in series:
        found = detector.observe(time, value)
        if found is not None:
            yield found.time


def sigma_alarms(series: Series) -> Iterator[float]:
    """The alarms of the rule: readings further than three standard deviations from the mean of all earlier ones
    (Welford)."""
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
    first = [min((time for time in times if begin <= time <= end), default=None) for begin, end in windows]
    return Score(
        found=sum(time is not None for time in first),
        windows=len(windows),
        right=sum(any(begin <= time <= end for begin, end in windows) for time in times),
        alarms=len(times),
        delay_s=sum(time - begin for time, (begin, _) in zip(first, windows, strict=True) if time is not None),
    )


METHODS: Final[dict[str, Callable[[Series], Iterator[float]]]] = {
    "detector": detector_alarms,
    "3 sigma": sigma_alarms,
}


def labelled(folder: Path) -> dict[str, Labelled]:
    """The series by name. Raises OSError without the data."""
    labels: dict[str, list[list[str]]] = json.loads((folder / "windows.json").read_text())
    return {
        name.removesuffix(".csv"): Labelled(
            _series(folder / name), [(_seconds(begin), _seconds(end)) for begin, end in spans]
        )
        for name, spans in labels.items()
    }


def compare(data: dict[str, Labelled]) -> dict[str, dict[str, Score]]:
    """Scores by series, then by method. The series `all` is the sum of all series."""
    scores = {
        name: {method: score(alarms(each.series), each.windows) for method, alarms in METHODS.items()}
        for name, each in data.items()
    }
    return {**scores, "all": {method: _sum(each[method] for each in scores.values()) for method in METHODS}}


def costs(data: dict[str, Labelled]) -> dict[str, float]:
    """Microseconds of CPU per reading, by method."""
    readings = sum(len(each.series) for each in data.values())
    spent = {}
    for method, alarms in METHODS.items():
        begin = process_time()
        for each in data.values():
            list(alarms(each.series))
        spent[method] = 1e6 * (process_time() - begin) / readings
    return spent


def varied(data: dict[str, Labelled]) -> dict[str, dict[str, Score]]:
    """The detector's scores by setting and series: as it is, and with one setting less or more."""
    usual = Settings()
    variants = {"as it is": usual}
    for name in _VARIED:
        for factor in _FACTORS:
            value = getattr(usual, name)
            other = 1 + (value - 1) * factor if name == "louder" else type(value)(value * factor)  # 1 is: no louder
            variants[f"{name} {factor - 1:+.0%}"] = replace(usual, **{name: other})
    return {
        variant: {name: score(detector_alarms(each.series, settings), each.windows) for name, each in data.items()}
        for variant, settings in variants.items()
    }


def left_out(scores: dict[str, dict[str, Score]]) -> dict[str, tuple[str, Score]]:
    """For each series, the first variant that is best for the other series, and its score on this series."""
    chosen = {}
    for name in scores["as it is"]:
        others = {
            variant: _sum(each for other, each in by_series.items() if other != name).f1
            for variant, by_series in scores.items()
        }
        best = max(others, key=lambda variant: others[variant])
        chosen[name] = best, scores[best][name]
    return chosen


def table(scores: dict[str, dict[str, Score]]) -> str:
    """The scores as a Markdown table."""
    lines = [
        "| series | method | windows found | alarms right | recall | precision | F1 | delay |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, by_method in scores.items():
        for method, each in by_method.items():
            found, right = f"{each.found} of {each.windows}", f"{each.right} of {each.alarms}"
            delay = f"{each.delay_s / each.found / 3600:.0f} h" if each.found else ""
            lines.append(
                f"| {name} | {method} | {found} | {right}"
                f" | {each.recall:.2f} | {each.precision:.2f} | {each.f1:.2f} | {delay} |"
            )
    return "\n".join(lines)


def varied_table(scores: dict[str, dict[str, Score]], rule: dict[str, Score]) -> str:
    """F1 by setting as a Markdown table. Values below that of the rule are marked."""
    names = list(scores["as it is"])
    lines = [
        "| setting | windows found | alarms right | F1, all | " + " | ".join(names) + " |",
        "|---" * (4 + len(names)) + "|",
    ]
    for variant, by_series in scores.items():
        every = _sum(by_series.values())
        cells = [_marked(every, rule["all"]), *(_marked(by_series[name], rule[name]) for name in names)]
        found, right = f"{every.found} of {every.windows}", f"{every.right} of {every.alarms}"
        lines.append(f"| {variant} | {found} | {right} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _marked(each: Score, rule: Score) -> str:
    return f"{each.f1:.2f}" + (" <" if each.f1 < rule.f1 else "")


def _sum(scores: Iterable[Score]) -> Score:
    return sum(scores, start=Score(0, 0, 0, 0))


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
        data = labelled(folder)
    except OSError as error:
        print(f"there are no series in {folder}: {error}", file=sys.stderr)
        return 1
    scores, variants = compare(data), varied(data)
    print(table(scores))
    rule = {name: by_method["3 sigma"] for name, by_method in scores.items()}
    spent = costs(data)
    ratio = spent["detector"] / spent["3 sigma"]
    print(
        f"\nA reading costs the detector {spent['detector']:.1f} us of CPU, {ratio:.0f} times what it costs the rule."
    )
    print("\nThe detector with one setting less or more (<: less than the rule's F1):\n")
    print(varied_table(variants, rule))
    print("\nEach series with the one that is the best for the others:\n")
    for name, (variant, each) in left_out(variants).items():
        print(f"  {name}: {variant}: F1 {_marked(each, rule[name])}")
    print(f"  all: F1 {_marked(_sum(each for _, each in left_out(variants).values()), rule['all'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
