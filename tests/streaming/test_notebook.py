"""The notebook among the examples, from top to bottom."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from streaming.java import JavaNotFound, java_home
from tests.system.conftest import NodeProcess

ROOT = Path(__file__).parents[2]
SECONDS = 400  # for what Spark does on a busy machine

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(SECONDS + 60)]


@pytest.fixture
def empty_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SLUICE_STORE_SEGMENT_SIZE", str(4 << 20))
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    node.stop()


def test_the_notebook_finds_and_publishes_the_bad_afternoon(empty_node: NodeProcess, tmp_path: Path) -> None:
    notebook = ROOT / "examples" / "spark_notebook.py"
    done = subprocess.run(
        [sys.executable, str(notebook), empty_node.endpoint, str(tmp_path / "results")],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    alerts = [line for line in done.stdout.splitlines() if line.startswith("alerts/")]
    assert len(alerts) == 1 and alerts[0].startswith("alerts/bath: "), done.stdout
    assert "2026-01-06T13:" in alerts[0]
    assert (tmp_path / "results" / "week.png").read_bytes().startswith(b"\x89PNG")
