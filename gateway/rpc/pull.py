"""Calls that read partitions by offset, with long polling at the end, and the calls for committed offsets."""

import asyncio
from typing import Final

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.request_fields import group_name, parent_name, within
from gateway.rpc.selecting import pulled, selected, selection_of
from gateway.rpc.status import invalid
from gateway.rpc.wakeups import Wakeups, wait_until
from record.layout import PART_PAYLOAD, PART_PROPERTIES, PART_PUBLISHER, PART_TOPIC
from store import control
from store.api import Appended, Store, partition_queue

_NO_END: Final = 1 << 63
_PARTS: Final = PART_TOPIC | PART_PUBLISHER | PART_PROPERTIES | PART_PAYLOAD


class PullCalls:
    """Answers calls by offset. Every method raises `RequestError` for an invalid request, and `StoreError`."""

    def __init__(self, store: Store, wakeups: Wakeups, limits: RpcLimits) -> None:
        self._store = store
        self._wakeups = wakeups
        self._limits = limits
        self._stopping = False

    def stop(self) -> None:
        """End long polls with the records they have. The caller has to wake the waiters afterwards."""
        self._stopping = True

    def queue(self, parent: str, partition: int) -> bytes:
        """The queue of the partition that a request names. Raises `RequestError`."""
        if partition >= self._store.partitions:
            raise invalid(f"there is no partition {partition}: there are {self._store.partitions} partitions")
        return partition_queue(parent_name(parent), partition)

    async def pull(self, request: pb.PullRequest) -> pb.PullReply:
        """Read records of a partition. Wait for the first one if the request allows it."""
        limits = self._limits
        queue = self.queue(request.parent, request.partition)
        reader = _Reader(
            self._store,
            queue,
            within(request.max_records, limits.max_fetch_records),
            within(request.max_bytes, limits.max_fetch_bytes),
            request,
        )
        reply = await reader.read(request.offset)
        if reply.count or not request.wait_ms or reader.is_over(reply.next_offset):
            return reply
        deadline = asyncio.get_running_loop().time() + min(request.wait_ms, limits.max_wait_ms) / 1_000
        key, waiter = b"p" + request.parent.encode(), asyncio.Event()
        self._wakeups.add(key, waiter)
        try:
            while not self._stopping:  # read before waiting: a commit may have preceded `add`
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
        return reply

    async def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsReply:
        group, parent = group_name(request.group, self._limits), parent_name(request.parent)
        offsets: dict[int, int] = {}
        for entry in request.offsets:
            self.queue(request.parent, entry.partition)  # checks both
            offsets[entry.partition] = entry.offset
        if offsets:
            answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            self._store.append(
                [control.GroupOffsetsCommitted(parent, offsets).frame(group)],
                lambda appended: None if answer.done() else answer.set_result(appended),
            )
            error = (await answer).error
            if error is not None:
                raise error
        return pb.CommitOffsetsReply()

    async def committed(self, request: pb.CommittedOffsetsRequest) -> pb.CommittedOffsetsReply:
        found = await self._store.group_offsets(group_name(request.group, self._limits), parent_name(request.parent))
        return pb.CommittedOffsetsReply(
            offsets=[
                pb.PartitionOffset(partition=partition, offset=offset) for partition, offset in sorted(found.items())
            ]
        )


class _Reader:
    """Reads the partition of one call."""

    __slots__ = ("_lost", "_max_bytes", "_max_records", "_queue", "_selection", "_store", "_until", "_without")

    def __init__(self, store: Store, queue: bytes, max_records: int, max_bytes: int, request: pb.PullRequest) -> None:
        self._store = store
        self._queue = queue
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._selection = selection_of(request.selection, request.parent.encode())
        self._without = request.without & _PARTS
        self._until = request.until or _NO_END
        self._lost = 0  # records that were removed from the log before they were read

    def is_over(self, offset: int) -> bool:
        """Whether the call wants no record from `offset` on."""
        return offset >= self._until

    async def read(self, offset: int) -> pb.PullReply:
        """The records from `offset` on."""
        arguments = (self._store, self._queue, offset, self._until, self._max_records, self._max_bytes, self._without)
        async with reply_budget() as budget:
            found = await (selected(*arguments, self._selection) if self._selection else pulled(*arguments))
            budget.add(len(found.frames))
        self._lost += found.lost
        return pb.PullReply(
            offset=found.offset,
            count=found.count,
            frames=found.frames,
            begin=found.bounds.begin,
            end=found.bounds.end,
            offsets=found.offsets,
            next_offset=found.next_offset,
            gone=self._lost,
        )
