"""Many histories: `python -m tests.store.simulation --seeds 10000 --first 1`. Exit code 1 on a violation."""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.store.simulation.many import run_many
from tests.store.simulation.simulator import Lived, simulate


def simulate_in_memory(seed: int) -> Lived:
    """A history in a folder of its own, which takes no disk where that is possible."""
    fast = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="sluice-simulation-", dir=fast if fast.is_dir() else None))
    try:
        return simulate(seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run_many(__doc__, simulate_in_memory, "simulate"))
