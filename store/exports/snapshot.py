"""A store as it was at a moment: read-only, over a data folder or a backup that is not changed by it, whoever has it.

Views are copied into a temporary folder (their tables linked, where that is one file system) and folded on to the
moment; records are read from the log where it is. What it answers is what the store answered then.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
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
from store.log.pinned_segments import PinnedSegments
from store.log.reader import LogReader
from store.log.recovery import begin_time, sound_batches
from store.log.segments import Segments, segment_name
from store.log.tail_cache import TailCache
from store.log.writer import SealedBatch
from store.queries import Queries
from store.views.database import Database
from store.views.fold import Views

_CACHE: Final = 16 << 20  # bytes of RocksDB's blocks kept
_TRIES: Final = 5


class Snapshot(Queries):
    """Answers the questions of `store.api.Store`. Made by `open`, to be closed."""

    def __init__(self, segments: Segments, views: Views, partitions: int, undo: ExitStack) -> None:
        self.partitions = partitions
        self._views = views
        self._reader = LogReader(segments, TailCache(0))
        self._undo = undo

    @classmethod
    async def open(
        cls,
        path: Path,
        until: Until = Until(),  # noqa: B008  frozen
        others: Sequence[Path] = (),
        temporary: Path | None = None,
        tell: Callable[[int], None] = lambda _: None,
    ) -> "Snapshot":
        """The store of the data folder or backup `path` as it was at `until`, or as it is.

        Views to begin from may be those of older backups of it, `others`. `temporary` is where its folder is made, and
        `tell` hears of bytes of the log as they are folded. Raises `LogCorrupt` for damage in what is folded,
        `StoreError` when there are no views to begin from (see `store.exports.base`), OSError.
        """
        return await asyncio.get_running_loop().run_in_executor(None, _open, path, until, others, temporary, tell)

    @property
    def begin(self) -> int:
        """Where the log begins."""
        return self._views.begin

    @property
    def position(self) -> int:
        """The end of the last record that was there."""
        return self._views.position

    @property
    def time_ms(self) -> int:
        """When that was stored; 0 when there was none."""
        return self._views.store_time

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._undo.close)


def _open(
    path: Path, until: Until, others: Sequence[Path], temporary: Path | None, tell: Callable[[int], None]
) -> Snapshot:
    if not is_data_folder(path):
        raise StoreError(f"there is no data folder at {path}")
    meta = read_meta(path)
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="sluice-", dir=temporary))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        base = Base(folder / "views", Copier(Disk()), may_link=True)
        segments, own = _pin_with_views(path, meta.segment_size, base, until)
        undo.callback(segments.close)
        end = cut(segments, until)
        base.choose(segments, end, own, others)
        database = Database(base.into, _CACHE)
        undo.callback(database.close)
        config = replace(
            StoreConfig(),
            partitions=meta.partitions,
            segment_size=meta.segment_size,
            generation_segments=meta.generation_segments,
        )
        begin = segments.bases[0] if segments.bases else 0
        views = Views(database, config, begin, begin_time(segments, begin), segments.damaged)
        _fold(views, segments, end, tell)
        return Snapshot(segments, views, meta.partitions, undo.pop_all())


def _pin_with_views(path: Path, size: int, base: Base, until: Until) -> tuple[Segments, int | None]:
    """The log's segments, and the position of its own views, which are copied: of a moment in which retention took
    nothing. The views refer to records that are in the segments then."""
    for _ in range(_TRIES):
        segments = _pin(path, size)
        begin = segments.bases[:1]
        end = None if until == Until() else cut(segments, until)
        segments.close()
        own = base.copy_from(path, base.into, end)
        segments = _pin(path, size)  # again: the views may have come further than the log that was seen before
        if segments.bases[:1] == begin:
            return segments, own
        segments.close()
        shutil.rmtree(base.into, ignore_errors=True)
    raise StoreError(f"retention keeps taking segments of {path} away: try again, or look at a backup")


def _pin(path: Path, size: int) -> PinnedSegments:
    segments = PinnedSegments(path / "log", size, Disk())
    try:
        segments.find()
    except BaseException:
        segments.close()
        raise
    return segments


def _fold(views: Views, segments: Segments, end: int, tell: Callable[[int], None]) -> None:
    """Fold the log from where the views are up to `end`."""
    for batch in sound_batches(segments, views.position) if views.position < end else ():
        data, time_ms = batch.data, batch.store_time
        if batch.position + len(data) > end:
            data = data[: end - batch.position]
            time_ms = record.store_time_of(data, record.split(data)[-1])
        views.fold(SealedBatch(batch.position, data, time_ms))
        tell(len(data))
        if views.position >= end:
            break
        if views.is_full():
            views.checkpoint(end)
    if views.position != end:
        raise LogCorrupt(segment_name(segments.base_of(views.position)), views.position, "damaged record")
