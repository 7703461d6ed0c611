"""A producer whose work is stored once, also if another process repeats it after a crash.

Processes that share the work use the same name, and number their units of work with rising numbers. A process that
repeats a unit sends the same messages in the same order under the same number, and the node stores only what is
missing. Each request carries a digest of all messages of the unit up to its end. The node keeps the digest of the last
request that it stored, and refuses the request if it is repeated with another digest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from types import TracebackType
from typing import Final

from cloud_sdk.errors import InvalidArgument
from cloud_sdk.message import OutgoingMessage, Receipt
from cloud_sdk.producing.producer import Producer, split_requests
from cloud_sdk.transport.connection import NodeConnection

MAX_NUMBER: Final = (1 << 39) - 1
_REQUEST_BITS: Final = 24  # of a sequence: the number of the request within its unit of work
_MAX_NAME: Final = 64  # bytes
# Bytes that a request reserves per message for the publisher's name. Publishers with names up to this length split the
# same messages into the same requests.
_NAME_ROOM: Final = 64


class IdempotentProducer:
    """An async context manager for one unit of work. See `Client.idempotent_producer`."""

    def __init__(self, connection: NodeConnection, publisher: bytes, name: str, number: int) -> None:
        if not 0 <= number <= MAX_NUMBER:
            raise InvalidArgument(f"the number of a unit of work is 0 to {MAX_NUMBER}, not {number}")
        self._publisher = publisher
        self._producer = Producer(connection, name=_checked(name))
        self._number = number
        self._next = (number + 1) << _REQUEST_BITS  # sequence of the next request
        self._last = self._next + (1 << _REQUEST_BITS) - 1
        self._digest = blake2b(digest_size=8)  # of all messages so far

    async def __aenter__(self) -> "IdempotentProducer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if kind is None and self._producer.stored_to >= self._next:
            raise InvalidArgument(
                f"unit {self._number} of the work had more messages when it was done before: those are stored, and "
                "nothing else is"
            )

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store the next messages of the unit, in order; returns when all are committed. The receipt of a message that
        was stored before is `STORED`. Work that is repeated has to make the same calls with the same messages.

        Raises `InvalidArgument` if a message cannot be stored, if another process uses the name now, if the messages
        are not the same as before (nothing more is stored then), or if a later unit was done."""
        some = list(messages)
        # Without the trace: work that is repeated has another one, and has to make the same frames.
        frames = [message.frame(self._publisher, in_trace=False) for message in some]
        requests = split_requests(frames, max(_NAME_ROOM - len(self._publisher), 0))
        sequence, self._next = self._next, self._next + len(requests)
        if self._next > self._last:
            raise InvalidArgument(f"a unit of work has at most {(1 << _REQUEST_BITS) - 1} requests")
        digests = self._digests(some, [len(part) for part, _ in requests])
        receipts = await self._producer.send_numbered(sequence, requests, digests)
        if self._producer.stored_to > self._last:
            later = (self._producer.stored_to >> _REQUEST_BITS) - 1
            raise InvalidArgument(
                f"unit {later} of the work was done before this one, number {self._number}: nothing of this one is "
                "stored now, because numbers only rise"
            )
        return receipts

    def _digests(self, messages: Sequence[OutgoingMessage], counts: Sequence[int]) -> list[int]:
        """The digests of the unit at the end of each request, of `counts` messages each. The publisher, and the time
        that results from `deliver_after`, may differ if the work is repeated, so the digest leaves them out."""
        digests: list[int] = []
        index = 0
        for count in counts:
            for message in messages[index : index + count]:
                if message.deliver_after is None:
                    self._digest.update(message.frame(b"", in_trace=False))
                else:
                    self._digest.update(replace(message, deliver_after=None).frame(b"", in_trace=False))
                    self._digest.update(repr(message.deliver_after).encode())
            index += count
            digests.append(int.from_bytes(self._digest.digest()) or 1)
        return digests

    async def close(self) -> None:
        """End the stream. The node remembers the name for 30 days, or until retention removes its last messages."""
        await self._producer.close()


async def forget(connection: NodeConnection, name: str) -> None:
    """See `Client.forget_producer`."""
    producer = Producer(connection, name=_checked(name))
    try:
        await producer.forget()
    finally:
        await producer.close()


def _checked(name: str) -> bytes:
    encoded = name.encode()
    if not 0 < len(encoded) <= _MAX_NAME:
        raise InvalidArgument(f"the name of a producer has 1 to {_MAX_NAME} bytes, not {len(encoded)}")
    return encoded
