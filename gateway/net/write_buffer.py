"""Packets on their way out to clients. All packets for one client in one turn of the loop are one write.

uvloop writes at once when its queue is empty, so a write per packet would be a system call per packet.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final, Protocol

from gateway.mqtt.aliases import TopicAliases
from gateway.mqtt.packets import Packet
from gateway.observe.counters import Counters
from store.histogram import LATENCIES_US, Histogram

log = logging.getLogger(__name__)


class Transport(Protocol):
    """The part of a socket that a WriteBuffer uses."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> bool | None:
        """Close when the client has taken what waits for it. Returns True when nothing waits."""

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str) -> Any: ...

    def get_write_buffer_size(self) -> int:
        """The number of bytes that wait for the client."""


class Tracer(Protocol):
    """Sees the packets of a connection."""

    def received(self, packets: list[Packet]) -> None:
        """The client has sent these packets."""

    def sent(self, version: int, data: bytes) -> None:
        """The client is sent these packets, which are whole. version: of the protocol, 4 (3.1.1) or 5."""


LINGER_SECONDS: Final = 5.0  # for a closed connection to take what waits for it
_SAMPLED: Final = 8  # commits with subscribers, for each whose delivery is timed
_WRITES: Final = 1024  # of fan-out, in one turn of the loop: a few milliseconds


class Flusher:
    """The write buffers with something to write in this turn of the loop.

    What one commit brings to very many clients (*fan-out*) is written in several turns, and not before all of it is in
    the buffers: each client gets it in one write.
    """

    __slots__ = (
        "_began_ns",
        "_call_later",
        "_call_soon",
        "_dirty",
        "_fan_out",
        "_fans_out",
        "_is_held",
        "_passed",
        "_scheduled",
        "counters",
        "delivery_us",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters | None = None) -> None:
        self.counters = counters if counters is not None else Counters()
        self._call_soon = loop.call_soon
        self._call_later = loop.call_later
        self._dirty: list[WriteBuffer] = []
        self._fan_out: list[WriteBuffer] = []
        self._fans_out = False  # what is added is fan-out
        self._is_held = False  # more fan-out comes in the next turns
        self._scheduled = False
        self.delivery_us = Histogram(LATENCIES_US)  # from commits to the sockets of those who get their messages
        self._began_ns: int = 0  # when the delivery began that is timed; 0: none is
        self._passed: int = _SAMPLED  # deliveries since the last one that was timed

    def add(self, write_buffer: "WriteBuffer") -> None:
        """Have the packets of `write_buffer` written before the loop next waits."""
        if self._fans_out:
            self._fan_out.append(write_buffer)
            if self._is_held:
                return
        else:
            self._dirty.append(write_buffer)
        self._schedule()

    def begin_fan_out(self) -> None:
        """What is added from now on is fan-out."""
        self._fans_out = True
        if self._passed >= _SAMPLED and not self._began_ns:
            self._began_ns = monotonic_ns()

    def end_fan_out(self, is_held: bool) -> bool:
        """What is added from now on is not. `is_held`: write no fan-out yet, because more comes. Returns whether there
        is more to write than one turn can."""
        self._fans_out = False
        self._is_held = is_held
        if not self._fan_out:
            if not is_held:
                self._began_ns = 0
            return False
        self._passed += 1
        if not is_held:
            self._schedule()
        return len(self._fan_out) > _WRITES

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.flush)

    def close(self, transport: Transport) -> None:
        """Close, though the client may never take what was written last."""
        if not transport.close():
            self._call_later(LINGER_SECONDS, transport.abort)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._call_later(seconds, callback)

    def flush(self) -> None:
        self._scheduled = False
        dirty = self._dirty
        self._dirty = []
        fan_out = self._fan_out
        if fan_out and not self._is_held:
            if len(fan_out) <= _WRITES:
                self._fan_out = []
                fan_out += dirty
                dirty = fan_out
            else:
                dirty += fan_out[:_WRITES]
                del fan_out[:_WRITES]
                self._schedule()
        for write_buffer in dirty:
            try:
                write_buffer.flush()
            except Exception:
                # One that fails must not keep the others from their bytes: nothing would flush them later.
                log.exception("writing to a client failed")
        if self._began_ns and not self._is_held and not self._fan_out:
            self.delivery_us.add((monotonic_ns() - self._began_ns) // 1000)
            self._began_ns = self._passed = 0


class WriteBuffer:
    """Packets bound for one client."""

    def __init__(self, flusher: Flusher, transport: Transport) -> None:
        self.flusher = flusher
        self.transport = transport
        self.version: int = 4  # of the protocol: 4 (3.1.1) or 5
        self.congested: bool = False  # the socket takes nothing for now
        self.closed: bool = False
        self.maximum_packet_size: int = 0  # the client's; 0: no limit
        self.aliases: TopicAliases | None = None  # None: the client accepts none (MQTT-3.1.2-27)
        self.tracer: Tracer | None = None  # None: nobody looks at the packets
        self._out: list[bytes] | None = None  # None: nothing

    def send(self, data: bytes) -> None:
        """Write `data` with everything else of this turn."""
        out = self._out
        if out is not None:
            out.append(data)
        elif not self.closed:
            self._out = [data]
            self.flusher.add(self)

    def may_receive(self, _topic_filter: bytes) -> bool:
        """Whether rules let the client read what the filter matches. A connection with rules overrides it."""
        return True

    def is_closed(self) -> bool:
        return self.closed

    def flush(self) -> None:
        out = self._out
        self._out = None
        if out is None or self.closed:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self.flusher.counters.bytes_sent += len(data)
        if self.tracer is not None:
            self.tracer.sent(self.version, data)
        self.transport.write(data)
