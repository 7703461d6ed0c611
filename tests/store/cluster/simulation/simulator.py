"""One history of a cluster from a seed: the same seed, the same history."""

import asyncio
import logging
import tempfile
from contextlib import nullcontext
from pathlib import Path
from random import Random

from store.views.database import database
from tests.store.cluster.simulation.cluster import Cluster
from tests.store.cluster.simulation.loop import ClusterLoop
from tests.store.simulation.loop import replayable
from tests.store.simulation.simulator import Lived, Violation


def simulate(seed: int, lies: bool | None = None) -> Lived:
    """Run a history. Every fourth one has an engine that lies, unless `lies` says. Raises `Violation`."""
    return _simulate(seed, lies, None)


def simulate_stores(seed: int, lies: bool | None = None) -> Lived:
    """Run a history of nodes with their real stores. Raises `Violation`."""
    new_files = database._NEW_FILES
    database._NEW_FILES = 1 << 20  # type: ignore[misc]  # threads of RocksDB compact at any time, and snapshots have its files
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
            return _simulate(seed, lies, Path(folder))
    finally:
        database._NEW_FILES = new_files  # type: ignore[misc]


def _simulate(seed: int, lies: bool | None, folder: Path | None) -> Lived:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with asyncio.Runner(loop_factory=lambda: ClusterLoop(Random(seed))) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, ClusterLoop)
            cluster = Cluster(loop, seed, seed % 4 == 0 if lies is None else lies, folder=folder)
            try:
                with nullcontext() if folder is None else replayable(loop, lambda _: None):
                    runner.run(cluster.run())
            except Exception as error:
                raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    finally:
        logging.disable(level)
    return Lived(dict(cluster.counts), cluster.digest())
