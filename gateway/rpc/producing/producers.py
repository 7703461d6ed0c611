"""Producers of the SDK: records that a producer sends again, because an answer was lost, are stored once.

Each append of a producer begins with a PRODUCED record (`docs/format.md`). A stream that resends asks the log for
the last stored sequence, after no older stream can append any more. Repeated work carries a digest of its messages. If
the digest for the last stored sequence differs, the request is refused, because it is unknown which of its messages
are stored.
"""

import asyncio
from typing import Final

from gateway.rpc.access.visibility import CALLER
from gateway.rpc.status import RequestError, invalid
from store import control
from store.api import Appended, LogStore
from store.producer_progress import RETURNING

MAX_NAME: Final = 64  # bytes
_PREFIX: Final = b"sdk/"  # the names of producers inside gateways begin differently


class ProducerStream:
    """A stream of a named producer, with the producer's progress before this stream."""

    __slots__ = ("_digest", "_missing", "last", "name")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.last = -1  # sequence of the last stored request
        self._missing = 0  # records of that request that were not stored
        self._digest = 0  # of the work up to that request

    async def recall(self, store: LogStore) -> None:
        """Read the progress from the store. Raises `StoreError`."""
        # Every append of an older stream, here or at another gateway, is committed before this record or never.
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        store.append(
            [control.ProducerEnded().frame(_PREFIX)],
            lambda appended: None if answer.done() else answer.set_result(appended),
        )
        error = (await answer).error
        if error is not None:
            raise error
        known = await store.produced(self.name)
        if known is not None:
            self.last, self._missing, self._digest = known

    def rest(self, sequence: int, frames: list[bytes], digest: int) -> list[bytes]:
        """The frames of a request that are not stored yet. Raises `RequestError` if other messages were stored."""
        if sequence > self.last:
            return frames
        if sequence < self.last:
            return []
        if digest and self._digest and digest != self._digest:
            raise invalid(
                "other messages than these, or the same messages in another order, were stored when this work was done "
                "before: nothing more is stored. Repeated work must produce the same messages in the same order"
            )
        return frames[len(frames) - self._missing :] if self._missing else []

    def framed(self, sequence: int, frames: list[bytes], digest: int) -> list[bytes]:
        """The frames of a request with their PRODUCED record."""
        return [control.Produced(sequence, len(frames), digest).frame(self.name), *frames]


def producer_of(name: bytes, returns: bool) -> ProducerStream:
    """The producer of that name. returns: another process of the same user may continue its work. Raises
    `RequestError` for an invalid name."""
    if len(name) > MAX_NAME:
        raise invalid(f"the name of a producer has at most {MAX_NAME} bytes")
    if not returns:
        return ProducerStream(_PREFIX + name.hex().encode())
    caller = CALLER.get()
    user = b"" if caller is None else caller.user_name
    return ProducerStream(RETURNING + f"{user.hex()}/{name.hex()}".encode())


def replaced() -> RequestError:
    """The error of a stream whose producer opened another stream."""
    return invalid("the producer has opened another stream")
