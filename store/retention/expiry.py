"""Decides which segments retention may remove: by age, by the ages of parent topics, by the log's length, and by the
room on the disk."""

import asyncio
from collections.abc import Iterator
from typing import Final

import record
from store.api import partition_queue
from store.config import StoreConfig, hours_of_day
from store.errors import LogCorrupt
from store.log.commitlog import CommitLog
from store.log.reader import LogReader
from store.log.segments import Segments, segment_name
from store.log.writer import Clock
from store.views.fold import Views
from store.views.queues.begins import Floors

_PAGE: Final = 32  # parent topics checked per turn of the loop
_MAX_PARENTS: Final = 1024  # checked per segment; if there are more, the segment stays until the common age
_HOUR_MS: Final = 3_600_000


class Expiry:
    """Computes up to which position retention may remove the log."""

    def __init__(
        self, config: StoreConfig, segments: Segments, reader: LogReader, views: Views, log: CommitLog, clock: Clock
    ) -> None:
        self.change(config)
        self._is_tiered = config.tier.is_on
        self._segments = segments
        self._reader = reader
        self._views = views
        self._log = log
        self._clock = clock
        self._keeps: bytes | None = None  # the parent topic that kept a segment last

    def change(self, config: StoreConfig) -> None:
        """Take the limits of retention from this configuration."""
        self._bytes = config.retention_bytes
        self._free_bytes = config.retention_free_bytes
        self._keep_bytes = config.retention_keep_bytes
        self._age_s = config.retention_age_s
        self._ages_s = dict(config.retention_parents)
        self._hours = hours_of_day(config.retention_hours)

    @property
    def is_on(self) -> bool:
        """Whether any retention limit is configured."""
        return bool(self._bytes or self._free_bytes or self._age_s or self._ages_s or self._is_tiered)

    def move_floors(self) -> None:
        """Move the floors, at which queues begin, to the current time minus their parent topic's age.

        Does nothing unless parent topics have ages of their own. Floors never move backwards, even if the clock does.
        """
        if self._ages_s:
            now, old = self._clock(), self._views.floors
            floors = {parent: max(old.of_parent(parent), _floor(now, age_s)) for parent, age_s in self._ages_s.items()}
            self._views.floors = Floors(floors, max(old.others, _floor(now, self._age_s)))

    async def cut(self) -> int:
        """The position up to which retention may remove the log."""
        end, size = self._log.end, self._segments.size
        active = self._segments.base_of(max(end - 1, 0))
        cut, oldest = self._views.begin, self._views.begin_time
        too_full = await self._cut_for_room(end)
        left = end - cut - self._segments.hole_bytes()
        while cut + size <= active:
            left -= self._segments.size_on_disk(cut)
            if cut + size > too_full and not (self._bytes and left >= self._bytes):
                newest = await self.newest_before(cut + size)
                if newest is None or not await self._has_expired(range(cut, cut + size), oldest, newest):
                    break
                oldest = newest
            cut += size
        return cut

    async def _cut_for_room(self, end: int) -> int:
        """Up to where segments have to go so that the disk has the configured room, and room for the next segment."""
        if not self._free_bytes or self._is_tiered:  # then the room is that of local files only (`Tiering`)
            return 0
        run = asyncio.get_running_loop().run_in_executor
        return await run(None, self._segments.cut_for_room, self._free_bytes, end, self._keep_bytes)

    async def time_of(self, position: int) -> int:
        """Store time of the record at `position`, or of the next one behind known damage.

        Raises `LogCorrupt`, and `TierUnavailable`."""
        known = self._reader.known_time(position)
        if known:
            return known
        chunk = await self._reader.chunk(position, self._log.end, 1)
        if not chunk.data:
            raise LogCorrupt(segment_name(position), position, "no record behind damage")
        return record.store_time_of(chunk.data, 0)

    async def newest_before(self, base: int) -> int | None:
        """An upper bound of the store times before `base`: that of the first valid record that begins a segment.

        None if there is no such record, or if nothing is removed by age now.
        """
        if not (self._age_s or self._ages_s) or self._clock() // _HOUR_MS % 24 not in self._hours:
            return None
        for following in range(base, self._log.end, self._segments.size):
            try:
                return await self.time_of(following)
            except LogCorrupt:
                continue
        return None

    def has_passed(self, newest: int, age_s: float) -> bool:
        """Whether records up to the store time `newest` are older than an age."""
        return _is_past(self._clock(), newest, age_s)

    def keeps(self, parent: bytes, newest: int) -> bool:
        """Whether a parent topic needs its records in a segment whose store times are up to `newest`."""
        return not self.has_passed(newest, self._ages_s.get(parent, self._age_s))

    async def _has_expired(self, log: range, oldest: int, newest: int) -> bool:
        """Whether the segment `log` is past the age of each parent topic that has a record in it.

        Its store times are between `oldest` and `newest`.
        """
        now = self._clock()
        is_past = _is_past(now, newest, self._age_s)
        if not self._ages_s:
            return is_past
        keeping = [parent for parent, age_s in self._ages_s.items() if not _is_past(now, newest, age_s)]
        if not is_past and len(keeping) == len(self._ages_s):
            return False
        if self._keeps is not None and (self._keeps in keeping or (self._keeps not in self._ages_s and not is_past)):
            keeping.insert(0, self._keeps)  # likely to keep this segment too
        for number, parent in enumerate(self._all(keeping, is_past)):
            if number == _MAX_PARENTS or self._has_records(parent, log, oldest, newest):
                self._keeps = parent
                return False
            if number % _PAGE == _PAGE - 1:
                await asyncio.sleep(0)
        return True

    def _all(self, keeping: list[bytes], is_past: bool) -> Iterator[bytes]:
        """Yield `keeping`, and unless the common age is past all parent topics without an age of their own."""
        yield from keeping
        after: bytes | None = None
        while not is_past:
            page = self._views.names.children(b"", after, _PAGE)
            yield from [child.name for child in page.children if child.name not in self._ages_s]
            after = page.after
            is_past = after is None

    def _has_records(self, parent: bytes, log: range, oldest: int, newest: int) -> bool:
        if self._views.moved.has(parent, log):
            return True
        queues = [partition_queue(parent, number) for number in range(self._views.partitions.of(parent))]
        return any(self._views.has_entered(queue, (oldest, newest), log) for queue in queues)


def _floor(now: int, age_s: float) -> int:
    return int(now - age_s * 1000) if age_s else 0


def _is_past(now: int, time: int, age_s: float) -> bool:
    """Whether `time` is older than an age. An age of 0 keeps everything."""
    return age_s > 0 and time < now - age_s * 1000
