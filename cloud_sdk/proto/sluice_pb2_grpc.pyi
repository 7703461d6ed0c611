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
    Acknowledge: grpc.aio.UnaryUnaryMultiCallable[pb.AcknowledgeRequest, pb.AcknowledgeReply]
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
    async def Acknowledge(
        self,
        request: pb.AcknowledgeRequest,
        context: grpc.aio.ServicerContext[pb.AcknowledgeRequest, pb.AcknowledgeReply],
    ) -> pb.AcknowledgeReply: ...

def add_SluiceServicer_to_server(servicer: SluiceServicer, server: grpc.aio.Server) -> None: ...
