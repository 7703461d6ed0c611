"""Stretches of queues, read and decoded once for all sessions whose backlogs come by them.

Thousands of sessions of one filter come back at about the same time and read the same queue. What one of them has
read is kept for the others, in blocks of offsets, as far as a bound allows; nothing is kept when nobody is behind.
"""

from typing import Final

from gateway.message import Message
from record import split
from store.api import Fetched

BLOCK: Final = 64  # offsets
BLOCK_BYTES: Final = 64 * 1024  # of records read at once, but for a single larger one
_MAX_BYTES: Final = 16 << 20  # of memory, about
_MESSAGE_BYTES: Final = 512  # of memory for a message, beside what its record has


class Stretch:
    """Consecutive messages of a queue: whoever is at an offset of [begin, next) goes on with those from there on."""

    __slots__ = ("begin", "first", "messages", "next", "size")

    def __init__(self, asked: int, fetched: Fetched) -> None:
        data = fetched.data
        self.begin: int = asked
        self.first: int = fetched.offset  # of the first message: what lies before it is gone
        self.messages: list[Message] = [Message(data, start) for start in split(data)]
        self.next: int = fetched.next_offset
        # As its record, and as the packet that subscribers share.
        self.size: int = 2 * len(data) + _MESSAGE_BYTES * len(self.messages)


class Ranges:
    """The newest stretches."""

    __slots__ = ("_kept", "size")

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int], Stretch] = {}  # by queue and number of the block; the oldest first
        self.size: int = 0  # bytes

    def find(self, queue: bytes, offset: int) -> Stretch | None:
        """What was kept of the queue at `offset`."""
        stretch = self._kept.get((queue, offset // BLOCK))
        return stretch if stretch is not None and stretch.begin <= offset < stretch.next else None

    def keep(self, queue: bytes, stretch: Stretch) -> None:
        """Keep what was read for others, instead of what was kept of that block."""
        kept = self._kept
        key = (queue, stretch.begin // BLOCK)
        old = kept.pop(key, None)
        if old is not None:
            self.size -= old.size
        kept[key] = stretch
        self.size += stretch.size
        while self.size > _MAX_BYTES and len(kept) > 1:
            self.size -= kept.pop(next(iter(kept))).size

    def clear(self) -> None:
        self._kept.clear()
        self.size = 0


def room_in_block(offset: int) -> int:
    """How many offsets there are from `offset` to the end of its block."""
    return BLOCK - offset % BLOCK
