"""Drawing the rows of a query: lines over a first column of times or numbers, else bars."""

from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_INCHES: Final = (10.0, 5.0)
_MOST_BARS: Final = 60
_MOST_LINES: Final = 20


class NothingToDraw(ValueError):
    """The rows cannot be drawn. The message says what is missing."""


def draw(names: Sequence[str], rows: Sequence[Sequence[object]], path: Path, *, title: str = "") -> None:
    """Write a PNG. The first column is the x axis, and each later column of numbers is a line. The first column of
    texts splits the rows: each of its values gets a line. Raises `NothingToDraw`."""
    numbers = [i for i in range(1, len(names)) if _all(rows, i, (int, float))]
    if not rows or not numbers:
        raise NothingToDraw("a chart needs rows, and a column of numbers after the first one")
    texts = [i for i in range(1, len(names)) if i not in numbers and _all(rows, i, (str,))]
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    if _all(rows, 0, (datetime, date, int, float)):
        for label, (xs, ys) in _lines(names, rows, numbers, texts[:1]).items():
            axes.plot(xs, ys, label=label, linewidth=1.2)
        axes.tick_params(axis="x", rotation=30)
        axes.legend(fontsize="small")
    else:
        shown = rows[:_MOST_BARS]
        width = 0.8 / len(numbers)
        for n, i in enumerate(numbers):
            places = [at + n * width for at in range(len(shown))]
            axes.bar(places, [_number(row[i]) for row in shown], width, label=names[i])
        axes.set_xticks(range(len(shown)), [str(row[0]) for row in shown], rotation=45, ha="right", fontsize="small")
        axes.legend(fontsize="small")
    axes.set_xlabel(names[0])
    axes.set_title(title, fontsize="small", wrap=True)
    axes.grid(visible=True, alpha=0.3)
    FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]


def _lines(
    names: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[int], split: Sequence[int]
) -> dict[str, tuple[list[Any], list[float]]]:
    """Return lines by their label, each in the order of the first column."""
    lines: dict[str, tuple[list[Any], list[float]]] = {}
    for row in sorted((row for row in rows if row[0] is not None), key=_first):
        for i in numbers:
            own = [str(row[each]) for each in split] + ([names[i]] if len(numbers) > 1 or not split else [])
            xs, ys = lines.setdefault(" ".join(own), ([], []))
            xs.append(row[0])
            ys.append(_number(row[i]))
    if len(lines) > _MOST_LINES:
        raise NothingToDraw(f"a chart may have {_MOST_LINES} lines at most, not {len(lines)}")
    return lines


def _all(rows: Sequence[Sequence[object]], column: int, kinds: tuple[type, ...]) -> bool:
    """Return whether a column has values, and only values of these kinds."""
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(each, kinds) and not isinstance(each, bool) for each in values)


def _first(row: Sequence[Any]) -> Any:
    return row[0]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
