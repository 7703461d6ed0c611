"""Sends from many tasks, gathered on one Produce stream.

The rules of the file:

* All messages that wait when the stream is ready go out as one request: at once if nothing is in flight, in large
  requests if many tasks send.
* Requests are appended in the order in which they were made, also across a reconnect: requests without an answer are
  sent again, in order, before anything new. The node knows the producer and its sequences, and stores each request
  once.
* Memory is bounded: `send` waits while too many bytes are on their way.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

import grpc.aio

from cloud_sdk.errors import ClientClosed, InvalidArgument, MessagesRejected, NodeError, SluiceError, Unavailable
from cloud_sdk.message import STORED, Receipt
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.transport.connection import NodeConnection, Retry, is_transient
from cloud_sdk.transport.status import keep_status, stream_error

MAX_MESSAGE_BYTES: Final = 8 << 20  # a node's limit, as it is configured by default
_TOO_LARGE: Final = f"a message has at most {MAX_MESSAGE_BYTES} bytes, its topic and properties included"
_MAX_REQUEST_BYTES: Final = 512 << 10
_MAX_REQUEST_RECORDS: Final = 2_048
_MAX_IN_FLIGHT: Final = 8  # requests
_MAX_WAITING_BYTES: Final = 32 << 20
_CLOSING_S: Final = 1.0  # for the node to answer the end of the stream


class _PendingSend:
    """Frames of one caller that go out together in one request."""

    __slots__ = ("digest", "frames", "receipts", "sequence", "size")

    def __init__(self, frames: Sequence[bytes], size: int, sequence: int | None, digest: int) -> None:
        self.frames = frames
        self.size = size  # bytes
        self.sequence = sequence  # given by an idempotent producer: these frames are a request of their own
        self.digest = digest  # of an idempotent producer; 0: none
        self.receipts: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()


class _Request:
    """A request, and the callers whose frames it carries."""

    __slots__ = ("message", "sends")

    def __init__(self, sequence: int, sends: list[_PendingSend]) -> None:
        frames = b"".join([frame for pending in sends for frame in pending.frames])
        self.message = pb.ProduceRequest(sequence=sequence, frames=frames, digest=sends[0].digest)
        self.sends = sends


_Call = grpc.aio.StreamStreamCall[pb.ProduceRequest, pb.ProduceReply]


class Producer:
    """The Produce stream of a client. The first send opens it."""

    def __init__(self, connection: NodeConnection, linger_seconds: float = 0.0, name: bytes | None = None) -> None:
        """name: of an idempotent producer, which several processes may use one after the other; None: a name that no
        other producer has."""
        self._connection = connection
        self._linger_s = linger_seconds  # how long a request that is not full waits for more
        self._waiting: deque[_PendingSend] = deque()
        self._waiting_bytes = 0  # without receipts, sent or not
        self._in_flight: dict[int, _Request] = {}  # by sequence, in order
        self._sequence = 0
        self._is_idempotent = name is not None
        self._has_begun = False  # a stream, perhaps at another node: the next one continues the producer
        self._forgets = False  # the node is to forget the producer when the stream ends
        self._failed: SluiceError | None = None  # why nothing more of the unit of work is stored
        self.stored_to = 0  # the last sequence that the node had stored before this stream; 0: not known
        self._name = name or secrets.token_bytes(16)
        self._wake_up = asyncio.Event()  # something to send, an answer came, or the stream broke
        self._capacity = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._closed = False

    async def send(self, frames: Sequence[bytes]) -> list[Receipt]:
        """Store unsealed frames; returns when all are committed. Raises `MessagesRejected` if all are stored but those
        that it names."""
        if len(frames) == 1:
            return await (await self._enqueue(frames, len(frames[0]))).receipts
        return await self._receipts_of([
            await self._enqueue(part, size) if size <= MAX_MESSAGE_BYTES else _too_large(part)
            for part, size in split_requests(frames)
        ])  # fmt: skip

    async def send_numbered(
        self, sequence: int, requests: "Sequence[tuple[Sequence[bytes], int]]", digests: Sequence[int]
    ) -> list[Receipt]:
        """Store unsealed frames as the given requests (`split_requests`), numbered from `sequence` on, each with its
        digest. Requests that were stored before are not stored again. Once a request fails, none behind it is stored:
        the node counts every sequence below a stored one as stored."""
        sends: list[_PendingSend] = []
        try:
            for (part, size), digest in zip(requests, digests, strict=True):
                sends.append(await self._enqueue(part, size, sequence + len(sends), digest))
        except BaseException:
            self._failed = self._failed or InvalidArgument("a part of the unit of work was cancelled: repeat the send")
            raise
        return await self._receipts_of(sends)

    async def forget(self) -> None:
        """Have the node forget the name of this idempotent producer. To be called before any send."""
        self._forgets = True
        await (await self._enqueue((), 0, 0)).receipts

    async def _receipts_of(self, sends: list[_PendingSend]) -> list[Receipt]:
        receipts: list[Receipt] = []
        positions: list[int] = []
        reasons: dict[int, str] = {}
        sent = 0
        outcomes = await asyncio.gather(*(pending.receipts for pending in sends), return_exceptions=True)
        for pending, outcome in zip(sends, outcomes, strict=True):
            if isinstance(outcome, MessagesRejected):
                reasons.update((sent + index, reason) for index, reason in outcome.reasons.items())
                positions += outcome.positions
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                receipts += outcome
                positions += _positions_of(outcome)
            sent += len(pending.frames)
        if reasons:
            raise MessagesRejected(reasons, positions)
        return receipts

    async def close(self, seconds: float | None = None) -> None:
        """Send what waits, then end the stream. Sends without an answer after `seconds` fail with `ClientClosed`; None:
        there is no limit."""
        self._closed = True
        self._wake_up.set()
        self._capacity.set()
        if self._sender is not None:
            _, late = await asyncio.wait((self._sender,), timeout=seconds)
            if late:
                self.stop_waiting(for_node=True)
                await asyncio.wait((self._sender,))
        if self._is_idempotent:
            self._connection.resources.discard(self)

    def stop_waiting(self, *, for_node: bool) -> None:
        """Have a running `close` give up on answers of the node, if `for_node`."""
        if not for_node:
            return
        self._closed = True
        self._fail(ClientClosed("the client was closed before the node answered: the message may be stored or not"))
        if self._sender is not None:
            self._sender.cancel()

    async def _enqueue(
        self, frames: Sequence[bytes], size: int, sequence: int | None = None, digest: int = 0
    ) -> _PendingSend:
        if size > MAX_MESSAGE_BYTES:
            raise InvalidArgument(_TOO_LARGE)
        while self._waiting_bytes and self._waiting_bytes + size > _MAX_WAITING_BYTES and not self._closed:
            self._capacity.clear()
            await self._capacity.wait()
        if self._closed:
            raise ClientClosed("the client is closed")
        if self._failed is not None:
            raise self._failed
        if self._is_idempotent:
            self._connection.resources.add(self)
        pending = _PendingSend(frames, size, sequence, digest)
        self._waiting.append(pending)
        self._waiting_bytes += size
        self._wake_up.set()
        if self._sender is None or self._sender.done():  # done: an unexpected error ended it
            self._sender = asyncio.create_task(self._run())
        return pending

    async def _run(self) -> None:
        retry = Retry(self._connection.retry_seconds)
        while await self._has_work():
            try:
                await self._stream(retry)
            except SluiceError as error:
                if not self._waiting and not self._in_flight:
                    retry.succeeded()  # an idle stream may break: the next send opens another one
                elif not is_transient(error) or self._is_abandoned or not await retry.pause():
                    self._fail(error)
                    retry.succeeded()
            except BaseException:
                self._fail(Unavailable("the sending task was ended"))
                raise

    @property
    def _is_abandoned(self) -> bool:
        """Whether the client is closed, and the callers of all remaining sends were cancelled."""
        sends = (pending for request in self._in_flight.values() for pending in request.sends)
        return self._closed and all(pending.receipts.done() for pending in (*sends, *self._waiting))

    async def _has_work(self) -> bool:
        while not self._waiting and not self._in_flight:
            if self._closed:
                return False
            self._wake_up.clear()
            await self._wake_up.wait()
        return True

    async def _stream(self, retry: Retry) -> None:
        """Send on one stream until the client is closed and every request is answered. Raises `SluiceError` if the
        stream breaks."""
        stub = self._connection.stub
        call = stub.Produce(None, metadata=self._connection.metadata)
        keep_status(call)
        reader = asyncio.create_task(self._read(call, retry))
        reader.add_done_callback(lambda _: self._wake_up.set())
        try:
            is_first = True
            for request in list(self._in_flight.values()):
                message = request.message
                self._introduce(message, is_first, again=is_first)
                is_first = False
                await call.write(message)
            while not reader.done() and not self._is_drained:
                is_first = await self._write_ready(call, is_first)
            if not reader.done():
                if not self._is_idempotent:  # otherwise the node could not tell this end from a broken stream
                    await call.write(pb.ProduceRequest(ends=True))
                await call.done_writing()
                await asyncio.wait((reader,), timeout=_CLOSING_S)
            elif not self._is_drained:
                reader.result()
                raise Unavailable("the node ended the stream")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:  # the second: a write after the stream's end
            reason = await stream_error(call)
            self._connection.failed(stub, reason)
            raise reason from error
        finally:
            call.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    @property
    def _is_drained(self) -> bool:
        return self._closed and not self._waiting and not self._in_flight

    async def _write_ready(self, call: "_Call", is_first: bool) -> bool:
        """Wait until a request may be sent, then send one. Returns whether the next request is the stream's first."""
        if not self._waiting or len(self._in_flight) >= _MAX_IN_FLIGHT:
            self._wake_up.clear()
            await self._wake_up.wait()
            return is_first
        is_full = self._waiting_bytes >= _MAX_REQUEST_BYTES or len(self._waiting) >= _MAX_REQUEST_RECORDS
        # Tasks that send in this turn of the loop, or within the linger time, join the request.
        await asyncio.sleep(0 if is_full else self._linger_s)
        request = self._next_request()
        self._introduce(request.message, is_first, again=is_first and (self._is_idempotent or self._has_begun))
        self._in_flight[request.message.sequence] = request
        await call.write(request.message)
        return False

    def _introduce(self, message: pb.ProduceRequest, is_first: bool, *, again: bool) -> None:
        """Name the producer in the first request of a stream."""
        message.producer = self._name if is_first else b""
        self._has_begun = True
        message.again = again
        message.returns = is_first and self._is_idempotent
        message.ends = is_first and self._forgets

    def _next_request(self) -> _Request:
        sends = [self._waiting.popleft()]
        if sends[0].sequence is not None:
            return _Request(sends[0].sequence, sends)
        size, records = sends[0].size, len(sends[0].frames)
        while self._waiting:
            pending = self._waiting[0]
            size += pending.size
            records += len(pending.frames)
            if size > _MAX_REQUEST_BYTES or records > _MAX_REQUEST_RECORDS:
                break
            sends.append(self._waiting.popleft())
        self._sequence += 1
        return _Request(self._sequence, sends)

    async def _read(self, call: "_Call", retry: Retry) -> None:
        async for reply in call:
            retry.succeeded()
            for result in reply.results:
                request = self._in_flight.pop(result.sequence, None)
                if request is not None:
                    self._on_result(request, result)
            self._wake_up.set()

    def _on_result(self, request: _Request, result: pb.ProduceResult) -> None:
        """Give each caller the receipts, or the error, of its part of the request."""
        self.stored_to = max(self.stored_to, result.stored_to)
        reasons = {each.index: each.reason for each in result.rejected}
        positions = iter(result.positions)
        end = 0
        for pending in request.sends:
            start, end = end, end + len(pending.frames)
            wrong = [index for index in range(start, end) if index in reasons] if reasons else []
            accepted = end - start - len(wrong)
            if result.was_stored:
                receipts = [STORED] * accepted
            else:
                receipts = [Receipt(position, result.store_time) for position in islice(positions, accepted)]
            if result.error:
                self._settle(pending, InvalidArgument(result.error))
            elif wrong:
                faults = {index - start: reasons[index] for index in wrong}
                self._settle(pending, MessagesRejected(faults, _positions_of(receipts)))
            elif len(receipts) < accepted:
                self._settle(pending, NodeError("the node answered for fewer records than it was sent"))
            else:
                self._settle(pending, receipts)

    def _settle(self, pending: _PendingSend, outcome: list[Receipt] | SluiceError) -> None:
        self._waiting_bytes -= pending.size
        self._capacity.set()
        if self._is_idempotent and isinstance(outcome, SluiceError):
            self._failed = self._failed or outcome
        if pending.receipts.done():  # its caller was cancelled
            return
        if isinstance(outcome, SluiceError):
            pending.receipts.set_exception(outcome)
        else:
            pending.receipts.set_result(outcome)

    def _fail(self, error: SluiceError) -> None:
        sends = [pending for request in self._in_flight.values() for pending in request.sends]
        sends += self._waiting
        self._in_flight.clear()
        self._waiting.clear()
        for pending in sends:
            self._settle(pending, error)


