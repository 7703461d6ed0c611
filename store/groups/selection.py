"""Finds the messages of a queue that a selection wants, before a pop decides: a decision may not wait for reads.

A verdict on a message holds for good, so it may be old when it is used. Messages that were leased meanwhile are not
leased again.
"""

import asyncio
from typing import Final

import record
from matcher.selector import Selection, Selector, compile_selection
from record.layout import NAMES_KEY, REFERENCE
from store.errors import LogCorrupt
from store.log.reader import LogReader
from store.views.fold import Views

_PAGE: Final = 256  # messages examined in one turn of the loop
_PAGE_BYTES: Final = 1 << 20  # of them; one larger message is a page of its own
MOST_EXAMINED: Final = 4096  # messages examined in one pop


class SelectedMessages:
    """The wanted messages among the offsets [first, end) of a queue."""

    __slots__ = ("end", "first", "offsets", "refs")

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = first
        self.offsets: list[int] = []  # ascending
        self.refs: list[bytes] = []  # packed reference of each


class QueueSelector:
    """Examines queues for one pop, at most `MOST_EXAMINED` messages in all. Raises `SelectorError` for a selection that
    does not compile."""

    def __init__(self, views: Views, reader: LogReader, selection: Selection) -> None:
        self._views = views
        self._reader = reader
        self._selector: Selector = compile_selection(selection)
        only = self._selector.only_topic
        self._tag = record.tag_of(only, b"") if only else -1  # of messages of the only wanted topic, or `NAMES_KEY`
        self._left = MOST_EXAMINED

    async def select(self, queue: bytes, first: int, wanted: int) -> SelectedMessages:
        """Examine messages from offset `first` on, until `wanted` are found."""
        selected = SelectedMessages(max(first, self._views.first(queue)))
        while self._left > 0 and len(selected.offsets) < wanted:
            count = min(_PAGE, self._left, self._views.end(queue) - selected.end)
            if count <= 0:
                break
            refs = self._views.references(queue, selected.end, count)
            if not refs:
                break
            await self._examine(selected, refs)
            await asyncio.sleep(0)  # others have their turn
        return selected

    async def _examine(self, selected: SelectedMessages, refs: bytes) -> None:
        """Examine the messages that follow `selected.end`, as many as fit in a page of bytes."""
        positions, lengths, _, tags = record.unpack_refs(refs)
        tag = self._tag
        candidates: list[bytes] = []  # references whose records have to be read
        offsets: list[int] = []  # of these
        size = count = 0
        for i in range(len(positions)):
            if not self._views.is_gone(positions[i]) and (tag < 0 or tags[i] == tag or tags[i] & NAMES_KEY):
                if candidates and size + lengths[i] > _PAGE_BYTES:
                    break
                candidates.append(refs[i * REFERENCE : (i + 1) * REFERENCE])
                offsets.append(selected.end + i)
                size += lengths[i]
            count += 1
        self._left -= count
        for i in await self._matching(candidates):
            selected.offsets.append(offsets[i])
            selected.refs.append(candidates[i])
        selected.end += count

    async def _matching(self, refs: list[bytes]) -> list[int]:
        """The indexes of the wanted messages. One that cannot be read is wanted: the member that leases it gets to know
        of the damage."""
        if not refs:
            return []
        try:
            data = await self._reader.frames(b"".join(refs))
        except LogCorrupt:
            if len(refs) == 1:
                return [0]
            half = len(refs) // 2
            first = await self._matching(refs[:half])
            return first + [half + i for i in await self._matching(refs[half:])]
        matching: list[int] = []
        for i, start in enumerate(record.split(data)):
            _, _, _, topic, _, properties, _ = record.decode(data, start)
            if self._selector.matches_message(topic, properties):
                matching.append(i)
        return matching
