"""A subscription's place in the log, while it reads what is older than itself: the history of a replay.

A cursor whose queue is the log. What it sends is named by the position of its record, which stays found when packet
ids are recorded; where it goes on is a *place*: the record by which a message entered its queues, which is another one
for a message that was held. Source: `docs/decisions/0013-replay.md`.
"""

from typing import Final

from gateway.session.cursor import MAX_SPREAD, Cursor
from gateway.session.message_encoding import Message
from matcher.names import matches, parent_of
from matcher.reserved import replay_name
from store.api import Outbound

FOLLOW: Final = 1 << 63  # an end that never comes: the history is read until it meets the present

_MAX_KNOWN: Final = 4096  # topics
_MOST_PATIENCE: Final = 63  # reads
_LEAST: Final = 16 * 1024  # bytes a read
_MOST: Final = 256 * 1024


class History(Cursor):
    """Places of the log in [next, end). With `recorded`, the log knows how far it has come."""

    __slots__ = (
        "_barren",
        "_done",
        "_known",
        "_patience",
        "_places",
        "_stay",
        "parent",
        "passed_by",
        "pattern",
        "recorded",
        "resumed",
        "sent",
        "size",
    )

    def __init__(self, pattern: bytes, place: int, end: int, recorded: bool, sent_before: int = -1) -> None:
        super().__init__(replay_name(pattern), b"", place, end, sent_before)
        self.pattern = pattern  # the subscription's filter
        first = parent_of(pattern)
        self.parent: bytes | None = None if first in (b"+", b"#") else first  # of all that matches
        self.end = end
        self.recorded = recorded
        self.resumed: int = -1  # the place where an earlier connection left it: some of that may have been sent
        self.sent: int = 0  # messages let in by the record at `next` that were sent or passed over
        self.size: int = _LEAST  # bytes to read next: more while little of it is sent
        self.passed_by: set[int] = set()  # positions of messages that are sent again by themselves
        self._places: dict[int, int] = {}  # position of what is not acknowledged, or behind such → place, in order
        self._done: set[int] = set()  # positions in `_places` that are acknowledged
        self._stay: set[int] = set()  # what is acknowledged before all of `_places`, and entered at the place `floor`
        self._known: dict[bytes, bool] = {}
        self._barren: int = 0  # reads since the last that had something, or the last look ahead
        self._patience: int = 0  # so many of them before the next look

    def wants(self, topic: bytes) -> bool:
        """Whether the subscription's filter matches."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = matches(self.pattern, topic)
            self._known[topic] = known
        return known

    def sending(self, message: Message) -> None:
        """The message of the place `next` goes out, to be acknowledged by its position."""
        self._places[message.position] = self.next

    def move(self, place: int) -> None:
        """Everything before `place` was read."""
        self.next = place
        self.sent = 0
        if not self._places and self.floor < place:
            self.floor = place
            self._stay.clear()

    def comes_by(self, outbound: Outbound) -> bool:
        # A message that was held is older than its place: its position does not tell.
        return not outbound.passed

    def pass_by(self, offset: int) -> None:
        """Its place was left: should a crash have forgotten that, the message is not sent in its place as well."""
        self.passed_by.add(offset)

    def lose(self, first: int, end: int) -> list[int]:
        """The records at [first, end) are gone. Returns the packet ids of what was open of them."""
        lost = {position: packet_id for position, packet_id in self.open.items() if first <= position < end}
        for position in lost:
            del self.open[position]
        return list(lost.values())

    @property
    def looks_ahead(self) -> bool:
        """Whether to look where the next message may be, and not to read on. Between two records only."""
        return self.parent is not None and self.sent == 0 and self._barren >= self._patience

    def looked(self, passed: int) -> None:
        """So many bytes of the log need not be read. Where there is little to gain, looks become rare."""
        self._patience = 1 if passed > self.size else min(_MOST_PATIENCE, 2 * self._patience + 1)
        self._barren = 0

    def read_through(self, is_barren: bool) -> None:
        """A whole read is done with. `is_barren`: nothing in it was for the subscription."""
        self._barren = self._barren + 1 if is_barren else 0

    def found_much(self, is_much: bool) -> None:
        """Whether the last read had more than there was room for: the next one is shorter, or else longer."""
        self.size = max(_LEAST, self.size >> 1) if is_much else min(_MOST, self.size << 1)

    def ack(self, offset: int) -> None:
        places = self._places
        if offset not in places:
            return
        self._done.add(offset)
        left: list[tuple[int, int]] = []
        while places:
            first = next(iter(places))
            if first not in self._done:
                break
            self._done.remove(first)
            left.append((first, places.pop(first)))
        floor = places[next(iter(places))] if places else self.next
        if floor > self.floor:
            self.floor = floor
            self._stay.clear()
        self._stay.update([position for position, place in left if place >= floor])

    def has_passed(self, offset: int) -> bool:
        """A crash has the history begin again at the place `floor`, with all that entered there."""
        if self.floor >= self.end:
            return True
        return offset not in self._places and offset not in self._stay and offset not in self.open

    def is_behind_it(self, offset: int) -> bool:
        if offset in self.open:
            return False
        place = self.floor if offset in self._stay else self._places.get(offset, -1)
        return place < self.next

    @property
    def lagging(self) -> bool:
        return self.next < self.end

    @property
    def stretched(self) -> bool:
        return len(self._places) >= MAX_SPREAD
