"""docs/capacity.md has the figures of docs/benchmarks.md, and its formulas say what the code does."""

import re
from pathlib import Path

import record
from gateway.config.config import load
from record.layout import HEADER_SIZE, Kind
from sluice.console.times import format_size
from sluice.doctor.machine import memory_of

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "capacity.md").read_text(encoding="utf-8")
BENCHMARKS = (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def rows(page: str, columns: int) -> list[list[str]]:
    """The rows of all tables with so many columns or more."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    return [row for row in cells if len(row) >= columns and not set(row[0]) <= {"-"}]


def test_every_figure_is_that_of_the_benchmark() -> None:
    known = {row[0]: row for row in rows(BENCHMARKS, 3)}
    quoted = [row for row in rows(PAGE, 3) if row[2] in known]
    assert len(quoted) == 11
    for _, figure, name in quoted:
        column = 2 if name.startswith("group") else 1
        assert known[name][column].removesuffix(" µs") == figure, name
    tables = re.findall(r"row of the benchmark \|\n\|[-| ]+\|\n((?:\|.*\n)+)", PAGE)
    assert sum(table.count("\n") for table in tables) == len(quoted)


def test_figures_in_the_text_are_those_of_the_benchmark() -> None:
    for figure in ("starts in 2.0 s", "uses 118 MB"):
        assert figure in BENCHMARKS
        assert figure in PAGE
    assert (
        "100,000 reconnect and read 20 messages each, a delivery with its share of the connection | 8.6 µs"
        in BENCHMARKS
    )


def test_a_message_takes_what_the_formula_says() -> None:
    topic, client, payload = b"a/topic", b"client", b"x" * 100
    frame = record.frame(Kind.MESSAGE, 1, 0, topic, client, b"", payload)
    assert len(frame) == HEADER_SIZE + len(topic) + len(client) + len(payload)
    assert f"> {HEADER_SIZE} + topic + client id + payload + properties" in PAGE


def test_the_memory_is_that_of_the_defaults() -> None:
    assert f"{format_size(memory_of(load(None, {}, {}))).replace('.0', '')} of caches" in PAGE


def test_the_example_is_computed_right() -> None:
    computed = {row[0]: row for row in rows(PAGE, 3)}
    messages = 20_000 / 10
    assert "36,000" in computed["processor"][1]
    assert messages * 11.9 + 2 * messages * 1.8 + messages * 2.5 == 36_000
    assert f"{20_000 / 30 * 40.4:,.0f} µs" in computed["all devices connect within 30 s"][1]
    size = messages * (HEADER_SIZE + 30 + 20 + 200 + 80) * 7 * 86_400 + 3 * (256 << 20)
    assert computed["log and views"][2] == f"{size / 1e9:.0f} GB"
    assert computed["open files"][2] == f"{20_000 + 1000 + 1024:,}"
    assert computed["memory"][2] == f"{((586 << 20) + 20_000 * 32_000) / 1e9:.1f} GB"
