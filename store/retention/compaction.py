"""Frees the disk of what parent topics with longer ages keep in vain: records of others in the same segments, and in
all segments behind.

A segment is searched once for each age, when all its records are older. If few of its records are still needed, a copy
takes its place that has these at their positions and holes elsewhere. Records that are not needed any more are *gone*
before that: readers pass over them, whatever the file has there. So a crash between any two steps is harmless.

No record of the log says so, because it changes no row of the views and nothing that they become: a fold reads no
earlier record. Only a held message may still enter queues by its old record, so the records of held messages are
needed. What readers miss is older than its parent topic's age.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar, TypeVarTuple

import record
from matcher.names import parent_of
from record.layout import Kind
from store.config import StoreConfig
from store.log.disk import UNREADABLE
from store.log.ranges import Ranges
from store.log.recovery import continues, segment_batches
from store.log.removed_ranges import Removed, write_removed
from store.log.segments import Segments, segment_name
from store.log.writer import SealedBatch
from store.retention.expiry import Expiry
from store.retention.removal import Removal
from store.views.fold import Views

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_MAX_AGES: Final = 16  # for which segments are searched; if there are more, some wait for a longer one
_MAX_PARTS: Final = 256  # of a segment that are still needed
_MAX_RANGES: Final = 10_000  # that were removed of a log
_LEAST_GAP: Final = 4096  # the part of a segment that needed records are apart at least, for a hole between them
_LEAST_FREED: Final = 64  # the part of a segment that is freed at least
_PAGE: Final = 256  # held messages looked at in one turn of the loop
_BATCHES: Final = 4  # of up to 256 KB, searched in one turn of the thread
_SLICE: Final = 4 << 20  # bytes copied and synced in one turn of the thread
_REST: Final = 4  # the pause after a turn, as a multiple of its time


@dataclass(slots=True)
class Search:
    """A segment whose records are all older than an age."""

    base: int
    age_s: float
    newest: int  # an upper bound of its store times, ms


class _Contents:
    """What a search has found in a segment."""

    __slots__ = ("begin", "end", "parts")

    def __init__(self, base: int) -> None:
        self.begin = base  # of what may be removed: behind the last record of the segment before
        self.end = base  # of the last record
        self.parts: list[tuple[int, int]] = []  # that are still needed


class Compaction:
    """Searches one segment after the other and replaces those that are worth it, in short turns of a thread."""

    def __init__(
        self,
        config: StoreConfig,
        segments: Segments,
        views: Views,
        expiry: Expiry,
        removal: Removal,
        flush: Callable[[], Awaitable[None]],
        stopped: asyncio.Event,
    ) -> None:
        self._segments = segments
        self._views = views
        self._expiry = expiry
        self._removal = removal
        self._flush = flush  # checkpoints the views and flushes them to disk
        self._stopped = stopped
        self.change(config)

    def change(self, config: StoreConfig) -> None:
        """Take the ages from this configuration."""
        self._ages = _ages(config)

    @property
    def is_on(self) -> bool:
        """Whether parent topics have ages of their own."""
        return bool(self._ages)

    async def next(self) -> Search | None:
        """The next segment to search; None if there is none now."""
        size = self._segments.size
        end = self._segments.base_of(self._views.checkpointed)
        for age_s in self._ages:
            # A segment without a file here takes no room on this disk.
            base = max(self._segments.removed.searched.get(age_s, 0), self._views.begin, self._segments.begin)
            if base + size <= end:
                newest = await self._expiry.newest_before(base + size)
                if newest is not None and self._expiry.has_passed(newest, age_s):
                    return Search(base, age_s, newest)
        return None

    async def compact(self, search: Search) -> None:
        """Search a segment, and replace it if that frees at least half of it. Raises `StoreError` and OSError."""
        base = search.base
        contents = await self._search(search)
        if contents is not None and self._is_worth_it(base, contents):
            await self._removal.keep_retained(base + self._segments.size)
            if not await self._copy(base, contents.parts):
                return
            async with self._removal.removing:
                await self._flush()
                if self._stopped.is_set():
                    return
                removed = self._segments.removed
                await self._publish(replace(removed, ranges=self._ranges(contents, base)))
                await self._away(self._segments.replace, base)
                self._segments.replaced(base)
        if not self._stopped.is_set():
            removed = self._segments.removed
            searched = {age_s: position for age_s, position in removed.searched.items() if age_s in self._ages}
            searched[search.age_s] = base + self._segments.size
            await self._publish(replace(removed, searched=searched))

    async def _search(self, search: Search) -> _Contents | None:
        """Find what of a segment is still needed. None if that are too many parts, or not all of it can be read."""
        contents = _Contents(search.base)
        batches = segment_batches(self._segments, search.base)
        try:
            while await self._away(self._examine, batches, contents, search.newest):
                if self._stopped.is_set() or len(contents.parts) > _MAX_PARTS:
                    return None
            is_whole = await self._away(self._is_whole, search.base, contents.end)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None
        finally:
            batches.close()
        return contents if is_whole and await self._add_held(contents) else None

    async def _add_held(self, contents: _Contents) -> bool:
        """Add the records of held messages to the needed parts. Returns False if these are too many then.

        A later record of the log may let such a message enter its queues, and its reference is to this record.
        """
        least = self._segments.size // _LEAST_GAP
        after: bytes | None = None
        while True:
            page = self._views.held.records(range(contents.begin, contents.end), after, _PAGE)
            parts: list[tuple[int, int]] = []
            held = [(position, position + length) for _, position, length in page.rows]
            for first, end in sorted([*contents.parts, *held]):
                if parts and first - parts[-1][1] <= least:
                    parts[-1] = parts[-1][0], max(end, parts[-1][1])
                else:
                    parts.append((first, end))
            contents.parts, after = parts, page.after
            if after is None or len(parts) > _MAX_PARTS:
                return len(parts) <= _MAX_PARTS
            await asyncio.sleep(0)

    def _examine(self, batches: Iterator[SealedBatch], contents: _Contents, newest: int) -> bool:
        """Examine the next batches of a segment. Returns False at the end."""
        least = self._segments.size // _LEAST_GAP
        found = False
        for batch in islice(batches, _BATCHES):
            found = True
            if batch.position % self._segments.size == 0 and batch.position > self._views.begin:
                contents.begin = record.durable_of(batch.data, 0)
            starts, kinds, _, topics, _, _ = record.scan(batch.data)
            starts.append(len(batch.data))
            parts = contents.parts
            for i, topic in enumerate(topics):
                if kinds[i] == Kind.MESSAGE and self._expiry.keeps(parent_of(topic), newest):
                    first, end = batch.position + starts[i], batch.position + starts[i + 1]
                    if parts and first - parts[-1][1] <= least:
                        parts[-1] = parts[-1][0], end
                    else:
                        parts.append((first, end))
            contents.end = batch.position + len(batch.data)
        return found

    def _is_whole(self, base: int, end: int) -> bool:
        """Whether the records of a segment end at `end`, and not at damage."""
        following = base + self._segments.size
        return self._segments.gone.behind(end) >= following or continues(self._segments, following, end)

    def _is_worth_it(self, base: int, contents: _Contents) -> bool:
        if len(self._segments.removed.ranges) + len(contents.parts) >= _MAX_RANGES:
            return False
        needed = sum(end - first for first, end in contents.parts)
        freed = self._segments.size_on_disk(base) - needed
        return freed >= max(needed, self._segments.size // _LEAST_FREED)

    def _ranges(self, contents: _Contents, base: int) -> Ranges:
        """All ranges that are removed when only the needed parts of the segment stay."""
        ranges = [(first, end) for first, end in self._segments.removed.ranges if end > self._views.begin]
        at = contents.begin
        for first, end in contents.parts:
            if first > max(at, base):
                ranges.append((at, first))
            at = end
        if at < contents.end or not contents.parts:
            ranges.append((at, base + self._segments.size))
        return Ranges(ranges)

    async def _copy(self, base: int, parts: Iterable[tuple[int, int]]) -> bool:
        """Make a file beside the segment that has only these parts of it. Returns False if it was stopped."""
        path = (self._segments.folder / segment_name(base)).with_suffix(".new")
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            os.ftruncate(target, self._segments.size)
            for pieces in _slices(parts):
                await self._away(self._copy_pieces, base, target, pieces)
                if self._stopped.is_set():
                    break
            await self._away(self._segments.disk.sync, target)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(target)
        if self._stopped.is_set():
            path.unlink()
            return False
        return True

    def _copy_pieces(self, base: int, target: int, pieces: list[tuple[int, int]]) -> None:
        disk = self._segments.disk
        source = self._segments.open(base)
        try:
            for first, end in pieces:
                disk.write(target, disk.read(source, end - first, first - base), first - base)
            disk.sync(target)
        finally:
            os.close(source)

    async def _publish(self, removed: Removed) -> None:
        """Let readers pass over what is removed, durably."""
        await self._away(write_removed, self._segments.folder, removed, self._segments.disk)
        self._segments.set_gone(self._segments.damaged, removed)
        self._views.remove(self._segments.gone)

    async def _away(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Call a function in a thread, and leave the disk and the core to others for a while."""
        began = time.monotonic()
        result = await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST * (time.monotonic() - began)):
                await self._stopped.wait()
        return result


def _ages(config: StoreConfig) -> list[float]:
    """The ages, in seconds, for which segments are searched, in ascending order.

    None without ages of parent topics: a segment is removed as a whole then. At the longest age it is, too, unless a
    parent topic keeps its records for ever.
    """
    if not config.retention_parents:
        return []
    ages = sorted({config.retention_age_s, *config.retention_parents.values()})
    finite = [age_s for age_s in ages if age_s > 0]
    searched = finite if len(finite) < len(ages) else finite[:-1]
    step = -(-len(searched) // _MAX_AGES) or 1
    return searched[::-step][::-1]


def _slices(parts: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the parts in pieces, in lists of bounded bytes."""
    slice_: list[tuple[int, int]] = []
    room = _SLICE
    for first, end in parts:
        at = first
        while at < end:
            following = min(end, at + room)
            slice_.append((at, following))
            room -= following - at
            at = following
            if not room:
                yield slice_
                slice_, room = [], _SLICE
    if slice_:
        yield slice_
