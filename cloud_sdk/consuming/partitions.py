"""Reads of partitions by offset: the calls that `Client`, `PullConsumer` and `Replies` share."""

from collections.abc import Mapping
from typing import Unpack

from cloud_sdk.consumer_options import ReadOptions, selection_of
from cloud_sdk.errors import as_invalid_argument
from cloud_sdk.message import Batch, PartitionBounds
from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.transport.connection import NodeConnection


class Partitions:
    """The partitions of a node's parent topics. `Client` has methods of the same names, which document these."""

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
            )
        reply = await self._connection.call(self._connection.stub.Pull, request, wait_seconds)
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
        )

    async def bounds(self, parent: str, topic_filter: str = "") -> list[PartitionBounds]:
        """Return where each partition begins and ends. The right to read `topic_filter` suffices."""
        with as_invalid_argument():
            request = pb.PartitionsRequest(parent=parent, topic_filter=topic_filter)
        reply = await self._connection.call(self._connection.stub.Partitions, request)
        return [PartitionBounds(each.partition, each.begin, each.end) for each in reply.partitions]

    async def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
        with as_invalid_argument():
            request = pb.OffsetAtRequest(parent=parent, partition=partition, time_ms=time_ms)
        return (await self._connection.call(self._connection.stub.OffsetAt, request)).offset

    async def commit_offsets(self, group: str, parent: str, offsets: Mapping[int, int]) -> None:
        with as_invalid_argument():
            request = pb.CommitOffsetsRequest(
                group=group,
                parent=parent,
                offsets=[pb.PartitionOffset(partition=each, offset=at) for each, at in offsets.items()],
            )
        await self._connection.call(self._connection.stub.CommitOffsets, request)

    async def committed_offsets(self, group: str, parent: str) -> dict[int, int]:
        with as_invalid_argument():
            request = pb.CommittedOffsetsRequest(group=group, parent=parent)
        reply = await self._connection.call(self._connection.stub.CommittedOffsets, request)
        return {each.partition: each.offset for each in reply.offsets}
