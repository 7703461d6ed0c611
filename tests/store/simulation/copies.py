"""The views that a crash may leave on disk: RocksDB has there what it had at some checkpoint since it last flushed."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rocksdict import Checkpoint

from store.views.database.database import Database
from tests.store.images import copy_image


@dataclass(slots=True)
class Copy:
    """A copy of RocksDB's files at some moment; without `path`, none."""

    path: Path | None
    position: int  # the log position it is true up to
    begin: int  # where it knows that the log begins
    files: int = 0  # where it knows that its files begin


class Copies:
    """Copies of one store's views, in `aside`; those that a crash may leave now are in `possible`."""

    def __init__(self, aside: Path) -> None:
        self.possible = [Copy(None, 0, 0)]
        self._aside = aside
        self._made = 0

    def folder(self) -> Path:
        """A name that is not in use."""
        self._made += 1
        return self._aside / f"views{self._made}"

    def add(self, database: Database) -> None:
        """RocksDB may have flushed by itself just now."""
        self.possible.append(self._copy(database))

    def flushed(self, database: Database) -> None:
        """RocksDB was told to flush, and has."""
        self.possible = [self._copy(database)]

    def closed(self, views: Path, position: int, begin: int, files: int) -> None:
        """RocksDB was closed, which flushes it."""
        path = self.folder()
        copy_image(views, path)  # it may still be removing files that it does not need
        self.possible = [Copy(path, position, begin, files)]

    def lost(self) -> None:
        """There are no views any more."""
        self.possible = [Copy(None, 0, 0)]

    def leave(self, views: Path, rng: Random) -> None:
        """A crash: one of them is what there is."""
        copy = rng.choice(self.possible)
        shutil.rmtree(views, ignore_errors=True)
        if copy.path is not None:
            shutil.copytree(copy.path, views)
        self.possible = [copy]

    def opened(self, end: int) -> None:
        """A log up to `end` was opened with them: views that are ahead of it have been deleted."""
        if self.possible[-1].position > end:
            self.lost()

    def _copy(self, database: Database) -> Copy:
        path = self.folder()
        Checkpoint(database._db).create_checkpoint(str(path))
        begin = database.get(b"B")
        saved = database.checkpoint()
        return Copy(path, saved.position, int.from_bytes(begin[:8], "big") if begin else 0, saved.log_begin)
