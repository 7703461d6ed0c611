"""Bounds the unread replies of each connection.

gRPC accepts a whole reply and sends it as the client reads. A client that calls a thousand times and reads nothing
would make the node keep a thousand replies of some megabytes. A call therefore enters its budget before it reads
the content of a large reply. Few calls of a connection do so at a time, and none while too much is unread.
"""

import asyncio
from contextvars import ContextVar
from sys import maxsize
from typing import Any, Final

import grpc

from gateway.rpc.status import RequestError

_BUDGET: Final[ContextVar["ReplyBudget | None"]] = ContextVar("budget", default=None)  # of this task's call
_LOOKUPS: Final = 16  # at a time on one connection
# Calls whose replies may be large.
LARGE: Final = frozenset(
    (
        *(
            f"/sluice.v1.Sluice/{name}"
            for name in (
                "Pull",
                "Receive",
                "Consume",
                "Find",
                "Topics",
                "Children",
                "Timers",
                "GetEntry",
                "Entries",
                "BucketChanges",
            )
        ),
        "/apache.rocketmq.v2.MessagingService/PullMessage",
        "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
    )
)
MANAGEMENT: Final = "/sluice.management.v1."  # and all of the management surface


class _Connection:
    """The calls of one connection that have large replies."""

    __slots__ = ("calls", "lookups", "size")

    def __init__(self) -> None:
        self.calls = 0
        self.lookups = asyncio.Semaphore(_LOOKUPS)
        self.size = 0  # bytes of unread replies


class ReplyBudget:
    """The budget of one call: `async with reply_budget() as budget`, look up the content, and `add` its size."""

    __slots__ = ("_connection", "_limit", "_size")

    def __init__(self, connection: _Connection, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._size = 0

    async def __aenter__(self) -> "ReplyBudget":
        """Raises `RequestError` if the connection has too many unread replies."""
        await self._connection.lookups.acquire()
        if self._connection.size >= self._limit:
            self._connection.lookups.release()
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the client has to read first: it has {self._connection.size} bytes of unread replies",
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.lookups.release()

    def add(self, size: int) -> None:
        """Count bytes of content that stay in memory until `release`."""
        self._size += size
        self._connection.size += size

    def release(self) -> None:
        """Subtract everything that was added: the call is over, or its client has read the replies."""
        self._connection.size -= self._size
        self._size = 0


def reply_budget() -> ReplyBudget:
    """The budget of this task's call."""
    return _BUDGET.get() or ReplyBudget(_Connection(), maxsize)


class ReplyBudgets:
    """The budgets of all connections that have a large call."""

    def __init__(self, limit: int) -> None:
        """limit: a connection with this many bytes of unread replies gets no more."""
        self._limit = limit
        self._connections: dict[str, _Connection] = {}

    def open(self, context: Any) -> None:
        """Give the call of this task its budget. context: `grpc.aio.ServicerContext`."""
        peer = context.peer()
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection()
        connection.calls += 1
        budget = ReplyBudget(connection, self._limit)
        _BUDGET.set(budget)
        context.add_done_callback(lambda _: self._close(peer, connection, budget))

    def _close(self, peer: str, connection: _Connection, budget: ReplyBudget) -> None:
        budget.release()
        connection.calls -= 1
        if not connection.calls:
            del self._connections[peer]
