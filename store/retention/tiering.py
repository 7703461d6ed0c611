"""Moves old segments into the tier: uploads closed segments, and lets the tier forget what is before the log's begin.

The order of its steps makes a crash between any two of them harmless. A segment is verified and written into an
object; the object is read back; then the list of what is in the tier has it (`store.retention.tier_lists`). Only what
this list has may lose its file (`store.retention.local_files`). Objects that the list does not name are swept.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import record
from store.config import StoreConfig
from store.errors import LogCorrupt, StoreClosed, StoreError, TierUnavailable
from store.log.commitlog import CommitLog
from store.log.recovery import batches_read, continues
from store.log.segments import Segments, segment_name
from store.log.tiered import TieredSegment
from store.retention.tier_lists import TierList
from store.retention.until_stopped import until_stopped
from store.tier.segment_object import ObjectDamaged
from store.tier.tier import Tier
from store.views.fold import Views

logger = logging.getLogger(__name__)

_REST: Final = 1.0  # the pause after a block, as a multiple of its time: an upload takes half of a core


class Tiering:
    """Uploads one segment after the other, in a task and a thread of its own: a store that is slow or away holds up
    nothing else."""

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        views: Views,
        log: CommitLog,
        tier: Tier,
        listed: TierList,
        stopped: asyncio.Event,
        on_uploaded: Callable[[], None],
    ) -> None:
        """on_uploaded: another segment is in the tier, so that its file may be removed."""
        self._config = config
        self._segments = segments
        self._views = views
        self._log = log
        self._tier = tier
        self._list = listed
        self._stopped = stopped
        self._on_uploaded = on_uploaded
        self._is_due = asyncio.Event()  # a segment is closed, or the log's begin has moved, or a stop
        self._task: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()  # of `run_once`
        self._is_swept = False  # nothing is in the tier that no manifest needs, as far as this process knows
        self._damaged = -1  # the segment that cannot be uploaded; the log has said so
        self._lost: set[str] = set()  # objects of the list that were missing, and are dealt with

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the current request. `stopped` is set."""
        self._tier.stop()
        self._is_due.set()
        if self._task is not None:
            await self._task

    def segment_begun(self) -> None:
        """Look now for what there is to do."""
        self._is_due.set()

    async def run_once(self) -> None:
        """Upload all segments that are closed, and remove objects before the log's begin.

        Raises `StoreError` and OSError. The next call goes on.
        """
        async with self._one:
            await self._upload_closed()

    async def _upload_closed(self) -> None:
        if await until_stopped(self._stopped, self._list.trim()):
            self._is_swept = False
        while not self._stopped.is_set() and not self._log.failed:
            base = self._next()
            if base + self._segments.size > self._closed_end() or base == self._damaged:
                break
            try:
                await self._upload(base)
            except LogCorrupt as error:
                self._damaged = base
                logger.error("a damaged segment cannot go to the tier, and neither can those behind it: %s", error)
            self._on_uploaded()
        if not self._is_swept and not self._stopped.is_set():
            lost = await until_stopped(self._stopped, self._list.sweep())
            self._is_swept = True
            await self._upload_again([segment for segment in lost if segment.name not in self._lost])

    async def _upload_again(self, lost: list[TieredSegment]) -> None:
        """Upload segments whose objects are lost, such as those that a replica of the store did not get in time."""
        for segment in lost:
            if self._stopped.is_set() or self._log.failed:
                return
            has_file = self._segments.has(segment.base)
            what = "its file is uploaded again" if has_file else "this node has no file of it"
            logger.warning("%s is missing in the tier, and %s", segment.name, what)
            try:
                if has_file:
                    await self._upload(segment.base)
            except LogCorrupt as error:
                logger.error("a damaged segment cannot go to the tier again: %s", error)
            self._lost.add(segment.name)
            self._on_uploaded()

    def _next(self) -> int:
        """The segment to upload next."""
        last = self._tier.tiered.last
        begin = max(self._segments.begin, self._segments.base_of(self._views.begin))
        return begin if last is None else max(begin, last.base + self._segments.size)

    def _closed_end(self) -> int:
        """Where the closed segments end. The one with the log's last byte is not closed, even if it is full."""
        return self._segments.base_of(max(self._views.checkpointed - 1, 0))

    async def _upload(self, base: int) -> None:
        """Upload a segment, and let the list have it. Raises `LogCorrupt` if it is damaged."""
        self._is_swept = False
        segment = await until_stopped(self._stopped, self._tier.write(self._put, base))
        if segment is None or base < self._views.begin:
            return  # retention was faster
        following, ranges = base + self._segments.size, self._segments.removed.ranges
        removed = [(max(begin, base), min(end, following)) for begin, end in ranges if base < end and begin < following]
        await until_stopped(self._stopped, self._list.add(segment, removed))
        logger.debug("segment %s is in the tier: %d bytes", segment_name(base), segment.size)

    def _put(self, base: int) -> TieredSegment | None:
        """Upload a segment, in the tier's thread. None if its file is gone."""
        try:
            with self._segments.reading(base) as read:
                end, time_ms = self._verified(base, read)
                pace = _Pace(self._stopped)
                return self._tier.upload(self._list.start_for(base), base, end, time_ms, _checked(read), pace.rest)
        except FileNotFoundError:
            return None
        except ObjectDamaged as error:
            raise TierUnavailable(f"the tier has other bytes than were written: {error}") from None

    def _verified(self, base: int, read: Callable[[int, int], bytes]) -> tuple[int, int]:
        """Read all records of a segment. Returns where they end, and the store time of the first one; 0: there is
        none. Raises `LogCorrupt`."""
        pace = _Pace(self._stopped)
        end, time_ms = base, 0
        for batch in batches_read(read, self._segments, base):
            if batch.position == base:
                time_ms = record.store_time_of(batch.data, 0)
            end = batch.position + len(batch.data)
            pace.rest()
        following = base + self._segments.size
        end = self._segments.gone.behind(end)
        if end < following and not continues(self._segments, following, end):
            raise LogCorrupt(segment_name(base), end, "damaged record")
        return min(end, following), time_ms

    async def _run(self) -> None:
        while not self._stopped.is_set() and not self._log.failed:
            self._is_due.clear()
            try:
                await self.run_once()
            except (StoreClosed, TierUnavailable):
                pass  # the tier has said so
            except (StoreError, OSError):
                logger.exception("segments could not go to the tier; the next check tries again")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.retention_check_s):
                    await self._is_due.wait()


class _Pace:
    """Rests after each block, for as long as it took."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped
        self._began = time.monotonic()

    def rest(self) -> None:
        """Sleep. Raises `StoreClosed` when the store closes."""
        if self._stopped.is_set():
            raise StoreClosed("the store is closing")
        time.sleep(_REST * (time.monotonic() - self._began))
        self._began = time.monotonic()


def _checked(read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    """A read whose errors are not taken for those of the object store."""

    def checked(length: int, offset: int) -> bytes:
        try:
            return read(length, offset)
        except OSError as error:
            raise StoreError(f"a segment cannot be read: {error}") from error

    return checked
