"""The state of a group in one queue: its next offset, and an entry for each message that is not finished.

An offset below `next` is finished unless it has an entry. An entry says how often its message was leased, when it may
be leased again, and when it was leased for the first and for the last time. Blocks of 256 offsets keep their entries in
columns, so a change to a run of offsets costs a few slice operations, however long the run is. Messages are leased for
the first time in the order of their offsets, so a block keeps only the steps of these times. It has a column of the
last times once a message of it is leased again.

An ordered group keeps messages back while an older one of their ordering key is out. They have entries too, with the
deliveries `UNSENT` and the time 0.

`due` orders the entries by time for the next pop, and `order` by ordering key. Both are derived and not part of the
state.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby
from struct import Struct
from typing import Final

from store.views.groups.key_order import KeyOrder

BLOCK: Final = 256  # offsets
MAX_DELIVERIES: Final = 254  # the count stops here
UNSENT: Final = 255  # instead of a count: no client ever got the message
_LAST: Final = BLOCK - 1
_RUN: Final = Struct(">BBBQQQ")  # first offset in the block, count - 1, deliveries, at, first leased, last leased
_HEAD: Final = Struct(">QQI")  # floor, next, unfinished
_NONE: Final = bytes(BLOCK)
_FIRST: Final = b"\1" * BLOCK
_KEPT_BACK: Final = bytes((UNSENT,)) * BLOCK
_ONE_MORE: Final = bytes([0, *range(2, MAX_DELIVERIES + 1), MAX_DELIVERIES, 1])
_ONE_LESS: Final = bytes([0, UNSENT, *range(1, MAX_DELIVERIES), UNSENT])
_UNCHANGED: Final = bytes(range(256))
_STALE: Final = 256  # stale elements of `due` before it is rebuilt

Run = tuple[int, int, int]  # first offset, end (exclusive), deliveries of each message
Entry = tuple[int, int, int]  # deliveries; ms of the first and of the last lease


class Block:
    """The entries of offsets [256 n, 256 (n + 1)). An offset with 0 deliveries has no entry, whatever its times."""

    __slots__ = ("_first_ms", "_last_ms", "_late_ms", "_steps", "at", "count", "deliveries")

    def __init__(self) -> None:
        self.deliveries = bytearray(BLOCK)
        self.at = array("Q", bytes(8 * BLOCK))  # when each may be leased again, ms
        self.count = 0  # of entries
        self._steps = bytearray()  # ascending: the offsets from each of these on ...
        self._first_ms = array("Q")  # ... were leased for the first time at this time
        self._last_ms: array[int] | None = None  # when each was leased again; 0: never. None: 0 for all
        self._late_ms: dict[int, int] | None = (
            None  # when those were leased for the first time that were kept back before
        )

    @classmethod
    def unpack(cls, row: bytes) -> "Block":
        block = cls()
        for first, last, deliveries, at, first_ms, last_ms in _RUN.iter_unpack(row):
            count = last + 1
            block.deliveries[first : first + count] = bytes((deliveries,)) * count
            block.at[first : first + count] = array("Q", (at,)) * count
            block.count += count
            block.leased(first, first_ms)
            if last_ms != first_ms:
                block.leased_again(first, first + count, last_ms)
        return block

    def pack(self) -> bytes:
        """The row of the block. Equal entries give equal rows."""
        return b"".join(
            [
                _RUN.pack(low, high - low - 1, deliveries, at, first_ms, last_ms)
                for first, end, deliveries, at in self.runs()
                for low, high, first_ms, last_ms in self._times(first, end)
            ]
        )

    def leased(self, first: int, time: int) -> None:
        """The offsets from `first` on were leased for the first time at `time` (ms)."""
        if not self._first_ms or self._first_ms[-1] != time:
            self._steps.append(first)
            self._first_ms.append(time)

    def leased_again(self, low: int, high: int, time: int) -> None:
        """The entries of [low, high) were leased again at `time` (ms)."""
        if self._last_ms is None:
            self._last_ms = array("Q", bytes(8 * BLOCK))
        self._last_ms[low:high] = array("Q", (time,)) * (high - low)

    def kept_back(self, low: int, high: int) -> list[int]:
        """The indexes in [low, high) of messages that are kept back."""
        if UNSENT not in self.deliveries[low:high]:
            return []
        return [i for i in range(low, high) if self.deliveries[i] == UNSENT and not self.at[i]]

    def leased_late(self, indexes: list[int], time: int) -> None:
        """Messages that were kept back were leased for the first time at `time` (ms)."""
        if indexes:
            if self._late_ms is None:
                self._late_ms = {}
            self._late_ms.update(dict.fromkeys(indexes, time))

    def times_of(self, index: int) -> tuple[int, int]:
        """When an entry was leased for the first and for the last time, ms; if it is kept back, since when."""
        first_ms = self._first_ms[bisect_right(self._steps, index) - 1]
        if self._late_ms is not None:
            first_ms = self._late_ms.get(index, first_ms)
        return first_ms, first_ms if self._last_ms is None else self._last_ms[index] or first_ms

    def _times(self, low: int, high: int) -> Iterator[tuple[int, int, int, int]]:
        """Runs of entries of [low, high) with equal times: (first, end, ms of the first lease, ms of the last)."""
        if len(self._steps) == 1 and self._last_ms is None and self._late_ms is None:
            yield low, high, self._first_ms[0], self._first_ms[0]
            return
        first = low
        for (first_ms, last_ms), run in groupby([self.times_of(index) for index in range(low, high)]):
            end = first + sum(1 for _ in run)
            yield first, end, first_ms, last_ms
            first = end

    def runs(self, low: int = 0, high: int = BLOCK) -> Iterator[tuple[int, int, int, int]]:
        """Runs of equal entries in [low, high): (first, end, deliveries, at)."""
        first = low
        for (deliveries, at), run in groupby(zip(self.deliveries[low:high], self.at[low:high], strict=True)):
            end = first + sum(1 for _ in run)
            if deliveries:
                yield first, end, deliveries, at
            first = end


class QueueLeases:
    """The unfinished messages of a group in a queue. Methods that apply control records have their names
    (`store.control`)."""

    __slots__ = (
        "_stale_at",
        "blocks",
        "changed",
        "due",
        "group",
        "is_changed",
        "is_ordered",
        "next",
        "order",
        "queue",
        "seen",
        "turn",
        "unfinished",
    )

    def __init__(self, group: bytes, queue: bytes, begin: int) -> None:
        self.group = group
        self.queue = queue
        self.next = begin  # offsets from here on were never leased
        self.blocks: dict[int, Block] = {}  # by number; each has entries
        self.unfinished = 0  # number of entries
        self.is_changed = False  # since the last checkpoint
        self.changed: set[int] = set()  # numbers of the blocks that changed since then
        self.due: list[tuple[int, int, int]] = []  # heap of (at, first, end); elements may be stale
        self._stale_at = _STALE  # length of `due` at which it is rebuilt
        # Not part of the state, for pops only:
        self.order: KeyOrder | None = None  # of an ordered group; it may be dropped at any time
        self.is_ordered = False  # pops may have kept messages back: they keep an order, or it is not known whether
        self.seen = begin  # the log has no records of the offsets [next, seen)
        self.turn = 0  # number of the last decision that leased messages

    @property
    def floor(self) -> int:
        """The first unfinished offset: everything below is finished."""
        if not self.unfinished:
            return self.next
        number = min(self.blocks)
        deliveries = self.blocks[number].deliveries
        return number * BLOCK + BLOCK - len(deliveries.lstrip(b"\0"))

    def popped(self, runs: list[tuple[int, int]], until: int, time: int) -> int:
        """Apply POPPED, which was stored at `time` (ms). Returns how many of the messages a client had got before."""
        again = 0
        for first, count in runs:
            if count < 0:
                self._keep_back(first, first - count, time)
                continue
            end = first + count
            known = min(end, self.next)
            if first < known:
                again += known - first - self._unsent(first, known)
                self._update(first, known, until, _ONE_MORE, time)
            if end > self.next:
                begin = max(first, self.next)
                if begin < end:
                    self._enter(begin, end, until, _FIRST, time)
                self.next = end
        return again

    def settled(self, done: list[tuple[int, int]], again: list[tuple[int, int, int]]) -> None:
        for first, count in done:
            self.finish(first, first + count)
        for first, count, at in again:
            if at < 0:  # the lease was returned unsent
                self._update(first, first + count, -at, _ONE_LESS)
            else:
                self._update(first, first + count, at, _UNCHANGED)

    def reset(self, offset: int) -> None:
        self.changed.update(self.blocks)
        self.blocks = {}
        self.unfinished = 0
        self.due = []
        self.order = None
        self.next = self.seen = offset

    def finish(self, first: int, end: int) -> None:
        """Remove the entries of [first, end)."""
        if self.order is not None:
            self.order.touch(first, end)
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is None:
                continue
            size = high - low
            finished = size - block.deliveries.count(0, low, high)
            if not finished:
                continue
            self.changed.add(number)
            self.unfinished -= finished
            block.count -= finished
            if block.count:
                block.deliveries[low:high] = _NONE[:size]
            else:
                del self.blocks[number]

    def deliveries_of(self, offset: int) -> int:
        """How often the message was leased, or `UNSENT`. 0 if it is finished or was never leased."""
        block = self.blocks.get(offset // BLOCK)
        return 0 if block is None else block.deliveries[offset & _LAST]

    def entry_of(self, offset: int) -> Entry | None:
        """The entry of a message without its `at`, or None if it has none."""
        block = self.blocks.get(offset // BLOCK)
        deliveries = 0 if block is None else block.deliveries[offset & _LAST]
        return None if block is None or not deliveries else (deliveries, *block.times_of(offset & _LAST))

    def _unsent(self, first: int, end: int) -> int:
        """How many messages of [first, end) no client ever got."""
        unsent = 0
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is not None:
                unsent += block.deliveries.count(UNSENT, low, high)
        return unsent

    def is_run(self, first: int, end: int, deliveries: int) -> bool:
        """Whether all offsets of [first, end) have entries with these deliveries."""
        byte = bytes((deliveries,))
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is None or block.deliveries.count(byte, low, high) != high - low:
                return False
        return True

    def deliveries(self) -> dict[int, int]:
        """How many entries there are by how often their messages were leased; `UNSENT` for those that are kept back."""
        found: Counter[int] = Counter()
        for block in self.blocks.values():
            found.update(block.deliveries)
        del found[0]
        return dict(found)

    def out_after(self, time: int) -> list[Run]:
        """The entries that may be leased again only after `time` (ms)."""
        return [
            (number * BLOCK + first, number * BLOCK + end, deliveries)
            for number in sorted(self.blocks)
            for first, end, deliveries, at in self.blocks[number].runs()
            if at > time
        ]

    def entry(self, offset: int) -> tuple[int, int]:
        """(deliveries, at) of a message; the deliveries are 0 if it is finished or was never leased."""
        block = self.blocks.get(offset // BLOCK)
        return (0, 0) if block is None else (block.deliveries[offset & _LAST], block.at[offset & _LAST])

    def entries(self, first: int, end: int) -> list[tuple[int, int, bool]]:
        """The runs of entries in [first, end): first offset, end, and whether they were ever leased."""
        return [
            (number * BLOCK + start, number * BLOCK + stop, at > 0)
            for number, low, high in _pieces(first, end)
            if number in self.blocks
            for start, stop, _, at in self.blocks[number].runs(low, high)
        ]

    def next_due(self) -> int | None:
        """The earliest time (ms) at which an entry may be leased again. Removes stale elements from `due`."""
        due = self.due
        while due:
            if self._is_due(*due[0]):
                return due[0][0]
            heappop(due)
        return None

    def pop_due(self) -> tuple[int, list[Run]]:
        """Remove the first element of `due`. Returns its time and the entries that still have this time. The caller has
        to put entries that it does not change back with `expect`."""
        at, first, end = heappop(self.due)
        return at, self._runs_at(at, first, end)

    def expect(self, at: int, first: int, end: int) -> None:
        """Add an element to `due`. It may cover entries with another time."""
        heappush(self.due, (at, first, end))
        if len(self.due) > self._stale_at:
            self._rebuild_due()

    def rows(self) -> Iterator[tuple[int, bytes | None]]:
        """(number, row) of each changed block; the row is None if the block has no entries. Clears the changes."""
        for number in self.changed:
            block = self.blocks.get(number)
            yield number, None if block is None else block.pack()
        self.changed = set()
        self.is_changed = False

    def head(self) -> bytes:
        return _HEAD.pack(self.floor, self.next, self.unfinished)

    def load(self, blocks: list[tuple[int, bytes]]) -> None:
        """Replace the entries by those of the blocks' rows."""
        self.blocks = {number: Block.unpack(row) for number, row in blocks}
        self.unfinished = sum(block.count for block in self.blocks.values())
        self._rebuild_due()

    def _keep_back(self, first: int, end: int, time: int) -> None:
        """Skip messages that wait for their ordering key."""
        first = max(first, self.next)
        if first < end:
            self._enter(first, end, 0, _KEPT_BACK, time)
            self.next = end

    def _enter(self, first: int, end: int, at: int, deliveries: bytes, time: int) -> None:
        """Add entries for [first, end). deliveries: a block of them. time: of the record, ms."""
        if self.order is not None:
            self.order.touch(first, end)
        self.unfinished += end - first
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is None:
                block = self.blocks[number] = Block()
            size = high - low
            block.deliveries[low:high] = deliveries[:size]
            block.at[low:high] = array("Q", (at,)) * size
            block.count += size
            block.leased(low, time)
            self.changed.add(number)
        self.expect(at, first, end)

    def _update(self, first: int, end: int, at: int, deliveries: bytes, leased_ms: int = 0) -> None:
        """Set the time of the entries of [first, end). deliveries: the translation table for their delivery counts.
        leased_ms: when they were leased again; 0: they are not."""
        if self.order is not None:
            self.order.touch(first, end)
        found = False
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is None:
                continue
            found = True
            kept_back = block.kept_back(low, high) if leased_ms else []
            if deliveries is not _UNCHANGED:
                block.deliveries[low:high] = block.deliveries[low:high].translate(deliveries)
            block.at[low:high] = array("Q", (at,)) * (high - low)
            if leased_ms:
                block.leased_again(low, high, leased_ms)
                block.leased_late(kept_back, leased_ms)
            self.changed.add(number)
        if found:
            self.expect(at, first, end)

    def _runs_at(self, at: int, first: int, end: int) -> list[Run]:
        """The entries of [first, end) whose time is `at`."""
        runs: list[Run] = []
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is None:
                continue
            base = number * BLOCK
            column = block.deliveries[low:high]
            if block.at[low:high] == array("Q", (at,)) * (high - low) and column.count(column[0]) == high - low:
                if column[0]:
                    runs.append((base + low, base + high, column[0]))
                continue
            for start, stop, deliveries, time in block.runs(low, high):
                if time == at:
                    runs.append((base + start, base + stop, deliveries))
        return runs

    def _is_due(self, at: int, first: int, end: int) -> bool:
        """Whether an entry of [first, end) has the time `at`."""
        for number, low, high in _pieces(first, end):
            block = self.blocks.get(number)
            if block is not None:
                for i in range(low, high):
                    if block.deliveries[i] and block.at[i] == at:
                        return True
        return False

    def _rebuild_due(self) -> None:
        self.due = [
            (at, number * BLOCK + first, number * BLOCK + end)
            for number, block in self.blocks.items()
            for first, end, _, at in block.runs()
        ]
        heapify(self.due)
        self._stale_at = 2 * len(self.due) + _STALE


def unpack_head(row: bytes) -> tuple[int, int, int]:
    """(floor, next, unfinished) of a head row."""
    floor, following, unfinished = _HEAD.unpack(row)
    return floor, following, unfinished


def _pieces(first: int, end: int) -> list[tuple[int, int, int]]:
    """[first, end) by block: (number, first index in the block, end index)."""
    number = first // BLOCK
    if end <= (number + 1) * BLOCK:
        return [(number, first & _LAST, ((end - 1) & _LAST) + 1)] if first < end else []
    pieces = [(number, first & _LAST, BLOCK)]
    last = (end - 1) // BLOCK
    pieces += [(middle, 0, BLOCK) for middle in range(number + 1, last)]
    pieces.append((last, 0, ((end - 1) & _LAST) + 1))
    return pieces
