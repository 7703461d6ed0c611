"""The MQTT front: accepts connections over TCP and WebSocket and keeps their clocks.

The asyncio shell around `gateway.connection`: bytes are handed over as they come, timers watch that
CONNECT and keep-alive are kept. No protocol is spoken here.
"""

import asyncio
import logging
import socket
from time import monotonic
from typing import cast

from gateway.config import MqttConfig
from gateway.connection import Backlog, Connection
from gateway.counters import Counters
from gateway.descriptors import room_for_connections
from gateway.mqtt.decode import Decoder
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reasons import ReasonCode
from gateway.outlet import Flusher, Transport
from gateway.sessions import Sessions
from store.api import Store

log = logging.getLogger(__name__)

_BACKLOG = 4096  # connections the kernel may hold for us
_MAX_BACKLOG = 32 * 1024 * 1024  # bytes of all connections waiting for the disk: half of what the store takes
_TELL_AGAIN = 60.0  # seconds between log lines about refused connections
_STALLED = 0.5  # seconds that a timer comes late when the node, not the client, was away
_WRITE_HIGH = 256 * 1024  # bytes waiting for a client's socket before it counts as congested


class MqttFront:
    """All MQTT connections of a node."""

    def __init__(self, store: Store, sessions: Sessions, config: MqttConfig, counters: Counters) -> None:
        self._store = store
        self._sessions = sessions
        self._config = config
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._flusher = Flusher(self._loop)
        self._backlog = Backlog(store, _MAX_BACKLOG)
        self._server: asyncio.Server | None = None
        self._limit = min(config.max_connections, room_for_connections())
        self._refusal_told = -_TELL_AGAIN  # monotonic seconds
        self.connections: set[Connection] = set()
        self._timers: dict[Connection, asyncio.TimerHandle] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError."""
        self._server = await self._loop.create_server(lambda: _Tcp(self), host, port, backlog=_BACKLOG)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Accept no more, and drop what has not become a session."""
        if self._server is not None:
            self._server.close()
        elsewhere = self._config.server_reference.encode()
        reason = ReasonCode.USE_ANOTHER_SERVER if elsewhere else ReasonCode.SERVER_SHUTTING_DOWN
        for connection in list(self.connections):
            connection.close(reason, None, elsewhere)

    def accept(self, transport: Transport) -> Connection | None:
        """A new network connection; None (and closed) when the node holds as many as it may."""
        if len(self.connections) >= self._limit:
            self._tell_refusal()
            self._counters.connections_refused += 1
            transport.abort()
            return None
        config = self._config
        decoder = Decoder(config.max_packet_size, config.receive_maximum, config.topic_alias_maximum)
        connection = Connection(
            self._flusher,
            transport,
            decoder,
            self._store,
            self._backlog,
            self._sessions,
            self._counters,
            config.max_uncommitted,
            self._opened,
        )
        self.connections.add(connection)
        self._counters.connections_opened += 1
        self._connect_in(connection, config.connect_timeout)
        return connection

    def _tell_refusal(self) -> None:
        now = monotonic()
        if now - self._refusal_told < _TELL_AGAIN:
            return
        self._refusal_told = now
        if self._limit < self._config.max_connections:
            log.warning("refusing connections: open files of the process allow %d (see LimitNOFILE)", self._limit)
        else:
            log.warning("refusing connections: mqtt.max_connections is %d", self._limit)

    def gone(self, connection: Connection) -> None:
        """The network connection has ended."""
        self.connections.discard(connection)
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        connection.lost()

    def _connect_in(self, connection: Connection, seconds: float) -> None:
        due = monotonic() + seconds
        self._timers[connection] = self._loop.call_later(seconds, self._connect_due, connection, due)

    def _connect_due(self, connection: Connection, due: float) -> None:
        """Close what has not sent CONNECT in time."""
        self._timers.pop(connection, None)
        if monotonic() - due > _STALLED:
            self._connect_in(connection, 2 * _STALLED)  # see `_watch`
            return
        if connection.session is None and not connection.connecting and not connection.closed:
            self._counters.protocol_errors += 1
            connection.close(ReasonCode.KEEP_ALIVE_TIMEOUT)

    def _opened(self, connection: Connection) -> None:
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.keep_alive:
            self._watch(connection, monotonic())

    def _watch(self, connection: Connection, due: float) -> None:
        """Close after one and a half keep-alive periods of silence (MQTT-3.1.2-22). `due`: when this was to run."""
        if connection not in self.connections or connection.is_closed():
            return
        now = monotonic()
        left = connection.last_received + connection.keep_alive * 1.5 - now
        # After a pause of the whole process (a virtual machine that was moved, SIGSTOP) the timers run before the
        # sockets are read: what the client sent meanwhile is given the time to arrive.
        if left <= 0 and now - due <= _STALLED and (connection.congested or not connection.reading_paused):
            connection.fail(ProtocolError("keep-alive passed", ReasonCode.KEEP_ALIVE_TIMEOUT))
            return
        # While we do not read, silence is ours, not the client's; unless it is the one that does not read.
        wait = max(left, 0.5)
        self._timers[connection] = self._loop.call_later(wait, self._watch, connection, now + wait)


class _Tcp(asyncio.Protocol):
    """One TCP connection."""

    __slots__ = ("_connection", "_front")

    def __init__(self, front: MqttFront) -> None:
        self._front = front
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._connection = self._front.accept(transport)

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.receive(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.congested = True

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.uncongested()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._connection is not None:
            self._front.gone(self._connection)
            self._connection = None
