"""A member of a group on the wire: batches in, settlements out, over one stream after the other.

The rules of the file:

* What is settled goes along with the request for the next batch; by itself where none is asked for in the same turn of
  the loop, and then what comes meanwhile gathers until it is answered.
* What a stream that broke has not answered is sent again on the next one: settled twice is settled.
* Whoever waits may be cancelled: a batch that nobody waits for is told to stop, and what comes of it all the same is
  for who asks next. Requests are written by tasks of their own, in order.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias, TypeVar

import grpc.aio

from cloud_sdk.connection import ANSWER_S, NodeConnection, Retry, is_transient
from cloud_sdk.errors import ClientClosed, InvalidArgument, SluiceError, Unavailable, stream_error
from cloud_sdk.leases import Lease, Settlement, leases_of, milliseconds, postponed, runs_of
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.tasks import is_cancelled

_MAX_SENT: Final = 16_384  # of a kind, in one request
_MAX_UNSETTLED: Final = 16_384  # settlements that are not answered; beyond it no more messages are taken
_CLOSING_S: Final = 1.0  # for the node to end a stream that the member is done with
_NOTHING: Final = Settlement([], [])

Answer = TypeVar("Answer")
_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ConsumeRequest, pb.ConsumeReply]"


class ReceivedBatch(NamedTuple):
    """A batch."""

    runs: Sequence[pb.Run]
    frames: bytes
    time: float  # loop time when it came


class _Request:
    """One that is not answered."""

    __slots__ = ("answer", "is_repeated", "settlement")

    def __init__(
        self, settlement: Settlement, answer: "asyncio.Future[list[Lease]] | None" = None, *, is_repeated: bool = True
    ) -> None:
        self.settlement = settlement
        self.answer = answer  # of who waits for it: what was expired
        self.is_repeated = is_repeated  # when its stream breaks


class MemberStream:
    """Of one group, for one task that receives, and any that settle."""

    def __init__(self, connection: NodeConnection, request: pb.ReceiveRequest) -> None:
        """request: whose it is, and what it receives."""
        self._connection = connection
        self._member = request
        self._call: _Call | None = None
        self._is_begun = False  # the node has been told whose the stream is
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._number = 0  # of requests
        self._requests: dict[int, _Request] = {}  # of this stream that settle something, or that somebody waits for
        self._wanted: asyncio.Future[ReceivedBatch] | None = None  # a batch that was asked for, until somebody has it
        self._writes: set[asyncio.Task[None]] = set()  # under way: whoever is cancelled does not break the stream
        self._done: list[Lease] = []
        self._again: list[tuple[Lease, int | None]] = []
        self._sender: asyncio.Task[None] | None = None
        self._is_due = False  # the sender is looked after in the next turn of the loop
        self._flushes = 0  # under way
        self._failure: SluiceError | None = None
        self._late = 0  # acknowledgements that found no lease
        self._is_closing = False  # nothing is wanted any more
        self._closed = False

    @property
    def _unsent(self) -> int:
        return len(self._done) + len(self._again)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be settled that it has to be before anything else."""
        unanswered = sum([len(each.settlement.done) + len(each.settlement.again) for each in self._requests.values()])
        return self._unsent + unanswered >= _MAX_UNSETTLED

    def settle(self, done: Iterable[Lease], again: Iterable[Lease], delay_seconds: float | None) -> None:
        """Finish messages, and have others come again: in the background."""
        delay = milliseconds(delay_seconds) if delay_seconds else delay_seconds
        self._done += done
        self._again += [(lease, delay if delay is None else int(delay)) for lease in again]
        if self._unsent and not self._is_due and not self._is_sending:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_due)

    async def receive(self, wait_s: float) -> ReceivedBatch:
        """A batch, empty where nothing came in time. Raises `SluiceError` where trying again does not help, or did not
        for too long."""
        retry = Retry(self._connection.retry_seconds)
        while True:
            try:
                return await self._batch(wait_s)
            except asyncio.CancelledError:
                self._want_no_more()
                raise
            except SluiceError as error:
                if not is_transient(error) or not await retry.pause():
                    raise

    async def extend(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        """Returns those that are not held any more."""
        lost: list[Lease] = []
        for at in range(0, len(leases), _MAX_SENT):
            some = leases[at : at + _MAX_SENT]
            again: list[tuple[Lease, int | None]] = [(each, milliseconds(seconds)) for each in some]
            retry = Retry(self._connection.retry_seconds)
            while True:
                try:
                    lost += await self._ask(Settlement([], again), is_repeated=False)
                    break
                except SluiceError as error:
                    if not is_transient(error) or not await retry.pause():
                        raise
        return lost

    async def flush(self) -> int:
        """Wait until all that was settled is answered. Returns how much of it came too late."""
        self._flushes += 1
        try:
            while self._failure is None and (self._unsent or self._unanswered or self._is_sending):
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
        """Give back what nobody took, `flush`, and end the stream. Cancelled, it ends the stream at once."""
        self._is_closing = True
        try:
            wanted = self._wanted
            if wanted is not None:
                self._want_no_more()
                await asyncio.wait((wanted,), timeout=ANSWER_S)
                if wanted.done() and wanted.exception() is None:
                    self.settle((), leases_of(wanted.result().runs), 0.0)
            await self.flush()
        except asyncio.CancelledError:
            if self._sender is not None:
                self._sender.cancel()
            raise
        finally:
            self._closed = True  # from here on the stream ends with what is settled: nobody waits for a batch
            await self._hang_up()

    def raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @property
    def _is_sending(self) -> bool:
        return self._sender is not None and not self._sender.done()

    @property
    def _unanswered(self) -> bool:
        return any(each.is_repeated for each in self._requests.values())

    async def _batch(self, wait_s: float) -> ReceivedBatch:
        wanted = self._wanted
        if wanted is None:
            if self._is_closing:
                raise ClientClosed("the consumer is closed")
            self._call = self._call or self._open()  # nothing is wanted or taken where there can be none
            wanted = self._wanted = asyncio.get_running_loop().create_future()
            settlement = self._take()  # goes along: a request for each would cost the node more
            self._send(_Request(settlement), pb.ConsumeRequest(wants=True, wait_ms=int(wait_s * 1_000)))
        await self._wait_for(wanted, wait_s + ANSWER_S)
        if self._wanted is wanted:
            self._wanted = None
        return wanted.result()

    def _want_no_more(self) -> None:
        if self._wanted is not None and not self._wanted.done() and self._call is not None:
            self._send(_Request(_NOTHING), pb.ConsumeRequest(stops=True))

    async def _ask(self, settlement: Settlement, *, is_repeated: bool) -> list[Lease]:
        """Settle, and wait for the answer: what was expired. All that was sent before is answered then as well."""
        answer: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()
        self._send(_Request(settlement, answer, is_repeated=is_repeated), pb.ConsumeRequest())
        await self._wait_for(answer, ANSWER_S)
        return answer.result()

    async def _wait_for(self, answer: "asyncio.Future[Answer]", timeout: float) -> None:
        """Wait until it is there, or it is said why it is not."""
        await asyncio.wait((answer,), timeout=timeout)
        if not answer.done():
            reason = Unavailable(f"the node did not answer within {timeout:g} s")
            if self._call is not None:
                self._broke(self._call, reason)
            _fail(answer, reason)

    def _send(self, request: _Request, message: pb.ConsumeRequest) -> None:
        call = self._call = self._call or self._open()
        if not self._is_begun:
            self._is_begun = True
            message.member.CopyFrom(self._member)
        self._number += 1
        message.number = self._number
        message.done.extend(runs_of(request.settlement.done))
        message.again.extend(postponed(request.settlement.again))
        if request.answer is not None or request.settlement.done or request.settlement.again:
            self._requests[self._number] = request
        write = asyncio.create_task(self._write(call, message))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def _write(self, call: _Call, message: pb.ConsumeRequest) -> None:
        try:
            async with self._writing:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._broke(call, await stream_error(call))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._broke(call, self._reason_of_cancelled())

    def _reason_of_cancelled(self) -> SluiceError:
        """gRPC cancels the calls of a channel that is closed."""
        return (
            ClientClosed("the client is closed") if self._connection.is_closed else Unavailable("the stream was ended")
        )

    def _open(self) -> _Call:
        """Raises `SluiceError` where there can be no stream."""
        call: _Call = self._connection.stub.Consume(None, metadata=self._connection.metadata)
        self._is_begun = False
        self._reader = asyncio.create_task(self._read(call))
        return call

    async def _read(self, call: _Call) -> None:
        try:
            async for reply in call:
                if call is not self._call:
                    return
                self._heard(reply)
            reason = await stream_error(call)
        except grpc.aio.AioRpcError:
            reason = await stream_error(call)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            reason = self._reason_of_cancelled()
        self._broke(call, reason)

    def _heard(self, reply: pb.ConsumeReply) -> None:
        for settled in reply.settled:
            request = self._requests.pop(settled.number, None)
            if request is not None:
                self._settled(request, settled)
        if reply.HasField("batch") and self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(ReceivedBatch(reply.runs, reply.frames, asyncio.get_running_loop().time()))

    def _settled(self, request: _Request, settled: pb.Settled) -> None:
        done = request.settlement.done
        expired = leases_of(settled.expired)
        if expired:
            self._late += len(set(done).intersection(expired))
        if settled.error and request.answer is None:
            self._failure = InvalidArgument(settled.error)
        elif settled.error and request.answer is not None:
            _fail(request.answer, InvalidArgument(settled.error))
        elif request.answer is not None and not request.answer.done():
            request.answer.set_result(expired)

    def _broke(self, call: _Call, reason: SluiceError) -> None:
        """Nothing more is heard of a stream."""
        if call is not self._call:
            return
        self._call = None
        call.cancel()
        requests, self._requests = self._requests, {}
        wanted, self._wanted = self._wanted, None
        for request in requests.values():
            if request.is_repeated and is_transient(reason):
                self._repeat(request.settlement)
            elif request.answer is None and wanted is None:
                self._failure = reason
            if request.answer is not None:
                _fail(request.answer, reason)
        if wanted is not None:
            _fail(wanted, reason)

    def _repeat(self, settlement: Settlement) -> None:
        """Nobody knows whether this arrived: send it again."""
        self._again += settlement.again
        self.settle(settlement.done, (), 0.0)

    def _take(self) -> Settlement:
        """What is to be sent next."""
        if not self._done and not self._again:
            return _NOTHING
        settlement = Settlement(self._done[:_MAX_SENT], self._again[:_MAX_SENT])
        self._done, self._again = self._done[_MAX_SENT:], self._again[_MAX_SENT:]
        return settlement

    def _send_due(self) -> None:
        self._is_due = False
        if self._unsent and not self._is_sending:
            self._sender = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Until nothing is left that is not sent, or not answered where somebody waits for that."""
        retry = Retry(self._connection.retry_seconds)
        while self._unsent or (self._flushes and self._unanswered):
            try:
                await self._ask(self._take(), is_repeated=True)
                retry.succeeded()
            except SluiceError as error:
                if not is_transient(error) or not await retry.pause():
                    self._failure = error
                    if is_transient(error):
                        self._done, self._again = [], []  # their messages come again
                    return
            if self._closed and not self._unsent:
                await self._hang_up()  # others may settle more meanwhile

    async def _hang_up(self) -> None:
        """End the stream: nothing is left to be said."""
        call, self._call = self._call, None
        self._requests = {}
        if call is not None and self._reader is not None:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with self._writing:
                    await call.done_writing()
                await asyncio.wait((self._reader,), timeout=_CLOSING_S)
            call.cancel()
            await asyncio.wait((self._reader, *self._writes), timeout=_CLOSING_S)


def _fail(answer: "asyncio.Future[Answer]", reason: SluiceError) -> None:
    if not answer.done():
        answer.set_exception(reason)
        answer.exception()  # which nobody may wait for
