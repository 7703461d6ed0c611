"""Bulk reads of a gateway: reads that may return megabytes and need no order.

Each is a gRPC call of its own, over a connection of its own, so that outcomes and commits on the link do not wait
behind them. While that connection is not there, they are asked over the link, which waits for the store.

At a node of a cluster that does not lead, the node's own copy of the log is asked first (`own_copy`).

A request has the gateway's producer in its metadata. Its body is the number of a method (u8) and the arguments in
MessagePack. An answer is 1 (u8) and the result in MessagePack, or 0 and the error.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
import grpc.aio
import msgspec

from store.remote.calls import Method, RemoteCalls, encode
from store.remote.faults import RemoteFault, error_of
from store.remote.own_copy import OwnCopy
from store.remote.wire import READ

PRODUCER: Final = "sluice-producer-bin"  # metadata of a request
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
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] | None = None
        self._producer = b""

    def attach(self, channel: grpc.aio.Channel, producer: bytes, *, is_beside: bool) -> None:
        """Use a connection to the store. is_beside: it is that of this gateway's own node."""
        self._call, self._producer, self._is_beside = channel.unary_unary(READ, None, None), producer, is_beside

    def detach(self) -> None:
        """The connection is about to be closed."""
        self._call = None

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
        if self._call is None:
            return None
        try:
            return await self._call(body, metadata=((PRODUCER, self._producer),))
        except grpc.aio.AioRpcError:
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return None  # the connection was closed
