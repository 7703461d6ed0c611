"""Which messages of a queue an ordered group may be leased next: the unfinished ones, by ordering key.

An index for pops, derived from `leases` and from the references of the queue, which have the hash of each message's
ordering key (`tag`). Where only named keys are in order, a message that names none has a tag of its own. The index is
only in memory, made when an ordered group pops, and may be dropped at any time. It covers the offsets [begin, end): the
entries of the group, and behind them new messages that pops have examined.

A key is *ready* if it has to be examined: something of it was settled or leased, or a time has come. A pop examines
ready keys only, so its work does not grow with the number of messages that wait.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from record import unpack_refs
from record.layout import NAMES_KEY, REFERENCE

_STALE: Final = 256  # stale elements of `times` before they are removed
_DROPPED: Final = 1024  # references of finished messages before they are removed


class KeyMessages:
    """The unfinished messages of one ordering key. Some may have been finished since."""

    __slots__ = ("due", "is_ready", "leased", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []  # ascending
        self.leased = 0  # messages from this offset on were never leased; of older ones some may be out
        self.due = 0  # ms, when it is examined again by itself; 0: not at all
        self.is_ready = False


class KeyOrder:
    """The unfinished messages of a group in a queue by ordering key."""

    __slots__ = (
        "_refs",
        "_tags",
        "_times",
        "ahead",
        "begin",
        "counted",
        "end",
        "is_of_named",
        "keys",
        "met",
        "named",
        "ready",
        "selection",
    )

    def __init__(self, begin: int, selection: object, is_of_named: bool = False, met: int = -1) -> None:
        self.begin = begin
        self.end = begin
        self.is_of_named = is_of_named  # only messages that name their key are in order
        self.met = met  # the message that a pop without order may not lease: it names a key; -1: none
        self.named = 0  # keys of `keys` that messages name
        self.selection = selection  # of the pops that examined new messages
        self.keys: dict[int, KeyMessages] = {}  # by tag
        self.ready: deque[int] = deque()  # tags, each once
        self.ahead: list[int] = []  # new messages that were examined: no record knows them yet; ascending
        self.counted = 0  # `size` as `KeyOrders` knows it
        self._refs = bytearray()  # of [begin, end)
        self._tags = array("I")  # of [begin, end)
        self._times: list[tuple[int, int]] = []  # heap of (due, tag); elements may be stale

    @property
    def is_needed(self) -> bool:
        """Whether pops that keep the order of named keys need it."""
        return self.named > 0 or self.end <= self.met or not self.is_of_named

    @property
    def size(self) -> int:
        """Offsets that are covered."""
        return self.end - self.begin

    def reference(self, offset: int) -> bytes:
        """The packed reference of a covered offset."""
        at = (offset - self.begin) * REFERENCE
        return bytes(self._refs[at : at + REFERENCE])

    def position(self, offset: int) -> int:
        """The position of the record of a covered offset."""
        at = (offset - self.begin) * REFERENCE
        return int.from_bytes(self._refs[at : at + 8], "little")

    def length(self, offset: int) -> int:
        """The length of the record of a covered offset."""
        at = (offset - self.begin) * REFERENCE
        return int.from_bytes(self._refs[at + 8 : at + 12], "little")

    def tags(self, offset: int) -> list[int]:
        """The tags of the covered offsets from this one on."""
        return self._tags[offset - self.begin :].tolist()

    def restart(self, offset: int) -> None:
        """Go on at an offset. There must be no unfinished messages."""
        self._refs.clear()
        del self._tags[:]
        self.begin = self.end = offset

    def extend(self, refs: bytes) -> None:
        """Cover the offsets of these references, which follow `end`."""
        self._refs += refs
        tags = unpack_refs(refs)[3]
        if self.is_of_named:
            tags = [
                tag if tag & NAMES_KEY else offset & (NAMES_KEY - 1) for offset, tag in enumerate(tags, start=self.end)
            ]
        self._tags.extend(tags)
        self.end += len(refs) // REFERENCE

    def add(self, first: int, end: int, is_leased: bool) -> None:
        """Add unfinished messages, which are covered. `is_leased`: some of them may have been leased."""
        for offset in range(first, end):
            tag = self._tags[offset - self.begin]
            key = self.keys.get(tag)
            if key is None:
                key = self.keys[tag] = KeyMessages()
                self.named += tag >= NAMES_KEY
            if not key.offsets:
                self._make_ready(tag, key)
            key.offsets.append(offset)
            if is_leased:
                key.leased = offset + 1

    def remove(self, tag: int) -> None:
        """Remove a key that has no unfinished messages."""
        del self.keys[tag]
        self.named -= tag >= NAMES_KEY

    def touch(self, first: int, end: int) -> None:
        """Something of these messages has changed."""
        for offset in range(max(first, self.begin), min(end, self.end)):
            tag = self._tags[offset - self.begin]
            key = self.keys.get(tag)
            if key is not None:
                self._make_ready(tag, key)

    def make_ready(self, tags: Iterable[int]) -> None:
        """Have keys be examined again."""
        for tag in tags:
            key = self.keys.get(tag)
            if key is not None:
                self._make_ready(tag, key)

    def make_ready_first(self, tag: int) -> None:
        """Have a key be examined again before all others."""
        key = self.keys.get(tag)
        if key is not None and not key.is_ready:
            key.is_ready = True
            self.ready.appendleft(tag)

    def expect(self, tag: int, key: KeyMessages, at: int) -> None:
        """Have a key be examined at a time (ms)."""
        if key.due == at:
            return
        key.due = at
        heappush(self._times, (at, tag))
        if len(self._times) > 2 * len(self.keys) + _STALE:
            self._times = [(each.due, name) for name, each in self.keys.items() if each.due]
            heapify(self._times)

    def take_due(self, now: int) -> None:
        """Have the keys be examined whose time has come."""
        times = self._times
        while times and times[0][0] <= now:
            at, tag = heappop(times)
            key = self.keys.get(tag)
            if key is not None and key.due == at:
                key.due = 0
                self._make_ready(tag, key)

    def next_due(self) -> int | None:
        """When the first key is to be examined (ms)."""
        times = self._times
        while times:
            at, tag = times[0]
            key = self.keys.get(tag)
            if key is not None and key.due == at:
                return at
            heappop(times)
        return None

    def drop_before(self, offset: int) -> None:
        """Cover no offsets before this one any more, which are finished."""
        count = min(offset, self.end) - self.begin
        if count >= _DROPPED and 2 * count >= self.size:
            del self._refs[: count * REFERENCE]
            del self._tags[:count]
            self.begin += count

    def _make_ready(self, tag: int, key: KeyMessages) -> None:
        if not key.is_ready:
            key.is_ready = True
            self.ready.append(tag)
