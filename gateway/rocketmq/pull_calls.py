"""The calls of pull consumers: they read a partition by offset, and keep offsets of their group.

The number of a queue is the number of a partition of the topic.
"""

from typing import Final

import record
from cloud_sdk.proto import sluice_pb2 as native
from gateway.rocketmq.access import require_consuming, require_look, require_reading
from gateway.rocketmq.messages import StoredMessage
from gateway.rocketmq.names import group_name, parent_of_topic, source_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.receive_calls import selection_of, wait_of
from gateway.rocketmq.status import OK, RocketError
from gateway.rpc.consuming.pull import PullCalls
from gateway.rpc.limits import RpcLimits
from store.api import Store, partition_queue

_MAX_OFFSET: Final = (1 << 63) - 1


class PullMessageCalls:
    """Answers PullMessage, UpdateOffset, GetOffset and QueryOffset.

    Every method raises `RocketError` and `StoreError`.
    """

    def __init__(self, store: Store, pulls: PullCalls, limits: RpcLimits) -> None:
        self._store = store
        self._pulls = pulls
        self._limits = limits

    async def pull(self, request: pb.PullMessageRequest, left_s: float | None) -> tuple[list[pb.Message], int]:
        """Return messages of a partition, and the offset to continue at. Wait for the first message as long as the
        request and `left_s` (the rest of the call's timeout) allow. Raises `RequestError` as well."""
        group_name(request.group)
        queue = request.message_queue
        parent = self._parent(queue)
        if request.batch_size < 0:
            raise RocketError(pb.BAD_REQUEST, "the batch size must not be negative")
        selection = selection_of(request.filter_expression)
        pull = native.PullRequest(
            parent=parent.decode(),
            partition=queue.id,
            offset=_offset(request.offset),
            max_records=request.batch_size,
            wait_ms=int(wait_of(request, left_s, self._limits) * 1000),
        )
        if selection:
            pull.selection.CopyFrom(native.Selection(tags=selection.tags, sql=selection.sql))
        reply = await self._pulls.pull(pull)
        require_reading(parent + b"/#")  # the rights may have changed during the wait
        offsets = reply.offsets or range(reply.offset, reply.offset + reply.count)
        messages: list[pb.Message] = []
        for offset, start in zip(offsets, record.split(reply.frames), strict=True):
            message = StoredMessage(reply.frames, start).message(queue.topic)
            message.system_properties.queue_id = queue.id
            message.system_properties.queue_offset = offset
            messages.append(message)
        return messages, reply.next_offset

    async def update_offset(self, request: pb.UpdateOffsetRequest) -> pb.UpdateOffsetResponse:
        queue = request.message_queue
        parent = self._parent(queue)
        source = source_of(request.group, queue.topic, self._store)
        await require_consuming(self._store, source)
        offset = native.PartitionOffset(partition=queue.id, offset=_offset(request.offset))
        await self._pulls.commit(
            native.CommitOffsetsRequest(group=source.group.decode(), parent=parent.decode(), offsets=[offset])
        )
        return pb.UpdateOffsetResponse(status=OK)

    async def get_offset(self, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        parent, group = self._parent(request.message_queue), group_name(request.group)
        require_look(group)
        offset = (await self._store.group_offsets(group, parent)).get(request.message_queue.id)
        if offset is None:
            raise RocketError(pb.OFFSET_NOT_FOUND, "the group has no offset for the queue")
        return pb.GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(self, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
        queue = partition_queue(self._parent(request.message_queue), request.message_queue.id)
        if request.query_offset_policy == pb.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise RocketError(pb.BAD_REQUEST, "the timestamp is missing")
            offset = await self._store.offset_at(queue, max(0, request.timestamp.ToMilliseconds()))
        else:
            bounds = await self._store.bounds(queue)
            offset = bounds.end if request.query_offset_policy == pb.END else bounds.begin
        return pb.QueryOffsetResponse(status=OK, offset=offset)

    def _parent(self, queue: pb.MessageQueue) -> bytes:
        """The parent topic of a queue, whose partition exists and whose messages the caller may read."""
        parent = parent_of_topic(queue.topic)
        require_reading(parent + b"/#")
        count = self._store.partition_count(parent)
        if not 0 <= queue.id < count:
            raise RocketError(pb.BAD_REQUEST, f"there is no queue {queue.id}: there are {count}")
        return parent


def _offset(offset: int) -> int:
    if not 0 <= offset <= _MAX_OFFSET:
        raise RocketError(pb.ILLEGAL_OFFSET, "the offset must not be negative")
    return offset
