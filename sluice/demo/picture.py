"""Figures over time as a picture: panels of lines in SVG, one below the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import Final

_WIDTH: Final = 960
_LEFT: Final = 80
_RIGHT: Final = _WIDTH - 20
_PANEL: Final = 140  # height
_GAP: Final = 50
_TOP: Final = 60
_LABEL: Final = 22  # space behind the label of a line
_MARK: Final = 15  # between two rows of marks
_CHARACTER: Final = 7  # width, about
_COLOURS: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")  # of the lines of a panel
_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 16px }
  .card { fill: #ffffff }
  .grid { stroke: #d1d9e0 }
  .mark { stroke: #cf222e; stroke-dasharray: 4 3 }
  .line { fill: none; stroke-width: 1.5 }
"""


@dataclass(slots=True, frozen=True)
class Panel:
    """Lines over the same time."""

    name: str  # what the lines show, with its unit
    lines: Mapping[str, Sequence[float | None]]  # by label, "" for none; a value for each time, None: there is none


def draw(
    title: str,
    seconds: Sequence[float],
    panels: Sequence[Panel],
    unit: tuple[str, float] = ("s", 1.0),
    marks: Mapping[str, float] | None = None,
) -> str:
    """Return an SVG of the panels, which have values at the times `seconds`, in ascending order.

    unit: of the time axis, its name and its seconds. marks: moments, in seconds, by what happened then. They are
    written below the panels in three rows.
    """
    height = _TOP + len(panels) * (_PANEL + _GAP) + (_GAP if marks else 0)
    end = max(*seconds, *(marks or {}).values(), 1e-9)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" width="{_WIDTH}" height="{height}"/>',
        _text(20, 30, title, "title"),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, seconds, end, unit, _TOP + number * (_PANEL + _GAP))
    bottom = height - _GAP
    for number, (name, at) in enumerate((marks or {}).items()):
        x = _x(at, end)
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        is_left = x < (_LEFT + _RIGHT) / 2
        y = bottom + 4 + _MARK * (number % 3)
        text = f"{name}, {at / unit[1]:.1f} {unit[0]}"
        parts.append(_text(x + 4, y, text) if is_left else _text(x - 4, y, text, anchor="end"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, seconds: Sequence[float], end: float, unit: tuple[str, float], top: int) -> list[str]:
    values = [value for line in panel.lines.values() for value in line if value is not None]
    most = _round_up(max(values, default=0.0))
    bottom = top + _PANEL
    parts = [_text(_LEFT, top - 8, panel.name)]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        y = bottom - share * _PANEL
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{share * most:.4g}", anchor="end"))
        x = _x(share * end, end)
        parts.append(_text(x, bottom + 18, f"{share * end / unit[1]:.3g} {unit[0]}", anchor=anchor))
    right = _RIGHT - sum(_label_width(label) for label in panel.lines) + _LABEL
    for number, (label, line) in enumerate(panel.lines.items()):
        points = [
            f"{_x(at, end):.1f},{bottom - value / most * _PANEL:.1f}"
            for at, value in zip(seconds, line, strict=True)
            if value is not None
        ]
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline class="line" style="stroke: {colour}" points="{" ".join(points)}"/>')
        right += _label_width(label)
        parts.append(_text(right - _LABEL, top - 8, label, anchor="end", style=f"fill: {colour}"))
    return parts


def _label_width(label: str) -> int:
    return _LABEL + _CHARACTER * len(label)


def _x(at: float, end: float) -> float:
    return _LEFT + at / end * (_RIGHT - _LEFT)


def _round_up(value: float) -> float:
    """The next number of 1, 2, 4, 6, 8 or 10 times a power of ten, so that its half is round as well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", style: str = "") -> str:
    return f'<text class="{kind}" style="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
