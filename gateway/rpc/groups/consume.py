"""One Consume stream: sends batches to a member of a group and settles the messages that the member names.

The rules of the file:

* One task reads requests and answers them. It sends an available batch before it reads the next request, so a client
  that reads no replies is not read either. A second task waits for a batch if none is available.
* A batch is sent before the log has its leases (`Store.pop`). A settlement is answered after the log has it. Answers
  follow the order of requests. They go out with a batch, or at once if their request asks for no batch.
* Acknowledgements that come with a request for a batch start no flush, while few of them are unanswered. A message
  that is acknowledged so and whose record a crash loses comes again.
* If a batch cannot be sent, its leases are returned.
* An invalid settlement is reported in the answer to its request. Any other error ends the stream after the earlier
  settlements are answered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Final, TypeAlias

import grpc.aio

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.access.rights import PREFIX, Rights
from gateway.rpc.access.visibility import CALLER, require_letters
from gateway.rpc.groups.group_calls import GroupCalls, GroupMember, wire_dead_letters, wire_runs
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.status import UNREADABLE, RequestError, abort, invalid
from store.api import Ordering, PopResult
from store.errors import StoreError

_EMPTY: Final = PopResult([], None, is_limited=False)
_LATE_SHARE: Final = 4  # part of the requests that may be unanswered, beyond which the next one starts a flush
_LATE_MESSAGES: Final = 2_048  # unanswered; far from where a client waits for the answers

Context: TypeAlias = "grpc.aio.ServicerContext[pb.ConsumeRequest, pb.ConsumeReply]"


class _Settlement:
    """A settlement that one request asks for."""

    __slots__ = ("answer", "count", "is_awaited")

    def __init__(self, count: int, is_awaited: bool) -> None:
        self.answer: pb.Settled | None = None  # None until the log has the settlement
        self.count = count  # messages
        self.is_awaited = is_awaited  # the request asks for no batch, so the answer is sent at once


class ConsumeStream:
    """One Consume stream. `run` returns when the client closes it, or aborts the call with a status."""

    __slots__ = (
        "_calls",
        "_context",
        "_failure",
        "_fault",
        "_is_answering",
        "_is_idle",
        "_is_stopped",
        "_limits",
        "_member",
        "_member_request",
        "_progress",
        "_reader",
        "_rights",
        "_settlements",
        "_settling",
        "_waiting",
        "_writing",
    )

    def __init__(self, calls: GroupCalls, rights: Rights, limits: RpcLimits, context: Context) -> None:
        self._calls = calls
        self._rights = rights
        self._limits = limits
        self._context = context
        self._member: GroupMember | None = None
        self._member_request: pb.ReceiveRequest | None = None  # describes the member
        self._settlements: deque[_Settlement] = deque()  # unanswered, in the order of their requests
        self._settling: set[asyncio.Task[None]] = set()  # append settlements to the log
        self._progress = asyncio.Event()  # a settlement was answered, or the stream ends
        self._waiting: asyncio.Task[None] | None = None  # waits for a batch
        self._is_stopped = False  # the client asked to end the wait
        self._is_answering = False  # the wait is over and its batch is being sent
        self._writing = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._is_idle = False  # the reader is waiting for a request
        self._failure: StoreError | RequestError | None = None
        self._fault: BaseException | None = None  # an unexpected exception of a task

    async def run(self, requests: AsyncIterator[pb.ConsumeRequest]) -> None:
        self._reader = reader = self._started(self._read(requests))
        try:
            await asyncio.wait((reader,))
            await self._end_wait()
            while self._settling:
                await asyncio.wait(self._settling)
            await self._answer_settled()
        finally:
            reader.cancel()
            if self._waiting is not None:
                self._waiting.cancel()
        if self._fault is not None:
            raise self._fault
        if self._failure is not None:
            await abort(self._context, self._failure)

    def stop(self, reason: RequestError) -> None:
        """Stop reading requests, answer the settlements and end the stream with `reason`."""
        self._fail(reason)

    def _fail(self, reason: StoreError | RequestError) -> None:
        if self._failure is None:
            self._failure = reason
        self._end_reading()

    def _end_reading(self) -> None:
        if self._is_idle and self._reader is not None:
            self._reader.cancel()
        self._progress.set()

    def _started(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            self._end_reading()

    async def _read(self, requests: AsyncIterator[pb.ConsumeRequest]) -> None:
        self._is_idle = True
        try:
            async for request in requests:
                self._is_idle = False
                await self._handle(request)
                while self._is_full() and not self._is_over:
                    self._progress.clear()
                    await self._progress.wait()
                if self._is_over:
                    return
                self._is_idle = True
        except (StoreError, RequestError) as error:
            self._fail(error)

    @property
    def _is_over(self) -> bool:
        return self._failure is not None or self._fault is not None

    def _is_full(self) -> bool:
        """Whether reading must pause because too many settlements are unanswered."""
        limits = self._limits
        return (
            len(self._settlements) >= limits.max_unacknowledged_requests
            or sum([each.count for each in self._settlements]) > limits.max_settled
        )

    async def _handle(self, request: pb.ConsumeRequest) -> None:
        if not isinstance(request, pb.ConsumeRequest):
            raise invalid(UNREADABLE)
        member = self._member
        if member is None:
            asked = self._member_request = request.member
            await self._require_rights()
            if asked.done or asked.again or asked.wait_ms:
                raise invalid("done, again and wait_ms are fields of the request, not of its member")
            member = self._member = self._calls.group_member(asked, early=True)
        elif request.HasField("member"):
            raise invalid("only the first request of a stream has a member")
        else:
            await self._require_rights()
            member = self._member = self._calls.current(member)
        self._settle(member, request)
        if request.stops:
            await self._end_wait(is_answered=True)
        if request.wants:
            await self._answer_batch(member, request.number, request.wait_ms)
        elif not request.done and not request.again:
            await self._answer_settled()

    async def _require_rights(self) -> None:
        caller = CALLER.get()
        if caller is not None and (caller.permissions is not None or caller.is_revoked):
            await self._rights.require(caller, PREFIX + "Receive", self._member_request)

    def _settle(self, member: GroupMember, request: pb.ConsumeRequest) -> None:
        """Start to settle. The pop of the same request then joins the same commit."""
        settlement = _Settlement(_settled_messages(request), not request.wants)
        self._settlements.append(settlement)
        answer = pb.Settled(number=request.number)
        if request.done or request.again:
            task = self._started(self._append_settlement(member, request, settlement, answer))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        else:
            settlement.answer = answer

    async def _append_settlement(
        self, member: GroupMember, request: pb.ConsumeRequest, settlement: _Settlement, answer: pb.Settled
    ) -> None:
        try:
            requested = self._calls.settlement(member.source, request)
            pop = member.request
            late = request.wants and not request.again and pop.ordering is Ordering.NONE and self._are_few_unanswered()
            stale = await self._calls.settle(member.source, requested, pop.member, pop.max_deliveries, late)
            if stale:
                answer.expired.extend(wire_runs(stale))
        except RequestError as error:
            answer.error = str(error)
        except StoreError as error:
            self._fail(error)
            return
        settlement.answer = answer
        if any(each.is_awaited for each in self._settlements) or self._is_full():
            await self._answer_settled()

    def _are_few_unanswered(self) -> bool:
        settlements = self._settlements
        return (
            len(settlements) <= self._limits.max_unacknowledged_requests // _LATE_SHARE
            and sum([each.count for each in settlements]) <= _LATE_MESSAGES
        )

    async def _answer_batch(self, member: GroupMember, number: int, wait_ms: int) -> None:
        """Send a batch if there is one. Otherwise wait for one in the background."""
        if self._waiting is not None:
            if not self._is_answering:
                raise invalid("the stream already waits for a batch")
            await asyncio.wait((self._waiting,))
        popped = await self._calls.groups.pop(member.request)
        if popped.runs or not wait_ms:
            await self._send(member, number, popped)
        else:
            self._is_answering = self._is_stopped = False
            self._waiting = self._started(self._wait_for_batch(member, number, wait_ms))

    async def _wait_for_batch(self, member: GroupMember, number: int, wait_ms: int) -> None:
        wait_s = min(wait_ms, self._limits.max_wait_ms) / 1_000
        try:
            try:
                popped = await self._calls.groups.receive(member.source, member.request, wait_s)
            except asyncio.CancelledError:
                if not self._is_stopped:
                    raise
                popped = _EMPTY
            self._is_answering = True
            await self._send(member, number, popped)
        except (StoreError, RequestError) as error:
            self._fail(error)
        finally:
            self._waiting = None

    async def _end_wait(self, *, is_answered: bool = False) -> None:
        """Stop waiting for a batch. Leased messages are sent. is_answered: send an empty batch if there are none."""
        if self._waiting is not None:
            if not self._is_answering:
                self._is_stopped = is_answered
                self._waiting.cancel()
            await asyncio.wait((self._waiting,))

    async def _send(self, member: GroupMember, number: int, popped: PopResult) -> None:
        """Send a batch and the answers that are ready."""
        is_sent = False
        try:
            await self._require_rights()  # the rights may have changed during the wait
            require_letters(popped.dead_letters)
            async with self._writing:
                reply = pb.ConsumeReply(batch=number, settled=self._ready_answers(), runs=wire_runs(popped.runs))
                reply.frames = b"".join([run.data for run in popped.runs])
                if popped.dead_letters:
                    reply.dead_letters.extend(wire_dead_letters(popped.dead_letters))
                await self._context.write(reply)
            is_sent = True
        finally:
            reply_budget().release()
            if not is_sent:
                self._calls.return_leases(member, popped)

    async def _answer_settled(self) -> None:
        async with self._writing:
            settled = self._ready_answers()
            if settled:
                await self._context.write(pb.ConsumeReply(settled=settled))

    def _ready_answers(self) -> list[pb.Settled]:
        """Remove and return the answers that are next in order."""
        answers: list[pb.Settled] = []
        while self._settlements and (answer := self._settlements[0].answer) is not None:
            self._settlements.popleft()
            answers.append(answer)
        if answers:
            self._progress.set()
        return answers


def _settled_messages(request: pb.ConsumeRequest) -> int:
    """The number of messages that a request claims to settle."""
    return sum([run.count for run in request.done]) + sum([postponed.run.count for postponed in request.again])
