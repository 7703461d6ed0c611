"""One history of a cluster from a seed: the same seed, the same history."""

import asyncio
import logging
from random import Random

from tests.store.cluster.simulation.cluster import Cluster
from tests.store.cluster.simulation.loop import ClusterLoop
from tests.store.simulation.simulator import Lived, Violation


def simulate(seed: int, lies: bool | None = None) -> Lived:
    """Run a history. Every fourth one has an engine that lies, unless `lies` says. Raises `Violation`."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with asyncio.Runner(loop_factory=lambda: ClusterLoop(Random(seed))) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, ClusterLoop)
            cluster = Cluster(loop, seed, seed % 4 == 0 if lies is None else lies)
            try:
                runner.run(cluster.run())
            except Exception as error:
                raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    finally:
        logging.disable(level)
    return Lived(dict(cluster.counts), cluster.digest())
