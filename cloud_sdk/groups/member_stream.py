"""The stream of a group member to the node: it receives batches, settles messages, and survives broken connections.

The rules of the file:

* Settlements travel with the request for the next batch. If no batch is requested in the same turn of the loop, they
  are sent alone, and later settlements gather until the node has answered.
* Settlements without an answer are sent again if the stream breaks. To settle a message twice changes nothing.
* Callers that wait may be cancelled. The node is then told to stop waiting for a batch, and a batch that comes all the
  same is for the next caller. Requests are written by tasks of their own, in order, so a cancelled caller does not
  break the stream.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

import grpc.aio

from cloud_sdk.errors import ClientClosed, InvalidArgument, SluiceError, Unavailable
from cloud_sdk.groups.leases import (
    Lease,
    Returned,
    Settlement,
    error_text,
    leases_of,
    milliseconds,
    postponed_of,
    runs_of,
)
from cloud_sdk.lifetime.tasks import is_cancelled
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto.sluice_pb2_grpc import SluiceStub
from cloud_sdk.transport.connection import ANSWER_S, NodeConnection, Retry, is_transient
from cloud_sdk.transport.status import keep_status, stream_error

_MAX_SENT: Final = 16_384  # settlements of one kind in one request
_MAX_UNSETTLED: Final = 16_384  # settlements without an answer; beyond it no more messages are received
_CLOSING_S: Final = 1.0  # for the node to end a stream that the member has ended
_NOTHING: Final = Settlement([], [], [])

Answer = TypeVar("Answer")
_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ConsumeRequest, pb.ConsumeReply]"


class ReceivedBatch(NamedTuple):
    """Messages that the node has leased to this member."""

    runs: Sequence[pb.Run]
    frames: bytes
    dead_letters: Sequence[pb.DeadLetter]  # of each message, if they are dead letters
    time: float  # loop time of its arrival


class _Request:
    """A request without an answer."""

    __slots__ = ("answer", "is_repeated", "settlement")

    def __init__(
        self, settlement: Settlement, answer: "asyncio.Future[list[Lease]] | None" = None, *, is_repeated: bool = True
    ) -> None:
        self.settlement = settlement
        self.answer = answer  # leases that had expired; None: no caller waits for it
        self.is_repeated = is_repeated  # whether it is sent again if its stream breaks


class MemberStream:
    """The stream of one group member. One task receives; any number of tasks settle."""

    def __init__(self, connection: NodeConnection, request: pb.ReceiveRequest) -> None:
        """request: the member, and what it receives."""
        self._connection = connection
        self._member = request
        self._call: _Call | None = None
        self._stub: SluiceStub  # of the call
        self._is_introduced = False  # the first request of the stream is written, which names the member
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._number = 0  # of the last request
        self._requests: dict[int, _Request] = {}  # by number: those that settle something, or that a caller waits for
        self._batch: asyncio.Future[ReceivedBatch] | None = None  # requested, and not yet returned to a caller
        self._writes: set[asyncio.Task[None]] = set()
        self._done: list[Lease] = []  # to be sent
        self._again: list[Returned] = []  # to be sent
        self._unseen: list[Lease] = []  # to be sent
        self._sender: asyncio.Task[None] | None = None
        self._is_send_scheduled = False  # for the next turn of the loop
        self._flushes = 0  # callers of `flush`
        self._failure: SluiceError | None = None
        self._late = 0  # acknowledgements that found no lease
        self._is_closing = False  # no batch is requested any more
        self._closed = False

    @property
    def unsent(self) -> int:
        """How many settlements wait to be sent."""
        return len(self._done) + len(self._again) + len(self._unseen)

    @property
    def must_flush(self) -> bool:
        """Whether so many settlements have no answer that they come before the next batch."""
        unanswered = sum([each.settlement.size for each in self._requests.values()])
        return self.unsent + unanswered >= _MAX_UNSETTLED

    def settle(
        self,
        done: Iterable[Lease],
        again: Iterable[Lease],
        delay_seconds: float | None,
        unseen: Iterable[Lease] = (),
        error: str = "",
        is_last: bool = False,
    ) -> None:
        """Acknowledge the leases `done` and give back the leases `again` and `unseen`, in the background. `error` is
        why those in `again` failed; with `is_last` they become dead letters at once. The delivery of those in `unseen`
        does not count."""
        delay = milliseconds(delay_seconds) if delay_seconds else None if delay_seconds is None else 0
        self._done += done
        text = error_text(error) if error else ""
        self._again += [Returned(lease, delay, text, is_last) for lease in again]
        self._unseen += unseen
        if self.unsent and not self._is_send_scheduled and not self._is_sending:
            self._is_send_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_sender)

    async def receive(self, wait_s: float) -> ReceivedBatch:
        """Return a batch, which is empty if none came within `wait_s`. Raises `SluiceError` if trying again does not
        help, or has not helped for `retry_seconds`."""
        retry: Retry | None = None
        while True:
            try:
                return await self._receive(wait_s)
            except asyncio.CancelledError:
                self._stop_request()
                raise
            except SluiceError as error:
                retry = retry or Retry(self._connection.retry_seconds)
                if not is_transient(error) or not await retry.pause():
                    raise

    async def extend(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Extend leases to `seconds` from now. Returns those that had expired."""
        lost: list[Lease] = []
        for start in range(0, len(leases), _MAX_SENT):
            some = leases[start : start + _MAX_SENT]
            again = [Returned(each, milliseconds(seconds)) for each in some]
            retry = Retry(self._connection.retry_seconds)
            while True:
                try:
                    lost += await self._settle_now(Settlement([], again, [], extends=True), is_repeated=False)
                    break
                except SluiceError as error:
                    if not is_transient(error) or not await retry.pause():
                        raise
        return lost

    async def flush(self) -> int:
        """Wait until the node has answered every settlement. Returns how many acknowledgements came too late."""
        self._flushes += 1
        try:
            while self._failure is None and (self.unsent or self._has_unanswered or self._is_sending):
                if not self._is_sending:
                    self._sender = asyncio.create_task(self._send_all())
                assert self._sender is not None
                await asyncio.wait((self._sender,))
        finally:
            self._flushes -= 1
        self.raise_failure()
        late, self._late = self._late, 0
        return late

    async def close(self) -> None:
        """Give back a batch that no caller got, `flush`, and end the stream. If cancelled, end the stream at once."""
        self._is_closing = True
        try:
            batch = self._batch
            if batch is not None:
                self._stop_request()
                await asyncio.wait((batch,), timeout=ANSWER_S)
                if batch.done() and batch.exception() is None:
                    self.settle((), (), 0.0, leases_of(batch.result().runs))
            await self.flush()
        except asyncio.CancelledError:
            if self._sender is not None:
                self._sender.cancel()
            raise
        finally:
            self._closed = True  # from here on the sender ends the stream when it has nothing left to send
            await self._end_stream()

    def raise_failure(self) -> None:
        """Raise the error of settlements that failed in the background, once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @property
    def _is_sending(self) -> bool:
        return self._sender is not None and not self._sender.done()

    @property
    def _has_unanswered(self) -> bool:
        return any(each.is_repeated for each in self._requests.values())

    async def _receive(self, wait_s: float) -> ReceivedBatch:
        batch = self._batch
        if batch is None:
            if self._is_closing:
                raise ClientClosed("the consumer is closed")
            self._call = self._call or self._open()  # before anything is taken from the settlements: it may raise
            batch = self._batch = asyncio.get_running_loop().create_future()
            # Settlements travel with it: requests of their own would cost the node more.
            self._send(_Request(self._pop_settlement()), pb.ConsumeRequest(wants=True, wait_ms=int(wait_s * 1_000)))
        await self._wait_for(batch, wait_s + ANSWER_S)
        if self._batch is batch:
            self._batch = None
        return batch.result()

    def _stop_request(self) -> None:
        """Tell the node to answer the request for a batch with what it has."""
        if self._batch is not None and not self._batch.done() and self._call is not None:
            self._send(_Request(_NOTHING), pb.ConsumeRequest(stops=True))

    async def _settle_now(self, settlement: Settlement, *, is_repeated: bool) -> list[Lease]:
        """Send a settlement and wait for its answer: the leases that had expired. The node answers in order, so older
        settlements are answered by then."""
        answer: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()
        self._send(_Request(settlement, answer, is_repeated=is_repeated), pb.ConsumeRequest())
        await self._wait_for(answer, ANSWER_S)
        return answer.result()

    async def _wait_for(self, answer: "asyncio.Future[Answer]", timeout: float) -> None:
        """Wait until the future has a result or an error. Without either in time, the stream counts as broken."""
        # In place of `asyncio.wait`, which took a tenth of a member's CPU time.
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        wake = partial(_wake, woken)
        timer = loop.call_later(timeout, wake)
        answer.add_done_callback(wake)
        try:
            await woken
        finally:
            timer.cancel()
            answer.remove_done_callback(wake)
        if not answer.done():
            reason = Unavailable(f"the node did not answer within {timeout:g} s")
            if self._call is not None:
                self._on_broken(self._call, reason)
            _fail(answer, reason)

    def _send(self, request: _Request, message: pb.ConsumeRequest) -> None:
        call = self._call = self._call or self._open()
        if not self._is_introduced:
            self._is_introduced = True
            message.member.CopyFrom(self._member)
        self._number += 1
        message.number = self._number
        message.done.extend(runs_of(request.settlement.done))
        message.again.extend(postponed_of(request.settlement))
        if request.answer is not None or request.settlement.size:
            self._requests[self._number] = request
        write = asyncio.create_task(self._write(call, message))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def _write(self, call: _Call, message: pb.ConsumeRequest) -> None:
        try:
            async with self._writing:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._on_broken(call, await stream_error(call))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._on_broken(call, self._cancelled_by_grpc())

    def _cancelled_by_grpc(self) -> SluiceError:
        """The error of a call that gRPC has cancelled, as it does when a channel is closed."""
        return (
            ClientClosed("the client is closed") if self._connection.is_closed else Unavailable("the stream was ended")
        )

    def _open(self) -> _Call:
        """Open a stream. Raises `ClientClosed`, and `InvalidArgument` for files of TLS."""
        stub = self._stub = self._connection.stub
        call: _Call = stub.Consume(None, metadata=self._connection.metadata)
        keep_status(call)
        self._is_introduced = False
        self._reader = asyncio.create_task(self._read(call))
        return call

    async def _read(self, call: _Call) -> None:
        try:
            async for reply in call:
                if call is not self._call:
                    return
                self._on_reply(reply)
            reason = await stream_error(call)
        except grpc.aio.AioRpcError:
            reason = await stream_error(call)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            reason = self._cancelled_by_grpc()
        self._on_broken(call, reason)

    def _on_reply(self, reply: pb.ConsumeReply) -> None:
        for settled in reply.settled:
            request = self._requests.pop(settled.number, None)
            if request is not None:
                self._on_settled(request, settled)
        if reply.HasField("batch") and self._batch is not None and not self._batch.done():
            time = asyncio.get_running_loop().time()
            self._batch.set_result(ReceivedBatch(reply.runs, reply.frames, reply.dead_letters, time))

    def _on_settled(self, request: _Request, settled: pb.Settled) -> None:
        expired = leases_of(settled.expired)
        if expired:
            self._late += len(set(request.settlement.done).intersection(expired))
        if settled.error and request.answer is None:
            self._failure = InvalidArgument(settled.error)
        elif settled.error and request.answer is not None:
            _fail(request.answer, InvalidArgument(settled.error))
        elif request.answer is not None and not request.answer.done():
            request.answer.set_result(expired)

    def _on_broken(self, call: _Call, reason: SluiceError) -> None:
        """Give up a stream: repeat its settlements on the next one, and fail its callers."""
        if call is not self._call:
            return
        self._call = None
        self._connection.failed(self._stub, reason)
        call.cancel()
        requests, self._requests = self._requests, {}
        batch, self._batch = self._batch, None
        for request in requests.values():
            if request.is_repeated and is_transient(reason):
                self._repeat(request.settlement)
            elif request.answer is None and batch is None:
                self._failure = reason
            if request.answer is not None:
                _fail(request.answer, reason)
        if batch is not None:
            _fail(batch, reason)

    def _repeat(self, settlement: Settlement) -> None:
        """Send a settlement again, because it may not have arrived. Leases in `unseen` are left to expire: if it has
        arrived, their next delivery has the same number, and would be given back."""
        self._again += settlement.again
        self.settle(settlement.done, (), 0.0)

    def _pop_settlement(self) -> Settlement:
        """Remove and return the settlements of the next request."""
        if not self.unsent:
            return _NOTHING
        settlement = Settlement(self._done[:_MAX_SENT], self._again[:_MAX_SENT], self._unseen[:_MAX_SENT])
        self._done, self._again = self._done[_MAX_SENT:], self._again[_MAX_SENT:]
        self._unseen = self._unseen[_MAX_SENT:]
        return settlement

    def _start_sender(self) -> None:
        self._is_send_scheduled = False
        if self.unsent and not self._is_sending:
            self._sender = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send settlements until none is left. While a caller flushes, also wait until all are answered."""
        retry: Retry | None = None  # None: the last attempt succeeded
        while self.unsent or (self._flushes and self._has_unanswered):
            try:
                await self._settle_now(self._pop_settlement(), is_repeated=True)
                retry = None
            except SluiceError as error:
                retry = retry or Retry(self._connection.retry_seconds)
                if not is_transient(error) or not await retry.pause():
                    self._failure = error
                    if is_transient(error):
                        self._done, self._again, self._unseen = [], [], []  # their messages come again
                    return
            if self._closed and not self.unsent:
                await self._end_stream()  # more may be settled meanwhile

    async def _end_stream(self) -> None:
        """End the stream, for which nothing is left to send."""
        call, self._call = self._call, None
        self._requests = {}
        if call is not None and self._reader is not None:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with self._writing:
                    await call.done_writing()
                await asyncio.wait((self._reader,), timeout=_CLOSING_S)
            call.cancel()
            await asyncio.wait((self._reader, *self._writes), timeout=_CLOSING_S)


def _wake(woken: "asyncio.Future[None]", _answer: object = None) -> None:
    if not woken.done():
        woken.set_result(None)


def _fail(answer: "asyncio.Future[Answer]", reason: SluiceError) -> None:
    if not answer.done():
        answer.set_exception(reason)
        answer.exception()  # retrieved here: perhaps no caller waits for it any more
