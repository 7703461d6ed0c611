"""A listener: accepts connections as its admission allows, reads their PROXY headers, and hands them to a front.

It accepts by itself rather than through `loop.create_server`. Only this way can a connection wait in the kernel, begin
with a header that is not the client's, and be shown the certificates that are valid now.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from time import monotonic
from typing import Final, Protocol

from gateway.config.listeners import ListenerConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.net.admission import Admission, Capacity, ConnectionInfo
from gateway.net.bind import bind, is_local, release
from gateway.net.heap import keep_big_buffers, map_big_buffers
from gateway.net.proxy_protocol import ProxyError, ProxyHeader
from gateway.net.tls import Certificates

try:
    from gateway.listen._streams import accept
except ImportError:  # not compiled
    from gateway.net.bind import accept

log = logging.getLogger(__name__)

_BATCH: Final = 64  # connections accepted in one turn of the loop, which sessions need too
_SHORTAGE_SECONDS: Final = 1.0  # without accepting when the system has no descriptor or memory
_SHUTDOWN_SECONDS: Final = 5.0  # that a client has to answer the end of TLS
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PEEK: Final = 512  # bytes


class Front(Protocol):
    """Speaks the protocol of a listener."""

    def make(self, admission: Admission, info: ConnectionInfo | None) -> asyncio.BaseProtocol:
        """Make the protocol of one connection that has a transport of the loop."""

    def serve_plain(self, client: int, admission: Admission, info: ConnectionInfo | None) -> bool:
        """Serve a plain connection by its descriptor. Returns False if it needs `make` and a transport of the loop.

        Raises OSError.
        """


class Listener:
    """One listener of a node."""

    def __init__(
        self,
        config: ListenerConfig,
        admission: Admission,
        front: Front,
        capacity: Callable[[Admission], Capacity],
        *,
        shares: bool = False,
    ) -> None:
        """shares: other processes listen on the same port. Raises TlsError."""
        self.admission = admission
        self.certificates = Certificates(config) if config.is_tls else None
        self._config = config
        self._shares = shares
        self._front = front
        self._capacity = capacity
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._pause_timer: asyncio.TimerHandle | None = None
        self._headers: set[_Header] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trusted = [ip_network(network) for network in config.trusted_proxies]

    async def open(self) -> str:
        """Listen. Returns the address with the bound port. Raises OSError."""
        self._sockets, address = await bind(self._config.address, self._config.mode, shares=self._shares)
        self._resume_accepting()
        return address

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the listener."""
        return is_local(self._sockets)

    async def close(self) -> None:
        """Stop accepting, and close the connections that no front has yet."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            release(listening)
        self._sockets = []
        for header in list(self._headers):
            header.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- accepting

    def _resume_accepting(self) -> None:
        self._pause_timer = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _pause(self, seconds: float) -> None:
        """Leave new connections in the kernel for so many seconds."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._pause_timer = self._loop.call_later(seconds, self._resume_accepting)

    def _accept(self, listening: socket.socket) -> None:
        admission = self.admission
        for _ in range(_BATCH):
            now = monotonic()
            wait = admission.wait(now)
            if wait:
                self._pause(wait)
                return
            try:
                client = accept(listening.fileno())
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                admission.warn("accept", f"cannot accept connections: {error.strerror}")
                self._pause(_SHORTAGE_SECONDS)
                return
            if client < 0:
                return
            self._accepted(client, admission.admit(now))

    def _accepted(self, client: int, welcome: bool) -> None:
        admission = self.admission
        info: ConnectionInfo | None = None
        capacity = self._capacity(admission)
        if capacity is Capacity.CLOSE:
            admission.refused_full += 1
            os.close(client)
            return
        if capacity is Capacity.REFUSE:
            admission.refused_full += 1
            info = ConnectionInfo(ReasonCode.QUOTA_EXCEEDED, "the node has as many connections as it allows")
        elif not welcome:
            admission.refused_rate += 1
            info = ConnectionInfo(
                ReasonCode.CONNECTION_RATE_EXCEEDED, "connections come faster than the listener allows"
            )
        admission.accepted += 1
        admission.opening += 1
        if self._config.proxy_protocol:
            self._await_header(_socket(client), info or ConnectionInfo())
        else:
            self._hand_over(client, info)

    # --- PROXY header

    def _await_header(self, client: socket.socket, info: ConnectionInfo) -> None:
        try:
            address = client.getpeername()
        except OSError as error:
            self._refuse_proxy(client, f"it has closed: {error.strerror}")
            return
        if self._is_trusted(client, address):
            self._headers.add(_Header(self, client, info))
        else:
            self._refuse_proxy(client, f"{address} is not a trusted proxy")

    def _is_trusted(self, client: socket.socket, address: object) -> bool:
        """Whether a proxy may send a header. A Unix socket is protected by its permissions."""
        if client.family == socket.AF_UNIX or not isinstance(address, tuple):
            return True
        peer = ip_address(str(address[0]).partition("%")[0])
        return any(peer in network for network in self._trusted)

    def proxied(self, header: "_Header", client: socket.socket, info: ConnectionInfo, error: str) -> None:
        """A header is complete, or `error` says why there is none."""
        self._headers.discard(header)
        if error:
            self._refuse_proxy(client, error)
        else:
            self._hand_over(client.detach(), info)

    def _refuse_proxy(self, client: socket.socket, why: str) -> None:
        self.admission.opening -= 1
        self.admission.refused_proxy += 1
        self.admission.warn("proxy", f"closing a connection for its PROXY header: {why}")
        client.close()

    # --- TLS, and the front

    def _hand_over(self, client: int, info: ConnectionInfo | None) -> None:
        try:
            if self.certificates is None and self._front.serve_plain(client, self.admission, info):
                return
        except OSError as error:
            self.admission.opening -= 1
            self.admission.warn("serve", f"cannot serve a connection: {error.strerror}")
            os.close(client)
            return
        task = self._loop.create_task(self._connect(_socket(client), info))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: socket.socket, info: ConnectionInfo | None) -> None:
        admission = self.admission
        make = self._front.make
        try:
            if self.certificates is None:
                await self._loop.connect_accepted_socket(lambda: make(admission, info), client)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: self._make_with_mapped_buffers(admission, info),
                    client,
                    ssl=self.certificates.context,
                    ssl_handshake_timeout=admission.connect_timeout,
                    ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
                )
        except OSError as error:  # also ssl.SSLError; the front has no connection yet
            admission.opening -= 1
            admission.refused_tls += 1
            log.debug("listener %s: no TLS with %s: %s", admission.name, info.peer if info else "a client", error)
            client.close()

    def _make_with_mapped_buffers(self, admission: Admission, info: ConnectionInfo | None) -> asyncio.BaseProtocol:
        """Make the protocol above TLS. The loop allocates the buffers of TLS right after it, in the same turn."""
        if map_big_buffers():
            self._loop.call_soon(keep_big_buffers)
        return self._front.make(admission, info)


