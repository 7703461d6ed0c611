"""One side of a link: numbered messages in order over a sequence of streams. No I/O.

The rules of the file:

* Each item arrives once and in order while both sides have the link. A message is kept until the other side
  acknowledges it, and is sent again over the next stream.
* Memory is bounded: no message is sent while more than a window is kept. The callers of `put` bound the waiting items.
* All waiting items are sent as one message, because a message has a fixed cost.
"""

from collections import deque

from store.remote.wire import HEAD, ITEM


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
        "kept_bytes",
        "received",
        "waiting_bytes",
    )

    def __init__(self, window_bytes: int) -> None:
        self._window = window_bytes
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
            message = b"".join([HEAD.pack(self._sent, self.received), *self._waiting])
            self._waiting = []
            self.waiting_bytes = 0
            self._kept.append((self._sent, message))
            self.kept_bytes += len(message)
            self._unsaid = 0
            return message
        if self.owes:
            return self.acknowledgement()
        return None

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
            self.kept_bytes -= len(kept.popleft()[1])
