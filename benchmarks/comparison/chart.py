"""The chart in README.md: CPU time of each broker, from the results that `make bench ARGS=--save` keeps in docs/."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison.figures import Figure

DOCS: Final = Path(__file__).parents[2] / "docs"
RESULT: Final = DOCS / "benchmarks.json"
CHART: Final = DOCS / "images" / "benchmarks.svg"
SAVED: Final = ("work", "unit", "broker", "cpu_us", "per_second", "p50_us", "p99_us", "bytes_each")

# mosquitto-file has no dots of its own: they would cover those of mosquitto.
BROKERS: Final = ("sluice", "mosquitto", "nats-server", "rabbitmq", "amqtt")
LEFT: Final = 330  # where the axis begins
WIDTH: Final = 960
RIGHT: Final = WIDTH - 30
TOP: Final = 100
ROW: Final = 24
LOW: Final = 0.3  # µs at both ends of the axis
HIGH: Final = 2000.0
NOTE: Final = "µs on a logarithmic axis; further left is better. Only Sluice waits for the disk before it acknowledges."
TICKS: Final = (1, 10, 100, 1000)
STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 16px }
  .quiet { fill: #59636e }
  .card { fill: #ffffff; stroke: #d1d9e0 }
  .grid, .span { stroke: #d1d9e0 }
  .sluice { fill: #0969da }
  .mosquitto { fill: #bc4c00 }
  .nats-server { fill: #1a7f37 }
  .rabbitmq { fill: #8250df }
  .amqtt { fill: #818b98 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .card { fill: #0d1117; stroke: #3d444d }
    .grid, .span { stroke: #3d444d }
    .sluice { fill: #4493f8 }
    .mosquitto { fill: #f0883e }
    .nats-server { fill: #3fb950 }
    .rabbitmq { fill: #ab7df8 }
    .amqtt { fill: #9198a1 }
  }
"""


def save(figures: Sequence[Figure], facts: Mapping[str, object]) -> None:
    """Save a result as docs/benchmarks.json and draw its chart."""
    rows = [{name: getattr(figure, name) for name in SAVED} for figure in figures]
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RESULT.write_text(f'{{\n "facts": {json.dumps(facts)},\n "figures": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    CHART.write_text(drawn(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


def drawn(result: Mapping[str, Any]) -> str:
    """An SVG with a row for each work and a dot for each broker, on a logarithmic axis of CPU µs."""
    works: dict[str, dict[str, float]] = {}
    for row in result["figures"]:
        if row["cpu_us"] and row["broker"] in BROKERS:
            works.setdefault(row["work"], {})[row["broker"]] = row["cpu_us"]
    bottom = TOP + ROW * len(works)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 50}" role="img">',
        "<title>CPU time of each broker per message, delivery or connection</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{bottom + 49}" rx="8"/>',
        _text(20, 30, "CPU time of the broker per message, delivery or connection", "title"),
        _text(
            20,
            50,
            "µs on a logarithmic axis; further left is better. Only Sluice waits for the disk before it acknowledges.",
            "quiet",
        ),
    ]
    for number, broker in enumerate(BROKERS):
        parts += [_dot(broker, LEFT + 10 + number * 110, 70), _text(LEFT + 22 + number * 110, 75, broker)]
    for tick in TICKS:
        x = _x(tick)
        parts.append(f'<line class="grid" x1="{x}" y1="{TOP - 10}" x2="{x}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 20, f"{tick:,}", "quiet", "middle"))
    parts.append(_text(RIGHT, bottom + 38, "µs", "quiet", "end"))
    for number, (work, costs) in enumerate(works.items()):
        y = TOP + ROW * number + ROW // 2
        ends = _x(min(costs.values())), _x(max(costs.values()))
        parts.append(_text(LEFT - 10, y + 4, work, "", "end"))
        parts.append(f'<line class="span" stroke-width="2" x1="{ends[0]}" y1="{y}" x2="{ends[1]}" y2="{y}"/>')
        parts += [_dot(broker, _x(costs[broker]), y) for broker in reversed(BROKERS) if broker in costs]
    return "\n".join([*parts, "</svg>", ""])


def _x(microseconds: float) -> float:
    share = math.log(microseconds / LOW) / math.log(HIGH / LOW)
    return round(LEFT + share * (RIGHT - LEFT), 1)


def _dot(broker: str, x: float, y: float) -> str:
    radius = 7 if broker == BROKERS[0] else 5
    return f'<circle class="{broker}" cx="{x}" cy="{y}" r="{radius}"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
