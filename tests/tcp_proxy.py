"""A TCP proxy on the loopback interface with which a test cuts, delays or silences the link to a server."""

import asyncio
import socket
from typing import Self

from tests.waiting import until

_CHUNK = 1 << 16


class TcpProxy:
    """Passes bytes on between clients and one server.

    `delay_s` is how long each piece waits, in both directions. `silence` lets connections stand, and passes nothing on:
    a network that loses all packets. `cut` ends all connections, and new ones at once. `forget` silences the
    connections that there are for ever, and serves new ones: a server that came back at another machine, or a firewall
    that was started again. `heal` ends silence and cut. While `loses_answers`, an answer ends its connection instead.
    """

    def __init__(self, port: int) -> None:
        self.port = 0  # where it listens, from `async with` on
        self.delay_s = 0.0
        self.loses_answers = False
        self.lost = 0  # answers
        self.connections = 0  # since the start
        self._target = port
        self._passes = asyncio.Event()
        self._passes.set()
        self._is_cut = False
        self._links: set[_Link] = set()

    async def __aenter__(self) -> Self:
        listener = socket.socket()
        # Little room, so that what is written while nothing passes stays with its writer.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK)
        listener.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._serve, sock=listener)
        self.port = listener.getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await until(lambda: not self._links)

    def silence(self) -> None:
        self._passes.clear()

    def cut(self) -> None:
        self._is_cut = True
        for link in self._links:
            link.cut()

    def forget(self) -> None:
        for link in self._links:
            link.is_forgotten = True

    def heal(self) -> None:
        self._is_cut = False
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self.connections += 1
        link = _Link()
        self._links.add(link)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            link.directions = [
                asyncio.ensure_future(self._pass(link, reader, back, False)),
                asyncio.ensure_future(self._pass(link, there, writer, True)),
            ]
            await asyncio.wait(link.directions, return_when=asyncio.FIRST_COMPLETED)
            link.cut()
            await asyncio.gather(*link.directions, return_exceptions=True)
            back.transport.abort()
        except OSError:
            pass
        finally:
            self._links.remove(link)
            writer.transport.abort()

    async def _pass(
        self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        """Return when one side has ended the connection."""
        while True:
            await self._passes.wait()
            data = await reader.read(_CHUNK)
            await self._passes.wait()
            if link.is_forgotten:
                await asyncio.Future()
            if not data:
                return
            if is_answer and self.loses_answers:
                self.lost += 1
                return
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()


class _Link:
    """One connection through the proxy."""

    def __init__(self) -> None:
        self.directions: list[asyncio.Task[None]] = []
        self.is_forgotten = False

    def cut(self) -> None:
        for direction in self.directions:
            direction.cancel()
