"""Anomalies in labelled series: the detector of `sluice stream anomalies` beside other detectors.

    make bench-anomaly NAB=folder NAB_MORE=folder

The settings of all detectors were chosen on some series (`series.chosen_on`). The figures are of other series
(`series.held_out`), which nobody looked at while choosing. The rivals' settings are chosen by this command: those with
the best F1 on the series to choose on. Every detector sees one reading after the other, is silent on the first day,
and for a day after an alarm.

A second figure needs no division: each series to choose on is judged with the settings of the detector that are best
on the others of them (leave-one-out cross-validation over `GRID`).
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from time import process_time
from typing import Final

from benchmarks.anomaly.rivals import RIVALS, Rival, alarms
from benchmarks.anomaly.series import (
    Labelled,
    Score,
    Series,
    chosen_on,
    detector_alarms,
    held_out,
    labelled,
    total,
)
from streaming.pipelines.detector import SENSITIVITIES, Settings

Method = Callable[[Series], Iterator[float]]
Data = Mapping[str, Labelled]

GRID: Final = tuple(
    Settings(tail=tail, threshold=threshold, spike=spike)
    for tail, threshold, spike in product((2.0, 3.0, 4.0), (2.5, 3.0, 3.5), (4.0, 5.0, 6.0))
)


def judged(method: Method, data: Data) -> dict[str, Score]:
    """Score a method on each series."""
    return {name: each.score(method(each.series)) for name, each in data.items()}


def tuned(rival: Rival, data: Data) -> tuple[Method, str]:
    """Return a rival with the parameters and the limit that have the best F1, and their text."""
    best: tuple[float, Method, str] | None = None
    for parameters in rival.parameters:
        scores = {name: rival.scores(each.series, **parameters) for name, each in data.items()}
        for limit in rival.limits:
            found = total(each.score(alarms(each.series, scores[name], limit)) for name, each in data.items())
            if best is None or found.f1 > best[0]:
                words = [f"{name} {value}" for name, value in parameters.items()]
                best = found.f1, partial(_alarms, rival, parameters, limit), ", ".join([*words, f"limit {limit:g}"])
    assert best is not None
    return best[1:]


def _alarms(rival: Rival, parameters: dict[str, object], limit: float, series: Series) -> Iterator[float]:
    return alarms(series, rival.scores(series, **parameters), limit)


def cross_validated(data: Data, grid: tuple[Settings, ...] = GRID) -> Score:
    """Judge each series with the settings that are best on the others."""
    scores = [judged(partial(detector_alarms, settings=settings), data) for settings in grid]
    return total(
        max(scores, key=lambda each: total(score for other, score in each.items() if other != name).f1)[name]
        for name in data
    )


def row(name: str, found: Score, last: str) -> str:
    """Return a row of a table."""
    return (
        f"| {name} | {found.found} of {found.windows} | {found.right} of {found.alarms} | {found.recall:.2f}"
        f" | {found.precision:.2f} | {found.f1:.2f} | {found.false_alarms:.2f} | {last} |"
    )


def header(first: str, last: str) -> str:
    titles = (first, "windows found", "alarms right", "recall", "precision", "F1", "false alarms in 30 days", last)
    return f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"


def delay(found: Score) -> str:
    return f"{found.delay_s / found.found / 3600:.0f} h" if found.found else ""


def report(choosing: Data, judging: Data) -> None:
    """Print all tables."""
    windows, days = sum(len(each.windows) for each in judging.values()), sum(each.days for each in judging.values())
    print(f"{len(judging)} series that were not used for settings, {windows} windows, {days:.0f} device-days:\n")
    print(header("detector", "µs of CPU per reading; settings"))
    readings = sum(len(each.series) for each in judging.values())
    begin = process_time()
    ours = judged(detector_alarms, judging)
    spent = 1e6 * (process_time() - begin) / readings
    print(row("Sluice", total(ours.values()), f"{spent:.0f}; default"), flush=True)
    for rival in RIVALS:
        try:
            method, settings = tuned(rival, choosing)
        except ModuleNotFoundError as error:
            print(f"| {rival.name} | {error.name} is not installed: pip install 'sluicemq[detectors]' |")
            continue
        begin = process_time()
        found = total(judged(method, judging).values())
        spent = 1e6 * (process_time() - begin) / readings
        print(row(rival.name, found, f"{spent:.0f}; {settings}"), flush=True)
    print(f"\n{header('series', 'delay')}")
    for name, found in ours.items():
        print(row(name, found, delay(found)))
    print(f"\n{header('sensitivity', 'delay')}")
    for name, usual in SENSITIVITIES.items():
        found = total(judged(partial(detector_alarms, settings=usual), judging).values())
        print(row(name, found, delay(found)))
    print(f"\nThe {len(choosing)} series that settings were chosen on:\n\n{header('detector', 'delay')}")
    found = total(judged(detector_alarms, choosing).values())
    print(row("default settings", found, delay(found)))
    found = cross_validated(choosing)
    print(row("each series with the best settings of the others", found, delay(found)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.anomaly", description=__doc__)
    text = "two folders with series and windows.json: the first one is for choosing settings only"
    parser.add_argument("folders", type=Path, nargs=2, help=text)
    text = "judge on the series that settings are chosen on; look at the others when the settings are final"
    parser.add_argument("--choosing", action="store_true", help=text)
    arguments = parser.parse_args()
    try:
        first, more = (labelled(folder) for folder in arguments.folders)
    except OSError as error:
        print(f"there are no series: {error}", file=sys.stderr)
        return 1
    choosing = chosen_on(first, more)
    report(choosing, choosing if arguments.choosing else held_out(more))
    return 0


if __name__ == "__main__":
    sys.exit(main())
