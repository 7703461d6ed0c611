"""The calls that settle received messages: acknowledge, postpone or dead-letter them."""

from gateway.rocketmq.access import ClientKey, require_consuming
from gateway.rocketmq.lease_renewal import LeaseRenewal
from gateway.rocketmq.names import source_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.receipts import receipts_of
from gateway.rocketmq.receive_calls import check_invisible_ms
from gateway.rocketmq.status import OK, RocketError, status_of
from gateway.rpc.groups.long_polling import LongPolling, Source
from gateway.rpc.limits import RpcLimits
from store.api import DeadLetterReason, Failed, Receipts, Store

_STALE = RocketError(
    pb.INVALID_RECEIPT_HANDLE, "the message is finished, or its lease ended and the message was delivered again"
)


class SettleCalls:
    """Answers AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

    Every method raises `RocketError` and `StoreError`.
    """

    def __init__(self, store: Store, groups: LongPolling, leases: LeaseRenewal, limits: RpcLimits) -> None:
        self._store = store
        self._groups = groups
        self._leases = leases
        self._limits = limits

    async def acknowledge(self, request: pb.AckMessageRequest, client_key: ClientKey) -> pb.AckMessageResponse:
        source = await self._source(request.group, request.topic)
        if not 0 < len(request.entries) <= self._limits.max_settled:
            raise RocketError(pb.BAD_REQUEST, f"a request acknowledges 1 to {self._limits.max_settled} messages")
        outcomes: list[Receipts | RocketError] = []
        for entry in request.entries:
            try:
                outcomes.append(receipts_of(source, entry.receipt_handle))
            except RocketError as error:
                outcomes.append(error)
        receipts = {(each.queue, each.offset, each.deliveries): each for each in outcomes if isinstance(each, Receipts)}
        rejected = await self._groups.settle(source, list(receipts.values()), (), client_key.client_id.encode())
        stale = {(each.queue, each.offset) for each in rejected}
        response = pb.AckMessageResponse()
        for entry, outcome in zip(request.entries, outcomes, strict=True):
            status = OK
            if isinstance(outcome, RocketError):
                status = status_of(outcome)
            else:
                self._leases.remove(client_key, source, outcome)
                if (outcome.queue, outcome.offset) in stale:
                    status = status_of(_STALE)
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        codes = {entry.status.code for entry in response.entries}
        first = response.entries[0].status
        response.status.CopyFrom(first if len(codes) == 1 else pb.Status(code=pb.MULTIPLE_RESULTS))
        return response

    async def postpone(
        self, request: pb.ChangeInvisibleDurationRequest, client_key: ClientKey
    ) -> pb.ChangeInvisibleDurationResponse:
        source = await self._source(request.group, request.topic)
        receipts = receipts_of(source, request.receipt_handle)
        delay_ms = int(request.invisible_duration.ToMilliseconds())
        check_invisible_ms(delay_ms, 0, self._limits)
        member = client_key.client_id.encode()
        if self._leases.remove(client_key, source, receipts):  # a push consumer, whose handler has failed
            stale = await self._groups.settle(source, (), (), member, failed=[Failed(receipts, delay_ms)])
        else:
            stale = await self._groups.settle(source, (), [(receipts, delay_ms)], member)
        if stale:
            raise _STALE
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=request.receipt_handle)

    async def dead_letter(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, client_key: ClientKey
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        source = await self._source(request.group, request.topic)
        if source.key[:1] == b"d":
            raise RocketError(pb.ILLEGAL_TOPIC, "the message is already a dead letter")
        receipts = receipts_of(source, request.receipt_handle)
        self._leases.remove(client_key, source, receipts)
        member = client_key.client_id.encode()
        if await self._groups.dead_letter(source, [receipts], DeadLetterReason.FORWARDED, member):
            raise _STALE
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def _source(self, group: pb.Resource, topic: pb.Resource) -> Source:
        source = source_of(group, topic, self._store)
        await require_consuming(self._store, source)
        return source
