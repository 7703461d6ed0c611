"""Transactions: messages that nobody gets before what they tell of has been done, or has not.

The messages are stored as *halves*, then the local work is done, then they are committed or rolled back together. If
the process dies in between, the node asks those that are left of the same name (`TransactionChecks`), again and again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Unpack

import grpc.aio

from cloud_sdk.closing import called_from_handler_of, enter_handler
from cloud_sdk.connection import NodeConnection, Retry, is_transient
from cloud_sdk.errors import SluiceError, TransactionEnded, Unavailable, from_rpc
from cloud_sdk.message import STORED, Message, OutgoingMessage, Receipt, SendOptions
from cloud_sdk.producer import Producer
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.tasks import is_cancelled

logger = logging.getLogger(__name__)


class Decision(Enum):
    """What became of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"  # ask again later


Checker = Callable[[Message], Awaitable[Decision]]


class Transaction:
    """An async context manager: it commits where its block ends, and rolls back where that raises."""

    def __init__(self, connection: NodeConnection, producer: Producer, publisher: bytes, running: set[int]) -> None:
        self._connection = connection
        self._producer = producer
        self._publisher = publisher
        self._running = running  # halves of the client whose transactions are not over
        self._handles: list[int] = []
        self._ended = False

    async def __aenter__(self) -> "Transaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if kind is None:
            await self.commit()
            return
        with suppress(SluiceError):  # the node asks, where this does not arrive
            await self.rollback()

    @property
    def handles(self) -> Sequence[int]:
        """The ids of its messages: their positions in the log."""
        return self._handles

    async def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """Store a message that is delivered when the transaction is committed. See `Client.send`."""
        return (await self.send_many((OutgoingMessage(topic, payload, **options),)))[0]

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store messages that are delivered, in this order, when the transaction is committed."""
        if self._ended:
            raise TransactionEnded("the transaction is over")
        receipts = await self._producer.send([each.frame(self._publisher, half=True) for each in messages])
        handles = [receipt.position for receipt in receipts if receipt != STORED]
        self._handles += handles
        self._running.update(handles)
        if len(handles) < len(receipts):
            await self._end(commit=False)
            raise Unavailable("the connection broke, and where a message of the transaction is nobody knows")
        return receipts

    async def commit(self) -> None:
        """Have the messages delivered. Raises `TransactionEnded` where some of them do not wait for it any more."""
        await self._end(commit=True)

    async def rollback(self) -> None:
        """Have the messages never delivered."""
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        if self._ended:
            raise TransactionEnded("the transaction is over")
        self._ended = True
        try:
            missing = await end(self._connection, self._handles, commit=commit)
        finally:
            self._running.difference_update(self._handles)
        if missing and commit:
            raise TransactionEnded(
                f"{len(missing)} of {len(self._handles)} messages had an end already: by a checker, by too many checks"
                " without an answer, or by an earlier attempt of this call whose answer was lost"
            )


class TransactionChecks:
    """Answers the node for a client's name, while it is open: an async context manager."""

    def __init__(self, connection: NodeConnection, name: str, checker: Checker, running: set[int]) -> None:
        self._connection = connection
        self._name = name
        self._checker = checker
        self._running = running
        self._task: asyncio.Task[None] | None = None
        self._is_last = False  # the check that runs

    async def __aenter__(self) -> "TransactionChecks":
        self._connection.resources.add(self)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Answer no more: the node asks others of the name. A checker that runs is cancelled. In a checker it returns
        at once, and the end comes when that is answered."""
        if self.is_called_from_handler:
            self._is_last = True
            return
        if self._task is not None:
            if not self._is_last:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._connection.resources.discard(self)

    @property
    def is_called_from_handler(self) -> bool:
        """Whether its checker asks, or what that has started."""
        return called_from_handler_of((self,))

    def stop_waiting(self, *, for_node: bool) -> None:  # noqa: ARG002  of `Resource`
        """Have a `close` that goes on stop the checker."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        enter_handler(self)
        retry = Retry()
        while True:
            request = pb.TransactionChecksRequest(publisher=self._name)
            call = self._connection.stub.TransactionChecks(request, metadata=self._connection.metadata)
            try:
                async for check in call:
                    retry.succeeded()
                    await self._answer(check)
                    if self._is_last:
                        self._connection.resources.discard(self)
                        return
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc(rpc_error)
                if not is_transient(error):
                    logger.error("transactions of %s are not checked any more: %s", self._name, error)
                    return
            finally:
                call.cancel()
            await retry.pause()

    async def _answer(self, check: pb.TransactionCheck) -> None:
        if check.handle in self._running:
            return  # this client is about to end it
        try:
            decision = await self._checker(Message(check.frame, 0, -1, -1))
            if decision is not Decision.UNKNOWN:
                await end(self._connection, [check.handle], commit=decision is Decision.COMMIT)
        except SluiceError as error:
            logger.warning("the end of a transaction could not be told, and is asked for again: %s", error)
        except (Exception, asyncio.CancelledError):  # the second also of what a checker waits for
            if is_cancelled():
                raise
            logger.exception("a transaction checker failed, and is asked again")


async def end(connection: NodeConnection, handles: Sequence[int], *, commit: bool) -> list[int]:
    """End half messages. Returns those that do not wait for it."""
    if not handles:
        return []
    request = pb.EndTransactionRequest(handles=handles, commit=commit)
    return list((await connection.call(connection.stub.EndTransaction, request)).missing)
