from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from gateway.rocketmq.proto import rocketmq_pb2 as pb

class MessagingServiceServicer:
    async def QueryRoute(
        self, request: pb.QueryRouteRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.QueryRouteResponse: ...
    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.HeartbeatResponse: ...
    async def SendMessage(
        self, request: pb.SendMessageRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.SendMessageResponse: ...
    async def QueryAssignment(
        self, request: pb.QueryAssignmentRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.QueryAssignmentResponse: ...
    def ReceiveMessage(
        self, request: pb.ReceiveMessageRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ReceiveMessageResponse]: ...
    async def AckMessage(
        self, request: pb.AckMessageRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AckMessageResponse: ...
    async def ForwardMessageToDeadLetterQueue(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ForwardMessageToDeadLetterQueueResponse: ...
    def PullMessage(
        self, request: pb.PullMessageRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.PullMessageResponse]: ...
    async def UpdateOffset(
        self, request: pb.UpdateOffsetRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.UpdateOffsetResponse: ...
    async def GetOffset(
        self, request: pb.GetOffsetRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GetOffsetResponse: ...
    async def QueryOffset(
        self, request: pb.QueryOffsetRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.QueryOffsetResponse: ...
    async def EndTransaction(
        self, request: pb.EndTransactionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.EndTransactionResponse: ...
    def Telemetry(
        self, request_iterator: AsyncIterator[pb.TelemetryCommand], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.TelemetryCommand]: ...
    async def NotifyClientTermination(
        self, request: pb.NotifyClientTerminationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.NotifyClientTerminationResponse: ...
    async def ChangeInvisibleDuration(
        self, request: pb.ChangeInvisibleDurationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ChangeInvisibleDurationResponse: ...
    async def RecallMessage(
        self, request: pb.RecallMessageRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RecallMessageResponse: ...

def add_MessagingServiceServicer_to_server(servicer: MessagingServiceServicer, server: grpc.aio.Server) -> None: ...
