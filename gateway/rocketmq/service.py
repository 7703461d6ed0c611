"""The calls of `apache.rocketmq.v2.MessagingService`. What is wrong is told in an answer's status, as RocketMQ does."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc.aio

from gateway.rocketmq.access import who_calls
from gateway.rocketmq.clients import Retries, TelemetryClient, TelemetryClients
from gateway.rocketmq.lease_renewal import LeaseRenewal
from gateway.rocketmq.names import group_name, parent_of_topic, source_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.proto import rocketmq_pb2_grpc
from gateway.rocketmq.receive_calls import LeasedMessages, ReceiveCalls
from gateway.rocketmq.send_calls import SendCalls
from gateway.rocketmq.settle_calls import SettleCalls
from gateway.rocketmq.status import OK, RocketError, status_of
from gateway.rpc.limits import RpcLimits
from gateway.rpc.long_polling import LongPolling
from gateway.rpc.status import RequestError
from store.api import HeldMessage, Store
from store.config import StoreConfig
from store.errors import StoreError

_TYPES: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)

_Context = grpc.aio.ServicerContext[Any, Any]
_Response = TypeVar("_Response")


class RocketService(rocketmq_pb2_grpc.MessagingServiceServicer):
    """Answers RocketMQ's clients over a store. `groups` are those of the native front: who waits in a group stands in
    one line, whatever it speaks. `fifo_groups` get the messages of a topic one after the other."""

    def __init__(
        self, store: Store, groups: LongPolling, limits: RpcLimits, config: StoreConfig, fifo_groups: frozenset[bytes]
    ) -> None:
        self._store = store
        self._leases = LeaseRenewal(groups)
        self._clients = TelemetryClients(store, Retries(config), limits.max_message_bytes, fifo_groups)
        self._sending = SendCalls(store, self._clients, limits)
        self._receiving = ReceiveCalls(store, groups, self._clients, self._leases, limits, fifo_groups)
        self._settling = SettleCalls(store, groups, self._leases, limits)
        self._stopping = False

    async def stop(self) -> None:
        """End the Telemetry streams and renew no leases any more."""
        self._stopping = True
        self._clients.stop()
        await self._leases.stop()

    async def QueryRoute(self, request: pb.QueryRouteRequest, context: _Context) -> pb.QueryRouteResponse:
        """One queue: which partition a message goes to is a matter of its topic, and a group receives from all."""
        try:
            self._check_topic(request.topic)
        except RocketError as error:
            return pb.QueryRouteResponse(status=status_of(error))
        queue = self._queue(request.topic, request.endpoints, 0)
        return pb.QueryRouteResponse(status=OK, message_queues=[queue])

    async def QueryAssignment(
        self, request: pb.QueryAssignmentRequest, context: _Context
    ) -> pb.QueryAssignmentResponse:
        try:
            source_of(request.group, request.topic, self._store.partitions)
        except RocketError as error:
            return pb.QueryAssignmentResponse(status=status_of(error))
        queue = self._queue(request.topic, request.endpoints, -1)
        return pb.QueryAssignmentResponse(status=OK, assignments=[pb.Assignment(message_queue=queue)])

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: _Context) -> pb.HeartbeatResponse:
        try:
            if request.HasField("group") and request.group.name:
                group_name(request.group)
        except RocketError as error:
            return pb.HeartbeatResponse(status=status_of(error))
        return pb.HeartbeatResponse(status=OK)

    async def SendMessage(self, request: pb.SendMessageRequest, context: _Context) -> pb.SendMessageResponse:
        return await _or_status(pb.SendMessageResponse, lambda: self._sending.send(request, who_calls(context)))

    async def EndTransaction(self, request: pb.EndTransactionRequest, context: _Context) -> pb.EndTransactionResponse:
        return await _or_status(pb.EndTransactionResponse, lambda: self._sending.end_transaction(request))

    async def RecallMessage(self, request: pb.RecallMessageRequest, context: _Context) -> pb.RecallMessageResponse:
        return await _or_status(pb.RecallMessageResponse, lambda: self._sending.recall(request))

    async def ReceiveMessage(
        self, request: pb.ReceiveMessageRequest, context: _Context
    ) -> AsyncIterator[pb.ReceiveMessageResponse]:
        try:
            if self._stopping:
                raise RocketError(pb.INTERNAL_SERVER_ERROR, "the node is stopping")
            who = who_calls(context)
            received = await self._receiving.receive(request, who, context.time_remaining())
        except (RocketError, StoreError) as error:
            yield pb.ReceiveMessageResponse(status=status_of(error))
            return
        except RequestError as error:  # the client has too much to read
            yield pb.ReceiveMessageResponse(status=pb.Status(code=pb.TOO_MANY_REQUESTS, message=str(error)))
            return
        if not received.messages:
            yield pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no message came"))
            return
        is_told = False
        try:
            async for response in _told(received):
                yield response
            is_told = True
        finally:
            if not is_told:
                for each in received.receipts:
                    self._leases.drop(who, received.source, each)
                await asyncio.shield(self._receiving.give_back(received))

    async def AckMessage(self, request: pb.AckMessageRequest, context: _Context) -> pb.AckMessageResponse:
        return await _or_status(pb.AckMessageResponse, lambda: self._settling.acknowledge(request, who_calls(context)))

    async def ChangeInvisibleDuration(
        self, request: pb.ChangeInvisibleDurationRequest, context: _Context
    ) -> pb.ChangeInvisibleDurationResponse:
        kind = pb.ChangeInvisibleDurationResponse
        return await _or_status(kind, lambda: self._settling.postpone(request, who_calls(context)))

    async def ForwardMessageToDeadLetterQueue(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, context: _Context
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        kind = pb.ForwardMessageToDeadLetterQueueResponse
        return await _or_status(kind, lambda: self._settling.bury(request, who_calls(context)))

    async def NotifyClientTermination(
        self, request: pb.NotifyClientTerminationRequest, context: _Context
    ) -> pb.NotifyClientTerminationResponse:
        try:
            who = who_calls(context)
        except RocketError as error:
            return pb.NotifyClientTerminationResponse(status=status_of(error))
        self._clients.end(who)
        self._leases.release(who)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def Telemetry(
        self, request_iterator: AsyncIterator[pb.TelemetryCommand], context: _Context
    ) -> AsyncIterator[pb.TelemetryCommand]:
        """The stream of one client: its settings, and what it is asked. It ends with the client, or the node."""
        try:
            who = who_calls(context)
        except RocketError as error:
            yield pb.TelemetryCommand(status=status_of(error))
            return
        client = self._clients.add(who)
        reader = asyncio.create_task(self._hear(client, request_iterator))
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
                waited = command.result()
                # Read only now: of the messages that wait nothing is in memory.
                told = await self._clients.question(waited) if isinstance(waited, HeldMessage) else waited
                if told is not None:
                    yield told
                client.commands.task_done()
        finally:
            reader.cancel()
            ended.cancel()
            if self._clients.remove(client):
                self._leases.release(who)

    async def _hear(self, client: TelemetryClient, commands: AsyncIterator[pb.TelemetryCommand]) -> None:
        """What the client says. Answers to what it is asked go another way, and nodes ask for nothing else."""
        try:
            async for command in commands:
                if not command.HasField("settings"):
                    continue
                try:
                    settings = self._clients.settle(client, command.settings)
                except RocketError as error:
                    client.tell(pb.TelemetryCommand(status=status_of(error)))
                else:
                    client.tell(pb.TelemetryCommand(status=OK, settings=settings))
                await client.commands.join()  # who reads nothing is not heard
        finally:
            client.ended.set()

    def _check_topic(self, topic: pb.Resource) -> None:
        if not topic.name.startswith("%DLQ%"):
            parent_of_topic(topic)

    def _queue(self, topic: pb.Resource, endpoints: pb.Endpoints, number: int) -> pb.MessageQueue:
        """A queue of a topic, to be reached the way that the client came: a node does not know its address outside."""
        broker = pb.Broker(name="sluice", id=0, endpoints=endpoints)
        return pb.MessageQueue(
            topic=topic, id=number, permission=pb.READ_WRITE, broker=broker, accept_message_types=_TYPES
        )


async def _or_status(kind: Callable[..., _Response], call: Callable[[], Awaitable[_Response]]) -> _Response:
    """The answer, or one whose status says what is wrong."""
    try:
        return await call()
    except (RocketError, StoreError) as error:
        return kind(status=status_of(error))


async def _told(received: LeasedMessages) -> AsyncIterator[pb.ReceiveMessageResponse]:
    yield pb.ReceiveMessageResponse(status=OK)
    for message in received.messages:
        yield pb.ReceiveMessageResponse(message=message)
    last = pb.ReceiveMessageResponse()
    last.delivery_timestamp.FromMilliseconds(int(time.time() * 1000))
    yield last
