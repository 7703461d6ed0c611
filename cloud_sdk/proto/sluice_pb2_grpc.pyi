from collections.abc import AsyncIterator

import grpc.aio

from cloud_sdk.proto import sluice_pb2 as pb

class SluiceStub:
    Produce: grpc.aio.StreamStreamMultiCallable[pb.ProduceRequest, pb.ProduceReply]
    Pull: grpc.aio.UnaryUnaryMultiCallable[pb.PullRequest, pb.PullReply]
    Partitions: grpc.aio.UnaryUnaryMultiCallable[pb.PartitionsRequest, pb.PartitionsReply]
    OffsetAt: grpc.aio.UnaryUnaryMultiCallable[pb.OffsetAtRequest, pb.OffsetAtReply]
    Topics: grpc.aio.UnaryUnaryMultiCallable[pb.TopicsRequest, pb.TopicsReply]
    Children: grpc.aio.UnaryUnaryMultiCallable[pb.ChildrenRequest, pb.ChildrenReply]
    Find: grpc.aio.UnaryUnaryMultiCallable[pb.FindRequest, pb.FindReply]
    Receive: grpc.aio.UnaryUnaryMultiCallable[pb.ReceiveRequest, pb.ReceiveReply]
    Consume: grpc.aio.StreamStreamMultiCallable[pb.ConsumeRequest, pb.ConsumeReply]
    Acknowledge: grpc.aio.UnaryUnaryMultiCallable[pb.AcknowledgeRequest, pb.AcknowledgeReply]
    ResetGroup: grpc.aio.UnaryUnaryMultiCallable[pb.ResetGroupRequest, pb.ResetGroupReply]
    RemoveGroup: grpc.aio.UnaryUnaryMultiCallable[pb.RemoveGroupRequest, pb.RemoveGroupReply]
    Groups: grpc.aio.UnaryUnaryMultiCallable[pb.GroupsRequest, pb.GroupsReply]
    Recall: grpc.aio.UnaryUnaryMultiCallable[pb.RecallRequest, pb.RecallReply]
    Timers: grpc.aio.UnaryUnaryMultiCallable[pb.TimersRequest, pb.TimersReply]
    EndTransaction: grpc.aio.UnaryUnaryMultiCallable[pb.EndTransactionRequest, pb.EndTransactionReply]
    CommitOffsets: grpc.aio.UnaryUnaryMultiCallable[pb.CommitOffsetsRequest, pb.CommitOffsetsReply]
    CommittedOffsets: grpc.aio.UnaryUnaryMultiCallable[pb.CommittedOffsetsRequest, pb.CommittedOffsetsReply]
    Trace: grpc.aio.UnaryUnaryMultiCallable[pb.TraceRequest, pb.TraceReply]
    GetEntry: grpc.aio.UnaryUnaryMultiCallable[pb.GetEntryRequest, pb.GetEntryReply]
    PutEntry: grpc.aio.UnaryUnaryMultiCallable[pb.PutEntryRequest, pb.ChangeEntryReply]
    RemoveEntry: grpc.aio.UnaryUnaryMultiCallable[pb.RemoveEntryRequest, pb.ChangeEntryReply]
    Entries: grpc.aio.UnaryUnaryMultiCallable[pb.EntriesRequest, pb.EntriesReply]
    BucketChanges: grpc.aio.UnaryUnaryMultiCallable[pb.BucketChangesRequest, pb.BucketChangesReply]
    Nodes: grpc.aio.UnaryUnaryMultiCallable[pb.NodesRequest, pb.NodesReply]
    TransactionChecks: grpc.aio.UnaryStreamMultiCallable[pb.TransactionChecksRequest, pb.TransactionCheck]
    def __init__(self, channel: grpc.aio.Channel) -> None: ...

