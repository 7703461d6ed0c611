"""Live traces: the packets of single clients of this process, for a limited time.

A connection that is not traced has no `PacketTrace` and pays for a comparison in each read and write of its socket.
"""

import asyncio
from collections.abc import Mapping
from time import time
from typing import Final, NamedTuple

from gateway.connection.connection import Connection
from gateway.connection.packet_trace import PacketTrace, TraceLine
from gateway.mqtt.packets import Connect
from gateway.session.session import Session

MAX_TRACES: Final = 16  # in a process
UNREAD_S: Final = 30.0  # after which a trace that nobody reads ends
_MAX_CONNECTIONS: Final = 16  # of one client, that are traced at a time


class TracePart(NamedTuple):
    """What a process has traced of a client."""

    gateway: str  # its name; "": the process of the store itself
    lines: list[TraceLine]
    dropped: int  # packets that were only counted


class _Trace:
    """The trace of one client."""

    __slots__ = ("connections", "name", "packets", "read_at", "timer", "until")

    def __init__(self, name: str, until: float) -> None:
        self.name = name
        self.until = until  # Unix time, seconds
        self.packets = PacketTrace()
        self.connections: list[Connection] = []
        self.read_at = time()
        self.timer: asyncio.TimerHandle | None = None


class Traces:
    """The traces of a process, by client id."""

    def __init__(self, open_sessions: Mapping[bytes, tuple[Session, Connection]]) -> None:
        self._open_sessions = open_sessions
        self._loop = asyncio.get_running_loop()
        self._traces: dict[bytes, _Trace] = {}

    def read(self, client_id: bytes, name: str, until_ms: int) -> tuple[list[TraceLine], int]:
        """The lines since the last call, and how many packets were only counted. The first call begins the trace, in
        place of another one of the client, or of the oldest one where there are too many."""
        until = until_ms / 1000
        trace = self._traces.get(client_id)
        if trace is None or trace.name != name:
            self.end(client_id)
            if until <= time():
                return [], 0
            if len(self._traces) >= MAX_TRACES:
                self.end(next(iter(self._traces)))
            trace = self._traces[client_id] = _Trace(name, until)
            self._watch(client_id, trace)
            opened = self._open_sessions.get(client_id)
            if opened is not None:
                self._attach(trace, opened[1])
            return [], 0
        trace.read_at = time()
        return trace.packets.take()

    def end(self, client_id: bytes) -> None:
        """End the trace of a client, if there is one."""
        trace = self._traces.pop(client_id, None)
        if trace is None:
            return
        if trace.timer is not None:
            trace.timer.cancel()
        for connection in trace.connections:
            connection.tracer = None

    def stop(self) -> None:
        for client_id in list(self._traces):
            self.end(client_id)

    def connecting(self, connection: Connection, client_id: bytes, packet: Connect | None = None) -> None:
        """A client comes with this client id. packet: its CONNECT; None: that has been seen."""
        trace = self._traces.get(client_id)
        if trace is not None and connection.tracer is None:
            self._attach(trace, connection)
            if packet is not None:
                trace.packets.received([packet])

    def lost(self, connection: Connection) -> None:
        """A connection that is traced has ended."""
        for trace in self._traces.values():
            if connection.tracer is trace.packets:
                trace.packets.note("the connection has ended")
                trace.connections.remove(connection)
        connection.tracer = None

    def _attach(self, trace: _Trace, connection: Connection) -> None:
        if len(trace.connections) >= _MAX_CONNECTIONS:
            trace.connections.pop(0).tracer = None
        trace.connections.append(connection)
        connection.tracer = trace.packets
        trace.packets.note(f"the connection from {connection.peer()} is traced")

    def _watch(self, client_id: bytes, trace: _Trace) -> None:
        """End the trace when its time is over, or when nobody reads it any more."""
        left = min(trace.until, trace.read_at + UNREAD_S) - time()
        if left <= 0:
            self.end(client_id)
        else:
            trace.timer = self._loop.call_later(left, self._watch, client_id, trace)
