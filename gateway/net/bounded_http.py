"""Listening for HTTP with a bound on the connections that are held: aiohttp itself takes what comes."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

IDLE_SECONDS: Final = 15.0  # that a connection may take for a request, the first or another


def _of_ours(record: logging.LogRecord) -> bool:
    """What is no HTTP, or is gone before its answer, is its sender's fault: a traceback for each would let anybody fill
    the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], (HttpProcessingError, ConnectionError))


REQUESTS: Final = logging.getLogger(f"{__name__}.requests")  # what aiohttp has to say of them
REQUESTS.addFilter(_of_ours)


async def listen(runner: web.AppRunner, host: str, port: int, has_room: Callable[[], bool]) -> asyncio.Server:
    """Serve `runner`, which is set up, on host:port; without room a connection is closed. Raises OSError."""
    protocol = _protocol(runner, has_room)
    return await asyncio.get_running_loop().create_server(protocol, host, port, backlog=128)


async def listen_at(runner: web.AppRunner, bound: socket.socket, has_room: Callable[[], bool]) -> asyncio.Server:
    """The same on a Unix socket that is bound. Raises OSError."""
    protocol = _protocol(runner, has_room)
    return await asyncio.get_running_loop().create_unix_server(protocol, sock=bound, backlog=8)


def _protocol(runner: web.AppRunner, has_room: Callable[[], bool]) -> Callable[[], asyncio.BaseProtocol]:
    accept = runner.server
    assert accept is not None
    return lambda: accept() if has_room() else RejectedConnection()


def bound_port(server: asyncio.Server) -> int:
    """The port that it listens on."""
    port: int = server.sockets[0].getsockname()[1]
    return port


class RejectedConnection(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # uvloop's is no subclass of asyncio.Transport
