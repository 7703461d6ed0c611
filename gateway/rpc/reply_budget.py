"""Replies that were made, and that their clients have not taken: a connection may have so much of them, and no more.

gRPC takes a reply whole and sends it as the client reads. One that asks a thousand times and reads nothing would have
the node keep a thousand replies of some megabytes. So whoever makes a large one asks here before it looks for what goes
in: few do so at a time for one connection, and none while that has not taken what it has.
"""

import asyncio
from contextvars import ContextVar
from sys import maxsize
from typing import Any, Final

import grpc

from gateway.rpc.status import RequestError

_ROOM: Final[ContextVar["Room | None"]] = ContextVar("room", default=None)  # of the call of this task
_LOOKS: Final = 16  # at a time of one connection
# Calls whose replies may be large.
LARGE: Final = frozenset(
    (
        *(
            f"/sluice.v1.Sluice/{name}"
            for name in ("Pull", "Receive", "Consume", "Find", "Topics", "Children", "Timers")
        ),
        "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
    )
)


class _Connection:
    """What is under way on one connection."""

    __slots__ = ("calls", "looks", "size")

    def __init__(self) -> None:
        self.calls = 0
        self.looks = asyncio.Semaphore(_LOOKS)
        self.size = 0  # bytes of replies, whole or in the making


class Room:
    """That of one call."""

    __slots__ = ("_connection", "_limit", "_size")

    def __init__(self, connection: _Connection, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._size = 0

    async def __aenter__(self) -> "Room":
        """Raises `RequestError`."""
        await self._connection.looks.acquire()
        if self._connection.size >= self._limit:
            self._connection.looks.release()
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the connection has to read first: there are {self._connection.size} bytes of replies to it",
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.looks.release()

    def hold(self, size: int) -> None:
        """So many bytes were found, and are in memory until `free`."""
        self._size += size
        self._connection.size += size

    def free(self) -> None:
        """The call is over, or the connection has taken all that was found."""
        self._connection.size -= self._size
        self._size = 0


def room() -> Room:
    """That of the call of this task: `async with room() as own` look, and `own.hold` what was found."""
    return _ROOM.get() or Room(_Connection(), maxsize)


class Unread:
    """Of all connections that have a large call."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of one connection, from which on it has to read first."""
        self._limit = limit
        self._connections: dict[str, _Connection] = {}

    def enter(self, context: Any) -> None:
        """A call begins, whose task finds its room from here on. context: `grpc.aio.ServicerContext`."""
        peer = context.peer()
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection()
        connection.calls += 1
        own = Room(connection, self._limit)
        _ROOM.set(own)
        context.add_done_callback(lambda _: self._leave(peer, connection, own))

    def _leave(self, peer: str, connection: _Connection, own: Room) -> None:
        own.free()
        connection.calls -= 1
        if not connection.calls:
            del self._connections[peer]
