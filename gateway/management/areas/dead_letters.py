"""Dead letters: listed with their cause, published again, and deleted.

Whoever takes dead letters away leases them as a consumer of dead letters would, in batches, and finishes them. So two
operators, or an operator and a consumer, do not handle the same ones twice. Those that are leased on the way and are
not wanted are given back, and this delivery does not count.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

import record
from gateway.broker.append import append
from gateway.management.areas.messages import message_of, valid_topic
from gateway.management.paging import AT_ONCE, MAX_PAGE, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, SUB, TOPIC
from gateway.management.rights import Manager, require_one
from gateway.rpc.access.visibility import group_state, topic_of
from gateway.rpc.limits import RpcLimits
from gateway.rpc.queue_names import display_name
from gateway.rpc.request_fields import group_name
from gateway.rpc.status import RequestError, invalid
from gateway.topics.destination import InvalidDestination, parse_destination
from matcher.reserved import INBOX, is_below
from record.layout import FLAG_ADDRESSED, FLAG_QOS, Kind
from store.api import PopRequest, Receipts, Start, dead_letter_queue
from store.engine import Engine

_MAX_PAYLOAD: Final = 65_536  # bytes of each payload, unless the request has another number
_PAGE_BYTES: Final = 1 << 20  # of the records of a page; one may be larger
_BATCH: Final = 256  # that are leased at a time
_LEASE_MS: Final = 60_000  # a batch takes far less; those of a call that died come back behind it
_MEMBER: Final = b"management"  # the name of the member in traces

Handle = Callable[[list[bytes]], Awaitable[None]]  # what to do with the frames of dead letters before they are finished


class DeadLettersService:
    """Implements the service `DeadLetters`."""

    def __init__(self, engine: Engine, limits: RpcLimits) -> None:
        self._engine = engine
        self._limits = limits

    async def list_dead_letters(self, request: pb.ListDeadLettersRequest, manager: Manager) -> pb.ListDeadLettersReply:
        group = await self._group(request.group)
        queue, limit = dead_letter_queue(group), page_size(request.limit)
        bounds = await self._engine.bounds(queue)
        at = max(bounds.begin, request.after + 1 if request.HasField("after") else 0)
        reply = pb.ListDeadLettersReply()
        found = await self._engine.fetch(queue, min(at, bounds.end), limit, _PAGE_BYTES)
        letters = self._engine.dead_letters(queue, found.offset, found.count)
        unfinished = self._engine.unfinished(group, queue, found.offset, found.count)
        for number, (start, letter) in enumerate(zip(record.split(found.data), letters, strict=True)):
            if not unfinished[number]:
                continue
            row = reply.dead_letters.add(offset=found.offset + number, reason=letter.reason.name)
            row.error = letter.error.decode(errors="replace")
            row.deliveries, row.first_ms, row.last_ms = letter.deliveries, letter.first_ms, letter.last_ms
            row.queue, row.queue_offset = display_name(letter.queue), letter.offset
            message = message_of(found.data, start, request.max_payload or _MAX_PAYLOAD)
            if await manager.may(SUB, TOPIC, message.topic):
                row.message.CopyFrom(message)
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        if found.next_offset < found.bounds.end:
            reply.after = found.next_offset - 1
        return reply

    async def requeue_dead_letters(
        self, request: pb.RequeueDeadLettersRequest, manager: Manager
    ) -> pb.RequeueDeadLettersReply:
        other = self._other_topic(request.topic) if request.topic else b""
        if other:
            await require_one(manager, PUB, TOPIC, request.topic)

        async def publish(frames: list[bytes]) -> None:
            for topic in sorted({topic_of(frame) for frame in frames}):
                # In another topic the caller may be allowed to read what he may not read here.
                await require_one(manager, SUB if other else PUB, TOPIC, topic.decode())
            await append(self._engine, [_copy(frame, other) for frame in frames])

        count, missing, leased = await self._take(request, publish)
        return pb.RequeueDeadLettersReply(requeued=count, missing=missing, leased=leased)

    async def delete_dead_letters(
        self, request: pb.DeleteDeadLettersRequest, _manager: Manager
    ) -> pb.DeleteDeadLettersReply:
        count, missing, leased = await self._take(request, None)
        return pb.DeleteDeadLettersReply(deleted=count, missing=missing, leased=leased)

    async def _group(self, name: str) -> bytes:
        """The name of a group that is there, or was and has dead letters. Raises `RequestError` and `StoreError`."""
        group = group_name(name, self._limits)
        bounds = await self._engine.bounds(dead_letter_queue(group))
        if bounds.begin == bounds.end and await group_state(self._engine, group) is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no group {name!r}")
        return group

    def _other_topic(self, text: str) -> bytes:
        """The topic that dead letters are published to. Raises `RequestError`."""
        topic = valid_topic(text)
        try:
            where = parse_destination(topic, time.time_ns() // 1_000_000)
        except InvalidDestination as error:
            raise invalid(str(error)) from error
        if where.topic != topic:
            raise invalid("dead letters are published now: they cannot be delayed")
        if fault := self._limits.fault_of_topic(topic):
            raise invalid(fault)
        return topic

    async def _take(
        self, request: pb.RequeueDeadLettersRequest | pb.DeleteDeadLettersRequest, handle: Handle | None
    ) -> tuple[int, list[int], int]:
        """Lease the dead letters of a request, `handle` and finish them.

        Returns their number, the requested offsets that cannot be leased, and if all were requested, how many others
        have leased. Raises `RequestError` and `StoreError`; some are finished then.
        """
        if bool(request.offsets) == request.all:
            raise invalid("name the offsets of dead letters, or all")
        if len(request.offsets) > MAX_PAGE:
            raise invalid(f"a request has at most {MAX_PAGE} offsets")
        group = await self._group(request.group)
        queue, wanted = dead_letter_queue(group), set(request.offsets)
        end = (await self._engine.bounds(queue)).end  # what comes back as a dead letter meanwhile stays
        pop = PopRequest(group, (queue,), _BATCH, _PAGE_BYTES, _LEASE_MS, Start.EARLIEST, member=_MEMBER)
        left: list[Receipts] = []  # leased, and to be given back
        count = 0
        try:
            while request.all or wanted:
                popped = await self._engine.pop(pop)
                if not popped.runs:
                    if popped.is_limited and left:
                        text = f"{len(left)} older dead letters are in front of {min(wanted)}: handle those first"
                        raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
                    break
                frames: list[bytes] = []
                taken: list[Receipts] = []
                for run in popped.runs:
                    starts = [*record.split(run.data), len(run.data)]
                    for number in range(run.count):
                        offset = run.offset + number
                        receipt = Receipts(queue, offset, 1, run.deliveries)
                        if offset < end if request.all else offset in wanted:
                            frames.append(run.data[starts[number] : starts[number + 1]])
                            taken.append(receipt)
                        else:
                            left.append(receipt)
                before, left = left, left + taken  # what fails is given back
                if handle is not None and frames:
                    await handle(frames)
                if taken:
                    await self._engine.settle(group, taken, member=_MEMBER)
                left = before
                wanted -= {receipt.offset for receipt in taken}
                count += len(taken)
                if request.all and not taken:
                    break
        finally:
            if left:
                await self._engine.settle(group, (), unsent=[(receipt, 0) for receipt in left], member=_MEMBER)
        return count, sorted(wanted), await self._leased(group) if request.all else 0

    async def _leased(self, group: bytes) -> int:
        """The number of dead letters of a group that somebody has leased."""
        state = await group_state(self._engine, group)
        letters = dead_letter_queue(group)
        return sum(each.unfinished for each in state.queues if each.queue == letters) if state is not None else 0


def _copy(frame: bytes, other: bytes) -> bytes:
    """An unsealed frame of the same message, for the same or another topic. It is not retained again: a newer value may
    be there."""
    _, flags, _, topic, publisher, block, payload = record.decode(frame, 0)
    to = other or topic
    addressed = FLAG_ADDRESSED if is_below(to, INBOX) else 0
    return record.frame(int(Kind.MESSAGE), flags & FLAG_QOS | addressed, 0, to, publisher, block, payload)
