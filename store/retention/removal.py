"""Removes the files of segments that the log has let go, in the background.

A record of the log says where the log begins (LOG_TRIMMED), and its fold moves the begin for all readers. This is what
each node does afterwards, at its own pace, whether it writes the log or only folds it. It needs no writer and no
setting: the log has decided.

The order of its steps makes a crash between any two of them harmless. It copies held messages and retained values from
the segments into their views, flushes the views to disk, and removes the segments. When all segments of an index
generation are removed, it writes down the ends of the generation's queues and deletes its entries with one range
delete. None of this changes an answer of the views, or what they become by later records.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Final

from store.config import StoreConfig
from store.log.reader import LogReader
from store.log.segments import Segments
from store.views.database.database import Database
from store.views.database.keeping import Keeper
from store.views.fold import Views
from store.views.topics.retained import NOWHERE

logger = logging.getLogger(__name__)

_PAGE: Final = 256  # rows checked per turn of the loop
_KEPT_BYTES: Final = 4 << 20  # of copied records between two checkpoints
_SLICE: Final = 64  # queues whose ends are written down per turn of the loop
_REST: Final = 4  # the pause after a turn or a removal, as a multiple of its time


class Removal:
    """Removes segments before the log's begin, one after the other with pauses, so that it takes at most a fifth of the
    disk's time. Flushes and removals run in a thread, everything else in short turns of the loop.

    `stopped` ends each method after its current step. Methods raise `StoreError` and OSError; a later call goes on.
    """

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        reader: LogReader,
        database: Database,
        views: Views,
        checkpoint: Callable[[], Awaitable[None]],
        stopped: asyncio.Event,
    ) -> None:
        self._config = config
        self._segments = segments
        self._reader = reader
        self._database = database
        self._views = views
        self._checkpoint = checkpoint  # of the views; the log is on disk up to it then
        self._stopped = stopped
        self._kept_below = 0  # no retained value refers to a record before this position
        self.removing = asyncio.Lock()  # no segment is removed while another task has it

    @property
    def is_due(self) -> bool:
        """Whether the log has let segments go whose files are still there."""
        return self._views.begin > self._views.files_begin

    async def remove(self) -> None:
        """Remove the files of all segments before the log's begin."""
        await self._remove_files()  # those that the last call could not remove
        if self.is_due and not self._stopped.is_set():
            begin = self._views.begin
            await self.keep_held(begin)
            await self.keep_retained(begin)
            async with self.removing:
                await self._forget(begin)
                logger.info("retention removes segments: the log begins at %d", begin)
            await self._remove_files()

    async def remove_local(self, begin: int) -> None:
        """Remove the files of all segments before `begin`, which are in the tier. The log begins where it did.

        Views need nothing of them: held messages (`keep_held`) and retained values are read without the tier.
        """
        await self.keep_retained(begin)
        if self._stopped.is_set():
            return
        async with self.removing:
            await self._forget(begin)
        logger.info("segments before %d are only in the tier now", begin)
        await self._remove_files()

    async def keep_held(self, below: int) -> None:
        """Copy held messages whose records are before `below` into the view. From now on they enter by copies."""
        await self._keep(self._views.held, below)

    async def keep_retained(self, below: int) -> None:
        """Copy retained values whose records are before `below` into the view.

        No record that is folded later may make such a record a retained value, unless the record stays.

        One pass keeps the records of the whole index generation of `below`, so that the other segments of the
        generation need no pass. A further pass is made only if a held message became a retained value whose record is
        before `below`.
        """
        retained = self._views.retained
        if below <= self._kept_below and below <= retained.moved_from:
            return
        size = self._config.segment_size * self._config.generation_segments
        below = min(-(-below // size) * size, self._segments.base_of(self._views.position))
        self._kept_below, retained.moved_from = 0, NOWHERE
        await self._keep(retained, below)
        self._kept_below = below

    async def flush(self) -> None:
        """Checkpoint the views, and flush them to disk."""
        await self._checkpoint()
        await asyncio.get_running_loop().run_in_executor(None, self._database.flush)

    async def drop_generations(self, pause: Callable[[float], Awaitable[None]]) -> None:
        """Drop the index of generations whose segments are removed.

        `pause` is awaited after each slice, with seconds that should pass before the next.
        """
        while not self._stopped.is_set():
            generation = self._views.oldest_generation()
            if generation is None:
                return
            digest: bytes | None = b""
            while digest is not None:
                began = time.monotonic()
                digest = self._views.fold_ends(generation, digest, _SLICE)
                await pause(_REST * (time.monotonic() - began))
                if self._stopped.is_set():
                    return
            self._views.drop_generation(generation)

    async def _keep(self, view: Keeper, below: int) -> None:
        """Copy the records before `below` that a view refers to into it, except damaged ones."""
        copied = rows = 0
        page = view.to_keep(below, None, _PAGE)
        while True:
            for slice_ in _slices(page.rows):
                frames = await self._reader.each([(position, length) for _, position, length in slice_])
                for (name, _, length), frame in zip(slice_, frames, strict=True):
                    if frame is not None:
                        view.keep(name, frame)
                        copied += length
                        rows += 1
                if copied >= _KEPT_BYTES or rows >= self._config.checkpoint_keys:
                    await self._checkpoint()
                    copied = rows = 0
            if page.after is None:
                return
            await asyncio.sleep(0)
            page = view.to_keep(below, page.after, _PAGE)

    async def _forget(self, begin: int) -> None:
        """Read no file before `begin` any more. The views on disk know that files begin there, and need nothing."""
        await self._checkpoint()
        self._database.put_log_begin(begin)  # without it, an opening would call the removed segments missing
        await asyncio.get_running_loop().run_in_executor(None, self._database.flush)
        self._views.forget_files(begin)
        self._segments.forget(begin)

    async def _remove_files(self) -> None:
        """Remove the files of forgotten segments, with pauses.

        A write may wait for as long as the file system takes to free a large file.
        """
        loop = asyncio.get_running_loop()
        while not self._stopped.is_set():
            began = time.monotonic()
            if not await loop.run_in_executor(None, self._segments.remove_oldest):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_REST * (time.monotonic() - began)):
                    await self._stopped.wait()


def _slices(rows: list[tuple[bytes, int, int]]) -> Iterator[list[tuple[bytes, int, int]]]:
    """Yield rows (name, position and length of the record) in order of positions, in slices of bounded bytes."""
    slice_: list[tuple[bytes, int, int]] = []
    size = 0
    for row in sorted(rows, key=itemgetter(1)):
        if slice_ and size + row[2] > _KEPT_BYTES:
            yield slice_
            slice_, size = [], 0
        slice_.append(row)
        size += row[2]
    if slice_:
        yield slice_
