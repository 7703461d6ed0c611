"""A producer that comes back as another process, and stores nothing twice: work that is done again after a crash.

It has a name that its processes share, and numbers its pieces of work, which only rise. Who does a piece again sends
the same messages in the same order under the same number: what was stored of them before is not stored again. That is
not taken on trust: each request carries a digest of all that the piece has given up to its end. The node keeps that of
the request that it stored last, and ends the stream of who sends this one with another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import TracebackType
from typing import Final

from cloud_sdk.connection import NodeConnection
from cloud_sdk.errors import InvalidArgument
from cloud_sdk.message import OutgoingMessage, Receipt
from cloud_sdk.producer import Producer, parts

MAX_NUMBER: Final = (1 << 39) - 1
_PARTS: Final = 24  # bits of a sequence that count the requests of a piece
_MAX_NAME: Final = 64  # bytes
_NAME_ROOM: Final = 64  # bytes of a publisher: up to it all have the same requests


class IdempotentProducer:
    """An async context manager, for one piece of work. See `Client.idempotent_producer`."""

    def __init__(self, connection: NodeConnection, publisher: bytes, name: str, number: int) -> None:
        if not 0 <= number <= MAX_NUMBER:
            raise InvalidArgument(f"a piece of work has a number from 0 to {MAX_NUMBER}, not {number}")
        self._publisher = publisher
        self._producer = Producer(connection, returning=_checked(name))
        self._number = number
        self._next = (number + 1) << _PARTS  # sequence of the next request
        self._last = self._next + (1 << _PARTS) - 1
        self._given = blake2b(digest_size=8)  # all messages of the piece so far

    async def __aenter__(self) -> "IdempotentProducer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if kind is None and self._producer.stored_to >= self._next:
            raise InvalidArgument(
                f"piece {self._number} of the work gave more messages when it was done before: these are stored, and "
                "nothing else is"
            )

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store the next messages of the piece, in order; returns when all are committed. A receipt is `STORED` where
        they were before. The calls, too, have to be the same when the work is done again. Raises `InvalidArgument` for
        a message that cannot be stored, where another process goes on with the producer, where the piece is not the
        same as before, of which nothing more is stored then, and where a later one was done."""
        some = list(messages)
        frames = [message.frame(self._publisher) for message in some]
        requests = parts(frames, max(_NAME_ROOM - len(self._publisher), 0))
        sequence, self._next = self._next, self._next + len(requests)
        if self._next > self._last:
            raise InvalidArgument(f"a piece of work has at most {(1 << _PARTS) - 1} requests")
        digests = self._digests(some, [len(part) for part, _ in requests])
        receipts = await self._producer.send_numbered(sequence, requests, digests)
        if self._producer.stored_to > self._last:
            later = (self._producer.stored_to >> _PARTS) - 1
            raise InvalidArgument(
                f"piece {later} of the work was done before this one, which is {self._number}: nothing of this one is "
                "stored now. Numbers only rise"
            )
        return receipts

    def _digests(self, messages: Sequence[OutgoingMessage], counts: Sequence[int]) -> list[int]:
        """Of all that the piece has given, up to the end of each request of so many messages. Who sends them, and when
        those are due that wait for a while, may be another when they are sent again."""
        digests: list[int] = []
        index = 0
        for count in counts:
            for message in messages[index : index + count]:
                if message.deliver_after is None:
                    self._given.update(message.frame(b""))
                else:
                    self._given.update(replace(message, deliver_after=None).frame(b""))
                    self._given.update(repr(message.deliver_after).encode())
            index += count
            digests.append(int.from_bytes(self._given.digest()) or 1)
        return digests

    async def close(self) -> None:
        """End the stream. The node remembers the producer for 30 days, or until retention takes what it stored last."""
        await self._producer.close()


async def forget(connection: NodeConnection, name: str) -> None:
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
