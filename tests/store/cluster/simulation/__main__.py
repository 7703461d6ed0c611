"""Many histories: `python -m tests.store.cluster.simulation --seeds 10000 --first 1`. Exit code 1 on a violation.

`python -m tests.store.cluster.simulation stores …` runs nodes with their real stores, which takes some seconds each.
"""

import sys

from tests.store.cluster.simulation.simulator import simulate, simulate_stores
from tests.store.simulation.many import run_many

if __name__ == "__main__":
    if sys.argv[1:2] == ["stores"]:
        del sys.argv[1]
        sys.exit(run_many(__doc__, simulate_stores, "simulate-cluster KIND=stores"))
    sys.exit(run_many(__doc__, simulate, "simulate-cluster"))
