"""A producer that comes back as another process, and stores nothing twice: work that is done again after a crash.

It has a name that its processes share, and numbers its pieces of work, which only rise. Who does a piece again sends
the same messages in the same order under the same number: what was stored of them before is not stored again.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Final

from cloud_sdk.connection import Connection
from cloud_sdk.errors import InvalidArgument
from cloud_sdk.message import OutgoingMessage, Receipt
from cloud_sdk.producer import Producer

MAX_NUMBER: Final = (1 << 39) - 1
_PARTS: Final = 24  # bits of a sequence that count the requests of a piece
_MAX_NAME: Final = 64  # bytes


class ReturningProducer:
    """An async context manager, for one piece of work. See `Client.returning_producer`."""

    def __init__(self, connection: Connection, publisher: bytes, name: str, number: int) -> None:
        if not 0 <= number <= MAX_NUMBER:
            raise InvalidArgument(f"a piece of work has a number from 0 to {MAX_NUMBER}, not {number}")
        self._publisher = publisher
        self._producer = Producer(connection, returning=_checked(name))
        self._next = (number + 1) << _PARTS  # sequence of the next request
        self._last = self._next + (1 << _PARTS) - 1

    async def __aenter__(self) -> "ReturningProducer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store the next messages of the piece, in order; returns when all are committed. A receipt is `STORED` where
        they were before. The calls, too, have to be the same when the work is done again. Raises `InvalidArgument` for
        a message that cannot be stored, and where another process goes on with the producer."""
        frames = [message.frame(self._publisher) for message in messages]
        sequence, self._next = self._next, self._next + self._producer.requests(frames)
        if self._next > self._last:
            raise InvalidArgument(f"a piece of work has at most {(1 << _PARTS) - 1} requests")
        return await self._producer.send_numbered(sequence, frames)

    async def close(self) -> None:
        """End the stream. The node remembers the producer for 30 days, or until retention takes what it stored last."""
        await self._producer.close()


async def forget(connection: Connection, name: str) -> None:
    """See `Client.forget_producer`."""
    producer = Producer(connection, returning=_checked(name))
    try:
        await producer.forget()
    finally:
        await producer.close()


def _checked(name: str) -> bytes:
    named = name.encode()
    if not 0 < len(named) <= _MAX_NAME:
        raise InvalidArgument(f"the name of a producer has 1 to {_MAX_NAME} bytes, not {len(named)}")
    return named
