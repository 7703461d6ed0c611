"""Removes the oldest files of segments that are in the tier, down to a number of bytes or until the disk has room. Each
node does so for its own disk, whether it writes the log or only folds it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from store.config import StoreConfig
from store.log.ranges import Ranges
from store.log.removed_ranges import write_removed
from store.log.segments import Segments
from store.log.tiered import write_tiered
from store.retention.removal import Removal
from store.retention.until_stopped import until_stopped
from store.tier.tier import Tier
from store.views.fold import Views

logger = logging.getLogger(__name__)


class LocalFiles:
    """The files of a data folder with a tier. `remove` belongs to the task that removes files."""

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        views: Views,
        tier: Tier,
        removal: Removal,
        stopped: asyncio.Event,
        wait_for_held: Callable[[], Awaitable[None]],
        is_shared: bool,
    ) -> None:
        """wait_for_held: until records about held messages that this process appended are folded. is_shared: several
        nodes have the log, and the log itself has the list of what is in the tier."""
        self._config = config
        self._segments = segments
        self._views = views
        self._tier = tier
        self._removal = removal
        self._stopped = stopped
        self._wait_for_held = wait_for_held
        self._is_shared = is_shared
        self._missed = -1  # the segment whose object was not found; the log has said so

    def change(self, config: StoreConfig) -> None:
        """Take the limits from this configuration."""
        self._config = config

    async def remove(self) -> None:
        """Remove the files that may go. Raises `StoreError`, OSError, and `StoreClosed` when the store stops."""
        cut = await self._cut()
        least = max(self._segments.begin, self._views.begin)
        if cut > least and self._is_shared:
            cut = await self._there(least, cut)
        if cut > least:
            await self._write_down(cut)
            # As with retention: held messages enter by copies from now on, and none enters by its record meanwhile.
            await self._removal.keep_held(cut)
            await self._wait_for_held()
            await self._removal.remove_local(cut)

    async def _cut(self) -> int:
        """Up to where files of segments may go. The one with the log's last byte stays, even if it is full."""
        segments, last, log_end = self._segments, self._tier.tiered.last, self._views.position
        if last is None:
            return 0
        end = min(last.base + segments.size, segments.base_of(max(log_end - 1, 0)))
        room = 0
        if self._config.retention_free_bytes:
            run = asyncio.get_running_loop().run_in_executor
            room = await run(None, segments.cut_for_room, self._config.retention_free_bytes, log_end, 0)
        cut, left = segments.begin, log_end - segments.begin - segments.hole_bytes()
        while cut + segments.size <= end:
            left -= segments.size_on_disk(cut)
            if left < self._config.tier.retention_local_bytes and cut + segments.size > room:
                break
            cut += segments.size
        return cut

    async def _there(self, begin: int, end: int) -> int:
        """Up to where the objects of segments can be found: this node may reach another copy of the tier than the one
        that was written to."""
        for base in range(begin, end, self._segments.size):
            segment = self._tier.tiered.find(base)
            if segment is None or not await until_stopped(self._stopped, self._tier.is_there(segment)):
                if segment is not None and base != self._missed:
                    logger.warning("%s is not in the tier yet, so the file of the segment stays", segment.name)
                self._missed = base
                return base
        return end

    async def _write_down(self, cut: int) -> None:
        """Write down where the segments before `cut` are, and which ranges their objects lack."""
        run, segments = asyncio.get_running_loop().run_in_executor, self._segments
        lacking = self._views.uploaded.removed(segments.begin, cut)
        ranges = Ranges([*segments.removed.ranges, *lacking])
        if list(ranges) != list(segments.removed.ranges):
            await self._removal.flush()
            async with self._removal.removing:
                removed = replace(segments.removed, ranges=ranges)
                await run(None, write_removed, segments.folder, removed, segments.disk)
                segments.set_gone(segments.damaged, removed)
                self._views.remove(segments.gone)
        if self._is_shared:  # for who reads the folder without its views, and for a node that leaves the cluster
            await run(None, write_tiered, segments.folder, self._tier.tiered, segments.disk)