def _socket(client: int) -> socket.socket:
    made = socket.socket(fileno=client)
    made.setblocking(False)
    return made


class _Header:
    """A connection whose PROXY header is not complete."""

    __slots__ = ("_client", "_info", "_listener", "_loop", "_parser", "_timer")

    def __init__(self, listener: Listener, client: socket.socket, info: ConnectionInfo) -> None:
        self._listener = listener
        self._client = client
        self._info = info
        self._parser = ProxyHeader()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(listener.admission.connect_timeout, self._timed_out)
        self._loop.add_reader(client, self._readable)

    def _readable(self) -> None:
        """Read the bytes of the header, and leave those of the client in the socket for TLS or MQTT."""
        try:
            seen = self._client.recv(_PEEK, socket.MSG_PEEK)
            if not seen:
                self._end("it closed")
                return
            self._client.recv(self._parser.feed(seen))
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ProxyError) as error:
            self._end(str(error))
            return
        if self._parser.complete:
            self._info.peer = self._parser.client
            self._end("")

    def _timed_out(self) -> None:
        self._listener.admission.refused_late += 1
        self._end("it did not come in time")

    def abort(self) -> None:
        """Close the connection: the node stops."""
        self._end("the node stops")

    def _end(self, error: str) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._client)
        self._listener.proxied(self, self._client, self._info, error)
