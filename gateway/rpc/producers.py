"""Producers of the SDK: what one of them sends again, because an answer did not arrive, is stored once.

Each append of a producer begins with a PRODUCED record (`docs/format.md`). A stream that begins with what was sent
before asks how far the log has come, when nothing of an older stream can come to it any more. Work that is done again
carries digests of what it has given: other messages under the sequence that was stored last are refused, since nobody
could say then which of them are there.
"""

import asyncio
from typing import Final

from gateway.rpc.status import RequestError, invalid
from gateway.rpc.visibility import CALLER
from store import control
from store.api import Appended, Store
from store.producer_progress import RETURNING

MAX_NAME: Final = 64  # bytes
_PREFIX: Final = b"sdk/"  # producers that are processes of gateways have other names


class ProducerStream:
    """The producer of one stream."""

    __slots__ = ("_digest", "_missing", "last", "name")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.last = -1  # sequence of what was stored before this stream
        self._missing = 0  # records of that which were not
        self._digest = 0  # of the work up to that

    async def recall(self, store: Store) -> None:
        """Find out what was stored. Raises `StoreError`."""
        # What an older stream appended, here or at another gateway, is committed before this or never.
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
        """Those of a request's frames that are not stored yet. Raises `RequestError` where others are."""
        if sequence > self.last:
            return frames
        if sequence < self.last:
            return []
        if digest and self._digest and digest != self._digest:
            raise invalid(
                "other messages than these, or the same in another order, were stored when this work was done before: "
                "nothing more of it is stored. Work that is done again has to give the same messages in the same order"
            )
        return frames[len(frames) - self._missing :] if self._missing else []

    def framed(self, sequence: int, frames: list[bytes], digest: int) -> list[bytes]:
        """What is appended for frames of a request."""
        return [control.Produced(sequence, len(frames), digest).frame(self.name), *frames]


def producer_of(name: bytes, returns: bool) -> ProducerStream:
    """Raises `RequestError` where it is no name. `returns`: another process of the same user may go on with it."""
    if len(name) > MAX_NAME:
        raise invalid(f"the name of a producer has at most {MAX_NAME} bytes")
    if not returns:
        return ProducerStream(_PREFIX + name.hex().encode())
    caller = CALLER.get()
    user = b"" if caller is None else caller.user_name
    return ProducerStream(RETURNING + f"{user.hex()}/{name.hex()}".encode())


def replaced() -> RequestError:
    """Why a stream ends whose producer has another one."""
    return invalid("the producer has opened another stream")
