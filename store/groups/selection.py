"""Which messages of a queue a selection wants: read before a pop takes, since a pop decides in one turn of the loop.

A verdict on a message holds for good, so it may be old when it is used: what was taken meanwhile is not taken again.
"""

import asyncio
from typing import Final

import record
from matcher.selector import Selection, Selector, compile_selection
from store.errors import LogCorrupt
from store.log.reader import Reader
from store.views.fold import Views

_PAGE: Final = 256  # messages looked at in one turn of the loop
_PAGE_BYTES: Final = 1 << 20  # of them, but for the first
LOOKS: Final = 4096  # messages looked at in one pop


class Chosen:
    """Of the offsets [first, end) of a queue, those that are wanted, with where their records are."""

    __slots__ = ("end", "first", "lengths", "offsets", "positions")

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first
        self.offsets: list[int] = []  # ascending
        self.positions: list[int] = []
        self.lengths: list[int] = []


class Choosing:
    """Looks through queues for one pop, `LOOKS` messages in all of them at the most. Raises `SelectorError` where the
    selection is none."""

    def __init__(self, views: Views, reader: Reader, selection: Selection) -> None:
        self._views = views
        self._reader = reader
        self._selector: Selector = compile_selection(selection)
        only = self._selector.only_topic
        self._tag = record.crc32c(only) if only else -1  # of the references of the one topic that may be wanted
        self._looks = LOOKS

    async def look(self, queue: bytes, first: int, wanted: int) -> Chosen:
        """Look from offset `first` on, until `wanted` messages are found."""
        chosen = Chosen(first)
        while self._looks > 0 and len(chosen.offsets) < wanted:
            count = min(_PAGE, self._looks, self._views.end(queue) - chosen.end)
            if count <= 0:
                break
            positions, lengths, _, tags = record.unpack_refs(self._views.references(queue, chosen.end, count))
            if not positions:
                break
            await self._page(chosen, positions, lengths, tags)
            await asyncio.sleep(0)  # others have their turn
        return chosen

    async def _page(self, chosen: Chosen, positions: list[int], lengths: list[int], tags: list[int]) -> None:
        """Judge the references that follow `chosen.end`, but those behind a page of bytes."""
        tag = self._tag
        wanted: list[int] = []  # indexes of those whose records have to say
        size = count = 0
        for i in range(len(positions)):
            if not self._views.is_gone(positions[i]) and (tag < 0 or tags[i] == tag):
                if wanted and size + lengths[i] > _PAGE_BYTES:
                    break
                wanted.append(i)
                size += lengths[i]
            count += 1
        self._looks -= count
        for i in await self._selected(wanted, positions, lengths):
            chosen.offsets.append(chosen.end + i)
            chosen.positions.append(positions[i])
            chosen.lengths.append(lengths[i])
        chosen.end += count

    async def _selected(self, wanted: list[int], positions: list[int], lengths: list[int]) -> list[int]:
        """Those of the indexes that the selection wants. One that cannot be read is wanted: that it is damaged is for
        who leases it to hear."""
        if not wanted:
            return []
        try:
            data = await self._reader.records([positions[i] for i in wanted], [lengths[i] for i in wanted])
        except LogCorrupt:
            if len(wanted) == 1:
                return wanted
            half = len(wanted) // 2
            first = await self._selected(wanted[:half], positions, lengths)
            return first + await self._selected(wanted[half:], positions, lengths)
        selected: list[int] = []
        for i, start in zip(wanted, record.split(data), strict=True):
            _, _, _, topic, _, properties, _ = record.decode(data, start)
            if self._selector.matches_message(topic, properties):
                selected.append(i)
        return selected
