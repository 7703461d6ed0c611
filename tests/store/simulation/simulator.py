"""One history of a store with crashes, from a seed: the same seed, the same history.

A history is lives of a store on one folder. In a life it appends, checkpoints, syncs, reclaims and is asked; the life
ends with a clean stop, a kill, a power cut or a disk that fails, at any operation of the disk, also while it opens.
Then the folder is what that leaves, the views are one of the copies that RocksDB may have had on disk, and the
next life has to show everything that was acknowledged, in order, and nothing else.
"""

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from store.errors import ViewsDamaged
from store.views.database import Database
from tests.store.simulation.disk import PowerCut
from tests.store.simulation.history import History
from tests.store.simulation.loop import SimulatedLoop, replayable


class Violation(AssertionError):
    """The store did what it must not. The message begins with the seed."""


@dataclass(slots=True, frozen=True)
class Lived:
    """What became of a history."""

    counts: dict[str, int]  # of what happened in it
    digest: int  # of all that was ever in its log, and of what else chance decided: the same for the same seed


def simulate(seed: int, folder: Path) -> Lived:
    """Run a history in the empty `folder`. Raises `Violation`."""
    history: History | None = None
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(Random(seed + 2))) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        history = History(seed, folder, loop)
        with replayable(loop, history.on_flush), _flushes(history):
            try:
                runner.run(history.run())
            except Exception as error:
                raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    state = repr((history.rng.getstate(), loop.time())).encode()
    return Lived(dict(history.counts), zlib.crc32(b"".join([*history.truth.frames, state])))


@contextmanager
def _flushes(history: History) -> Iterator[None]:
    """While it lasts, RocksDB's flushes are operations of the history's disk."""
    flush = Database.flush

    def flush_or_fail(database: Database) -> None:
        try:
            cut = history.disk.flush_views()
        except PowerCut:
            raise
        except OSError as error:
            raise ViewsDamaged(history.path / "views", error) from error
        flush(database)
        history.copies.flushed(database)
        if cut:
            history.disk.dead = True
            raise PowerCut

    Database.flush = flush_or_fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database.flush = flush  # type: ignore[method-assign]
