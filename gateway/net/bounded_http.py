"""An HTTP server with a limit on its connections, which aiohttp has not, and with certificates that may change."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.net.bind import bind, release
from gateway.net.proxy_protocol import address_text
from gateway.net.tls import Certificates

log = logging.getLogger(__name__)

_IDLE_SECONDS: Final = 15.0  # for a connection to send its next request
_HANDSHAKE_SECONDS: Final = 10.0  # for TLS
_SHUTDOWN_SECONDS: Final = 5.0  # that a client has to answer the end of TLS
_SHORTAGE_SECONDS: Final = 1.0  # without accepting when the system has no descriptor or memory
_SEND_SECONDS: Final = 60.0  # for a client to read an answer
_MAX_LINE: Final = 200_000  # bytes of the first line of a request: a name of 64 KiB may be in it, as %XX for each byte


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Filter out the tracebacks of malformed requests and lost connections: with them anybody could fill the log."""
    faults = HttpProcessingError, ConnectionError, web.RequestPayloadError
    return record.exc_info is None or not isinstance(record.exc_info[1], faults)


REQUESTS: Final = logging.getLogger(f"{__name__}.requests")  # aiohttp's log lines about requests
REQUESTS.addFilter(_is_our_fault)


@web.middleware
async def _sent_in_time(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Send an answer, and close the connection of a client that does not read it: others need its place."""
    response = await handler(request)
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response


class BoundedHttp:
    """An HTTP server with a limit on its connections. Start it once, and stop it once."""

    def __init__(self, max_body: int, max_connections: int, backlog: int) -> None:
        """max_body: bytes of a request. Add routes to `app` before the start."""
        self.app = web.Application(client_max_size=max_body, middlewares=[_sent_in_time])
        self._max_connections = max_connections
        self._backlog = backlog
        self._runner = web.AppRunner(
            self.app,
            access_log=None,
            logger=REQUESTS,
            shutdown_timeout=1.0,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=_MAX_LINE,
        )
        self._listener: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []  # of TLS
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self, place: tuple[str, int] | socket.socket) -> int:
        """Listen on (host, port), or on a bound Unix socket. Returns the port, 0 for a Unix socket. Raises OSError."""
        await self._runner.setup()
        loop, backlog = asyncio.get_running_loop(), self._backlog
        if isinstance(place, tuple):
            self._listener = await loop.create_server(self._accept, *place, backlog=backlog)
        else:
            self._listener = await loop.create_unix_server(self._accept, sock=place, backlog=backlog)
        return int(self._listener.sockets[0].getsockname()[1]) if isinstance(place, tuple) else 0

    async def start_tls(self, host: str, port: int, certificates: Certificates) -> int:
        """Listen for TLS. Returns the port. Raises OSError.

        Each connection is shown the certificate that is in the files then.
        """
        await self._runner.setup()
        self._sockets, address = await bind(address_text(host, port))
        self._accepting = [asyncio.create_task(self._accept_tls(each, certificates)) for each in self._sockets]
        return int(address.rpartition(":")[2])

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            release(listening)
        self._sockets = []
        await self._runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        return server() if server is not None and self._has_room() else RejectedConnection()

    def _has_room(self) -> bool:
        server = self._runner.server
        return server is not None and len(server.connections) + len(self._handshakes) < self._max_connections

    async def _accept_tls(self, listening: socket.socket, certificates: Certificates) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.debug("cannot accept an HTTP connection: %s", error)
                await asyncio.sleep(_SHORTAGE_SECONDS)
                continue
            if not self._has_room():
                client.close()
                continue
            task = loop.create_task(self._shake_hands(client, certificates))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, client: socket.socket, certificates: Certificates) -> None:
        server = self._runner.server
        assert server is not None
        try:
            await asyncio.to_thread(certificates.reload, forced=False)
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                client,
                ssl=certificates.context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError as error:  # also ssl.SSLError
            log.debug("no TLS with an HTTP client: %s", error)
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise


class RejectedConnection(asyncio.Protocol):
    """A connection that is closed because there is no room for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # uvloop's is no subclass of asyncio.Transport
