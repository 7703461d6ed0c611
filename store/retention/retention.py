"""Decides which segments the log lets go, by age, by size and by the room on the disk, and says so in the log.

It checks whenever the log begins another segment, so that the log is longer than its limit by two segments at most, and
what is written during a removal.

A decision is a record of the log (LOG_TRIMMED). Its fold moves the log's begin; files are removed afterwards
(`store.retention.removal`). So all who fold the log agree on what it has, whatever their settings and clocks. A crash
after the record changes nothing: the removal goes on. The active segment never goes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from store.api import Appended
from store.config import StoreConfig
from store.control import LogTrimmed
from store.errors import LogCorrupt, StoreClosed, StoreFailed, TierUnavailable
from store.log.commitlog import CommitLog
from store.log.reader import LogReader
from store.log.segments import Segments
from store.log.writer import Clock
from store.retention.compaction import Compaction
from store.retention.expiry import Expiry
from store.retention.local_files import LocalFiles
from store.retention.removal import Removal
from store.retention.tier_lists import TierList
from store.retention.tiering import Tiering
from store.tier.tier import Tier
from store.views.fold import Views

logger = logging.getLogger(__name__)


class Retention:
    """Checks for segments to remove when the log begins a segment, and every `retention_check_s`.

    It belongs to the process that writes the log. It runs on the loop in short turns.
    """

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        reader: LogReader,
        views: Views,
        log: CommitLog,
        removal: Removal,
        stopped: asyncio.Event,
        checkpoint: Callable[[], Awaitable[None]],
        wait_for_held: Callable[[], Awaitable[None]],
        clock: Clock,
        tier: Tier | None = None,
        listed: TierList | None = None,
    ) -> None:
        """listed: the list of what is in the tier, if there is one."""
        self._config = config
        self._expiry = Expiry(config, segments, reader, views, log, clock)
        self._segments = segments
        self._views = views
        self._log = log
        self._checkpoint = checkpoint
        self._wait_for_held = wait_for_held  # until records about held messages are folded
        self._one = asyncio.Lock()  # of `enforce`
        self._stopped = stopped
        self._is_due = asyncio.Event()  # a check, or a stop
        self._task: asyncio.Task[None] | None = None
        self.removal = removal
        self._compaction = Compaction(config, segments, views, self._expiry, removal, self._flush, stopped)
        self._is_disk_low = False  # and nothing can be removed: a warning says so
        self._tiering: Tiering | None = None
        self._local_files: LocalFiles | None = None
        if tier is not None and listed is not None:
            self._tiering = Tiering(config, segments, views, log, tier, listed, stopped, self.segment_begun)
            self._local_files = LocalFiles(
                config, segments, views, tier, removal, stopped, wait_for_held, listed.is_shared
            )

    def start(self) -> None:
        """Start the background task if a retention limit is configured, or if a removal has to go on."""
        self._expiry.move_floors()
        self._run_if_due()
        if self._tiering is not None:
            self._tiering.start()

    def change(self, config: StoreConfig) -> None:
        """Take the limits of retention from this configuration, and check now."""
        self._config = self._config.with_retention_of(config)
        self._expiry.change(self._config)
        self._compaction.change(self._config)
        if self._local_files is not None:
            self._local_files.change(self._config)
        self._run_if_due()
        self._is_due.set()

    def _run_if_due(self) -> None:
        if self._task is None and (self._expiry.is_on or self.removal.is_due):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the current turn, and wait for a running `enforce`."""
        self._stopped.set()
        self._is_due.set()
        if self._tiering is not None:
            await self._tiering.stop()
        if self._task is not None:
            await self._task
        async with self._one:
            pass

    def segment_begun(self) -> None:
        """Check now: the log has begun another segment, or one is in the tier."""
        self._is_due.set()
        if self._tiering is not None:
            self._tiering.segment_begun()

    async def enforce(self) -> None:
        """Remove the segments that may be removed now.

        Raises `StoreError` and OSError. The next check continues then.
        """
        async with self._one:
            if self._local_files is not None and not self._stopped.is_set() and not self._log.failed:
                await self._remove_local(self._local_files)
            await self._remove_expired()
            await self.removal.drop_generations(self._pause)
            await self._compact()

    async def _remove_local(self, files: LocalFiles) -> None:
        """Remove files of segments that are in the tier. What the log lets go is removed all the same if that fails."""
        with suppress(StoreClosed, TierUnavailable):  # the tier has said so
            await files.remove()

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
        await self.removal.flush()
        if self._log.failed:
            raise StoreFailed("the log has failed: nothing is removed until a restart")

    async def _remove_expired(self) -> None:
        await self.removal.remove()  # what was decided before
        self._expiry.move_floors()
        entered = self._views.moved.entered
        cut = await self._expiry.cut()
        if cut > self._views.begin:
            # Held messages before `cut` enter by copies from now on. None enters by a record behind the decision.
            await self.removal.keep_held(cut)
            await self._wait_for_held()
        if entered != self._views.moved.entered:
            # A held message entered its queues before it was kept: its parent topic's age may keep the segment.
            cut = min(cut, await self._expiry.cut())
        if cut > self._views.begin:
            await self._trim(cut)
            await self.removal.remove()
        else:
            self._check_room()

    async def _trim(self, begin: int) -> None:
        """Append the record that lets the log begin at `begin`, and wait until it is folded."""
        await self._checkpoint()  # raises if the log or the views have failed
        try:
            begin_time = await self._expiry.time_of(begin)
        except LogCorrupt:
            begin_time = self._views.begin_time  # an earlier time is fine: references before `begin` are skipped
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._log.append([LogTrimmed(begin, begin_time).frame()], answer.set_result)
        error = (await answer).error
        if error is not None:
            raise error

    def _check_room(self) -> None:
        """Warn once if the disk has too little room and nothing can be removed."""
        free = self._segments.free_bytes()
        is_low = free < self._config.retention_free_bytes
        if is_low and not self._is_disk_low:
            folder = self._segments.folder
            logger.warning("the disk of %s has only %d bytes free, and retention may remove nothing more", folder, free)
        self._is_disk_low = is_low

    async def _run(self) -> None:
        while not self._stopped.is_set() and not self._log.failed:
            self._is_due.clear()
            try:
                await self.enforce()
            except Exception:  # the task must not end silently while the disk fills up
                logger.exception("retention could not remove segments; the next check tries again")
            await self._rest(self._config.retention_check_s)

    async def _pause(self, seconds: float) -> None:
        """Leave time to others, and check for segments to remove if the log begins one meanwhile."""
        await self._rest(seconds)
        if self._is_due.is_set() and not self._stopped.is_set():
            self._is_due.clear()
            await self._remove_expired()

    async def _rest(self, seconds: float) -> None:
        """Sleep, but wake up when a check is due, and for `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # Python 3.11's `wait_for` may lose a cancellation
                await self._is_due.wait()
