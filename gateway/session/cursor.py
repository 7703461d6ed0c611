"""What the two cursors of a subscription have in common: one reads a queue, the other one the log."""

from abc import ABCMeta, abstractmethod
from typing import Final

from record import crc32c

_PACKET_IDS: Final = 65_535


class Cursor(metaclass=ABCMeta):
    """A place from which a subscription goes on. Its unit is an offset of a queue, or a position of the log."""

    __slots__ = ("_first_id", "committed", "durable", "end", "floor", "next", "sent_before", "topic_filter")

    def __init__(self, topic_filter: bytes, place: int, end: int, sent_before: int) -> None:
        self.topic_filter = topic_filter  # or the name of its replay: what the log calls it
        self.next = place  # first one not read
        self.end = end  # first one that is not there yet, as far as known
        self.floor = place  # first one not acknowledged
        self.committed = place  # the place that the log has, or is about to have
        self.durable = place  # the place that the log has
        self.sent_before = sent_before  # what lies below it may have been sent by a node that died
        self._first_id = crc32c(topic_filter) % _PACKET_IDS

    @abstractmethod
    def ack(self, offset: int) -> bool:
        """Mark the message at `offset` as acknowledged. Returns whether reading would soon wait for a record."""

    @abstractmethod
    def is_settled(self, offset: int) -> bool:
        """Whether the cursor does not read `offset` again after a crash, so that its exchange may be forgotten."""

    @abstractmethod
    def is_past(self, offset: int) -> bool:
        """Whether the cursor does not read `offset` again when it goes on at `next`."""

    @property
    def commit_offset(self) -> int:
        """The place to record now: a crash has the session go on there."""
        return self.floor

    @property
    def is_lagging(self) -> bool:
        return self.next < self.end

    def extend(self, end: int) -> None:
        """The queue, or the log, goes on to `end`."""
        self.end = max(self.end, end)

    def begin_commit(self) -> bool:
        """Take the place to record as committed. False: the cursor has not come forward since the last record."""
        place = self.commit_offset
        if place <= self.committed:
            return False
        self.committed = place
        return True

    def commit_done(self, place: int) -> None:
        """The log has this place."""
        self.durable = max(self.durable, place)

    def packet_id(self, offset: int) -> int:
        """The packet id to send a message with. A function of its place, so that a crash does not change it."""
        return (self._first_id + offset) % _PACKET_IDS + 1

    def may_have_used(self, packet_id: int) -> bool:
        """Whether a node that died may have sent a message that is yet to be read with this packet id."""
        ahead = (packet_id - 1 - self._first_id - self.next) % _PACKET_IDS
        return self.next + ahead < self.sent_before
