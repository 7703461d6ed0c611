"""Finds out which messages ended subscriptions delivered, for the cursors that are still behind.

The log knows an offset of the old queue. What entered that queue before, entered the queues of the others before: so it
is a time for all of them, and for what entered at that very millisecond, positions.
"""

from collections.abc import Sequence
from typing import Final

from gateway.session.cursor import Cursor
from gateway.session.ended_subscriptions import Former
from gateway.session.session import Session
from matcher.cover import Shape
from record import position_of, split, store_time_of
from store.api import Store
from store.errors import OffsetOutOfRange

_PAGE: Final = 256  # records a fetch
_PAGE_BYTES: Final = 256 * 1024


class Formers:
    """Looks up, in the store, what sessions have to know of subscriptions that ended."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def learn(self, session: Session) -> None:
        """Find out what is not known yet. Raises StoreError."""
        shapes: dict[Cursor, Shape] = {}
        for former in list(session.formers or ()):
            if not former.is_known:
                await self._learn(session, former, shapes)
        if not session.closed:
            session.forget_formers()

    async def _learn(self, session: Session, former: Former, shapes: dict[Cursor, Shape]) -> None:
        """`shapes`: of the cursors' filters, as far as they were asked for."""
        queue, end = former.queue, former.ended.offset
        time = 0
        positions: set[int] = set()
        if end > (await self._store.bounds(queue)).begin:  # else all that came before is gone, for everybody
            time = await self._time_of(queue, end - 1)
            await self._add(positions, queue, await self._store.offset_at(queue, time), end)
        for first, behind in _runs(former.ended.open):
            await self._add(positions, queue, first, behind)
        starts: dict[Cursor, int] = {}
        ends: dict[Cursor, int] = {}
        for cursor in [s.cursor for s in session.subscriptions.values() if s.cursor is not None]:
            shape = shapes.get(cursor)
            if shape is None:
                shape = shapes[cursor] = Shape(cursor.topic_filter)
            if former.concerns(cursor, shape):
                starts[cursor] = await self._store.offset_at(cursor.queue, time)
                ends[cursor] = (await self._store.bounds(cursor.queue)).end
        former.know(time, positions, starts, ends)

    async def _time_of(self, queue: bytes, offset: int) -> int:
        """When what is at the offset entered the queue, in ms: for a message that was held later than its record was
        stored. The greatest time that has not come before a later offset."""
        fetched = await self._store.fetch(queue, offset, 1, 1)
        is_there = fetched.count and fetched.offset == offset
        time = store_time_of(fetched.data, 0) if is_there else 0
        step = 1
        while await self._store.offset_at(queue, time + step) <= offset:
            time += step
            step *= 2
        while step > 1:
            step //= 2
            if await self._store.offset_at(queue, time + step) <= offset:
                time += step
        return time

    async def _add(self, positions: set[int], queue: bytes, offset: int, end: int) -> None:
        """Add the positions of what is at [offset, end) of the queue, and not gone."""
        while offset < end:
            try:
                fetched = await self._store.fetch(queue, offset, min(_PAGE, end - offset), _PAGE_BYTES)
            except OffsetOutOfRange as error:
                if error.begin <= offset:
                    return
                offset = error.begin
                continue
            starts = split(fetched.data)[: max(0, end - fetched.offset)]
            positions.update([position_of(fetched.data, start) for start in starts])
            if not starts:
                return
            offset = fetched.next_offset


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted offsets as runs, [first, end)."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = runs[-1][0], offset + 1
        else:
            runs.append((offset, offset + 1))
    return runs
