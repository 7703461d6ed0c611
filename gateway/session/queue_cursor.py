"""A durable subscription's place in its queue: what was read, what is acknowledged, what may be committed."""

from collections import deque
from typing import Final

from gateway.session.cursor import Cursor
from gateway.session.message_encoding import Message

MAX_SPREAD: Final = 65_536  # offsets between the floor and `next`: what a cursor remembers is bounded by it
_MIN_REACH: Final = 256
_MAX_REACH: Final = 60_000  # fewer than there are packet ids, and no more than MAX_SPREAD
_MAX_RELEASED: Final = 1024  # released messages that a cursor remembers to have read


class QueueCursor(Cursor):
    """Offsets of one queue as one session sees them: [0, floor) done, [floor, next) sent, [next, end) waiting."""

    __slots__ = (
        "_passed_over",
        "_released",
        "acked",
        "awaits_replay",
        "has_ended",
        "is_unrecorded",
        "position",
        "queue",
        "reach",
        "replay_end",
        "resend",
        "start_position",
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
        replay_end: int = 0,
        is_unrecorded: bool = False,
    ) -> None:
        super().__init__(topic_filter, offset, offset, sent_before)
        self.queue = queue
        self.start_position = start_position  # of the log: older messages are not this subscription's
        self.position = -1  # in the log, of the last message read that was never held
        self.reach = reach  # offsets that it may read beyond the recorded one: what a crash forgets. 0: not recorded
        self.replay_end = replay_end  # messages before this offset are replayed: no other subscription sends them
        self.yields: bool = False  # it replays only what no other subscription sends
        self.has_ended: bool = False  # its subscription has
        self.awaits_replay: bool = False  # messages older than the queue are read first
        self.is_unrecorded = is_unrecorded  # QoS 0 in a durable session: the others of the session send before it
        self.resend: dict[int, int] = {}  # offset → packet id of what an earlier connection left open
        self._released: set[int] = set()  # positions of messages read that were held: they are in no order
        self.acked: set[int] = set()  # above the floor
        self._passed_over: deque[tuple[int, QueueCursor, int]] | None = None  # offset, who sent it, its `next` then

    def ack(self, offset: int) -> bool:
        if offset == self.floor:
            self.floor = offset + 1
            if self.acked:
                self._raise_floor()
        elif offset > self.floor:
            self.acked.add(offset)
        half = self.reach >> 1
        return half > 0 and self.next - self.committed >= half and self.commit_offset - self.committed >= half >> 1

    def _raise_floor(self) -> None:
        acked = self.acked
        while self.floor in acked:
            acked.remove(self.floor)
            self.floor += 1

    def read(self, offset: int, message: Message) -> None:
        """Go on behind `offset`, whose message this is."""
        self.next = offset + 1
        if not message.held:
            self.position = message.position
        else:
            if len(self._released) >= _MAX_RELEASED:
                self._released.clear()
            self._released.add(message.position)

    def read_again(self, offset: int, message: Message) -> int:
        """Read `offset`, whose message an earlier connection left open. Returns its packet id."""
        self.read(offset, message)
        return self.resend.pop(offset)

    def pass_over(self, offset: int, message: Message) -> bool:
        """Read `offset` without sending its message. Returns what `ack` does."""
        self.read(offset, message)
        return self.ack(offset)

    def leave_to(self, owner: "QueueCursor", offset: int) -> None:
        """Pass over `offset`, whose message another cursor has sent. Until that one is acknowledged, this cursor reads
        `offset` again after a crash: the subscription of the other one may have ended by then."""
        if owner.is_done_with(owner.next):
            return
        passed = self._passed_over
        if passed is None:
            passed = self._passed_over = deque()
        if not passed or passed[-1][1] is not owner or passed[-1][2] != owner.next:
            passed.append((offset, owner, owner.next))

    def is_done_with(self, offset: int) -> bool:
        """Whether all messages before `offset` are acknowledged, or the log has them as exchanges."""
        return self.floor >= offset or self.has_ended or self.is_unrecorded

    @property
    def commit_offset(self) -> int:
        """First offset that is not acknowledged, or that another cursor sent without being acknowledged."""
        passed = self._passed_over
        while passed:
            offset, owner, next_offset = passed[0]
            if not owner.is_done_with(next_offset):
                return min(self.floor, offset)
            passed.popleft()
        return self.floor

    def jump(self, offset: int) -> list[int]:
        """Go on at `offset`: retention has removed all before it. Returns the packet ids of exchanges lost by that."""
        self.next = max(self.next, offset)
        self.floor = max(self.floor, offset)
        self.acked = {acked for acked in self.acked if acked > self.floor}
        return self._lose_resends()

    def skip(self, offset: int) -> list[int]:
        """Go on at `offset`, or as far as the cursor may: what lies between is gone, unlike what lies before. Returns
        the packet ids of exchanges lost by that."""
        if self.floor == self.next:
            self.floor = offset
        else:
            offset = min(offset, self.floor + MAX_SPREAD)
            self.acked.update(range(self.next, offset))
        self.next = offset
        return self._lose_resends()

    def begin_behind(self, position: int) -> None:
        """Send no message before `position` of the log: the subscription sent these when it had no cursor."""
        self.start_position = max(self.start_position, position)

    def begin_again(self, new: "QueueCursor") -> None:
        """Begin where `new` does, as the log has it. What it has not read before, it sends if no other cursor does."""
        self.start_position = new.start_position
        self.committed = self.durable = new.floor
        if self.next < new.floor:
            self.replay_end, self.yields = new.floor, True
        if self.floor < new.floor:
            self.floor = new.floor
            self.acked = {acked for acked in self.acked if acked >= new.floor}
            self._raise_floor()

    def _lose_resends(self) -> list[int]:
        lost = [packet_id for at, packet_id in self.resend.items() if at < self.next]
        self.resend = {at: packet_id for at, packet_id in self.resend.items() if at >= self.next}
        return lost

    def has_read(self, message: Message) -> bool:
        """Whether it has read the message, which is in its queue. It may not know of a message that was held: it says
        so only at the end of the queue."""
        if self.next >= self.end:
            return True
        return message.position in self._released if message.held else self.position >= message.position

    def is_settled(self, offset: int) -> bool:
        return self.floor > offset and self.commit_offset > offset

    def is_past(self, offset: int) -> bool:
        return offset < max(self.next, self.floor)

    @property
    def must_wait(self) -> bool:
        """Whether reading has to wait: for the subscription's replay, or for a record of what is acknowledged."""
        if self.reach:
            return self.awaits_replay or self.next - self.durable >= self.reach
        return self.awaits_replay or self.next - self.floor >= MAX_SPREAD


def reach_of(window: int) -> int:
    """The reach of cursors of a session that may have `window` messages in flight."""
    return min(max(_MIN_REACH, 4 * window), _MAX_REACH)
