"""A read-only store as of a moment, over a data folder or a backup. The folder may be in use, and is not changed.

Views are copied into a temporary folder and folded up to the moment. Their tables are linked if the temporary folder
is on the same file system. Records are read from the log in its place. Answers are those that the store gave then.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import record
from store.config import StoreConfig
from store.data_folder import is_data_folder, read_meta
from store.errors import LogCorrupt, StoreError
from store.exports.base import Base
from store.exports.until import Until, cut
from store.file_copy import Copier
from store.log.disk import Disk
from store.log.pinned_segments import pinned
from store.log.reader import LogReader
from store.log.recovery import begin_time, sound_batches
from store.log.segments import Segments, segment_name
from store.log.tail_cache import TailCache
from store.log.writer import SealedBatch
from store.queries import Queries
from store.views.database.database import Database
from store.views.digest import digest_of_views
from store.views.fold import Views

_CACHE: Final = 16 << 20  # bytes of RocksDB's blocks kept
_TRIES: Final = 5
_READS: Final = 2  # of the log in threads at a time


class Snapshot(Queries):
    """Answers the queries of `store.api.Store`. Create it with `open`, and close it."""

    def __init__(
        self, segments: Segments, database: Database, views: Views, config: StoreConfig, undo: ExitStack
    ) -> None:
        self._generation_bytes = config.segment_size * config.generation_segments
        self._database = database
        self._views = views
        self._reader = LogReader(segments, TailCache(0), _READS)
        self._undo = undo

    @classmethod
    async def open(
        cls,
        path: Path,
        until: Until = Until(),  # noqa: B008  frozen
        others: Sequence[Path] = (),
        temporary: Path | None = None,
        on_folded: Callable[[int], None] = lambda _: None,
    ) -> "Snapshot":
        """Open the data folder or backup `path` as of `until`.

        `others` are older backups of it: folding may begin from their views. The views are copied into a new folder in
        `temporary`. `on_folded` is called with numbers of bytes of the log as they are folded. Raises `LogCorrupt` for
        damage in what is folded, `StoreError` when there are no views to begin from (see `store.exports.base`), and
        OSError.
        """
        return await asyncio.get_running_loop().run_in_executor(None, _open, path, until, others, temporary, on_folded)

    @property
    def begin(self) -> int:
        """Begin of the log."""
        return self._views.begin

    @property
    def position(self) -> int:
        """End of the last record."""
        return self._views.position

    @property
    def time_ms(self) -> int:
        """Store time of the last record; 0: there is none."""
        return self._views.store_time

    async def digest(self) -> bytes:
        """The digest of the views, see `store.views.digest`. It reads all rows, in a thread."""
        self._views.checkpoint(self._views.position)
        run = asyncio.get_running_loop().run_in_executor
        return await run(None, digest_of_views, self._database, self._generation_bytes)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._undo.close)


def _open(
    path: Path, until: Until, others: Sequence[Path], temporary: Path | None, on_folded: Callable[[int], None]
) -> Snapshot:
    if not is_data_folder(path):
        raise StoreError(f"there is no data folder at {path}")
    meta = read_meta(path)
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="sluice-", dir=temporary))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        base = Base(folder / "views", Copier(Disk()), may_link=True)
        segments, own = _pin_with_views(path, meta.segment_size, base, until, undo)
        end = cut(segments, until)
        base.choose(segments, end, own, others)
        database = Database(base.into, _CACHE)
        undo.callback(database.close)
        config = StoreConfig(meta.partitions, meta.segment_size, meta.generation_segments)
        begin = segments.begin
        views = Views(database, config, begin, begin_time(segments, begin), segments.gone)
        _fold(views, segments, end, on_folded)
        return Snapshot(segments, database, views, config, undo.pop_all())


def _pin_with_views(path: Path, size: int, base: Base, until: Until, undo: ExitStack) -> tuple[Segments, int | None]:
    """Pin the log's segments, and copy its own views, which refer only to records in these segments.

    Returns the segments, and the position of the views.
    """
    for _ in range(_TRIES):
        with pinned(path / "log", size, Disk()) as segments:
            gone = segments.begin, segments.whole_from
            end = None if until == Until() else cut(segments, until)
        own = base.copy_from(path, base.into, end)
        with ExitStack() as pin:
            segments = pin.enter_context(pinned(path / "log", size, Disk()))  # again: the views may be ahead of it
            if (segments.begin, segments.whole_from) == gone:
                undo.push(pin.pop_all())
                return segments, own
        shutil.rmtree(base.into, ignore_errors=True)
    raise StoreError(f"retention keeps removing segments of {path}: try again, or use a backup")


def _fold(views: Views, segments: Segments, end: int, on_folded: Callable[[int], None]) -> None:
    """Fold the log from where the views are up to `end`."""
    for batch in sound_batches(segments, views.position) if views.position < end else ():
        data, time_ms = batch.data, batch.store_time
        if batch.position + len(data) > end:
            data = data[: end - batch.position]
            time_ms = record.store_time_of(data, record.split(data)[-1])
        views.fold(SealedBatch(batch.position, data, time_ms))
        on_folded(len(data))
        if views.position >= end:
            break
        if views.is_full:
            views.checkpoint(end)
    if views.position != end:
        raise LogCorrupt(segment_name(segments.base_of(views.position)), views.position, "damaged record")
