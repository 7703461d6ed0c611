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

from rocksdict import WriteBatch

from store.errors import ViewsDamaged
from store.views.database.database import Database
from tests.store.simulation.disk import PowerCut
from tests.store.simulation.history import History
from tests.store.simulation.loop import SimulatedLoop, replayable


class Violation(AssertionError):
    """The store did what it must not. The message begins with the seed."""


@dataclass(slots=True, frozen=True)
class Lived:
    """The result of a history."""

    counts: dict[str, int]  # of what happened in it
    digest: int  # of all that was ever in its log, and of what else chance decided: the same for the same seed


def simulate(seed: int, folder: Path) -> Lived:
    """Run a history in the empty `folder`. Raises `Violation`."""
    history: History | None = None
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(Random(seed + 2))) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        history = History(seed, folder, loop)
        with replayable(loop, history.on_flush), _views_on(history):
            try:
                runner.run(history.run())
            except Exception as error:
                raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    state = repr((history.rng.getstate(), loop.time())).encode()
    return Lived(dict(history.counts), zlib.crc32(b"".join([*history.truth.frames, state])))


@contextmanager
def _views_on(history: History) -> Iterator[None]:
    """While it lasts, RocksDB's flushes and writes are operations of the history's disk."""
    flush, write = Database.flush, Database._write

    views = history.path / "views"

    def flush_or_fail(database: Database) -> None:
        try:
            cut = database._path == views and history.disk.flush_views()
        except PowerCut:
            raise
        except OSError as error:
            raise ViewsDamaged(views, error) from error
        flush(database)
        if database._path == views:
            history.copies.flushed(database)
        if cut:
            history.disk.dead = True
            raise PowerCut

    def write_or_fail(database: Database, batch: WriteBatch) -> None:
        try:
            if database._path == views:
                history.disk.write_views()
        except OSError as error:
            raise ViewsDamaged(views, error) from error
        write(database, batch)

    Database.flush, Database._write = flush_or_fail, write_or_fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database.flush, Database._write = flush, write  # type: ignore[method-assign]
