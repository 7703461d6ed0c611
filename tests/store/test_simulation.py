"""Random histories of crashes; the nightly run is `make simulate SEEDS=10000`."""

from pathlib import Path

import pytest

from tests.store.simulation.__main__ import run_seed
from tests.store.simulation.simulator import simulate


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 201, 50))
def test_no_history_violates_the_promises(first: int):
    for seed in range(first, first + 50):
        violation = run_seed(seed)[2]
        assert not violation, violation


def test_a_few_histories_and_the_same_seed_is_the_same_history(tmp_path: Path):
    counts = []
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        counts.append([])
        for seed in range(1, 4):
            folder = tmp_path / run / str(seed)
            folder.mkdir()
            counts[-1].append(simulate(seed, folder))
    assert counts[0] == counts[1]
