"""An HTTP server with a limit on its connections, which aiohttp has not."""

import asyncio
import logging
import socket
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_IDLE_SECONDS: Final = 15.0  # for a connection to send its next request


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Filter out the tracebacks of malformed requests and lost connections: with them anybody could fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], (HttpProcessingError, ConnectionError))


REQUESTS: Final = logging.getLogger(f"{__name__}.requests")  # aiohttp's log lines about requests
REQUESTS.addFilter(_is_our_fault)


class BoundedHttp:
    """An HTTP server with a limit on its connections. Start it once, and stop it once."""

    def __init__(self, max_body: int, max_connections: int, backlog: int) -> None:
        """max_body: bytes of a request. Add routes to `app` before the start."""
        self.app = web.Application(client_max_size=max_body)
        self._max_connections = max_connections
        self._backlog = backlog
        self._runner = web.AppRunner(
            self.app, access_log=None, logger=REQUESTS, shutdown_timeout=1.0, keepalive_timeout=_IDLE_SECONDS
        )
        self._listener: asyncio.Server | None = None

    async def start(self, place: tuple[str, int] | socket.socket) -> int:
        """Listen on (host, port), or on a bound Unix socket. Returns the port, 0 for a Unix socket. Raises OSError."""
        await self._runner.setup()
        loop, backlog = asyncio.get_running_loop(), self._backlog
        if isinstance(place, tuple):
            self._listener = await loop.create_server(self._accept, *place, backlog=backlog)
        else:
            self._listener = await loop.create_unix_server(self._accept, sock=place, backlog=backlog)
        return int(self._listener.sockets[0].getsockname()[1]) if isinstance(place, tuple) else 0

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        has_room = server is not None and len(server.connections) < self._max_connections
        return server() if server is not None and has_room else RejectedConnection()


class RejectedConnection(asyncio.Protocol):
    """A connection that is closed because there is no room for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # uvloop's is no subclass of asyncio.Transport
