"""One side of a link: numbered messages in order over a sequence of streams. No I/O.

The rules of the file:

* Each item arrives once and in order while both sides have the link. A message is kept until the other side
  acknowledges it, and is sent again over the next stream.
* Memory is bounded: no message is sent while more than a window is kept. The callers of `put` bound the waiting items.
* Waiting items are sent together, because a message has a fixed cost. A message has more than `_MESSAGE_BYTES` only if
  a single item has: only whole messages are acknowledged, and a slow network takes long for a large one.
"""

from collections import deque
from typing import Final

from store.remote.wire.layout import HEAD, ITEM

_MESSAGE_BYTES: Final = 256 << 10


class LinkBroken(Exception):
    """The other side violated the protocol. The stream has to be ended."""


class Link:
    """The messages to the other side, and the number of the last one from there."""

    __slots__ = (
        "_kept",
        "_resends",
        "_sent",
        "_unsaid",
        "_waiting",
        "_window",
        "delivered_bytes",
        "kept_bytes",
        "received",
        "waiting_bytes",
    )

    def __init__(self, window_bytes: int) -> None:
        self._window = window_bytes
        self.delivered_bytes: int = 0  # of messages that the other side has acknowledged, over all links
        self.reset()

    def reset(self) -> None:
        """Start a new link. Unsent and unacknowledged messages are dropped."""
        self.received = 0  # number of the last message that arrived
        self._unsaid = 0  # bytes that arrived since the last acknowledgement
        self._sent = 0  # number of the last message sent
        self._waiting: list[bytes] = []  # heads and bodies of items
        self.waiting_bytes = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self.kept_bytes = 0
        self._resends: deque[bytes] = deque()

    def put(self, kind: int, body: bytes) -> None:
        """Add an item to the next message."""
        self._waiting.append(ITEM.pack(kind, len(body)))
        self._waiting.append(body)
        self.waiting_bytes += ITEM.size + len(body)

    def next(self) -> bytes | None:
        """The next message to be sent, if there is one."""
        if self._resends:
            return self._resends.popleft()
        if self._waiting and self.kept_bytes < self._window:
            self._sent += 1
            message = b"".join([HEAD.pack(self._sent, self.received), *self._take()])
            self._kept.append((self._sent, message))
            self.kept_bytes += len(message)
            self._unsaid = 0
            return message
        if self.owes:
            return self.acknowledgement()
        return None

    def _take(self) -> list[bytes]:
        """The items of the next message, which do not wait any more."""
        waiting = self._waiting
        if self.waiting_bytes <= _MESSAGE_BYTES:
            self._waiting = []
            self.waiting_bytes = 0
            return waiting
        count = 2
        size = ITEM.size + len(waiting[1])
        while size < _MESSAGE_BYTES:  # there are more items
            length = ITEM.size + len(waiting[count + 1])
            if size + length > _MESSAGE_BYTES:
                break
            size += length
            count += 2
        taken = waiting[:count]
        del waiting[:count]
        self.waiting_bytes -= size
        return taken

    @property
    def owes(self) -> bool:
        """Whether an acknowledgement should be sent soon, so that the other side can drop its messages."""
        return self._unsaid > self._window // 4

    def acknowledgement(self) -> bytes:
        """A message without items, which acknowledges messages and serves as a heartbeat."""
        self._unsaid = 0
        return HEAD.pack(0, self.received)

    def accept(self, message: bytes) -> bool:
        """Receive a message. Returns whether its items are new. Raises `LinkBroken`."""
        if len(message) < HEAD.size:
            raise LinkBroken(f"a message of {len(message)} bytes")
        number, arrived = HEAD.unpack_from(message)
        self._arrived(arrived)
        if number == 0 or number <= self.received:
            return False
        if number != self.received + 1:
            raise LinkBroken(f"message {number} behind {self.received}")
        self.received = number
        self._unsaid += len(message)
        return True

    def resume(self, arrived: int) -> None:
        """Continue over a new stream. Messages up to `arrived` have arrived. Raises `LinkBroken`."""
        self._arrived(arrived)
        self._resends = deque(message for _, message in self._kept)

    def _arrived(self, number: int) -> None:
        if number > self._sent:
            raise LinkBroken(f"message {number} is said to have arrived, and {self._sent} was the last")
        kept = self._kept
        while kept and kept[0][0] <= number:
            size = len(kept.popleft()[1])
            self.kept_bytes -= size
            self.delivered_bytes += size
