"""One side of a link: numbered messages in order, whatever becomes of the streams that carry them. No I/O.

The rules of the file:

* What was put arrives once, in order, as long as both sides remember the link: a message is kept until the other side
  says that it arrived, and goes again over the next stream.
* Memory is bounded: no message goes while more than a window is kept. What waits then is bounded by who puts it.
* Everything that waits goes as one message: a gRPC message costs the same whatever it carries.
"""

from collections import deque

from store.remote.wire import HEAD, ITEM


class LinkBroken(Exception):
    """The other side sent what cannot be: the stream is to be ended."""


class Link:
    """What is on its way to the other side, and what came from there."""

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
        """Begin anew: what was on its way is forgotten."""
        self.received = 0  # number of the last message that arrived
        self._unsaid = 0  # bytes that arrived since it was told
        self._sent = 0  # number of the last message sent
        self._waiting: list[bytes] = []  # heads and bodies of items
        self.waiting_bytes = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self.kept_bytes = 0
        self._resends: deque[bytes] = deque()

    def put(self, kind: int, body: bytes) -> None:
        """Have an item sent behind all others."""
        self._waiting.append(ITEM.pack(kind, len(body)))
        self._waiting.append(body)
        self.waiting_bytes += ITEM.size + len(body)

    def next(self) -> bytes | None:
        """The next message to be written, if there is one."""
        if self._resends:
            return self._resends.popleft()
        if self._waiting and self.kept_bytes < self._window:
            self._sent += 1
            message = b"".join([HEAD.pack(self._sent, self.received), *self._waiting])
            self._waiting = []
            self.waiting_bytes = 0
            self._kept.append((self._sent, message))
            self.kept_bytes += len(message)
            self._has_told()
            return message
        if self.owes:
            return self.acknowledgement()
        return None

    @property
    def owes(self) -> bool:
        """Whether the other side is to be told soon of what arrived: it keeps that."""
        return self._unsaid > self._window // 4

    def acknowledgement(self) -> bytes:
        """A message without items: a sign of life, and of what arrived."""
        self._has_told()
        return HEAD.pack(0, self.received)

    def accept(self, message: bytes) -> bool:
        """Whether a message that came has items that did not come before. Raises `LinkBroken`."""
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
        """Go on over a new stream; of what was sent, messages up to `arrived` did arrive. Raises `LinkBroken`."""
        self._arrived(arrived)
        self._resends = deque(message for _, message in self._kept)

    def _arrived(self, number: int) -> None:
        if number > self._sent:
            raise LinkBroken(f"message {number} is said to have arrived, and {self._sent} was the last")
        kept = self._kept
        while kept and kept[0][0] <= number:
            self.kept_bytes -= len(kept.popleft()[1])

    def _has_told(self) -> None:
        self._unsaid = 0
