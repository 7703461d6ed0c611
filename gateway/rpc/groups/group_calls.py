"""Calls about consumer groups: receive, acknowledge, reset, remove and list."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.access.visibility import caller_user, is_group_visible, require_letters
from gateway.rpc.consuming.selecting import selection_of
from gateway.rpc.groups.long_polling import LongPolling, Source, current_source, dead_letter_source, parent_source
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns
from gateway.rpc.queue_names import display_name
from gateway.rpc.request_fields import client_group_name, group_name, member_name, parent_name, within
from gateway.rpc.status import RequestError, invalid
from gateway.rpc.wakeups import Wakeups
from matcher.names import is_shared
from store.api import (
    MAX_ERROR,
    DeadLetter,
    Failed,
    GroupQueueState,
    Ordering,
    PopRequest,
    PopResult,
    Receipts,
    Run,
    Start,
    Store,
)
from store.config import MAX_MAX_DELIVERIES
from store.errors import StoreError

_PAGE: Final = 64  # groups per page of the store

SettleRequest = pb.AcknowledgeRequest | pb.ReceiveRequest | pb.ConsumeRequest
_SourceRequest = pb.ReceiveRequest | pb.AcknowledgeRequest | pb.ResetGroupRequest


@dataclass(slots=True, frozen=True)
class GroupMember:
    """A member of a group: the queues it receives from and its pop request."""

    source: Source
    request: PopRequest


@dataclass(slots=True, frozen=True)
class RequestedSettlement:
    """The arguments of `Store.settle` that a request names."""

    done: list[Receipts]
    again: list[tuple[Receipts, int]]
    unsent: list[tuple[Receipts, int]]
    failed: list[Failed]
    final: list[Failed]  # that become dead letters, however often they were delivered


class GroupCalls:
    """Answers calls about groups. Every method raises `RequestError` for an invalid request, and `StoreError`."""

    def __init__(self, store: Store, wakeups: Wakeups, limits: RpcLimits, turns: LoopTurns) -> None:
        self._store = store
        self._limits = limits
        self._returns: set[asyncio.Task[None]] = set()
        self.groups = LongPolling(store, wakeups, turns)

    def stop(self) -> None:
        """End long polls with empty replies."""
        self.groups.stop()

    async def receive(self, request: pb.ReceiveRequest) -> pb.ReceiveReply:
        member = self.group_member(request)
        source, pop = member.source, member.request
        wait_s = min(request.wait_ms, self._limits.max_wait_ms) / 1_000
        if not request.done and not request.again:
            return self._answer(member, await self.groups.receive(source, pop, wait_s), ())
        settlement = self.settlement(source, request)
        settling = asyncio.create_task(
            self.settle(source, settlement, pop.member, pop.max_deliveries)
        )  # shares a commit with the pop
        try:
            popped = await self.groups.receive(source, pop, wait_s)
        except BaseException:
            settling.cancel()  # does not undo a settlement that was appended
            raise
        try:
            stale = await settling
        except BaseException:
            self.return_leases(member, popped)
            raise
        return self._answer(member, popped, stale)

    def _answer(self, member: GroupMember, popped: PopResult, stale: Sequence[Receipts]) -> pb.ReceiveReply:
        """The reply with these messages. Raises `RequestError`, and returns them, if the caller may not read them."""
        try:
            require_letters(popped.dead_letters)
            return _reply(popped, stale)
        except BaseException:
            self.return_leases(member, popped)
            raise

    def group_member(self, request: pb.ReceiveRequest, *, early: bool = False) -> GroupMember:
        """The member that a request describes. early: its pops return before the log has the leases."""
        limits = self._limits
        if not 0 < request.invisible_ms <= limits.max_invisible_ms:
            raise invalid(f"invisible_ms is {request.invisible_ms}, must be in 1..{limits.max_invisible_ms}")
        if request.max_deliveries > MAX_MAX_DELIVERIES:
            raise _too_many_deliveries(request.max_deliveries)
        source = self._source(request)
        pop = PopRequest(
            source.group,
            source.queues,
            within(request.max_records, limits.max_fetch_records),
            within(request.max_bytes, limits.max_fetch_bytes),
            request.invisible_ms,
            Start.EARLIEST if request.from_earliest else Start.LATEST,
            request.max_deliveries,
            selection_of(request.selection, None if request.dead_letters else request.parent.encode()),
            Ordering.ALL_KEYS if request.ordered else Ordering.NONE,
            early=early,
            member=member_name(request.member),
            user=caller_user(),
        )
        return GroupMember(source, pop)

    def current(self, member: GroupMember) -> GroupMember:
        """The member with all partitions that its parent topic has by now."""
        source = current_source(member.source, self._store)
        if source is not member.source:
            return GroupMember(source, replace(member.request, queues=source.queues))
        return member

    def return_leases(self, member: GroupMember, popped: PopResult) -> None:
        """Make messages available again that were leased and not sent. If that fails, their leases expire later."""
        self._begin_return(
            member.source, [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]
        )

    def return_reply(self, request: pb.ReceiveRequest, reply: pb.ReceiveReply) -> None:
        """Make the messages of a reply available again that is not sent."""
        source = self._source(request)
        self._begin_return(source, [_receipts(source, run) for run in reply.runs])

    def _begin_return(self, source: Source, receipts: list[Receipts]) -> None:
        if receipts:
            task = asyncio.create_task(self._return_leases(source, receipts))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def _return_leases(self, source: Source, receipts: Sequence[Receipts]) -> None:
        with suppress(StoreError):
            await self.groups.return_leases(source, receipts)

    async def acknowledge(self, request: pb.AcknowledgeRequest) -> pb.AcknowledgeReply:
        source = self._source(request)
        if request.max_deliveries > MAX_MAX_DELIVERIES:
            raise _too_many_deliveries(request.max_deliveries)
        settlement = self.settlement(source, request)
        stale = await self.settle(source, settlement, member_name(request.member), request.max_deliveries)
        return pb.AcknowledgeReply(expired=wire_runs(stale))

    async def settle(
        self, source: Source, settlement: RequestedSettlement, member: bytes, max_deliveries: int, late: bool = False
    ) -> list[Receipts]:
        """Settle what a request asks for. Returns the stale receipts. `late`: see `Store.settle`."""
        stale: list[Receipts] = []
        if settlement.final:
            stale = await self.groups.settle(source, (), (), member, failed=settlement.final, max_deliveries=1)
        return stale + await self.groups.settle(
            source,
            settlement.done,
            settlement.again,
            member,
            settlement.unsent,
            settlement.failed,
            max_deliveries,
            late,
        )

    def settlement(self, source: Source, request: SettleRequest) -> RequestedSettlement:
        """The settlement that a request asks for. Raises `RequestError`."""
        limits = self._limits
        if not _is_within(request, limits.max_settled):
            raise invalid(f"a request settles at most {limits.max_settled} messages")
        if any(postponed.delay_ms > limits.max_invisible_ms for postponed in request.again):
            raise invalid(f"a delay is at most {limits.max_invisible_ms} ms")
        settlement = RequestedSettlement([_receipts(source, run) for run in request.done], [], [], [], [])
        for postponed in request.again:
            receipts, delay_ms = _receipts(source, postponed.run), postponed.delay_ms
            error = postponed.error.encode()
            if len(error) > MAX_ERROR:
                raise invalid(f"an error has at most {MAX_ERROR} bytes")
            if postponed.last:
                settlement.final.append(Failed(receipts, None, error))
            elif postponed.unseen:
                settlement.unsent.append((receipts, 0))
            elif not postponed.HasField("delay_ms"):
                settlement.failed.append(Failed(receipts, None, error))
            elif postponed.extends or not (delay_ms or error):
                settlement.again.append((receipts, delay_ms))
            else:
                settlement.failed.append(Failed(receipts, delay_ms, error))
        return settlement

    async def reset(self, request: pb.ResetGroupRequest) -> pb.ResetGroupReply:
        source = self._source(request)
        if len(request.offsets) > len(source.queues):
            raise invalid(
                f"{len(request.offsets)} offsets were given, but there are only {len(source.queues)} partitions"
            )
        offsets = {_queue(source, each.partition): each.offset for each in request.offsets}
        if not offsets:
            for queue in source.queues:
                offsets[queue] = await self._store.offset_at(queue, request.time_ms)
        await self._store.reset_group(source.group, offsets, caller_user())
        return pb.ResetGroupReply()

    async def remove(self, request: pb.RemoveGroupRequest) -> pb.RemoveGroupReply:
        group = client_group_name(request.group, self._limits)
        await self._store.remove_group(group)
        return pb.RemoveGroupReply()

    async def page(self, request: pb.GroupsRequest) -> pb.GroupsReply:
        limit = within(request.limit, self._limits.max_groups)
        after = request.after.encode() if request.HasField("after") else None
        reply = pb.GroupsReply(more=True)
        queues = 0
        while queues <= self._limits.max_groups:
            wanted = min(limit - len(reply.groups), _PAGE)
            if not wanted:
                return reply
            states = await self._store.groups(after, wanted)
            for state in filter(is_group_visible, states):
                reply.groups.add(name=state.group.decode(), queues=[_queue_state(each) for each in state.queues])
                queues += len(state.queues)
            if len(states) < wanted:
                reply.more = False
                return reply
            after = states[-1].group
        return reply

    def _source(self, request: _SourceRequest) -> Source:
        if request.dead_letters:
            return dead_letter_source(group_name(request.group, self._limits))
        group = client_group_name(request.group, self._limits)
        if is_shared(group):
            raise invalid("a group name that begins with $share/ belongs to an MQTT shared subscription")
        parent = parent_name(request.parent)
        return parent_source(group, parent, self._store.partition_count(parent))


def _too_many_deliveries(count: int) -> RequestError:
    return invalid(f"max_deliveries is {count}, the limit is {MAX_MAX_DELIVERIES}")


def _is_within(request: SettleRequest, limit: int) -> bool:
    """Whether a request settles at most `limit` messages in at most `limit` runs. An empty run also costs time."""
    if len(request.done) + len(request.again) > limit:
        return False
    counts = sum(run.count for run in request.done) + sum(postponed.run.count for postponed in request.again)
    return counts <= limit


def _reply(popped: PopResult, stale: Sequence[Receipts]) -> pb.ReceiveReply:
    frames = b"".join([run.data for run in popped.runs])
    letters = wire_dead_letters(popped.dead_letters)
    return pb.ReceiveReply(runs=wire_runs(popped.runs), frames=frames, expired=wire_runs(stale), dead_letters=letters)


def _queue(source: Source, partition: int) -> bytes:
    if partition >= len(source.queues):
        raise invalid(f"there is no partition {partition}: there are {len(source.queues)} partitions")
    return source.queues[partition]


def _receipts(source: Source, run: pb.Run) -> Receipts:
    return Receipts(_queue(source, run.partition), run.offset, run.count, run.deliveries)


def wire_runs(runs: Sequence[Run | Receipts]) -> list[pb.Run]:
    """Runs in wire format."""
    return [
        pb.Run(partition=_partition(run.queue), offset=run.offset, count=run.count, deliveries=run.deliveries)
        for run in runs
    ]


def wire_dead_letters(letters: Sequence[DeadLetter]) -> list[pb.DeadLetter]:
    """Dead letters in wire format."""
    return [
        pb.DeadLetter(
            reason=each.reason.name,
            error=each.error.decode(errors="replace"),
            deliveries=each.deliveries,
            queue=display_name(each.queue),
            offset=each.offset,
            first_ms=each.first_ms,
            last_ms=each.last_ms,
        )
        for each in letters
    ]


def _partition(queue: bytes) -> int:
    return int.from_bytes(queue[-2:], "big") if queue[:1] == b"p" else 0


def _queue_state(state: GroupQueueState) -> pb.GroupQueue:
    reply = pb.GroupQueue(floor=state.floor, next=state.next, unfinished=state.unfinished, lag=state.lag)
    kind, name = state.queue[:1], state.queue[1:]
    match kind:
        case b"p":
            reply.parent = name[:-3].decode()
            reply.partition = _partition(state.queue)
        case b"t":
            reply.topic = name.decode()
        case b"f":
            reply.filter = name.decode()
        case _:
            reply.dead_letters = name.decode()
    return reply