def _positions_of(receipts: Sequence[Receipt]) -> list[int]:
    return [each.position for each in receipts if each != STORED]


def _too_large(frames: Sequence[bytes]) -> _PendingSend:
    """A single frame that is larger than nodes take, as if a node had rejected it."""
    pending = _PendingSend(frames, 0, None, 0)
    pending.receipts.set_exception(MessagesRejected({0: _TOO_LARGE}, []))
    pending.receipts.exception()  # no warning if nobody asks, because another frame cannot be sent
    return pending


def split_requests(frames: Sequence[bytes], more: int = 0) -> list[tuple[Sequence[bytes], int]]:
    """Split frames into requests. Returns the frames of each request and their size in bytes. A frame that is larger
    than a request should be is alone in its request. The same frames are always split in the same way.

    more: bytes that are reserved for each frame, beside its own.
    """
    pieces: list[tuple[Sequence[bytes], int]] = []
    start = size = 0
    for index, frame in enumerate(frames):
        room = _MAX_REQUEST_BYTES - more * (index - start + 1)
        if index > start and (size + len(frame) > room or index - start >= _MAX_REQUEST_RECORDS):
            pieces.append((frames[start:index], size))
            start, size = index, 0
        size += len(frame)
    if frames:
        pieces.append((frames[start:], size))
    return pieces
