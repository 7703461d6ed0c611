"""Rejects WebSocket frames without a mask, as a server must (RFC 6455, section 5.1), and bounds frames per turn.

aiohttp's reader checks everything else about frames. It accepts frames without a mask, and reads all frames that it is
given at once: one read of the socket may bring more than 40,000 of them.
"""

from collections.abc import Callable
from typing import Final, Protocol

FRAMES_PER_TURN: Final = 64  # also pings and empty frames: each costs the loop about as much as a message

_INVALID_FRAME: Final = b"\xf0\x80"  # reserved bits: the reader ends the connection with 1002


class FrameReader(Protocol):
    """The reader to which aiohttp gives the bytes of an upgraded connection."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...

    def feed_eof(self) -> None: ...


class MaskedFrames:
    """Wraps a reader, and gives it only frames with a mask, and a bounded number of them at a time.

    has_more: frames wait. `feed_data(b"")` goes on in another turn of the loop.
    """

    __slots__ = ("_first", "_on_partial", "_previous", "_reader", "_remaining", "_rest", "_size", "has_more")

    def __init__(self, reader: FrameReader, on_partial: Callable[[int, bool], None] | None = None) -> None:
        """on_partial: called with the bytes so far of a message whose end has not come, and whether another message
        has ended since the last call."""
        self._reader = reader
        self._on_partial = on_partial
        self._first = 0  # byte of the current frame
        self._size = 0  # bytes of its payload
        self._previous = 0  # bytes of earlier frames of the same message
        self._rest = b""  # the start of a frame whose length has not come, or all frames that wait
        self._remaining = 0  # bytes of the current frame that have not come
        self.has_more = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        data = self._rest + data
        self._rest = b""
        self.has_more = False
        at, end = self._remaining, len(data)
        has_ended = 0 < at <= end and self._end_frame()
        frames = 0
        while at < end:
            if frames == FRAMES_PER_TURN:
                self.has_more = True
                break
            frames += 1
            size = _header_size(data, at)
            if size < 0:
                self._reader.feed_data(data[:at])
                return self._reader.feed_data(_INVALID_FRAME)
            if size == 0 or at + size > end:
                break
            self._first, self._size = data[at], _length(data, at)
            at += size + self._size
            if at <= end:
                has_ended |= self._end_frame()
        self._remaining = max(0, at - end)
        self._rest = data[at:]
        return self._feed(data[:at], has_ended)

    def _end_frame(self) -> bool:
        """End the current frame. Returns whether its message has ended, too."""
        if self._first & 0x08:  # a control frame, perhaps between those of a message
            return False
        is_last = self._first >= 0x80
        self._previous = 0 if is_last else self._previous + self._size
        return is_last

    def _feed(self, data: bytes, has_ended: bool) -> tuple[bool, bytes]:
        answer = self._reader.feed_data(data)
        if self._on_partial is not None:
            self._on_partial(self._previous + (self._size - self._remaining if self._remaining else 0), has_ended)
        return answer

    def feed_eof(self) -> None:
        self._reader.feed_eof()


def _header_size(data: bytes, at: int) -> int:
    """Bytes of the header at `at` with its mask. 0: not known yet. -1: there is no mask."""
    if len(data) - at < 2:
        return 0
    second = data[at + 1]
    if second < 0x80:
        return -1
    short = second & 0x7F
    if short < 126:
        return 6
    return 8 if short == 126 else 14


def _length(data: bytes, at: int) -> int:
    """Bytes of the payload of the frame at `at`."""
    short = data[at + 1] & 0x7F
    if short < 126:
        return short
    return int.from_bytes(data[at + 2 : at + (4 if short == 126 else 10)], "big")
