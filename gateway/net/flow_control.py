"""When a client's socket is read: not while what it sent waits for the disk, for its turn, or for its rate limit.

This is the back-pressure of the whole node: what is not read stays in the client's own socket.
"""

import socket
from time import monotonic
from typing import Final

from gateway.net.admission import Admission
from gateway.net.publish_rates import PublishRates
from gateway.net.write_buffer import Flusher, Transport, WriteBuffer
from gateway.observe.counters import Counters

_CHECK_SECONDS: Final = 1.0  # between checks of a socket that is not read because its client publishes too fast
_TCP_CLOSE: Final = 7  # the first byte of TCP_INFO: the connection was reset
_MAX_UNANSWERED: Final = 256 * 1024  # bytes; their answers are about as long


class FlowControl(WriteBuffer):
    """Pauses and resumes the reading of one client's socket."""

    def __init__(
        self, flusher: Flusher, transport: Transport, counters: Counters, admission: Admission, max_uncommitted: int
    ) -> None:
        super().__init__(flusher, transport)
        self.counters = counters
        self.admission = admission  # of the listener that accepted it
        self.max_uncommitted = max_uncommitted  # bytes
        self.publish_rates: PublishRates | None = None  # None: nothing was counted
        self.user_rates: PublishRates | None = None  # of all connections of its user; None: no limit
        self.rate_limited: bool = False  # not read until its publish rate allows what it sent
        self.connecting: bool = False  # CONNECT came and is being served
        self.uncommitted: int = 0  # bytes that the store has and has not committed
        self.waiting_batches: int = 0  # reads whose messages wait until the store takes more
        self.unanswered: int = 0  # bytes read while the socket took no answers
        self.awaits_commit: bool = False  # packets wait until all messages before them are committed
        self.yielding: bool = False  # a part of what was read waits for the next turn of the loop
        self.leaving: bool = False  # it is not read any more, and closed when all is committed
        self.reading_paused: bool = False

    def note_unanswered(self, size: int) -> None:
        """Count bytes that make answers, of a client that does not take those that wait for it."""
        self.unanswered += size
        if self.unanswered > _MAX_UNANSWERED:
            self.pause_reading()

    def pause_reading(self) -> None:
        if not self.reading_paused and not self.closed:
            self.reading_paused = True
            self.transport.pause_reading()

    def leave(self) -> None:
        """Read nothing more. What was read is answered."""
        self.leaving = True
        self.pause_reading()

    def limit_rate(self, published: int, size: int) -> None:
        """Count the messages of one read, and their bytes. Pause reading while they are more than the publish rates of
        the listener or of the user allow."""
        now = monotonic()
        admission = self.admission
        if self.publish_rates is None:
            self.publish_rates = PublishRates()
        self.publish_rates.set_limits(admission.publish_rate, admission.publish_rate_bytes, now)
        wait = self._spend(self.publish_rates, published, size, now)
        if wait and not self.rate_limited and not self.closed:
            self.rate_limited = True
            self.counters.publishers_paced += 1
            self.pause_reading()
            self.flusher.call_later(min(wait, _CHECK_SECONDS), self._check_rate)

    def _spend(self, rates: PublishRates, published: int, size: int, now: float) -> float:
        """Seconds until the publish rates allow what was published."""
        wait = rates.spend(published, size, now)
        of_user = self.user_rates
        return wait if of_user is None else max(wait, of_user.spend(published, size, now))

    def _check_rate(self) -> None:
        """Resume reading when the rate allows it. A socket that is not read does not report its end: ask for that."""
        if self.closed or self.publish_rates is None:
            return
        wait = self._spend(self.publish_rates, 0, 0, monotonic())
        if not wait:
            self.rate_limited = False
            self.resume_reading()
        elif _is_reset(self.transport):
            self.transport.abort()
        else:
            self.flusher.call_later(min(wait, _CHECK_SECONDS), self._check_rate)

    def resume_reading(self) -> None:
        """Resume reading unless there is another reason to pause it."""
        if not self.reading_paused or self.closed or self.connecting or self.rate_limited or self.yielding:
            return
        if self.waiting_batches or self.awaits_commit or self.leaving:
            return
        if self.uncommitted * 2 <= self.max_uncommitted and self.unanswered <= _MAX_UNANSWERED:
            self.reading_paused = False
            self.transport.resume_reading()


def _is_reset(transport: Transport) -> bool:
    """Whether the connection is known to be reset. A transport without a socket reports that itself."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        return bool(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
    except OSError:
        return True