class SluiceServicer:
    async def Produce(
        self,
        request_iterator: AsyncIterator[pb.ProduceRequest],
        context: grpc.aio.ServicerContext[pb.ProduceRequest, pb.ProduceReply],
    ) -> None: ...
    async def Pull(
        self, request: pb.PullRequest, context: grpc.aio.ServicerContext[pb.PullRequest, pb.PullReply]
    ) -> pb.PullReply: ...
    async def Partitions(
        self,
        request: pb.PartitionsRequest,
        context: grpc.aio.ServicerContext[pb.PartitionsRequest, pb.PartitionsReply],
    ) -> pb.PartitionsReply: ...
    async def OffsetAt(
        self, request: pb.OffsetAtRequest, context: grpc.aio.ServicerContext[pb.OffsetAtRequest, pb.OffsetAtReply]
    ) -> pb.OffsetAtReply: ...
    async def Topics(
        self, request: pb.TopicsRequest, context: grpc.aio.ServicerContext[pb.TopicsRequest, pb.TopicsReply]
    ) -> pb.TopicsReply: ...
    async def Children(
        self, request: pb.ChildrenRequest, context: grpc.aio.ServicerContext[pb.ChildrenRequest, pb.ChildrenReply]
    ) -> pb.ChildrenReply: ...
    async def Find(
        self, request: pb.FindRequest, context: grpc.aio.ServicerContext[pb.FindRequest, pb.FindReply]
    ) -> pb.FindReply: ...
    async def Receive(
        self, request: pb.ReceiveRequest, context: grpc.aio.ServicerContext[pb.ReceiveRequest, pb.ReceiveReply]
    ) -> pb.ReceiveReply: ...
    async def Consume(
        self,
        request_iterator: AsyncIterator[pb.ConsumeRequest],
        context: grpc.aio.ServicerContext[pb.ConsumeRequest, pb.ConsumeReply],
    ) -> None: ...
    async def Acknowledge(
        self,
        request: pb.AcknowledgeRequest,
        context: grpc.aio.ServicerContext[pb.AcknowledgeRequest, pb.AcknowledgeReply],
    ) -> pb.AcknowledgeReply: ...
    async def ResetGroup(
        self,
        request: pb.ResetGroupRequest,
        context: grpc.aio.ServicerContext[pb.ResetGroupRequest, pb.ResetGroupReply],
    ) -> pb.ResetGroupReply: ...
    async def RemoveGroup(
        self,
        request: pb.RemoveGroupRequest,
        context: grpc.aio.ServicerContext[pb.RemoveGroupRequest, pb.RemoveGroupReply],
    ) -> pb.RemoveGroupReply: ...
    async def Groups(
        self, request: pb.GroupsRequest, context: grpc.aio.ServicerContext[pb.GroupsRequest, pb.GroupsReply]
    ) -> pb.GroupsReply: ...
    async def Recall(
        self, request: pb.RecallRequest, context: grpc.aio.ServicerContext[pb.RecallRequest, pb.RecallReply]
    ) -> pb.RecallReply: ...
    async def Timers(
        self, request: pb.TimersRequest, context: grpc.aio.ServicerContext[pb.TimersRequest, pb.TimersReply]
    ) -> pb.TimersReply: ...
    async def EndTransaction(
        self, request: pb.EndTransactionRequest, context: grpc.aio.ServicerContext[pb.EndTransactionRequest, pb.EndTransactionReply]
    ) -> pb.EndTransactionReply: ...
    async def CommitOffsets(
        self, request: pb.CommitOffsetsRequest, context: grpc.aio.ServicerContext[pb.CommitOffsetsRequest, pb.CommitOffsetsReply]
    ) -> pb.CommitOffsetsReply: ...
    async def CommittedOffsets(
        self, request: pb.CommittedOffsetsRequest, context: grpc.aio.ServicerContext[pb.CommittedOffsetsRequest, pb.CommittedOffsetsReply]
    ) -> pb.CommittedOffsetsReply: ...
    async def Trace(
        self, request: pb.TraceRequest, context: grpc.aio.ServicerContext[pb.TraceRequest, pb.TraceReply]
    ) -> pb.TraceReply: ...
    async def GetEntry(
        self, request: pb.GetEntryRequest, context: grpc.aio.ServicerContext[pb.GetEntryRequest, pb.GetEntryReply]
    ) -> pb.GetEntryReply: ...
    async def PutEntry(
        self, request: pb.PutEntryRequest, context: grpc.aio.ServicerContext[pb.PutEntryRequest, pb.ChangeEntryReply]
    ) -> pb.ChangeEntryReply: ...
    async def RemoveEntry(
        self, request: pb.RemoveEntryRequest, context: grpc.aio.ServicerContext[pb.RemoveEntryRequest, pb.ChangeEntryReply]
    ) -> pb.ChangeEntryReply: ...
    async def Entries(
        self, request: pb.EntriesRequest, context: grpc.aio.ServicerContext[pb.EntriesRequest, pb.EntriesReply]
    ) -> pb.EntriesReply: ...
    async def BucketChanges(
        self, request: pb.BucketChangesRequest, context: grpc.aio.ServicerContext[pb.BucketChangesRequest, pb.BucketChangesReply]
    ) -> pb.BucketChangesReply: ...
    async def Nodes(
        self, request: pb.NodesRequest, context: grpc.aio.ServicerContext[pb.NodesRequest, pb.NodesReply]
    ) -> pb.NodesReply: ...
    async def TransactionChecks(
        self,
        request: pb.TransactionChecksRequest,
        context: grpc.aio.ServicerContext[pb.TransactionChecksRequest, pb.TransactionCheck],
    ) -> None: ...

def add_SluiceServicer_to_server(servicer: SluiceServicer, server: grpc.aio.Server) -> None: ...
