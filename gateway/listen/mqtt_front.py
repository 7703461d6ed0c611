"""The MQTT front: keeps the connections of all listeners, and times CONNECT and keep-alive.

It is the asyncio shell around `gateway.connection.connection`, and speaks no protocol itself.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import cast

from gateway.config.mqtt import MqttConfig
from gateway.connection.callbacks import RequestCallbacks
from gateway.connection.connection import Connection
from gateway.connection.handle_publish import AppendQueue
from gateway.listen.connection_timer import ConnectionTimer
from gateway.listen.partial_packets import PartialPackets
from gateway.mqtt.decode import Decoder
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reasons import ReasonCode
from gateway.net.admission import Admission, Capacity, ConnectionInfo
from gateway.net.descriptors import room_for_connections
from gateway.net.tls import name_in
from gateway.net.write_buffer import Flusher, Transport
from gateway.observe.counters import Counters
from gateway.schemas.payload_checks import PayloadChecks
from store.api import Store

try:
    from gateway.listen._streams import Streams
except ImportError:  # not compiled: the loop's transports serve all connections
    Streams = None  # type: ignore[assignment, misc]

log = logging.getLogger(__name__)

# Bytes of all connections that wait for the disk: fewer than a store accepts messages for, also one in another process
# (`RemoteConfig.max_pending_bytes` without its last eighth).
_MAX_UNCOMMITTED = 24 * 1024 * 1024
_MAX_REFUSED = 64  # connections beyond the limit that may stay until they have their refusal
_STALL = 0.5  # seconds of delay of the timer that mean that the node was suspended
_MAX_CHECK_INTERVAL = 60.0  # seconds between checks of a long keep-alive, so that the timer has few slots
_RECHECK = 0.5  # seconds until the next check of a client that is silent because it is not read
_WRITE_HIGH = 256 * 1024  # bytes waiting for a client's socket before it counts as congested


class MqttFront:
    """All MQTT connections of a node."""

    def __init__(
        self,
        store: Store,
        requests: RequestCallbacks[Connection],
        config: MqttConfig,
        counters: Counters,
        flusher: Flusher,
        services: int,
        payload_checks: PayloadChecks,
    ) -> None:
        """services: descriptors that the process reserves for connections of services."""
        self._payload_checks = payload_checks
        self._store = store
        self._requests = requests
        self._config = config
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._flusher = flusher
        self._append_queue = AppendQueue(store, _MAX_UNCOMMITTED)
        self._room = room_for_connections(services)
        self._limit = min(config.max_connections, self._room)
        self.admissions: list[Admission] = []  # of all listeners
        self.connections: set[Connection] = set()
        self._streams = Streams(self._loop, self.closed) if Streams is not None else None
        self._timer = ConnectionTimer(self._loop, self._check_timeout)
        self._partial_packets = PartialPackets(config.max_partial_bytes, self._end_partial)

    def make(self, admission: Admission, info: ConnectionInfo | None) -> asyncio.BaseProtocol:
        """Make the protocol of a connection that a listener accepted."""
        return _Accepted(self, admission, info)

    def serve_plain(self, client: int, admission: Admission, info: ConnectionInfo | None) -> bool:
        """Serve a plain connection without a transport of the loop, if native streams are compiled. Raises OSError."""
        if self._streams is None:
            return False
        stream = self._streams.add(client)
        stream.connection = self.accept(stream, admission, info)
        return True

    def set_limits(self) -> None:
        """Take the limits of the configuration, which has changed."""
        self._limit = min(self._config.max_connections, self._room)

    def capacity(self, admission: Admission) -> Capacity:
        """Decide about one more connection through a listener."""
        held = len(self.connections) + sum([each.opening for each in self.admissions])
        beyond = max(held - self._limit, admission.open + admission.opening - admission.max_connections)
        if beyond < 0:
            return Capacity.SERVE
        if self._limit < self._config.max_connections and held >= self._limit:
            admission.warn(
                "files", f"refusing connections: open files of the process allow {self._limit} (see LimitNOFILE)"
            )
        else:
            admission.warn("full", "refusing connections: there are as many as max_connections allows")
        if beyond < _MAX_REFUSED:
            return Capacity.REFUSE
        self._counters.connections_refused += 1
        return Capacity.CLOSE

    def stop(self, reference: Callable[[], bytes]) -> None:
        """Close all connections, with DISCONNECT where there is a session. reference: another server for a client, or
        none."""
        for connection in list(self.connections):
            elsewhere = reference()
            reason = ReasonCode.USE_ANOTHER_SERVER if elsewhere else ReasonCode.SERVER_SHUTTING_DOWN
            connection.close(reason, None, elsewhere)
        self._timer.stop()

    def end(self) -> None:
        """Close the sockets that are left, though clients may not have taken what waits for them."""
        if self._streams is not None:
            self._streams.close()

    def accept(self, transport: Transport, admission: Admission, info: ConnectionInfo | None) -> Connection:
        """Make the connection of a network connection that was admitted."""
        config = self._config
        decoder = Decoder(
            admission.max_packet_size,
            config.receive_maximum,
            config.topic_alias_maximum,
            config.max_topic_length,
            config.max_topic_levels,
            config.max_user_properties,
            config.max_filters,
        )
        connection = Connection(
            self._flusher,
            transport,
            decoder,
            self._store,
            self._append_queue,
            self._requests,
            self._counters,
            config.max_uncommitted,
            self,
            admission,
            self._payload_checks,
        )
        if admission.asks_certificate:
            info = _with_certificate_names(admission, info, transport.get_extra_info("peercert"))
        connection.info = info
        admission.opening -= 1
        admission.open += 1
        self.connections.add(connection)
        self._counters.connections_opened += 1
        self._timer.set(connection, admission.connect_timeout)
        return connection

    def closed(self, connection: Connection) -> None:
        """The network connection has ended."""
        self.connections.discard(connection)
        self._partial_packets.remove(connection)
        connection.admission.open -= 1
        self._timer.cancel(connection)
        connection.lost()

    def opened(self, connection: Connection) -> None:
        """Time the keep-alive of a connection that has a session now."""
        if connection.keep_alive:
            self._timer.set(connection, min(connection.keep_alive * 1.5, _MAX_CHECK_INTERVAL))
        else:
            self._timer.cancel(connection)

    def partial(self, connection: Connection, size: int, is_new: bool) -> None:
        """Count a partial packet. See `gateway.listen.partial_packets`."""
        if size:
            self._partial_packets.update(connection, size, is_new)
        else:
            self._partial_packets.remove(connection)

    def _end_partial(self, connection: Connection) -> None:
        text = "partial packets take more memory than mqtt.max_partial_bytes allows"
        connection.admission.warn(
            "partial", f"closing the connection of {connection.peer()}: {text}", connection.client_id
        )
        connection.decoder.stop()
        connection.fail(ProtocolError(text, ReasonCode.QUOTA_EXCEEDED))

    def _check_timeout(self, connection: Connection, late: float) -> None:
        """Close the connection if its time for CONNECT or its keep-alive has passed. late: seconds since it was due."""
        # The packets of an authentication have a limit of their own.
        is_served = connection.connecting or connection.enhanced_auth is not None
        if connection not in self.connections or connection.is_closed() or (connection.session is None and is_served):
            return
        left = 0.0
        if connection.session is not None:
            # One and a half keep-alive periods of silence (MQTT-3.1.2-22). A client that is not read cannot be heard,
            # unless it is not read because it does not read itself.
            left = connection.last_received + connection.keep_alive * 1.5 - monotonic()
            if left <= 0 and connection.reading_paused and not connection.congested:
                left = _RECHECK
        # After a pause of the whole process (a virtual machine that was moved, SIGSTOP) the timer runs before the
        # sockets are read. What the client sent meanwhile gets the time to arrive.
        if left <= 0 and late > _STALL:
            left = 2 * _STALL
        if left > 0:
            self._timer.set(connection, min(left, _MAX_CHECK_INTERVAL))
        elif connection.session is not None:
            connection.fail(ProtocolError("keep-alive passed", ReasonCode.KEEP_ALIVE_TIMEOUT))
        else:
            self._counters.protocol_errors += 1
            connection.admission.refused_late += 1
            connection.close(ReasonCode.KEEP_ALIVE_TIMEOUT)


def _with_certificate_names(
    admission: Admission, info: ConnectionInfo | None, certificate: dict[str, object] | None
) -> ConnectionInfo | None:
    """Add the names in the client's certificate, if it has shown one."""
    if not certificate:
        return info
    info = info if info is not None else ConnectionInfo()
    info.is_certified = True
    if admission.client_id_from:
        info.client_id = name_in(certificate, admission.client_id_from)
    if admission.user_name_from:
        info.user_name = name_in(certificate, admission.user_name_from)
    if (admission.client_id_from and info.client_id is None) or (admission.user_name_from and info.user_name is None):
        info.refusal = ReasonCode.NOT_AUTHORIZED
        info.why = "the certificate does not have the name that this listener requires"
    return info


class _Accepted(asyncio.Protocol):
    """A connection with a transport of the loop, until MQTT is its protocol."""

    __slots__ = ("_admission", "_front", "_info")

    def __init__(self, front: MqttFront, admission: Admission, info: ConnectionInfo | None) -> None:
        self._front = front
        self._admission = admission
        self._info = info

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        connection = self._front.accept(transport, self._admission, self._info)
        transport.set_protocol(cast("asyncio.BaseProtocol", connection))
