"""Drawing window statistics: a small chart per device. Needs no display."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS: Final = 3
_INCHES: Final = (4.6, 2.4)  # of one small chart
_BAND, _LINE, _FLAG = "#9ecae1", "#08519c", "#d94801"


@dataclass(slots=True, frozen=True)
class WindowRow:
    """One window of one device, from `window_statistics`."""

    device: str
    window_start: datetime
    minimum: float
    median: float
    maximum: float
    anomalies: Sequence[tuple[datetime, float]]


def draw_statistics(rows: Iterable[WindowRow], path: Path, *, title: str, limit: int = 12) -> int:
    """Write a PNG of median, range and anomalies over time for at most `limit` devices, those with the most anomalies
    first. Return the number of devices drawn. Raises `ValueError` without rows."""
    by_device: dict[str, list[WindowRow]] = defaultdict(list)
    for row in rows:
        by_device[row.device].append(row)
    if not by_device:
        raise ValueError("nothing to draw: no window has been computed")
    chosen = sorted(by_device, key=lambda name: (-sum(len(row.anomalies) for row in by_device[name]), name))[:limit]
    height = -(-len(chosen) // _COLUMNS)
    figure = Figure(figsize=(_INCHES[0] * _COLUMNS, _INCHES[1] * height + 0.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(height, _COLUMNS, squeeze=False).flat
    for axes, device in zip(grid, chosen, strict=False):
        _draw_device(axes, device, sorted(by_device[device], key=lambda row: row.window_start))
    for axes in list(figure.axes)[len(chosen) :]:
        axes.set_axis_off()
    figure.suptitle(title)
    figure.savefig(path)
    return len(chosen)


def _draw_device(axes: "Axes", device: str, rows: list[WindowRow]) -> None:
    times = _dates(row.window_start for row in rows)
    flags = [flag for row in rows for flag in row.anomalies]
    axes.fill_between(times, [row.minimum for row in rows], [row.maximum for row in rows], color=_BAND, alpha=0.5)
    axes.plot(times, [row.median for row in rows], color=_LINE, linewidth=1.4)
    flagged_at = _dates(time for time, _ in flags)
    axes.plot(flagged_at, [value for _, value in flags], "o", color=_FLAG, markersize=3.5)
    axes.set_title(f"{device}: {len(flags)} flagged" if flags else device, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    locator = AutoDateLocator(minticks=3, maxticks=5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _dates(times: Iterable[datetime]) -> list[float]:
    """Convert times to the numbers of matplotlib."""
    return [float(date2num(time)) for time in times]  # type: ignore[no-untyped-call]
