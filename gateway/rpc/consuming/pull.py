"""Calls that read partitions by offset, with long polling at the end, and the calls for committed offsets."""

import asyncio
from typing import Final

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.observe.service_clients import CLIENT
from gateway.rpc.access.visibility import caller_user
from gateway.rpc.consuming.selecting import Records, keys_of, matching, selection_of
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns, Turn
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.request_fields import client_group_name, group_name, parent_name, within
from gateway.rpc.status import invalid
from gateway.rpc.wakeups import Wakeups, wait_until
from matcher.selector import EVERYTHING, Selector, compile_selection
from record.layout import PART_PAYLOAD, PART_PROPERTIES, PART_PUBLISHER, PART_TOPIC
from store import control
from store.api import Appended, Bounds, Fetched, Store, partition_queue

_MAX_FETCHES: Final = 8  # of one call; the selection may match no record of them
_FAR: Final = 4  # replies of the same size that follow; a reader that keeps up with its partition has fewer
_NO_END: Final = 1 << 63
_PARTS: Final = PART_TOPIC | PART_PUBLISHER | PART_PROPERTIES | PART_PAYLOAD
_SELECTED_BY: Final = PART_TOPIC | PART_PROPERTIES  # the parts that a selection needs


class PullCalls:
    """Answers calls by offset. Every method raises `RequestError` for an invalid request, and `StoreError`."""

    def __init__(self, store: Store, wakeups: Wakeups, limits: RpcLimits, turns: LoopTurns) -> None:
        self._store = store
        self._turns = turns
        self._wakeups = wakeups
        self._limits = limits
        self._stopping = False

    def stop(self) -> None:
        """End long polls with the records they have. The caller has to wake the waiters afterwards."""
        self._stopping = True

    async def partitions(self, request: pb.PartitionsRequest) -> pb.PartitionsReply:
        found = await self._store.partition_bounds(parent_name(request.parent))
        reply = pb.PartitionsReply()
        for partition, bounds in enumerate(found):
            reply.partitions.add(partition=partition, begin=bounds.begin, end=bounds.end)
        return reply

    async def offset_at(self, request: pb.OffsetAtRequest) -> pb.OffsetAtReply:
        parent = parent_name(request.parent)
        self._check(parent, request.partition)
        queue = partition_queue(parent, request.partition)
        return pb.OffsetAtReply(offset=await self._store.offset_at(queue, request.time_ms))

    async def pull(self, request: pb.PullRequest) -> pb.PullReply:
        """Read records of a partition. Wait for the first one if the request allows it."""
        limits, parent = self._limits, parent_name(request.parent)
        self._check(parent, request.partition)
        most = limits.max_fetch_bytes if request.without & PART_PAYLOAD else limits.max_reply_bytes
        reader = _Reader(
            self._store,
            self._turns,
            within(request.max_records, limits.max_fetch_records),
            within(request.max_bytes or limits.fetch_bytes, most),
            parent,
            request,
        )
        reply = await reader.read(request.offset)
        if reply.count and (client := CLIENT.get()) is not None:
            client.read(reply.count)
        if reply.count or not request.wait_ms or reader.is_over(reply.next_offset):
            return reply
        deadline = asyncio.get_running_loop().time() + min(request.wait_ms, limits.max_wait_ms) / 1_000
        key, waiter = b"p" + request.parent.encode(), asyncio.Event()
        self._wakeups.add(key, waiter)
        try:
            await self._wakeups.settled()
            while not self._stopping:  # read before waiting: a commit may have come before it would have woken
                reply = await reader.read(reply.next_offset)
                if reply.count or reader.is_over(reply.next_offset):
                    break
                if reply.next_offset < reply.end:
                    await asyncio.sleep(0)  # the selection matched no record so far: let other tasks run
                    if asyncio.get_running_loop().time() >= deadline:
                        break
                elif not await wait_until(waiter, deadline):
                    break
        finally:
            self._wakeups.remove(key, waiter)
        if reply.count and (client := CLIENT.get()) is not None:
            client.read(reply.count)
        return reply

    async def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsReply:
        group, parent = client_group_name(request.group, self._limits), parent_name(request.parent)
        offsets: dict[int, int] = {}
        for entry in request.offsets:
            self._check(parent, entry.partition)
            offsets[entry.partition] = entry.offset
        if offsets:
            answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            self._store.append(
                [control.GroupOffsetsCommitted(parent, offsets, caller_user()).frame(group)],
                lambda appended: None if answer.done() else answer.set_result(appended),
            )
            error = (await answer).error
            if error is not None:
                raise error
        client = CLIENT.get()
        if client is not None:
            client.joined(group)
        return pb.CommitOffsetsReply()

    async def committed(self, request: pb.CommittedOffsetsRequest) -> pb.CommittedOffsetsReply:
        found = await self._store.group_offsets(group_name(request.group, self._limits), parent_name(request.parent))
        return pb.CommittedOffsetsReply(
            offsets=[
                pb.PartitionOffset(partition=partition, offset=offset) for partition, offset in sorted(found.items())
            ]
        )

    def _check(self, parent: bytes, partition: int) -> None:
        """Raises `RequestError` for a partition that does not exist."""
        count = self._store.partition_count(parent)
        if partition >= count:
            raise invalid(f"there is no partition {partition}: there are {count} partitions")


