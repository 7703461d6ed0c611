"""The gRPC service `apache.rocketmq.v2.MessagingService`. As with RocketMQ, a reply's status reports errors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import grpc.aio

from gateway.net.weighted import Weighted, in_turn
from gateway.rocketmq.access import client_key_of
from gateway.rocketmq.clients import GroupConfigs, TelemetryClient, TelemetryClients
from gateway.rocketmq.endpoints import endpoints_of
from gateway.rocketmq.lease_renewal import LeaseRenewal
from gateway.rocketmq.names import group_name, parent_of_topic, source_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.proto import rocketmq_pb2_grpc
from gateway.rocketmq.pull_calls import PullMessageCalls
from gateway.rocketmq.receive_calls import LeasedMessages, ReceiveCalls
from gateway.rocketmq.send_calls import SendCalls
from gateway.rocketmq.settle_calls import SettleCalls
from gateway.rocketmq.status import OK, RocketError, status_of
from gateway.rpc.consuming.pull import PullCalls
from gateway.rpc.groups.long_polling import LongPolling
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import RequestError
from gateway.schemas.payload_checks import PayloadChecks
from store.api import HeldMessage, Store
from store.errors import StoreError

_TYPES: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)

_Context = grpc.aio.ServicerContext[Any, Any]
_Response = TypeVar("_Response")
_Call = Callable[["RocketService", Any, _Context], Coroutine[Any, Any, _Response]]


def _or_status(kind: Callable[..., _Response]) -> Callable[[_Call[_Response]], _Call[_Response]]:
    """Have a call that raises an error answer with an empty reply of type `kind` and the status of the error."""

    def decorate(call: _Call[_Response]) -> _Call[_Response]:
        async def answer(self: "RocketService", request: Any, context: _Context) -> _Response:
            try:
                return await call(self, request, context)
            except (RocketError, StoreError) as error:
                return kind(status=status_of(error))

        return answer

    return decorate


class RocketService(rocketmq_pb2_grpc.MessagingServiceServicer):
    """Answers the calls of RocketMQ's clients.

    groups, pulls: those of the native service, so that members of both protocols wait in the same lines. configured:
    groups that differ from the defaults, by name. services: addresses of nodes that clients are told of.
    """

    def __init__(
        self,
        store: Store,
        groups: LongPolling,
        pulls: PullCalls,
        limits: RpcLimits,
        configured: GroupConfigs,
        services: Callable[[], Sequence[Weighted]],
        payload_checks: PayloadChecks,
    ) -> None:
        self._services = services
        self._store = store
        self._leases = LeaseRenewal(groups)
        self._clients = TelemetryClients(store, limits.max_message_bytes, configured)
        self._sending = SendCalls(store, self._clients, limits, payload_checks)
        self._receiving = ReceiveCalls(store, groups, self._clients, self._leases, limits, configured)
        self._settling = SettleCalls(store, groups, self._leases, limits)
        self._pulling = PullMessageCalls(store, pulls, limits)
        self._stopping = False

    async def stop(self) -> None:
        """End the Telemetry streams and stop renewing leases."""
        self._stopping = True
        self._clients.stop()
        await self._leases.stop()

    @_or_status(pb.QueryRouteResponse)
    async def QueryRoute(self, request: pb.QueryRouteRequest, context: _Context) -> pb.QueryRouteResponse:
        """Return a queue for each partition, for pull consumers. Other clients may use any of them: a message's topic
        determines its partition, and members of a group receive from all partitions.

        The queues are at all nodes in turn. Each topic begins with another one."""
        count = 1
        if not request.topic.name.startswith("%DLQ%"):
            count = self._store.partition_count(parent_of_topic(request.topic))
        brokers = self._brokers(request.endpoints)
        first = crc32(request.topic.name.encode())
        queues = [_queue(request.topic, brokers[(first + each) % len(brokers)], each) for each in range(count)]
        return pb.QueryRouteResponse(status=OK, message_queues=queues)

    @_or_status(pb.QueryAssignmentResponse)
    async def QueryAssignment(
        self, request: pb.QueryAssignmentRequest, context: _Context
    ) -> pb.QueryAssignmentResponse:
        source_of(request.group, request.topic, self._store)
        brokers = {broker.name: broker for broker in self._brokers(request.endpoints)}
        queues = [_queue(request.topic, broker, -1) for broker in brokers.values()]
        return pb.QueryAssignmentResponse(status=OK, assignments=[pb.Assignment(message_queue=each) for each in queues])

    @_or_status(pb.HeartbeatResponse)
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: _Context) -> pb.HeartbeatResponse:
        if request.HasField("group") and request.group.name:
            group_name(request.group)
        return pb.HeartbeatResponse(status=OK)

    @_or_status(pb.SendMessageResponse)
    async def SendMessage(self, request: pb.SendMessageRequest, context: _Context) -> pb.SendMessageResponse:
        return await self._sending.send(request, client_key_of(context))

    @_or_status(pb.EndTransactionResponse)
    async def EndTransaction(self, request: pb.EndTransactionRequest, context: _Context) -> pb.EndTransactionResponse:
        return await self._sending.end_transaction(request)

    @_or_status(pb.RecallMessageResponse)
    async def RecallMessage(self, request: pb.RecallMessageRequest, context: _Context) -> pb.RecallMessageResponse:
        return await self._sending.recall(request)

    async def ReceiveMessage(
        self, request: pb.ReceiveMessageRequest, context: _Context
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        try:
            if self._stopping:
                raise RocketError(pb.INTERNAL_SERVER_ERROR, "the node is stopping")
            client_key = client_key_of(context)
            received = await self._receiving.receive(request, client_key, context.time_remaining())
        except (RocketError, StoreError) as error:
            yield pb.ReceiveMessageResponse(status=status_of(error))
            return
        except RequestError as error:  # the connection has too many unread replies
            yield pb.ReceiveMessageResponse(status=pb.Status(code=pb.TOO_MANY_REQUESTS, message=str(error)))
            return
        if not received.messages:
            yield pb.ReceiveMessageResponse(
                status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no message is available")
            )
            return
        is_sent = False
        try:
            async for response in _responses(received):
                yield response
            is_sent = True
        finally:
            if not is_sent:
                for receipt in received.receipts:
                    self._leases.remove(client_key, received.source, receipt)
                await asyncio.shield(self._receiving.return_leases(received))

    @_or_status(pb.AckMessageResponse)
    async def AckMessage(self, request: pb.AckMessageRequest, context: _Context) -> pb.AckMessageResponse:
        return await self._settling.acknowledge(request, client_key_of(context))

    @_or_status(pb.ChangeInvisibleDurationResponse)
    async def ChangeInvisibleDuration(
        self, request: pb.ChangeInvisibleDurationRequest, context: _Context
    ) -> pb.ChangeInvisibleDurationResponse:
        return await self._settling.postpone(request, client_key_of(context))

    @_or_status(pb.ForwardMessageToDeadLetterQueueResponse)
    async def ForwardMessageToDeadLetterQueue(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, context: _Context
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        return await self._settling.dead_letter(request, client_key_of(context))

    async def PullMessage(
        self, request: pb.PullMessageRequest, context: _Context
    ) -> AsyncIterator[pb.PullMessageResponse]:
        try:
            messages, next_offset = await self._pulling.pull(request, context.time_remaining())
        except (RocketError, StoreError) as error:
            yield pb.PullMessageResponse(status=status_of(error))
            return
        except RequestError as error:  # the connection has too many unread replies
            yield pb.PullMessageResponse(status=pb.Status(code=pb.TOO_MANY_REQUESTS, message=str(error)))
            return
        none = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no message is available")
        yield pb.PullMessageResponse(status=OK if messages else none)
        for message in messages:
            yield pb.PullMessageResponse(message=message)
        yield pb.PullMessageResponse(next_offset=next_offset)

    @_or_status(pb.UpdateOffsetResponse)
    async def UpdateOffset(self, request: pb.UpdateOffsetRequest, context: _Context) -> pb.UpdateOffsetResponse:
        return await self._pulling.update_offset(request)

    @_or_status(pb.GetOffsetResponse)
    async def GetOffset(self, request: pb.GetOffsetRequest, context: _Context) -> pb.GetOffsetResponse:
        return await self._pulling.get_offset(request)

    @_or_status(pb.QueryOffsetResponse)
    async def QueryOffset(self, request: pb.QueryOffsetRequest, context: _Context) -> pb.QueryOffsetResponse:
        return await self._pulling.query_offset(request)

    @_or_status(pb.NotifyClientTerminationResponse)
    async def NotifyClientTermination(
        self, request: pb.NotifyClientTerminationRequest, context: _Context
    ) -> pb.NotifyClientTerminationResponse:
        client_key = client_key_of(context)
        self._clients.end(client_key)
        self._leases.release(client_key)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def Telemetry(
        self, request_iterator: AsyncIterator[pb.TelemetryCommand], context: _Context
    ) -> AsyncIterator[pb.TelemetryCommand]:
        """The stream of one client: sends settings and transaction checks until the client or the node stops."""
        try:
            client_key = client_key_of(context)
        except RocketError as error:
            yield pb.TelemetryCommand(status=status_of(error))
            return
        client = self._clients.add(client_key)
        reader = asyncio.create_task(self._read_commands(client, request_iterator))
        ended = asyncio.create_task(client.ended.wait())
        if self._stopping:
            client.ended.set()
        try:
            while not ended.done():
                command = asyncio.create_task(client.commands.get())
                await asyncio.wait((command, ended), return_when=asyncio.FIRST_COMPLETED)
                if not command.done():
                    command.cancel()
                    break
                queued = command.result()
                # The message is read only now, so that queued checks keep no messages in memory.
                reply = await self._clients.check_command(queued) if isinstance(queued, HeldMessage) else queued
                if reply is not None:
                    yield reply
                client.commands.task_done()
        finally:
            reader.cancel()
            ended.cancel()
            if self._clients.remove(client):
                self._leases.release(client_key)

    async def _read_commands(self, client: TelemetryClient, commands: AsyncIterator[pb.TelemetryCommand]) -> None:
        """Answer the settings that a client sends. Clients answer transaction checks with EndTransaction, not here."""
        try:
            async for command in commands:
                if not command.HasField("settings"):
                    continue
                try:
                    settings = self._clients.settings_for(client, command.settings)
                except RocketError as error:
                    client.enqueue(pb.TelemetryCommand(status=status_of(error)))
                else:
                    client.enqueue(pb.TelemetryCommand(status=OK, settings=settings))
                await client.commands.join()  # do not read from a client that does not read
        finally:
            client.ended.set()

    def _brokers(self, used: pb.Endpoints) -> list[pb.Broker]:
        """The nodes, at least one, each as many times as its weight says. If none has told its address, it is at the
        address that the client used."""
        places = in_turn(self._services())
        brokers = [pb.Broker(name=each, id=0, endpoints=endpoints_of(each)) for each in places]
        return brokers or [pb.Broker(name="sluice", id=0, endpoints=used)]


def _queue(topic: pb.Resource, broker: pb.Broker, number: int) -> pb.MessageQueue:
    return pb.MessageQueue(topic=topic, id=number, permission=pb.READ_WRITE, broker=broker, accept_message_types=_TYPES)


async def _responses(received: LeasedMessages) -> AsyncIterator[pb.ReceiveMessageResponse]:
    yield pb.ReceiveMessageResponse(status=OK)
    for message in received.messages:
        yield pb.ReceiveMessageResponse(message=message)
    last = pb.ReceiveMessageResponse()
    last.delivery_timestamp.FromMilliseconds(int(time.time() * 1000))
    yield last
