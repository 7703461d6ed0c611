"""The list of the segments in the tier, as the process changes it that writes the log.

The log of a single node has its list in manifests (`store.tier.tier`). That of several nodes has it in the log, as a
record for each segment. So all nodes have the list that goes with the records that they have folded, and a leader that
another one has deposed cannot change it.

An object of such a log has the epoch of the leader that wrote it in its name. Only that leader names it in a record. So
a leader may remove all objects of earlier epochs that the log does not name: no record that is decided later does. The
same holds for its own epoch, as long as it knows the outcome of all its records. No clock is asked, and a removal
that arrives late removes nothing else than it would have removed in time (docs/decisions/0047).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from store.api import Appended
from store.control import SegmentUploaded
from store.errors import StoreBusy, StoreClosed
from store.log.tiered import TieredSegment
from store.tier.tier import Tier, object_start
from store.views.fold import Views

Append = Callable[[list[bytes], Callable[[Appended], None]], object]

_LOGS: Final = "logs"


class TierList(Protocol):
    """The segments that the log has in the tier are `Tier.tiered`; this changes them.

    is_shared: several nodes have the log.
    """

    is_shared: bool

    def start_for(self, base: int) -> str:
        """How the name of a segment's object begins. For the tier's thread. Raises `StoreClosed`, and OSError."""

    async def add(self, segment: TieredSegment, removed: Sequence[tuple[int, int]], /) -> None:
        """Let the tier have a segment, whose object may lack these ranges. Raises `StoreError` and OSError."""

    async def trim(self) -> bool:
        """Forget what is before the log's begin. Returns whether objects may be removed since the last call.

        Raises `StoreError` and OSError."""

    async def sweep(self) -> list[TieredSegment]:
        """Remove the objects that nobody needs. Returns segments whose objects are lost. Raises `StoreError`."""


class ManifestList:
    """The list of a single node."""

    is_shared = False

    def __init__(self, tier: Tier, views: Views) -> None:
        self._tier = tier
        self._views = views

    def start_for(self, base: int) -> str:
        return self._tier.start_for(base)

    async def add(self, segment: TieredSegment, _removed: Sequence[tuple[int, int]]) -> None:
        if len(self._known()) < len(self._tier.tiered.segments):
            self._views.forget_tiered()
        await self._tier.write(self._tier.publish, [*self._known(), segment])

    async def trim(self) -> bool:
        known = self._known()
        if len(known) == len(self._tier.tiered.segments):
            return False
        self._views.forget_tiered()  # before the list does: reads that are under way look again
        await self._tier.write(self._tier.publish, known)
        return True

    async def sweep(self) -> list[TieredSegment]:
        await self._tier.write(self._tier.sweep)
        return []

    def _known(self) -> list[TieredSegment]:
        """The segments in the tier that the log has not let go."""
        return [segment for segment in self._tier.tiered.segments if segment.base >= self._views.begin]


class RecordList:
    """The list of a log that several nodes share, in the hands of its leader."""

    is_shared = True

    def __init__(self, tier: Tier, views: Views, append: Append, log_id: str, epoch: int) -> None:
        self._tier = tier
        self._views = views
        self._append = append
        self._above = folder_of(log_id)
        self._epoch = epoch
        self._begin = -1  # of the log, when it was looked at
        self._is_in_doubt = False  # whether a record of this leader is in the log; one that was refused is not

    def start_for(self, base: int) -> str:
        if self._is_in_doubt:
            raise StoreClosed("this node does not lead any more")
        return object_start(self._above, self._epoch, base)

    async def add(self, segment: TieredSegment, removed: Sequence[tuple[int, int]]) -> None:
        base, name, size, end, time_ms = segment
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._is_in_doubt = True
        self._append([SegmentUploaded(base, end, size, name, time_ms, removed).frame()], answer.set_result)
        error = (await answer).error
        self._is_in_doubt = not isinstance(error, StoreBusy | None)
        if error is not None:
            raise error

    async def trim(self) -> bool:
        """The log has said where it begins, and its fold has changed the list."""
        before, self._begin = self._begin, self._views.begin
        return self._begin != before

    async def sweep(self) -> list[TieredSegment]:
        if self._is_in_doubt:
            return []
        named = {segment.name: segment for segment in self._tier.tiered.segments}
        _, there = await self._tier.write(self._tier.remove_unnamed, self._above, self._epoch, named.keys())
        lost = [each for name, each in named.items() if name not in there and name.startswith(f"{self._above}/")]
        return await self._tier.write(self._tier.missing, lost)


def folder_of(log_id: str) -> str:
    """The folder in the tier of a log that several nodes share."""
    return f"{_LOGS}/{log_id}"
