"""What takes the log's beginning away: whole segments, by age and by size, in the background.

In this order, so that a crash between any two steps loses nothing: held messages and retained values that lie in what
will go are copied into their views; the views are put on disk; the segments go; and when a whole generation of the
index points into nothing, the ends of its queues are written down and its entries go with one range delete. A record
goes only when the views on disk have it folded, and the segment that is written to never goes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from store.config import StoreConfig
from store.errors import LogCorrupt
from store.log.commitlog import CommitLog
from store.log.reader import LogReader
from store.log.segments import Segments
from store.log.writer import Clock
from store.retention.expiry import Expiry
from store.views.database import Database
from store.views.fold import Views
from store.views.keeping import Keeper
from store.views.retained import NOWHERE

logger = logging.getLogger(__name__)

_PAGE: Final = 256  # rows looked at in one turn of the loop
_KEPT_BYTES: Final = 4 << 20  # of records copied, after which they are checkpointed
_SLICE: Final = 64  # queues whose ends are folded in one turn of the loop
_REST: Final = 4  # times as long as a turn took, until the next


class Retention:
    """Looks every `retention_check_s` for segments that may go. Everything happens on the loop, in short turns, but
    flushes and removals, which a thread does."""

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        reader: LogReader,
        database: Database,
        views: Views,
        log: CommitLog,
        checkpoint: Callable[[], Awaitable[None]],
        settle: Callable[[], Awaitable[None]],
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
        self._settle = settle  # what is under way about held messages is folded then
        self._kept_below = 0  # no retained value refers to a record before this position
        self._one = asyncio.Lock()  # of `enforce`
        self.taking = asyncio.Lock()  # whoever has it sees no segment go
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin looking, if anything is configured to go."""
        self._expiry.move_floors()
        if self._expiry.is_on:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End when the turn that is under way has ended, and what somebody asked for."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        async with self._one:
            pass

    async def enforce(self) -> None:
        """Take away what may go now. Raises `StoreError` and OSError, after which the next look goes on."""
        async with self._one:
            await asyncio.get_running_loop().run_in_executor(None, self._segments.remove)  # what failed last time
            self._expiry.move_floors()
            entered = self._views.moved.entered
            cut = await self._expiry.cut()
            if cut > self._views.begin:
                await self._keep_all(cut)
            if entered != self._views.moved.entered:
                # A held message entered before it was kept: its parent topic may want its segment to stay.
                cut = min(cut, await self._expiry.cut())
            if cut > self._views.begin:
                await self._take(cut)
            while not self._stopping.is_set():
                generation = self._views.oldest_generation()
                if generation is None or not await self._fold_ends(generation):
                    break
                self._views.drop_generation(generation)

    async def _run(self) -> None:
        while not self._stopping.is_set() and not self._log.failed:
            try:
                await self.enforce()
            except Exception:  # whatever it was: it must not end unheard, with a disk that fills up
                logger.exception("retention could not take segments away, and tries again")
            await self._rest(self._config.retention_check_s)

    async def _keep_all(self, cut: int) -> None:
        """Copy what views refer to before `cut` into these views. The retained values of all that the index generation
        of `cut` refers to, so that one pass over them serves all segments of a generation, unless one of them came
        late from a record before `cut`. Held messages first: those that are kept do not enter by their record any more,
        so when the rest has settled no value comes from there."""
        await self._keep(self._views.held, cut)
        await self._settle()
        retained = self._views.retained
        if cut <= self._kept_below and cut <= retained.moved_from:
            return
        size = self._config.segment_size * self._config.generation_segments
        below = min(-(-cut // size) * size, self._segments.base_of(self._log.end))
        self._kept_below, retained.moved_from = 0, NOWHERE
        await self._keep(retained, below)
        self._kept_below = below

    async def _keep(self, view: Keeper, below: int) -> None:
        """Copy the records before `below` that a view refers to into it. One that is damaged goes with its segment."""
        copied = 0
        page = view.to_keep(below, None, _PAGE)
        while True:
            for name, position, length in page.rows:
                try:
                    view.keep(name, await self._reader.records([position], [length]))
                except LogCorrupt:  # the reader told of it
                    continue
                copied += length
                if copied >= _KEPT_BYTES or self._views.is_full():
                    await self._checkpoint()
                    copied = 0
            if page.after is None:
                return
            await asyncio.sleep(0)
            page = view.to_keep(below, page.after, _PAGE)

    async def _take(self, cut: int) -> None:
        async with self.taking:
            await self._take_now(cut)

    async def _take_now(self, cut: int) -> None:
        loop = asyncio.get_running_loop()
        await self._checkpoint()
        folded = self._views.checkpointed
        await loop.run_in_executor(None, self._database.flush)
        cut = min(cut, self._segments.base_of(folded))
        if cut <= self._views.begin or self._log.failed:
            return
        try:
            begin_time = await self._expiry.time_of(cut)
        except LogCorrupt:
            begin_time = self._views.begin_time  # an earlier one will do: references below `cut` are stepped over
        self._views.reclaim(cut, begin_time)
        self._segments.forget(cut)
        await loop.run_in_executor(None, self._segments.remove)
        logger.info("retention took segments: the log begins at %d", cut)

    async def _fold_ends(self, generation: int) -> bool:
        """Write down the ends of a generation's queues. False when stopped on the way: then it is begun again."""
        digest: bytes | None = b""
        while digest is not None:
            began = time.monotonic()
            digest = self._views.fold_ends(generation, digest, _SLICE)
            await self._rest(_REST * (time.monotonic() - began))
            if self._stopping.is_set():
                return False
        return True

    async def _rest(self, seconds: float) -> None:
        """Wait, unless it is time to stop."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return
