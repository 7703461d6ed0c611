"""Removes whole segments from the beginning of the log, by age, by size and by the room on the disk, in the background.

It checks whenever the log begins another segment, so that the log is longer than its limit by two segments at most, and
what is written during a removal.

The order of its steps makes a crash between any two of them harmless. It copies held messages and retained values
from the segments into their views, flushes the views to disk, and removes the segments. When all references of an
index generation are to removed records, it writes down the ends of the generation's queues and deletes its entries
with one range delete. A record is removed only after the views on disk have it, and the active segment never is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Final

from store.config import StoreConfig
from store.errors import LogCorrupt, StoreFailed
from store.log.commitlog import CommitLog
from store.log.reader import LogReader
from store.log.segments import Segments
from store.log.writer import Clock
from store.retention.compaction import Compaction
from store.retention.expiry import Expiry
from store.views.database.database import Database
from store.views.database.keeping import Keeper
from store.views.fold import Views
from store.views.topics.retained import NOWHERE

logger = logging.getLogger(__name__)

_PAGE: Final = 256  # rows checked per turn of the loop
_KEPT_BYTES: Final = 4 << 20  # of copied records between two checkpoints
_SLICE: Final = 64  # queues whose ends are written down per turn of the loop
_REST: Final = 4  # the pause after a turn or a removal, as a multiple of its time


class Retention:
    """Checks for segments to remove when the log begins a segment, and every `retention_check_s`.

    It runs on the loop in short turns, except flushes and removals, which run in a thread. It removes one segment after
    the other with pauses, so that it takes at most a fifth of the disk's time.
    """

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        reader: LogReader,
        database: Database,
        views: Views,
        log: CommitLog,
        checkpoint: Callable[[], Awaitable[None]],
        wait_for_held: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._config = config
        self._expiry = Expiry(config, segments, reader, views, log, clock)
        self._segments = segments
        self._reader = reader
        self._database = database
        self._views = views
        self._log = log
        self._checkpoint = checkpoint
        self._wait_for_held = wait_for_held  # until records about held messages are folded
        self._kept_below = 0  # no retained value refers to a record before this position
        self._one = asyncio.Lock()  # of `enforce`
        self.removing = asyncio.Lock()  # no segment is removed while another task has it
        self._stopped = asyncio.Event()
        self._is_due = asyncio.Event()  # a check, or a stop
        self._task: asyncio.Task[None] | None = None
        self._compaction = Compaction(
            config, segments, views, self._expiry, self._keep_all, self._flush, self.removing, self._stopped
        )
        self._is_disk_low = False  # and nothing can be removed: a warning says so

    def start(self) -> None:
        """Start the background task if a retention limit is configured."""
        self._expiry.move_floors()
        if self._expiry.is_on:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the current turn, and wait for a running `enforce`."""
        self._stopped.set()
        self._is_due.set()
        if self._task is not None:
            await self._task
        async with self._one:
            pass

    def segment_begun(self) -> None:
        """Check now: the log has begun another segment."""
        self._is_due.set()

    async def enforce(self) -> None:
        """Remove the segments that may be removed now.

        Raises `StoreError` and OSError. The next check continues then.
        """
        async with self._one:
            await self._remove_expired()
            while not self._stopped.is_set():
                generation = self._views.oldest_generation()
                if generation is None or not await self._fold_ends(generation):
                    break
                self._views.drop_generation(generation)
            await self._compact()

    async def _compact(self) -> None:
        """Free the disk of records that nobody needs, in segments that others need. Removing segments comes first."""
        if self._compaction.is_on and not self._log.failed:
            await self._checkpoint()
        while not self._stopped.is_set() and not self._log.failed:
            search = await self._compaction.next()
            if search is None:
                return
            await self._compaction.compact(search)
            if self._is_due.is_set() and not self._stopped.is_set():
                self._is_due.clear()
                await self._remove_expired()

    async def _flush(self) -> None:
        """Checkpoint the views, and flush them to disk. Raises `StoreError` and OSError."""
        await self._checkpoint()
        await asyncio.get_running_loop().run_in_executor(None, self._database.flush)
        if self._log.failed:
            raise StoreFailed("the log has failed: nothing is removed until a restart")

    async def _remove_expired(self) -> None:
        await self._remove_files()  # those that the last call could not remove
        self._expiry.move_floors()
        entered = self._views.moved.entered
        cut = await self._expiry.cut()
        if cut > self._views.begin:
            await self._keep_all(cut)
        if entered != self._views.moved.entered:
            # A held message entered its queues before it was kept: its parent topic's age may keep the segment.
            cut = min(cut, await self._expiry.cut())
        if cut > self._views.begin:
            await self._remove_before(cut)
        else:
            self._check_room()

    def _check_room(self) -> None:
        """Warn once if the disk has too little room and nothing can be removed."""
        free = self._segments.free_bytes()
        is_low = free < self._config.retention_free_bytes
        if is_low and not self._is_disk_low:
            text = "the disk of %s has only %d bytes free, and retention may remove nothing more"
            logger.warning(text, self._segments.folder, free)
        self._is_disk_low = is_low

    async def _run(self) -> None:
        while not self._stopped.is_set() and not self._log.failed:
            self._is_due.clear()
            try:
                await self.enforce()
            except Exception:  # the task must not end silently while the disk fills up
                logger.exception("retention could not remove segments; the next check tries again")
            await self._rest(self._config.retention_check_s)

    async def _keep_all(self, cut: int) -> None:
        """Copy the records before `cut` that views refer to into these views.

        Held messages come first. A kept message enters its queues by a copy, so once the appends of before are
        committed, no new retained value refers to a record before `cut`.

        For retained values, one pass keeps the records of the whole index generation of `cut`, so that the other
        segments of the generation need no pass. A further pass is made only if a held message became a retained value
        whose record is before `cut`.
        """
        await self._keep(self._views.held, cut)
        await self._wait_for_held()
        retained = self._views.retained
        if cut <= self._kept_below and cut <= retained.moved_from:
            return
        size = self._config.segment_size * self._config.generation_segments
        below = min(-(-cut // size) * size, self._segments.base_of(self._log.end))
        self._kept_below, retained.moved_from = 0, NOWHERE
        await self._keep(retained, below)
        self._kept_below = below

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

    async def _remove_before(self, cut: int) -> None:
        async with self.removing:
            await self._forget(cut)
        await self._remove_files()

    async def _forget(self, cut: int) -> None:
        """Let the log begin at `cut`, as far as the views on disk allow. The files are still there."""
        loop = asyncio.get_running_loop()
        await self._checkpoint()
        cut = min(cut, self._segments.base_of(self._views.checkpointed))
        if cut <= self._views.begin:
            return
        self._database.put_log_begin(cut)  # without it, an opening would call the removed segments missing
        await loop.run_in_executor(None, self._database.flush)
        if self._log.failed:
            return
        try:
            begin_time = await self._expiry.time_of(cut)
        except LogCorrupt:
            begin_time = self._views.begin_time  # an earlier time is fine: references before `cut` are skipped
        self._views.reclaim(cut, begin_time)
        self._segments.forget(cut)
        logger.info("retention removes segments: the log begins at %d", cut)

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
                await asyncio.wait_for(self._stopped.wait(), _REST * (time.monotonic() - began))

    async def _fold_ends(self, generation: int) -> bool:
        """Write down the ends of a generation's queues. Returns False if stopped; it starts anew then.

        It pauses between slices to leave time to others, so it checks for segments to remove meanwhile.
        """
        digest: bytes | None = b""
        while digest is not None:
            began = time.monotonic()
            digest = self._views.fold_ends(generation, digest, _SLICE)
            await self._rest(_REST * (time.monotonic() - began))
            if self._stopped.is_set():
                return False
            if self._is_due.is_set():
                self._is_due.clear()
                await self._remove_expired()
        return True

    async def _rest(self, seconds: float) -> None:
        """Sleep, but wake up when a check is due, and for `stop`."""
        try:
            await asyncio.wait_for(self._is_due.wait(), seconds)
        except TimeoutError:
            return


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
