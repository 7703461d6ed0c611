"""The measurement of the console, small: it loads every page of a node that it has filled."""

from pathlib import Path

import pytest

from benchmarks import console


@pytest.mark.slow
async def test_every_page_is_measured(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await console.fill(data, topics=console._SITES, sessions=200)
    broker, port = console.start(tmp_path, data)
    try:
        rows = console.measure_pages(broker, port, rounds=1)
        share = console.measure_open(broker, port, viewers=1, seconds=0.1)
    finally:
        broker.stop()
    assert [row["page"] for row in rows] == list(console.PAGES)
    assert all(row["bytes"] > 1000 for row in rows)
    assert share >= 0
