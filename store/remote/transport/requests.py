"""Requests over a connection, each with an answer. Several may be open, and answers come in any order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from store.remote.transport.connection import Connection, Tls, connect
from store.remote.wire.frames import FIRST_REQUEST, MAX_REQUEST, Frame, FrameKind, ProtocolViolated

log = logging.getLogger(__name__)

_MAX_OPEN: Final = 16  # requests of one connection that are carried out at the same time
_WRITE_S: Final = 30.0  # for the other side to take an answer
_MAX_NUMBER: Final = 0xFFFFFFFF

CarryOut = Callable[[int, bytes], Awaitable[bytes]]  # of a request, given its kind and body; raises `Refused`


class Refused(Exception):
    """The store does not carry out a request. The text has the reason."""


class Requests:
    """Who asks. Any number of tasks may `ask` over a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = 0
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self._reading.add_done_callback(self._ended)

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended: every further request fails."""
        return self._reading.done() or self._connection.is_closing

    async def ask(self, kind: FrameKind, body: bytes) -> bytes:
        """The answer to a request. Raises `Refused`, or OSError if the connection breaks."""
        if len(body) > MAX_REQUEST:
            raise Refused(f"the request has {len(body)} bytes, and {MAX_REQUEST} is the limit")
        if self._reading.done():
            raise ConnectionResetError("the connection is closed")
        self._number = number = self._number % _MAX_NUMBER + 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        try:
            await self._connection.write(kind, number, body)
            return await answer
        except asyncio.CancelledError:
            with suppress(OSError):
                self._connection.post(FrameKind.CANCEL, number, b"")
            raise
        finally:
            self._open.pop(number, None)

    def close(self) -> None:
        """Close the connection. Open requests fail."""
        self._reading.cancel()

    async def _read(self) -> None:
        while (frame := await self._connection.read()) is not None:
            self._answered(*frame)

    def _ended(self, reading: asyncio.Task[None]) -> None:
        self._connection.abort()
        fault = None if reading.cancelled() else reading.exception()
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(fault or ConnectionResetError("the connection is closed"))
                answer.exception()  # mark it as retrieved: who asked may be waiting to write

    def _answered(self, kind: int, number: int, body: bytes) -> None:
        answer = self._open.get(number)  # none: it was cancelled
        if kind == FrameKind.ANSWER:
            if answer is not None and not answer.done():
                answer.set_result(body)
        elif kind == FrameKind.REFUSAL:
            if answer is not None and not answer.done():
                answer.set_exception(Refused(body.decode(errors="replace")))
        else:
            raise ProtocolViolated(f"it answered with a frame of kind {kind}")


class Requester:
    """Asks the store at an address. It connects when there is something to ask, and again if the connection broke."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self._address = address
        self._tls = tls
        self._requests: Requests | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    async def ask(self, kind: FrameKind, body: bytes) -> bytes:
        """The answer to a request. Raises `Refused`, or OSError if the store cannot be reached."""
        async with self._connecting:
            requests = self._requests
            if self._has_closed():
                raise ConnectionResetError("the connection is closed")
            if requests is None or requests.is_lost:
                connection = await connect(self._address, self._tls)
                requests = self._requests = Requests(connection)
                if self._has_closed():  # meanwhile
                    requests.close()
        return await requests.ask(kind, body)

    def _has_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Close the connection. Open requests fail, and all later ones."""
        self._is_closed = True
        if self._requests is not None:
            self._requests.close()


async def serve_requests(connection: Connection, first: Frame, carry_out: CarryOut) -> None:
    """Carry out the requests of a connection until it ends. Raises OSError."""
    tasks: dict[int, asyncio.Task[None]] = {}
    loop = asyncio.get_running_loop()
    frame: Frame | None = first
    try:
        while frame is not None and not connection.is_lost:
            kind, number, body = frame
            if kind == FrameKind.CANCEL:
                if number in tasks:
                    tasks[number].cancel()
            elif kind < FIRST_REQUEST or number in tasks:
                raise ProtocolViolated(f"it sent a frame of kind {kind} and number {number} as a request")
            else:
                task = tasks[number] = loop.create_task(_answer(connection, kind, number, body, carry_out))
                task.add_done_callback(partial(_forget, tasks, number))
                while len(tasks) >= _MAX_OPEN and not connection.is_lost:
                    waited = (*tasks.values(), connection.ended)
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            frame = await connection.read()
    finally:
        rest = list(tasks.values())
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _forget(tasks: dict[int, asyncio.Task[None]], number: int, _task: asyncio.Task[None]) -> None:
    del tasks[number]


async def _answer(connection: Connection, kind: int, number: int, body: bytes, carry_out: CarryOut) -> None:
    try:
        found, answer = FrameKind.ANSWER, await carry_out(kind, body)
    except Refused as refused:
        found, answer = FrameKind.REFUSAL, str(refused).encode()
    except Exception as error:
        log.exception("a request of kind %d failed", kind)
        found, answer = FrameKind.REFUSAL, f"the store failed: {error!r}".encode()
    try:
        async with asyncio.timeout(_WRITE_S):
            await connection.write(found, number, answer)
    except OSError:  # also TimeoutError
        connection.abort()
