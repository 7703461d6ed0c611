"""Ranges of queues that are read and decoded once for all sessions that are behind.

Thousands of sessions with the same filter come back at about the same time and read the same queue. What one of them
has read is kept for the others, in blocks of offsets and up to a bound, until no session has been behind for some
seconds. A block may take several reads: if its messages are large, or at the end of a queue that grows.
"""

from typing import Final

from gateway.session.message_encoding import Message
from record import split
from store.api import Fetched

BLOCK: Final = 256  # offsets
BLOCK_BYTES: Final = 64 * 1024  # of records read at once, unless a single one is larger
_MAX_BYTES: Final = 16 << 20  # of memory, about
_MESSAGE_BYTES: Final = 512  # of memory for a message, besides its record


class QueueRange:
    """Consecutive messages of a queue. A cursor at an offset of [begin, next) goes on with those from there on."""

    __slots__ = ("begin", "first", "messages", "next", "size")

    def __init__(self, asked: int, fetched: Fetched) -> None:
        data = fetched.data
        self.begin: int = asked
        self.first: int = fetched.offset  # the offset of the first message; those before it are gone
        self.messages: list[Message] = [Message(data, start) for start in split(data)]
        self.next: int = fetched.next_offset
        # Twice: in the record, and in the packet that subscribers share.
        self.size: int = 2 * len(data) + _MESSAGE_BYTES * len(self.messages)


class SharedReads:
    """The ranges that were read last."""

    __slots__ = ("_kept", "size")

    def __init__(self) -> None:
        # By queue and number of the block, with at most BLOCK ranges each. The block that was read first comes first.
        self._kept: dict[tuple[bytes, int], list[QueueRange]] = {}
        self.size: int = 0  # bytes

    def find(self, queue: bytes, offset: int) -> QueueRange | None:
        """The range that has `offset` of the queue. None: it has to be read."""
        for queue_range in reversed(self._kept.get((queue, offset // BLOCK), [])):
            if queue_range.begin <= offset < queue_range.next:
                return queue_range
        return None

    def keep(self, queue: bytes, queue_range: QueueRange) -> None:
        """Keep a range for other cursors, in place of those that it covers."""
        kept = self._kept
        key = (queue, queue_range.begin // BLOCK)
        block = kept.setdefault(key, [])
        for old in list(block):
            if queue_range.begin == old.begin or (queue_range.begin < old.begin and old.next <= queue_range.next):
                block.remove(old)
                self.size -= old.size
        block.append(queue_range)
        self.size += queue_range.size
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
    """Number of offsets from `offset` to the end of its block."""
    return BLOCK - offset % BLOCK
