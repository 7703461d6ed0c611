"""Bulk reads of a gateway: reads that may return megabytes and need no order.

Each is a request of its own, over a second connection, so that outcomes and commits on the link do not wait
behind them. While that connection is not there, they are asked over the link, which waits for the store.

At a node of a cluster that does not lead, the node's own copy of the log is asked first (`own_copy`).

A request is the gateway's producer and a question, in MessagePack; the question is the number of a method (u8) and the
arguments in MessagePack. An answer is 1 (u8) and the result in MessagePack, or 0 and the error.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from store.remote.client.own_copy import OwnCopy
from store.remote.transport.requests import Refused, Requester
from store.remote.wire.calls import Method, RemoteCalls, encode
from store.remote.wire.faults import RemoteFault, error_of
from store.remote.wire.frames import FrameKind

_decode_fault: Final = msgspec.msgpack.Decoder(RemoteFault).decode

Ask = Callable[[Method, tuple[object, ...]], Awaitable[object]]


class RemoteBulkReads(RemoteCalls):
    """`store.api.BulkReads` of a store in another process."""

    def __init__(self, ask_in_order: Ask, limit: int, copy: OwnCopy | None) -> None:
        """ask_in_order: calls a method over the link. limit: of open reads. copy: of this gateway's own node."""
        self._ask_in_order = ask_in_order
        self._copy = copy
        self._is_beside = False  # the store is that of this gateway's own node
        self._room = asyncio.Semaphore(limit)
        self._requester: Requester | None = None
        self._producer = b""

    def attach(self, requester: Requester, producer: bytes, *, is_beside: bool) -> None:
        """Ask a store. is_beside: it is that of this gateway's own node."""
        self._requester, self._producer, self._is_beside = requester, producer, is_beside

    def detach(self) -> None:
        """Close the connection."""
        if self._requester is not None:
            self._requester.close()
            self._requester = None

    async def _ask(self, method: Method, arguments: tuple[object, ...]) -> object:
        async with self._room:
            body = bytes([method.number]) + encode(arguments)
            if self._copy is not None and not self._is_beside:
                answer = await self._copy.ask(method, arguments, body)
                if answer is not None:
                    return method.result.decode(answer)
            answer = await self._read(body)
        if answer is None:
            return await self._ask_in_order(method, arguments)
        if answer[:1] == b"\0":
            raise error_of(_decode_fault(answer[1:]))
        return method.result.decode(memoryview(answer)[1:])

    async def _read(self, body: bytes) -> bytes | None:
        """The answer; None if the store cannot be reached this way."""
        if self._requester is None:
            return None
        try:
            return await self._requester.ask(FrameKind.READ, encode((self._producer, body)))
        except (OSError, Refused):
            return None
