"""One Produce stream: appends the records of each request and answers after their commit.

The rules of the file:

* A result means that the records are committed. One reply has the results of all requests that are ready.
* Records are appended in the order of the stream. After an append fails for a temporary reason, nothing more is
  appended. The stream answers the committed requests and ends with a status. The client sends the rest again.
* If a named producer (`producers`) sends stored records again, the answer has no positions and nothing is
  appended.
* Memory is bounded: the stream is not read while too many requests or bytes are unanswered.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import grpc.aio

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.observe.service_clients import CLIENT
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.messages import MessageCheck
from gateway.rpc.producing.producers import ProducerStream, producer_of, replaced
from gateway.rpc.status import RequestError, abort, invalid
from store import control
from store.api import Appended, Store
from store.errors import RecordTooLarge, StoreError

_MAX_FAULTS: Final = 10  # in one error text


class ProduceStream:
    """One Produce stream. `run` returns when the client closes it, or aborts the call with a status."""

    __slots__ = (
        "_check",
        "_client",
        "_ends",
        "_failure",
        "_limits",
        "_producer",
        "_progress",
        "_reader",
        "_results",
        "_returns",
        "_store",
        "_streams",
        "_unanswered",
        "_unanswered_bytes",
    )

    def __init__(
        self, store: Store, limits: RpcLimits, check: MessageCheck, streams: "dict[bytes, ProduceStream]"
    ) -> None:
        self._store = store
        self._client = CLIENT.get()
        self._streams = streams  # of named producers, by name
        self._producer: ProducerStream | None = None
        self._returns = False  # another process may repeat the work with the same sequence numbers
        self._ends = False  # the client sends nothing again after this stream
        self._limits = limits
        self._check = check
        self._results: list[pb.ProduceResult] = []  # ready to be written
        self._unanswered = 0  # requests that were appended and are not committed
        self._unanswered_bytes = 0
        self._progress = asyncio.Event()  # results are ready, or the reader has finished
        self._failure: StoreError | RequestError | None = None
        self._reader: asyncio.Task[None] | None = None

    async def run(
        self,
        requests: AsyncIterator[pb.ProduceRequest],
        context: "grpc.aio.ServicerContext[pb.ProduceRequest, pb.ProduceReply]",
    ) -> None:
        self._reader = reader = asyncio.create_task(self._read(requests))
        reader.add_done_callback(lambda _: self._progress.set())
        try:
            await self._write(reader, context)
        finally:
            reader.cancel()
            if self._producer is not None and self._streams.get(self._producer.name) is self:
                del self._streams[self._producer.name]
        if not reader.cancelled() and (fault := reader.exception()) is not None:
            raise fault
        if self._failure is not None:
            await abort(context, self._failure)
        if self._producer is not None and self._ends:  # without `ends`, the connection may have broken
            self._store.append([control.ProducerEnded().frame(self._producer.name)], _ignore)

    def stop(self, reason: RequestError) -> None:
        """Stop reading requests, answer those that were appended and end the stream with `reason`."""
        self._fail(reason)

    async def _read(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        # Reading suspends for at least one turn of the event loop. If an append fails at once, the failure is known
        # before the next request is handled.
        is_first = True
        async for request in requests:
            if self._failure is not None:
                return
            if is_first and request.producer and not await self._attach(request):
                return
            is_first = False
            self._ends = self._ends or request.ends
            await self._append(request)
            while self._is_full():
                self._progress.clear()
                await self._progress.wait()

    async def _attach(self, request: pb.ProduceRequest) -> bool:
        """Make this the stream of the producer that the request names. Returns False if that failed."""
        try:
            producer = producer_of(request.producer, request.returns)
            older = self._streams.get(producer.name)
            if older is not None:
                older.stop(replaced())
            self._streams[producer.name] = self
            self._producer = producer
            self._returns = request.returns
            if request.again:
                await producer.recall(self._store)
        except (StoreError, RequestError) as error:
            self._failure = error
            return False
        return True

    async def _write(
        self, reader: "asyncio.Task[None]", context: "grpc.aio.ServicerContext[pb.ProduceRequest, pb.ProduceReply]"
    ) -> None:
        while True:
            if self._results:
                results, self._results = self._results, []
                await context.write(pb.ProduceReply(results=results))
                self._progress.set()  # wakes the reader if it was full
            elif reader.done() and not self._unanswered:
                return
            else:
                self._progress.clear()
                await self._progress.wait()

    def _is_full(self) -> bool:
        """Whether reading must pause. Unsent results count too: a client that reads no replies is not read either."""
        limits = self._limits
        return (
            self._unanswered + len(self._results) >= limits.max_unacknowledged_requests
            or self._unanswered_bytes >= limits.max_unacknowledged_bytes
        )

    async def _append(self, request: pb.ProduceRequest) -> None:
        # If the stream fails while a large request is checked, `_fail` cancels the reader: nothing is appended then.
        try:
            frames = record.check_unsealed(request.frames)
        except ValueError as error:
            self._refuse(request.sequence, f"frames: {error}")
            return
        if len(frames) > self._limits.max_request_records:
            error_text = f"{len(frames)} records in one request, the limit is {self._limits.max_request_records}"
            self._refuse(request.sequence, error_text)
            return
        result = pb.ProduceResult(sequence=request.sequence)
        try:
            frames = await self._accepted(request, frames, result)
        except RequestError as error:
            self._fail(error)
            return
        if not frames:
            self._answer(result)
            return
        if self._producer is not None:
            frames = self._producer.framed(request.sequence, frames, request.digest)
        size = len(request.frames)
        self._unanswered += 1
        self._unanswered_bytes += size
        self._store.append(frames, partial(self._appended, result, size))

    async def _accepted(self, request: pb.ProduceRequest, frames: list[bytes], result: pb.ProduceResult) -> list[bytes]:
        """The frames of a request that are to be stored. Raises `RequestError` if work that may be repeated has an
        invalid one."""
        first = 0
        if self._returns:  # rules and schemas may be stricter now than when the work was done before
            count = len(frames)
            frames = self._rest(request, frames, result)
            first = count - len(frames)
        faults = await self._check.faults(frames)
        if faults and self._returns:
            texts = (f"message {first + index}: {reason}" for index, reason in faults[:_MAX_FAULTS])
            raise invalid("; ".join(texts))
        if faults:
            result.rejected.extend(pb.Rejection(index=index, reason=reason) for index, reason in faults)
            wrong = {index for index, _ in faults}
            frames = [frame for index, frame in enumerate(frames) if index not in wrong]
        return frames if self._returns else self._rest(request, frames, result)

    def _rest(self, request: pb.ProduceRequest, frames: list[bytes], result: pb.ProduceResult) -> list[bytes]:
        """The frames of a request that are not stored yet. Raises `RequestError` if other messages were stored."""
        if self._producer is None or not frames:
            return frames
        rest = self._producer.rest(request.sequence, frames, request.digest)
        if len(rest) < len(frames):
            result.was_stored = True
            result.stored_to = self._producer.last
        return rest

    def _appended(self, result: pb.ProduceResult, size: int, appended: Appended) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= size
        error = appended.error
        if error is None:
            if self._client is not None:
                self._client.published(len(appended.positions) - (self._producer is not None))
            if not result.was_stored:
                result.positions.extend(appended.positions[1:] if self._producer is not None else appended.positions)
                result.store_time = appended.store_time
            self._answer(result)
        elif isinstance(error, RecordTooLarge):
            self._refuse(result.sequence, str(error))
        else:
            self._fail(error)

    def _refuse(self, sequence: int, error: str) -> None:
        """Answer a request with an error. If the producer's work may be repeated, end the stream instead."""
        # Repeated work counts everything up to the last stored sequence as stored, so no request may be skipped.
        if self._returns:
            self._fail(invalid(error))
        else:
            self._answer(pb.ProduceResult(sequence=sequence, error=error))

    def _answer(self, result: pb.ProduceResult) -> None:
        self._results.append(result)
        self._progress.set()

    def _fail(self, reason: StoreError | RequestError) -> None:
        if self._failure is None:
            self._failure = reason
        if self._reader is not None:
            self._reader.cancel()
        self._progress.set()


def _ignore(_: Appended) -> None:
    """The callback of a record that nobody waits for."""
