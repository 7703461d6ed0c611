"""Transactions: messages that are delivered if and only if some local work was done.

The messages are stored as *half* messages, then the local work is done, then they are committed or rolled back
together. If the process dies in between, the node asks other clients of the same name for the outcome
(`TransactionChecks`).
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self, Unpack

import grpc.aio

import record
from cloud_sdk.errors import InvalidArgument, MessagesRejected, SluiceError, TransactionEnded, Unavailable
from cloud_sdk.lifetime.closing import HandlerCaller, enter_handler
from cloud_sdk.lifetime.tasks import is_cancelled
from cloud_sdk.message import STORED, Message, OutgoingMessage, Receipt, SendOptions
from cloud_sdk.producing.producer import Producer
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.transport.connection import NodeConnection, Retry, is_transient
from cloud_sdk.transport.status import from_rpc

logger = logging.getLogger(__name__)


class Decision(Enum):
    """The outcome of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"  # ask again later


Checker = Callable[[Message], Awaitable[Decision]]


class Transaction:
    """An async context manager. It commits at the end of its block, and rolls back if the block raises."""

    def __init__(self, connection: NodeConnection, producer: Producer, publisher: bytes, open_halves: set[int]) -> None:
        self._connection = connection
        self._producer = producer
        self._publisher = publisher
        self._open_halves = open_halves  # half messages of the client's open transactions
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
        with suppress(SluiceError):  # if it does not arrive, the node asks for the outcome
            await self.rollback()

    @property
    def handles(self) -> Sequence[int]:
        """The ids of the half messages: their positions in the log."""
        return self._handles

    async def send(self, topic: str, payload: bytes, **options: Unpack[SendOptions]) -> Receipt:
        """Store a message that is delivered if the transaction is committed. See `Client.send`."""
        return (await self.send_many((OutgoingMessage(topic, payload, **options),)))[0]

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[Receipt]:
        """Store messages that are delivered, in this order, if the transaction is committed. Raises `TransactionEnded`,
        and `Unavailable` if the connection broke: the transaction is rolled back then. Raises `MessagesRejected`: all
        others are part of the transaction."""
        if self._ended:
            raise TransactionEnded("the transaction is over")
        frames = [each.frame(self._publisher, half=True) for each in messages]
        try:
            receipts = await self._producer.send(frames)
        except MessagesRejected as error:
            await self._stored(error.positions, len(frames) - len(error.reasons))
            raise
        await self._stored([each.position for each in receipts if each != STORED], len(frames))
        return receipts

    async def _stored(self, handles: Sequence[int], count: int) -> None:
        """Note the handles of stored messages. Rolls the transaction back, and raises `Unavailable`, if there are fewer
        than messages."""
        self._handles += handles
        self._open_halves.update(handles)
        if len(handles) < count:
            await self._end(commit=False)
            raise Unavailable(
                "the connection broke, so the id of a message is not known: the transaction is rolled back"
            )

    async def commit(self) -> None:
        """Have the messages delivered. Raises `TransactionEnded` if some of them were ended before."""
        await self._end(commit=True)

    async def rollback(self) -> None:
        """Drop the messages: they are never delivered."""
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        if self._ended:
            raise TransactionEnded("the transaction is over")
        self._ended = True
        try:
            missing = await end_half_messages(self._connection, self._handles, commit=commit)
        finally:
            self._open_halves.difference_update(self._handles)
        if missing and commit:
            raise TransactionEnded(
                f"{len(missing)} of {len(self._handles)} messages were ended before: by a checker, by too many checks"
                " without an answer, or by an earlier attempt of this call whose answer was lost"
            )


class TransactionChecks(HandlerCaller):
    """An async context manager. While it is open, it answers the node's checks for the client's name."""

    def __init__(self, connection: NodeConnection, name: str, checker: Checker, open_halves: set[int]) -> None:
        # A plain function would fail at each check, until the node rolls the transaction back.
        if not (inspect.iscoroutinefunction(checker) or inspect.iscoroutinefunction(type(checker).__call__)):
            raise InvalidArgument(f"a checker is an async function, not {checker!r}")
        self._connection = connection
        self._name = name
        self._checker = checker
        self._open_halves = open_halves
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False  # `close` was called in the checker: its answer is the last

    async def __aenter__(self) -> Self:
        self._connection.resources.add(self)
        self._task = asyncio.create_task(self._run())
        return self

    async def close(self) -> None:
        """Stop answering: the node asks other clients of the name. A running checker is cancelled. In a checker it
        returns at once, and the checks end after its answer is sent."""
        if self.is_called_from_handler:
            self._is_closing = True
            return
        if self._task is not None:
            if not self._is_closing:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._connection.resources.discard(self)

    def stop_waiting(self, *, for_node: bool) -> None:  # noqa: ARG002 - the protocol is `Resource`
        """Have a running `close` cancel the checker."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        enter_handler(self)
        retry = Retry()
        while True:
            request = pb.TransactionChecksRequest(publisher=self._name)
            stub = self._connection.stub
            call = stub.TransactionChecks(request, metadata=self._connection.metadata)
            try:
                async for check in call:
                    retry.succeeded()
                    await self._answer(check)
                    if self._is_closing:
                        self._connection.resources.discard(self)
                        return
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc(rpc_error)
                if not is_transient(error):
                    logger.error("the transaction checks of %s have ended: %s", self._name, error)
                    return
                self._connection.failed(stub, error)
            finally:
                call.cancel()
            await retry.pause()

    async def _answer(self, check: pb.TransactionCheck) -> None:
        if check.handle in self._open_halves:
            return  # this client has the transaction open, and will end it
        try:
            decision = await self._checker(Message(record.decode_all(check.frame)[0], -1, -1))
            if decision is not Decision.UNKNOWN:
                await end_half_messages(self._connection, [check.handle], commit=decision is Decision.COMMIT)
        except SluiceError as error:
            logger.warning("the outcome of a transaction could not be sent, and the node asks again: %s", error)
        except (Exception, asyncio.CancelledError):  # a checker may also wait for a task that is cancelled
            if is_cancelled():
                raise
            logger.exception("a transaction checker failed, and the node asks again")


async def end_half_messages(connection: NodeConnection, handles: Sequence[int], *, commit: bool) -> list[int]:
    """Commit or roll back half messages. Returns the ids of those that were ended before."""
    if not handles:
        return []
    request = pb.EndTransactionRequest(handles=handles, commit=commit)
    return list((await connection.call(lambda stub: stub.EndTransaction, request)).missing)
