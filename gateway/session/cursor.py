"""A durable subscription's place in its queue: what was read, what is acknowledged, what may be committed."""

from collections import deque
from typing import Final

from gateway.session.message_encoding import Message
from record import crc32c

MAX_SPREAD: Final = 65_536  # offsets behind the oldest that is not acknowledged of which a cursor remembers anything
_MIN_REACH: Final = 256
_MAX_REACH: Final = 60_000  # fewer than there are packet ids, and no more than MAX_SPREAD
_PACKET_IDS: Final = 65_535
_MAX_LATE: Final = 1024  # messages that were held which a cursor remembers to have read


class Cursor:
    """Offsets of one queue as one session sees them: [0, floor) done, [floor, next) sent, [next, end) waiting."""

    __slots__ = (
        "_first_id",
        "_left",
        "acked",
        "committed",
        "durable",
        "end",
        "fleeting",
        "floor",
        "is_over",
        "late",
        "live",
        "next",
        "open",
        "position",
        "queue",
        "reach",
        "sent_before",
        "start_position",
        "topic_filter",
        "waits",
        "yields",
    )

    def __init__(
        self,
        topic_filter: bytes,
        queue: bytes,
        offset: int,
        start_position: int,
        sent_before: int = -1,
        reach: int = 0,
    ) -> None:
        self.topic_filter = topic_filter
        self.queue = queue
        self.start_position = start_position  # of the log: older messages are not this subscription's
        self.next = offset  # first offset not yet read
        self.position = -1  # in the log, of the last message read that was never held
        self.late: set[int] = set()  # positions of messages read that were held: they are in no order
        self.end = offset  # of the queue, as far as heard
        self.floor = offset  # first offset not acknowledged
        self.committed = offset  # the floor that the log knows, or is about to
        self.durable = offset  # the floor that the log knows
        self.reach = reach  # so far behind that it may read: a bound of what a crash forgets; 0: the log knows no floor
        self.sent_before = sent_before  # offsets below it may have been sent by a node that died
        self.live: int = 0  # messages before this offset are older than the subscription, which sends them by itself
        self.yields: bool = False  # it does so only with what no other subscription sends
        self.is_over: bool = False  # its subscription is no more
        self.waits: bool = False  # what is older than the queue is read first
        self.fleeting: bool = False  # the log does not know it: QoS 0, and others of the session send before it
        self._first_id = crc32c(topic_filter) % _PACKET_IDS
        self.acked: set[int] = set()  # above the floor
        self._left: deque[tuple[int, Cursor, int]] | None = None  # offsets left to others: to whom, and its `next` then
        self.open: dict[int, int] = {}  # offset → packet id of what is on its way since an earlier connection

    def extend(self, end: int) -> None:
        """The queue goes up to `end`, at least."""
        self.end = max(self.end, end)

    def ack(self, offset: int) -> None:
        """`offset` is done with. Offsets below the floor are so already."""
        if offset == self.floor:
            floor = offset + 1
            acked = self.acked
            while floor in acked:
                acked.remove(floor)
                floor += 1
            self.floor = floor
        elif offset > self.floor:
            self.acked.add(offset)

    def read(self, offset: int, message: Message) -> None:
        """Go on behind `offset`, whose message this is."""
        self.next = offset + 1
        if not message.held:
            self.position = message.position
        else:
            if len(self.late) >= _MAX_LATE:
                self.late.clear()
            self.late.add(message.position)

    def pass_over(self, offset: int, message: Message) -> None:
        """Read `offset` without sending its message."""
        self.read(offset, message)
        self.ack(offset)

    def leave_to(self, owner: "Cursor", offset: int) -> None:
        """The message of `offset`, which is passed over, is sent by another cursor, which has read it: until that is
        acknowledged, a crash must have this one come by it again. That one may be no more by then."""
        if owner.is_done_with(owner.next):
            return
        left = self._left
        if left is None:
            left = self._left = deque()
        if not left or left[-1][1] is not owner or left[-1][2] != owner.next:
            left.append((offset, owner, owner.next))

    def is_done_with(self, offset: int) -> bool:
        """Whether all messages before `offset` are acknowledged, or are known to the log as exchanges."""
        return self.floor >= offset or self.is_over or self.fleeting

    @property
    def safe(self) -> int:
        """First offset that a crash must have the session come by again: not acknowledged, or left to another cursor
        by which it is not."""
        left = self._left
        while left:
            offset, owner, behind = left[0]
            if not owner.is_done_with(behind):
                return min(self.floor, offset)
            left.popleft()
        return self.floor

    def jump(self, offset: int) -> list[int]:
        """Go on at `offset`: retention took all that lies before it. Returns the packet ids of what is lost."""
        self.next = max(self.next, offset)
        self.floor = max(self.floor, offset)
        self.acked = {acked for acked in self.acked if acked > self.floor}
        return self._lose_open()

    def skip(self, offset: int) -> list[int]:
        """Go on at `offset`, or where the cursor is stretched: what lies between is gone, though not what lies before.
        Returns the packet ids of what is lost."""
        if self.floor == self.next:
            self.floor = offset
        else:
            offset = min(offset, self.floor + MAX_SPREAD)
            self.acked.update(range(self.next, offset))
        self.next = offset
        return self._lose_open()

    def begin_again(self, new: "Cursor") -> None:
        """The log has it begin where `new` does. It still sends what it has not read before, if nobody else does."""
        self.start_position = new.start_position
        self.committed = self.durable = new.floor
        if self.next < new.floor:
            self.live, self.yields = new.floor, True
        if self.floor < new.floor:
            self.floor = new.floor
            self.acked = {acked for acked in self.acked if acked >= new.floor}
            while self.floor in self.acked:
                self.acked.remove(self.floor)
                self.floor += 1

    def _lose_open(self) -> list[int]:
        lost = [packet_id for at, packet_id in self.open.items() if at < self.next]
        self.open = {at: packet_id for at, packet_id in self.open.items() if at >= self.next}
        return lost

    def has_read(self, message: Message) -> bool:
        """Whether it has come by the message, which is in its queue. Of one that was held it may not know, and says so
        when it is at the end."""
        if self.next >= self.end:
            return True
        return message.position in self.late if message.held else self.position >= message.position

    def has_passed(self, offset: int) -> bool:
        """Whether a crash would not have the cursor come by `offset` again."""
        return self.floor > offset and self.safe > offset

    def is_behind_it(self, offset: int) -> bool:
        """Whether the cursor, should it go on at `next`, does not come by `offset` again."""
        return offset < max(self.next, self.floor)

    @property
    def lagging(self) -> bool:
        return self.next < self.end

    @property
    def stretched(self) -> bool:
        """Reading has to wait: for the subscription's replay, or for a message that is far back and of which the log
        does not know that it is acknowledged."""
        if self.reach:
            return self.waits or self.next - self.durable >= self.reach
        return self.waits or self.next - self.floor >= MAX_SPREAD

    @property
    def strains(self) -> bool:
        """So much was acknowledged since the last record that the next one is due: reading would have to wait soon."""
        half = self.reach >> 1
        return half > 0 and self.next - self.committed >= half and self.safe - self.committed >= half >> 1

    def packet_id(self, offset: int) -> int:
        """The packet id to send a message with. The same after a crash, whoever forgot it: no record says so."""
        return (self._first_id + offset) % _PACKET_IDS + 1

    def may_have_used(self, packet_id: int) -> bool:
        """Whether `packet_id` is that of an offset from `next` on that a node that died may have sent."""
        ahead = (packet_id - 1 - self._first_id - self.next) % _PACKET_IDS
        return self.next + ahead < self.sent_before


def reach_of(window: int) -> int:
    """How far cursors of a session may go with so many messages in flight: acknowledgements are recorded meanwhile."""
    return min(max(_MIN_REACH, 4 * window), _MAX_REACH)
