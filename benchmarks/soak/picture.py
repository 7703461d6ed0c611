"""The picture of a soak: memory, disk and latency over time, as SVG."""

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
_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 16px }
  .card { fill: #ffffff }
  .grid { stroke: #d1d9e0 }
  .line { fill: none; stroke: #0969da; stroke-width: 1.5 }
  .line.second { stroke: #bc4c00 }
  text.first { fill: #0969da }
  text.second { fill: #bc4c00 }
"""


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
    panels: list[tuple[str, dict[str, list[float | None]]]] = [
        ("memory, MB", {"": [each.memory / 1e6 for each in samples]}),
        ("disk, MB", {"": [each.disk / 1e6 for each in samples]}),
        ("time until PUBACK, ms", {"p50": p50, "p99": p99}),
    ]
    height = _TOP + len(panels) * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" width="{_WIDTH}" height="{height}"/>',
        _text(20, 30, "A node while topics, sessions, clients and groups come and go", "title"),
    ]
    end = max(each.seconds for each in samples)
    for number, (name, lines) in enumerate(panels):
        top = _TOP + number * (_PANEL + _GAP)
        parts += _panel(name, [each.seconds for each in samples], lines, end, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    name: str, seconds: Sequence[float], lines: Mapping[str, Sequence[float | None]], end: float, top: int
) -> list[str]:
    most = _round_up(max((value for line in lines.values() for value in line if value is not None), default=0.0))
    bottom = top + _PANEL
    parts = [_text(_LEFT, top - 8, name)]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        y = bottom - share * _PANEL
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{share * most:.4g}", anchor="end"))
        x = _LEFT + share * (_RIGHT - _LEFT)
        parts.append(_text(x, bottom + 18, f"{share * end / 60:.3g} min", anchor=anchor))
    for number, (label, line) in enumerate(lines.items()):
        points = [
            f"{_LEFT + at / end * (_RIGHT - _LEFT):.1f},{bottom - value / most * _PANEL:.1f}"
            for at, value in zip(seconds, line, strict=True)
            if value is not None
        ]
        style = "second" if number else "first"
        parts.append(f'<polyline class="line {style}" points="{" ".join(points)}"/>')
        parts.append(_text(_RIGHT - 40 * (len(lines) - 1 - number), top - 8, label, style, anchor="end"))
    return parts


def _round_up(value: float) -> float:
    """The next number of 1, 2, 4, 6, 8 or 10 times a power of ten, so that its half is round as well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
