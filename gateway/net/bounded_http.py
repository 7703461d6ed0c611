"""Listening for HTTP with a bound on the connections that are held: aiohttp itself takes what comes."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

IDLE_SECONDS: Final = 15.0  # for a connection to send its next request


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Filter out the tracebacks of malformed requests and lost connections: with them anybody could fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], (HttpProcessingError, ConnectionError))


REQUESTS: Final = logging.getLogger(f"{__name__}.requests")  # aiohttp's log lines about requests
REQUESTS.addFilter(_is_our_fault)


async def listen(runner: web.AppRunner, host: str, port: int, has_room: Callable[[], bool]) -> asyncio.Server:
    """Serve `runner`, which is set up, on host:port. Connections without room are closed. Raises OSError."""
    protocol = _protocol(runner, has_room)
    return await asyncio.get_running_loop().create_server(protocol, host, port, backlog=128)


async def listen_at(runner: web.AppRunner, bound: socket.socket, has_room: Callable[[], bool]) -> asyncio.Server:
    """Serve `runner` on a bound Unix socket. Connections without room are closed. Raises OSError."""
    protocol = _protocol(runner, has_room)
    return await asyncio.get_running_loop().create_unix_server(protocol, sock=bound, backlog=8)


def _protocol(runner: web.AppRunner, has_room: Callable[[], bool]) -> Callable[[], asyncio.BaseProtocol]:
    accept = runner.server
    assert accept is not None
    return lambda: accept() if has_room() else RejectedConnection()


def bound_port(server: asyncio.Server) -> int:
    """The port that the server listens on."""
    port: int = server.sockets[0].getsockname()[1]
    return port


class RejectedConnection(asyncio.Protocol):
    """A connection that is closed because there is no room for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # uvloop's is no subclass of asyncio.Transport
