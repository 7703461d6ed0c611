"""Chaos over a store and its gateways, or over a cluster of three nodes:

`python -m tests.system.chaos --seconds 60 --seeds 10 --first 1`
`python -m tests.system.chaos --cluster nats --kills 100 --spark`
"""

import argparse
import asyncio
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from tests.system.chaos.cluster_world import ClusterWorld
from tests.system.chaos.run import Run
from tests.system.chaos.spark_stream import SparkStream
from tests.system.chaos.world import SplitWorld


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.chaos",
        description="Kill and stop processes under load, and check that what was promised holds.",
    )
    parser.add_argument("--cluster", choices=("file", "nats", "seaweed"), help="three nodes with one log here")
    parser.add_argument("--seconds", type=float, default=30.0, help="of faults, in each run")
    parser.add_argument("--seeds", type=int, default=1, help="runs")
    parser.add_argument("--kills", type=int, help="in all runs together; as many runs as that takes")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--spark", action="store_true", help="a stream of Spark reads all messages meanwhile")
    given = parser.parse_args()
    failed = kills = 0
    for seed in count(given.first):
        folder = Path(mkdtemp(prefix="sluice-chaos-"))
        world = ClusterWorld(folder, seed, given.cluster) if given.cluster else SplitWorld(folder, seed)
        run = Run(world, SparkStream(folder / "spark") if given.spark else None)
        try:
            asyncio.run(run.go(given.seconds))
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}\nits files are in {folder}\n{run.summary()}", flush=True)
        else:
            print(f"seed {seed}: {run.summary()}", flush=True)
            rmtree(folder)
        kills += run.world.kills
        if given.kills is None and seed + 1 == given.first + given.seeds:
            break
        if given.kills is not None and kills >= given.kills:
            break
    print(f"{kills} kills, {failed} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
