"""Producers of the SDK: what one of them sends again, because an answer did not arrive, is stored once.

Each append of a producer begins with a PRODUCED record (`docs/format.md`). A stream that begins with what was sent
before asks how far the log has come, when nothing of an older stream can come to it any more.
"""

import asyncio
from typing import Final

from gateway.rpc.status import RequestError, invalid
from gateway.rpc.told import CALLER
from store import control
from store.api import Appended, Store
from store.producing import RETURNING

MAX_NAME: Final = 64  # bytes
_PREFIX: Final = b"sdk/"  # producers that are processes of gateways have other names


class Producer:
    """The producer of one stream."""

    __slots__ = ("_last", "_missing", "name")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self._last = -1  # sequence of what was stored before this stream
        self._missing = 0  # records of that which were not

    async def recall(self, store: Store) -> None:
        """Find out what was stored. Raises `StoreError`."""
        # What an older stream appended, here or at another gateway, is committed before this or never.
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        store.append(
            [control.producer_ended(_PREFIX)], lambda appended: None if answer.done() else answer.set_result(appended)
        )
        error = (await answer).error
        if error is not None:
            raise error
        known = await store.produced(self.name)
        if known is not None:
            self._last, self._missing = known

    def rest(self, sequence: int, frames: list[bytes]) -> list[bytes]:
        """Those of a request's frames that are not stored yet."""
        if sequence > self._last:
            return frames
        return frames[len(frames) - self._missing :] if sequence == self._last and self._missing else []

    def framed(self, sequence: int, frames: list[bytes]) -> list[bytes]:
        """What is appended for frames of a request."""
        return [control.produced(self.name, sequence, len(frames)), *frames]


def producer_of(name: bytes, returns: bool) -> Producer:
    """Raises `RequestError` where it is no name. `returns`: another process of the same user may go on with it."""
    if len(name) > MAX_NAME:
        raise invalid(f"the name of a producer has at most {MAX_NAME} bytes")
    if not returns:
        return Producer(_PREFIX + name.hex().encode())
    caller = CALLER.get()
    user = b"" if caller is None else caller.user_name
    return Producer(RETURNING + f"{user.hex()}/{name.hex()}".encode())


def replaced() -> RequestError:
    """Why a stream ends whose producer has another one."""
    return invalid("the producer has opened another stream")
