"""Chaos over a store and its gateways: `python -m tests.system.chaos --seconds 60 --seeds 10 --first 1`."""

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.system.chaos.run import Run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of faults, in each run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    failed = 0
    for seed in range(given.first, given.first + given.seeds):
        with TemporaryDirectory(prefix="sluice-chaos-") as folder:
            run = Run(Path(folder), seed)
            try:
                asyncio.run(run.go(given.seconds))
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: {error}")
                for each in (run.world.store, *run.world.gateways.values()):
                    print(f"--- {each.data_dir.name}\n{each.log()}")
            print(f"seed {seed}: {run.summary()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
