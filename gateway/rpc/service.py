"""The native gRPC service, `sluice.v1.Sluice`: checks requests against the limits and passes them to the store."""

from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import grpc.aio

from cloud_sdk.proto import sluice_pb2 as pb
from cloud_sdk.proto import sluice_pb2_grpc
from gateway.rpc.access.rights import Rights
from gateway.rpc.access.visibility import is_listed, may_check_transaction, visible_child
from gateway.rpc.bucket_calls import BucketCalls
from gateway.rpc.consuming.pull import PullCalls
from gateway.rpc.consuming.trace import Trace
from gateway.rpc.groups.consume import ConsumeStream
from gateway.rpc.groups.group_calls import GroupCalls
from gateway.rpc.groups.long_polling import LongPolling
from gateway.rpc.held_calls import HeldCalls
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns
from gateway.rpc.producing.messages import MessageCheck
from gateway.rpc.producing.produce import ProduceStream
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.request_fields import parent_name, within
from gateway.rpc.status import RequestError, abort, invalid
from gateway.rpc.wakeups import Wakeups
from gateway.schemas.payload_checks import PayloadChecks
from record.layout import MAX_KEY
from store.api import Store
from store.errors import StoreError


class Service(sluice_pb2_grpc.SluiceServicer):
    """Answers the calls of `sluice.v1.Sluice`."""

    def __init__(
        self,
        store: Store,
        limits: RpcLimits,
        pull_turns: LoopTurns,
        group_turns: LoopTurns,
        nodes: Callable[[], Sequence[str]],
        payload_checks: PayloadChecks | None = None,
    ) -> None:
        """nodes: addresses of nodes that clients are told of. payload_checks: see `MessageCheck`."""
        self._store = store
        self._nodes = nodes
        self._limits = limits
        self._check = MessageCheck(limits, store.may_hold, payload_checks)
        self._wakeups = Wakeups(store)
        self._groups = GroupCalls(store, self._wakeups, limits, group_turns)
        self._pulls = PullCalls(store, self._wakeups, limits, pull_turns)
        self._held = HeldCalls(store, limits)
        self._buckets = BucketCalls(store, limits)
        self._rights = Rights(store, limits.max_handles)
        self._streams: set[ProduceStream | ConsumeStream] = set()
        self._producers: dict[bytes, ProduceStream] = {}  # streams of named producers, by name
        self._stopping = False

    @property
    def groups(self) -> LongPolling:
        """The long polling of groups, which other services of the port share."""
        return self._groups.groups

    @property
    def pulls(self) -> PullCalls:
        """The calls by offset, which other services of the port share."""
        return self._pulls

    def stop(self) -> None:
        """End long polls with what they have, and end streams after all that they appended or settled is answered."""
        self._stopping = True
        self._groups.stop()
        self._pulls.stop()
        self._held.stop()
        self._wakeups.wake_all()
        for stream in self._streams:
            stream.stop(_stopping())

    def reply_unsent(self, request: object, reply: object) -> None:
        """Give back what the reply of a unary call would have brought: the rights of the caller ended meanwhile."""
        if isinstance(request, pb.ReceiveRequest) and isinstance(reply, pb.ReceiveReply):
            self._groups.return_reply(request, reply)

    async def Produce(
        self,
        request_iterator: AsyncIterator[pb.ProduceRequest],
        context: "grpc.aio.ServicerContext[pb.ProduceRequest, pb.ProduceReply]",
    ) -> None:
        if self._stopping:
            await abort(context, _stopping())
        stream = ProduceStream(self._store, self._limits, self._check, self._producers)
        self._streams.add(stream)
        try:
            await stream.run(request_iterator, context)
        finally:
            self._streams.discard(stream)

    async def Pull(
        self, request: pb.PullRequest, context: "grpc.aio.ServicerContext[pb.PullRequest, pb.PullReply]"
    ) -> pb.PullReply:
        try:
            return await self._pulls.pull(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Partitions(
        self,
        request: pb.PartitionsRequest,
        context: "grpc.aio.ServicerContext[pb.PartitionsRequest, pb.PartitionsReply]",
    ) -> pb.PartitionsReply:
        try:
            return await self._pulls.partitions(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def OffsetAt(
        self, request: pb.OffsetAtRequest, context: "grpc.aio.ServicerContext[pb.OffsetAtRequest, pb.OffsetAtReply]"
    ) -> pb.OffsetAtReply:
        try:
            return await self._pulls.offset_at(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Topics(
        self, request: pb.TopicsRequest, context: "grpc.aio.ServicerContext[pb.TopicsRequest, pb.TopicsReply]"
    ) -> pb.TopicsReply:
        limit = within(request.limit, self._limits.max_names)
        after = request.after.encode() if request.HasField("after") else None
        try:
            while True:  # until a page has a visible topic: the caller continues after its last one
                async with reply_budget() as budget:
                    page = await self._store.topics(request.prefix.encode(), after, limit)
                    budget.add(sum([len(name) for name in page.names]))
                names = [name.decode() for name in page.names if is_listed(name)]
                after = page.after
                if names or after is None:
                    return pb.TopicsReply(topics=names, more=after is not None)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Children(
        self, request: pb.ChildrenRequest, context: "grpc.aio.ServicerContext[pb.ChildrenRequest, pb.ChildrenReply]"
    ) -> pb.ChildrenReply:
        limit = within(request.limit, self._limits.max_names)
        after = request.after.encode() if request.HasField("after") else None
        try:
            if request.above and not request.above.endswith("/"):
                raise invalid(f"{request.above!r} must end with a slash")
            while True:  # until a page has a visible level: the caller continues after its last one
                async with reply_budget() as budget:
                    page = await self._store.children(request.above.encode(), after, limit)
                    budget.add(sum([len(child.name) for child in page.children]))
                found = page.children if request.above else list(filter(None, map(visible_child, page.children)))
                after = page.after
                if found or after is None:
                    children = [
                        pb.Child(name=child.name.decode(), is_topic=child.is_topic, has_children=child.has_children)
                        for child in found
                    ]
                    return pb.ChildrenReply(children=children, more=after is not None)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Find(
        self, request: pb.FindRequest, context: "grpc.aio.ServicerContext[pb.FindRequest, pb.FindReply]"
    ) -> pb.FindReply:
        try:
            match request.WhichOneof("by"):
                case "key":
                    return await self._find(request)
                case "position":
                    async with reply_budget() as budget:
                        frame = await self._store.message(request.position)
                        budget.add(len(frame))
                    return pb.FindReply(frames=frame)
            raise invalid("a message is found by a key or a position, and the request has neither")
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Receive(
        self, request: pb.ReceiveRequest, context: "grpc.aio.ServicerContext[pb.ReceiveRequest, pb.ReceiveReply]"
    ) -> pb.ReceiveReply:
        try:
            self._require_running()
            return await self._groups.receive(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Consume(
        self,
        request_iterator: AsyncIterator[pb.ConsumeRequest],
        context: "grpc.aio.ServicerContext[pb.ConsumeRequest, pb.ConsumeReply]",
    ) -> None:
        if self._stopping:
            await abort(context, _stopping())
        stream = ConsumeStream(self._groups, self._rights, self._limits, context)
        self._streams.add(stream)
        try:
            await stream.run(request_iterator)
        finally:
            self._streams.discard(stream)

    async def Acknowledge(
        self,
        request: pb.AcknowledgeRequest,
        context: "grpc.aio.ServicerContext[pb.AcknowledgeRequest, pb.AcknowledgeReply]",
    ) -> pb.AcknowledgeReply:
        try:
            self._require_running()
            return await self._groups.acknowledge(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def ResetGroup(
        self,
        request: pb.ResetGroupRequest,
        context: "grpc.aio.ServicerContext[pb.ResetGroupRequest, pb.ResetGroupReply]",
    ) -> pb.ResetGroupReply:
        try:
            return await self._groups.reset(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def RemoveGroup(
        self,
        request: pb.RemoveGroupRequest,
        context: "grpc.aio.ServicerContext[pb.RemoveGroupRequest, pb.RemoveGroupReply]",
    ) -> pb.RemoveGroupReply:
        try:
            return await self._groups.remove(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Groups(
        self, request: pb.GroupsRequest, context: "grpc.aio.ServicerContext[pb.GroupsRequest, pb.GroupsReply]"
    ) -> pb.GroupsReply:
        try:
            return await self._groups.page(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Recall(
        self, request: pb.RecallRequest, context: "grpc.aio.ServicerContext[pb.RecallRequest, pb.RecallReply]"
    ) -> pb.RecallReply:
        try:
            return await self._held.recall(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Timers(
        self, request: pb.TimersRequest, context: "grpc.aio.ServicerContext[pb.TimersRequest, pb.TimersReply]"
    ) -> pb.TimersReply:
        try:
            return await self._held.timers(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def EndTransaction(
        self,
        request: pb.EndTransactionRequest,
        context: "grpc.aio.ServicerContext[pb.EndTransactionRequest, pb.EndTransactionReply]",
    ) -> pb.EndTransactionReply:
        try:
            return await self._held.end_transaction(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def TransactionChecks(
        self,
        request: pb.TransactionChecksRequest,
        context: "grpc.aio.ServicerContext[pb.TransactionChecksRequest, pb.TransactionCheck]",
    ) -> None:
        try:
            self._require_running()
            async for check in self._held.checks(request):
                if may_check_transaction(check.frame):
                    await context.write(check)
            raise _stopping()
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def CommitOffsets(
        self,
        request: pb.CommitOffsetsRequest,
        context: "grpc.aio.ServicerContext[pb.CommitOffsetsRequest, pb.CommitOffsetsReply]",
    ) -> pb.CommitOffsetsReply:
        try:
            return await self._pulls.commit(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def CommittedOffsets(
        self,
        request: pb.CommittedOffsetsRequest,
        context: "grpc.aio.ServicerContext[pb.CommittedOffsetsRequest, pb.CommittedOffsetsReply]",
    ) -> pb.CommittedOffsetsReply:
        try:
            return await self._pulls.committed(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Trace(
        self, request: pb.TraceRequest, context: "grpc.aio.ServicerContext[pb.TraceRequest, pb.TraceReply]"
    ) -> pb.TraceReply:
        try:
            return await self._trace(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def GetEntry(
        self, request: pb.GetEntryRequest, context: "grpc.aio.ServicerContext[pb.GetEntryRequest, pb.GetEntryReply]"
    ) -> pb.GetEntryReply:
        try:
            return await self._buckets.get(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def PutEntry(
        self, request: pb.PutEntryRequest, context: "grpc.aio.ServicerContext[pb.PutEntryRequest, pb.ChangeEntryReply]"
    ) -> pb.ChangeEntryReply:
        try:
            return await self._buckets.put(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def RemoveEntry(
        self,
        request: pb.RemoveEntryRequest,
        context: "grpc.aio.ServicerContext[pb.RemoveEntryRequest, pb.ChangeEntryReply]",
    ) -> pb.ChangeEntryReply:
        try:
            return await self._buckets.remove(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Entries(
        self, request: pb.EntriesRequest, context: "grpc.aio.ServicerContext[pb.EntriesRequest, pb.EntriesReply]"
    ) -> pb.EntriesReply:
        try:
            return await self._buckets.entries(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def BucketChanges(
        self,
        request: pb.BucketChangesRequest,
        context: "grpc.aio.ServicerContext[pb.BucketChangesRequest, pb.BucketChangesReply]",
    ) -> pb.BucketChangesReply:
        try:
            return await self._buckets.changes(request)
        except (StoreError, RequestError) as error:
            await abort(context, error)

    async def Nodes(
        self,
        request: pb.NodesRequest,  # noqa: ARG002 - gRPC passes it, and the next one
        context: "grpc.aio.ServicerContext[pb.NodesRequest, pb.NodesReply]",  # noqa: ARG002
    ) -> pb.NodesReply:
        return pb.NodesReply(endpoints=self._nodes())

    def _require_running(self) -> None:
        if self._stopping:
            raise _stopping()

    async def _trace(self, request: pb.TraceRequest) -> pb.TraceReply:
        frame = await self._store.message(request.position)
        after = request.after if request.HasField("after") else None
        return await Trace(self._store, request.position, frame).page(after, self._limits.max_trace_bytes)

    async def _find(self, request: pb.FindRequest) -> pb.FindReply:
        key = request.key.encode()
        if not 0 < len(key) <= MAX_KEY:
            raise invalid(f"a key has 1 to {MAX_KEY} bytes")
        async with reply_budget() as budget:
            found = await self._store.bulk.by_key(
                parent_name(request.parent),
                key,
                request.after if request.HasField("after") else None,
                within(request.max_records, self._limits.max_fetch_records),
                within(request.max_bytes, self._limits.max_fetch_bytes),
            )
            budget.add(len(found.data))
        return pb.FindReply(frames=found.data, after=found.after)


def _stopping() -> RequestError:
    return RequestError(grpc.StatusCode.UNAVAILABLE, "the node is stopping")
