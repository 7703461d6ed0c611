"""Reads of partitions by offset: the calls of `Client` that `PullConsumer` and `Replies` use."""

from collections.abc import Mapping
from typing import Unpack

from cloud_sdk.consumer_options import ReadOptions, selection_of
from cloud_sdk.errors import as_invalid_argument
from cloud_sdk.message import Batch, PartitionBounds
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.transport.connection import NodeConnection


class PartitionReader:
    """Reads the partitions of a node's parent topics."""

    __slots__ = ("_connection",)

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    async def pull(
        self,
        parent: str,
        partition: int,
        offset: int,
        *,
        max_records: int = 0,
        max_bytes: int = 0,
        wait_seconds: float = 0.0,
        **options: Unpack[ReadOptions],
    ) -> Batch:
        """Read records of a partition from `offset` on. Limits of 0 are the node's.

        At the end of the partition it waits up to `wait_seconds` (the node's limit is a minute) for a record, then
        returns an empty batch. Records that are gone from the log, or not selected, are skipped. Continue at the
        batch's `next_offset`, also if it is empty. Raises `OffsetOutOfRange`, which has the bounds. See
        `ReadOptions`."""
        selection = selection_of(options)
        with as_invalid_argument():
            request = pb.PullRequest(
                parent=parent,
                partition=partition,
                offset=offset,
                max_records=max_records,
                max_bytes=max_bytes,
                wait_ms=int(wait_seconds * 1_000),
                selection=selection,
                without=options.get("without", 0),
                until=options.get("until", 0),
                known_partitions=options.get("known_partitions", 0),
                keys=options.get("keys", ()),
            )
        reply = await self._connection.call(lambda stub: stub.Pull, request, wait_seconds)
        return Batch(
            partition,
            reply.offset,
            reply.count,
            reply.frames,
            reply.begin,
            reply.end,
            reply.next_offset,
            reply.offsets,
            reply.gone,
            reply.partitions,
        )

    async def partitions(self, parent: str, *, topic_filter: str = "") -> list[PartitionBounds]:
        """Return the partitions of a parent topic with their readable offsets. All are empty if it has no messages.
        With a `topic_filter` below the parent, the right to subscribe to that suffices."""
        with as_invalid_argument():
            request = pb.PartitionsRequest(parent=parent, topic_filter=topic_filter)
        reply = await self._connection.call(lambda stub: stub.Partitions, request)
        return [PartitionBounds(each.partition, each.begin, each.end) for each in reply.partitions]

    async def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
        """Return the offset of the first message stored at or after `time_ms` (ms since 1970-01-01 UTC), or the end."""
        with as_invalid_argument():
            request = pb.OffsetAtRequest(parent=parent, partition=partition, time_ms=time_ms)
        return (await self._connection.call(lambda stub: stub.OffsetAt, request)).offset

    async def commit_offsets(self, group: str, parent: str, offsets: Mapping[int, int]) -> None:
        """Store the next offset of a group of readers, by partition. A new group of members (`Client.consumer`) begins
        there as well."""
        with as_invalid_argument():
            request = pb.CommitOffsetsRequest(
                group=group,
                parent=parent,
                offsets=[pb.PartitionOffset(partition=each, offset=at) for each, at in offsets.items()],
            )
        await self._connection.call(lambda stub: stub.CommitOffsets, request)

    async def committed_offsets(self, group: str, parent: str) -> dict[int, int]:
        """Return the offsets that a group has committed, by partition."""
        with as_invalid_argument():
            request = pb.CommittedOffsetsRequest(group=group, parent=parent)
        reply = await self._connection.call(lambda stub: stub.CommittedOffsets, request)
        return {each.partition: each.offset for each in reply.offsets}
