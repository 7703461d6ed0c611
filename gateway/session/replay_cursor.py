"""A subscription's place in the log while it reads messages older than itself: a replay.

A replay is at least once. The log records one position of it, that of the first record whose messages are not all
acknowledged; after a kill it goes on from there. A message is acknowledged by the position of its own record, and its
*place* is the position of the record by which it entered its queues: another one if it was delayed or half of a
transaction. Source: `docs/decisions/0030-replay-at-least-once.md`.
"""

from typing import Final

from gateway.session.cursor import Cursor
from gateway.session.message_encoding import Message
from matcher.names import matches, parent_of
from matcher.reserved import replay_name

FOLLOW: Final = 1 << 63  # an end that never comes: the log is read until it meets the present

_MAX_KNOWN: Final = 1024  # topics
_MAX_REMEMBERED: Final = 256  # bytes of such a topic
_MOST_PATIENCE: Final = 63  # reads
_LEAST: Final = 16 * 1024  # bytes a read
_MOST: Final = 256 * 1024


class ReplayCursor(Cursor):
    """Places of the log in [next, end). With `recorded`, the log knows how far it has come."""

    __slots__ = (
        "_empty_reads",
        "_known",
        "_patience",
        "_unacknowledged",
        "parent",
        "pattern",
        "recorded",
        "sent",
        "size",
    )

    def __init__(self, pattern: bytes, place: int, end: int, recorded: bool, sent_before: int = -1) -> None:
        super().__init__(replay_name(pattern), place, end, sent_before)
        self.pattern = pattern  # the subscription's filter
        first = parent_of(pattern)
        self.parent: bytes | None = None if first in (b"+", b"#") else first  # of all that matches
        self.recorded = recorded
        self.sent: int = 0  # messages let in by the record at `next` that were sent or passed over
        self.size: int = _LEAST  # bytes to read next: more while little of it is sent
        self._unacknowledged: dict[int, int] = {}  # position of a message that was sent → its place, in order
        self._known: dict[bytes, bool] = {}
        self._empty_reads: int = 0  # since a read that had something, or since the last skip
        self._patience: int = 0  # so many of them before the next skip

    def wants(self, topic: bytes) -> bool:
        """Whether the subscription's filter matches."""
        known = self._known.get(topic)
        if known is None:
            known = matches(self.pattern, topic)
            if len(topic) <= _MAX_REMEMBERED:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[topic] = known
        return known

    def sending(self, message: Message) -> None:
        """The message, of the place `next`, goes out and waits for its acknowledgement."""
        self._unacknowledged[message.position] = self.next

    def pass_message(self) -> None:
        """One more of the messages of the place `next` was sent, or is not to be sent."""
        self.sent += 1

    def move(self, place: int) -> None:
        """Everything before `place` was read."""
        self.next = place
        self.sent = 0
        if not self._unacknowledged:
            self.floor = place

    @property
    def may_skip(self) -> bool:
        """Whether to find where the next message may be, in place of reading on. Only between two records."""
        return self.parent is not None and self.sent == 0 and self._empty_reads >= self._patience

    def skipped(self, size: int) -> None:
        """So many bytes of the log need not be read. If they are few, skipping is tried less often."""
        self._patience = 1 if size > self.size else min(_MOST_PATIENCE, 2 * self._patience + 1)
        self._empty_reads = 0

    def note_read(self, is_empty: bool) -> None:
        """All of a read is done with. `is_empty`: nothing in it was for the subscription."""
        self._empty_reads = self._empty_reads + 1 if is_empty else 0

    def resize_reads(self, is_shorter: bool) -> None:
        """Make the next read shorter if there was no room for all of the last one, else longer."""
        self.size = max(_LEAST, self.size >> 1) if is_shorter else min(_MOST, self.size << 1)

    def ack(self, offset: int) -> bool:
        """The message at position `offset` is acknowledged. Reading never waits for a record."""
        if self._unacknowledged.pop(offset, -1) == self.floor:
            self.floor = next(iter(self._unacknowledged.values()), self.next)
        return False

    def is_settled(self, offset: int) -> bool:  # noqa: ARG002
        """Nobody has to remember an exchange that is over: after a kill its message may come again."""
        return True

    def is_past(self, offset: int) -> bool:  # noqa: ARG002
        """An exchange that is open when the connection ends is recorded, and no place of the log."""
        return True