class _Reader:
    """Reads the partition of one call. The reply has the partition's records from its `offset` to its `next_offset`,
    or those of them that the request selects."""

    __slots__ = (
        "_keys",
        "_known",
        "_lost",
        "_max_bytes",
        "_max_records",
        "_parent",
        "_queue",
        "_selector",
        "_store",
        "_topic_filter",
        "_turns",
        "_until",
        "_without",
    )

    def __init__(
        self,
        store: Store,
        turns: LoopTurns,
        max_records: int,
        max_bytes: int,
        parent: bytes,
        request: pb.PullRequest,
    ) -> None:
        self._store = store
        self._turns = turns
        self._parent = parent
        self._queue = partition_queue(parent, request.partition)
        self._max_records = max_records
        self._max_bytes = max_bytes
        selection = EVERYTHING
        if request.HasField("selection"):
            selection = selection_of(request.selection, request.parent.encode())
        self._topic_filter = b"" if _is_whole(selection.topic_filter) else selection.topic_filter
        self._keys = keys_of(request.keys)
        self._selector: Selector | None = None  # None: everything is selected
        if selection or self._keys:
            self._selector = compile_selection(selection)
        self._without = request.without & _PARTS
        self._until = request.until or _NO_END
        self._known = request.known_partitions
        self._lost = 0  # records that were removed from the log before they were read

    def is_over(self, offset: int) -> bool:
        """Whether the call wants no record from `offset` on, or does not wait for one."""
        return offset >= self._until or 0 < self._known < self._store.partition_count(self._parent)

    async def read(self, offset: int) -> pb.PullReply:
        """The records from `offset` on. There may be none although more records follow."""
        offsets: list[int] = []
        turn = Turn(self._turns)
        async with reply_budget() as budget:
            max_bytes = min(self._max_bytes, self._turns.most_bytes())
            if self._selector is None:
                found = await turn.timed(self._fetch(offset, self._max_records, max_bytes, self._without))
                next_offset = found.offset + found.count
            else:
                found = await turn.timed(self._select(offset, self._selector, offsets, max_bytes))
                next_offset = found.offset
            budget.add(len(found.data))
            if min(found.bounds.end, self._until) - next_offset > (next_offset - offset) * _FAR:
                await turn.wait()
                turn.end_soon()
        return pb.PullReply(
            offset=found.offset,
            count=found.count,
            frames=found.data,
            begin=found.bounds.begin,
            end=found.bounds.end,
            offsets=offsets,
            next_offset=next_offset,
            gone=self._lost,
            partitions=self._store.partition_count(self._parent),
        )

    async def _fetch(self, offset: int, max_records: int, max_bytes: int, without: int) -> Fetched:
        """The records from `offset` on, up to the end that the request names."""
        until = self._until
        found = await self._store.bulk.fetch(
            self._queue, offset, max(min(max_records, until - offset), 0), max_bytes, without
        )
        if found.offset + found.count > until:  # after a gap
            found.count = max(until - found.offset, 0)
            found.data = found.data[: [*record.split(found.data), len(found.data)][found.count]]
            found.offset = min(found.offset, max(until, offset))
        self._lost += found.offset - offset
        return found

    async def _select(self, offset: int, selector: Selector, offsets: list[int], room: int) -> Fetched:
        """The selected records, whose offsets are added to `offsets`. The result's offset is where the read ended."""
        frames: list[bytes] = []
        for _ in range(_MAX_FETCHES):
            records, offset, bounds = await self._candidates(offset, self._max_records - len(offsets), max(room, 1))
            if not records.are_selected or selector.reads_properties:
                records = matching(records, selector, self._keys)
            offsets += records.offsets
            frames.append(records.data)
            room -= len(records.data)
            if offset >= min(bounds.end, self._until) or len(offsets) >= self._max_records or room <= 0:
                break
        data = record.without(b"".join(frames), self._without & _SELECTED_BY)
        return Fetched(offset, len(offsets), data, bounds)

    async def _candidates(self, offset: int, max_records: int, max_bytes: int) -> tuple[Records, int, Bounds]:
        """Records from `offset` on among which are all that are selected, and where they end. Where a filter or keys
        select few, the store finds them in its indexes."""
        without = self._without & ~_SELECTED_BY
        if self._topic_filter or self._keys:
            arguments = self._topic_filter, self._keys, max_records, max_bytes, without
            selected = await self._store.bulk.fetch_selected(self._queue, offset, self._until, *arguments)
            if selected is not None:
                self._lost += selected.gone
                return Records(selected.data, selected.offsets, True), selected.next_offset, selected.bounds
        found = await self._fetch(offset, max_records, max_bytes, without)
        return Records(found.data, range(found.offset, found.next_offset), False), found.next_offset, found.bounds


def _is_whole(topic_filter: bytes) -> bool:
    """Whether a filter that may match topics of a parent matches all of them. No filter with a wildcard as its first
    level matches those of a parent that begins with $."""
    return topic_filter.endswith(b"/#") and topic_filter.count(b"/") == 1 and not topic_filter.startswith(b"+")
