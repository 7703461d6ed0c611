"""Tests marked `any_store` run twice: over an engine in this process, and over one behind a socket.

`engine_only` exempts a test of such a module: what it checks holds for an engine alone. Examples are the position
of a record (a gateway's appends have one in front of them), when something happens by itself, and a fault set inside.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.retention.retention import Retention
from tests.store import popping
from tests.store.popping import Bench
from tests.store.remote.linked import Linked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    markers = {marker.name for marker in metafunc.definition.iter_markers()}
    if "any_store" in markers and "engine_only" not in markers:
        metafunc.parametrize("kind_of_store", ["engine", "remote"], indirect=True)


@pytest.fixture(autouse=True)
def kind_of_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `Engine` in the module of the test be the kind of store to test."""
    kind: str = getattr(request, "param", "engine")
    if kind == "remote":
        for module in (request.module, popping):
            if hasattr(module, "Engine"):
                monkeypatch.setattr(module, "Engine", Linked)
    return kind


@pytest.fixture
def retention_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retention run when the test calls it, and not when the log begins a segment."""
    monkeypatch.setattr(Retention, "segment_begun", lambda _: None)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data").open()
    yield bench
    assert bench.is_idle
    await bench.engine.close()
