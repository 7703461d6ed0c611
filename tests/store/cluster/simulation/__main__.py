"""Many histories: `python -m tests.store.cluster.simulation --seeds 10000 --first 1`. Exit code 1 on a violation."""

import sys

from tests.store.cluster.simulation.simulator import simulate
from tests.store.simulation.many import run_many

if __name__ == "__main__":
    sys.exit(run_many(__doc__, simulate, "simulate-cluster"))
