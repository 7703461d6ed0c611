"""When a client's socket is read: not while what it sent waits for the disk, for its turn, or for its pace.

This is the back-pressure of the whole node: what is not read stays in the client's own socket.
"""

import socket
from time import monotonic
from typing import Final

from gateway.net.admission import Admission
from gateway.net.token_bucket import TokenBucket
from gateway.net.write_buffer import Flusher, Transport, WriteBuffer
from gateway.observe.counters import Counters

_LOOK_SECONDS: Final = 1.0  # between looks at one that is not read because it publishes too fast
_TCP_CLOSE: Final = 7  # the first byte of TCP_INFO: the connection was reset
_MAX_UNANSWERED: Final = 256 * 1024  # bytes; their answers are about as long


class FlowControl(WriteBuffer):
    """The way in from one client, beside the way out."""

    def __init__(
        self, flusher: Flusher, transport: Transport, counters: Counters, admission: Admission, max_uncommitted: int
    ) -> None:
        super().__init__(flusher, transport)
        self.counters = counters
        self.admission = admission  # of the listener that it came through
        self.max_uncommitted = max_uncommitted  # bytes
        self.pace: TokenBucket | None = None  # of what it publishes
        self.pacing: bool = False  # its socket is not read until the messages it sent are paid for
        self.connecting: bool = False  # CONNECT came and is being served
        self.uncommitted: int = 0  # bytes handed to the store and not yet on disk
        self.held_back: int = 0  # reads whose messages wait for room in the store (`gateway.connection.handle_publish`)
        self.unanswered: int = 0  # bytes read while the socket took no answers
        self.putting_off: bool = False  # a part of what was read waits for the next turn of the loop
        self.reading_paused: bool = False

    def note_unanswered(self, size: int) -> None:
        """What it sends makes answers, and it does not take the answers that wait for it."""
        self.unanswered += size
        if self.unanswered > _MAX_UNANSWERED:
            self.pause_reading()

    def pause_reading(self) -> None:
        if not self.reading_paused and not self.closed:
            self.reading_paused = True
            self.transport.pause_reading()

    def keep_pace(self, published: int) -> None:
        """So many messages came in one read: where that is more than the rate allows, read on when it is no more."""
        now = monotonic()
        rate = self.admission.publish_rate
        if self.pace is None:
            self.pace = TokenBucket(rate, rate, now)
        wait = self.pace.spend(published, now)
        if wait and not self.pacing and not self.closed:
            self.pacing = True
            self.counters.publishers_paced += 1
            self.pause_reading()
            self.flusher.call_later(min(wait, _LOOK_SECONDS), self._paced)

    def _paced(self) -> None:
        """Some time has passed. Who is not read on does not tell when it is gone."""
        if self.closed or self.pace is None:
            return
        wait = self.pace.spend(0, monotonic())
        if not wait:
            self.pacing = False
            self.resume_reading()
        elif _is_reset(self.transport):
            self.transport.abort()
        else:
            self.flusher.call_later(min(wait, _LOOK_SECONDS), self._paced)

    def resume_reading(self) -> None:
        """Read on, unless too much still waits for the disk, for CONNECT to be served or for the client to read, or
        the client publishes too fast."""
        if not self.reading_paused or self.closed or self.connecting or self.pacing or self.putting_off:
            return
        if self.held_back:
            return
        if self.uncommitted * 2 <= self.max_uncommitted and self.unanswered <= _MAX_UNANSWERED:
            self.reading_paused = False
            self.transport.resume_reading()


def _is_reset(transport: Transport) -> bool:
    """Whether the peer is known to be gone. Where there is no socket to ask the transport tells by itself."""
    its = transport.get_extra_info("socket")
    if its is None or its.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        return bool(its.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
    except OSError:
        return True
