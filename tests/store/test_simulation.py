"""Random histories of crashes; the nightly run is `make simulate SEEDS=10000`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.simulation.simulator import Lived, simulate

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_no_history_violates_the_promises():
    command = [sys.executable, "-m", "tests.store.simulation", "--seeds", "40"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.endswith("0 violations\n")


def test_a_few_histories_and_the_same_seed_is_the_same_history(tmp_path: Path):
    lived: list[list[Lived]] = []
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        lived.append([])
        for seed in range(1, 4):
            folder = tmp_path / run / str(seed)
            folder.mkdir()
            lived[-1].append(simulate(seed, folder))
    assert lived[0] == lived[1]
