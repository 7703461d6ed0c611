"""Drivers that are killed: what reaches a transactional sink is each record, once."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from streaming.java import JavaNotFound, java_home

RECORDS = 240
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.nightly)])
def test_a_driver_killed_at_any_point_continues_exactly_once(node: Any, tmp_path: Path, kills: int) -> None:
    """Killed with all that it started (the JVM and its Python workers): before, while and after batches are written."""
    try:
        java_home()
    except JavaNotFound as error:
        pytest.skip(str(error))
    database = sqlite3.connect(tmp_path / "sink.db")
    database.execute("CREATE TABLE rows (batch INTEGER, topic TEXT, part INTEGER, offset INTEGER)")
    database.commit()
    node.publish(0, RECORDS // 2)
    node.publish(2, RECORDS // 4)
    chance = random.Random(6)
    for kill in range(kills + 1):
        node.publish(1, RECORDS // 4 // (kills + 1))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.streaming.killed_query", node.endpoint, str(tmp_path), "sensors/#"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        if kill < kills:
            batches = chance.randint(0, 2)  # that are begun before it is killed
            for line in process.stdout:
                batches -= line.startswith("batch")
                if batches <= 0 and (line.startswith("batch") or kill == 0):
                    break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        else:
            process.communicate(timeout=800)
            assert process.returncode == 0
    found = Counter(database.execute("SELECT topic, part, offset FROM rows").fetchall())
    ends = {number: len(queue) for number, queue in enumerate(node.frames)}
    assert found == Counter(
        (f"sensors/{number}", number, offset) for number, end in ends.items() for offset in range(end)
    )
    database.close()
