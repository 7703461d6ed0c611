"""Stretches of queues, read and decoded once for all sessions whose backlogs come by them.

Thousands of sessions of one filter come back at about the same time and read the same queue. What one of them has
read is kept for the others, by blocks of offsets, as far as a bound allows; nothing is kept when nobody is behind.
A block may take several reads: where messages are large, and at the end of a queue that grows.
"""

from typing import Final

from gateway.session.message_encoding import Message
from record import split
from store.api import Fetched

BLOCK: Final = 256  # offsets
BLOCK_BYTES: Final = 64 * 1024  # of records read at once, but for a single larger one
_MAX_BYTES: Final = 16 << 20  # of memory, about
_MESSAGE_BYTES: Final = 512  # of memory for a message, beside what its record has


class QueueRange:
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


class SharedReads:
    """The newest stretches."""

    __slots__ = ("_kept", "size")

    def __init__(self) -> None:
        # By queue and number of the block, each with no more than BLOCK; the block that was read first comes first.
        self._kept: dict[tuple[bytes, int], list[QueueRange]] = {}
        self.size: int = 0  # bytes

    def find(self, queue: bytes, offset: int) -> QueueRange | None:
        """What was kept of the queue at `offset`."""
        for stretch in reversed(self._kept.get((queue, offset // BLOCK), [])):
            if stretch.begin <= offset < stretch.next:
                return stretch
        return None

    def keep(self, queue: bytes, stretch: QueueRange) -> None:
        """Keep what was read for others, instead of what was kept of the same offsets."""
        kept = self._kept
        key = (queue, stretch.begin // BLOCK)
        block = kept.setdefault(key, [])
        for old in list(block):
            if stretch.begin == old.begin or (stretch.begin < old.begin and old.next <= stretch.next):
                block.remove(old)
                self.size -= old.size
        block.append(stretch)
        self.size += stretch.size
        while self.size > _MAX_BYTES and (len(kept) > 1 or len(block) > 1):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key = next(iter(self._kept))
        block = self._kept[key]
        self.size -= block.pop(0).size
        if not block:
            del self._kept[key]

    def clear(self) -> None:
        self._kept.clear()
        self.size = 0


def room_in_block(offset: int) -> int:
    """How many offsets there are from `offset` to the end of its block."""
    return BLOCK - offset % BLOCK
