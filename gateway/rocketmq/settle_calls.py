"""What becomes of messages that a group received: finished, to come again later, or dead letters."""

from gateway.rocketmq.access import ClientKey, require_reading
from gateway.rocketmq.lease_renewal import LeaseRenewal
from gateway.rocketmq.names import source_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.receipts import receipts_of
from gateway.rocketmq.status import OK, RocketError, status_of
from gateway.rpc.limits import RpcLimits
from gateway.rpc.long_polling import LongPolling
from store.api import Receipts, Store

_STALE = RocketError(
    pb.INVALID_RECEIPT_HANDLE, "the message is finished, or its lease has ended and it was leased out again"
)


class SettleCalls:
    """Answers AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue. All raise `RocketError` and
    `StoreError`."""

    def __init__(self, store: Store, groups: LongPolling, leases: LeaseRenewal, limits: RpcLimits) -> None:
        self._store = store
        self._groups = groups
        self._leases = leases
        self._limits = limits

    async def acknowledge(self, request: pb.AckMessageRequest, who: ClientKey) -> pb.AckMessageResponse:
        source = source_of(request.group, request.topic, self._store.partitions)
        require_reading(source)
        if not 0 < len(request.entries) <= self._limits.max_settled:
            raise RocketError(pb.BAD_REQUEST, f"1 to {self._limits.max_settled} messages are acknowledged at once")
        outcomes: list[Receipts | RocketError] = []
        for entry in request.entries:
            try:
                outcomes.append(receipts_of(source, entry.receipt_handle))
            except RocketError as error:
                outcomes.append(error)
        told = {(each.queue, each.offset, each.deliveries): each for each in outcomes if isinstance(each, Receipts)}
        settled = await self._groups.settle(source, list(told.values()), (), who.client_id.encode())
        stale = {(each.queue, each.offset) for each in settled}
        response = pb.AckMessageResponse()
        for entry, outcome in zip(request.entries, outcomes, strict=True):
            status = OK
            if isinstance(outcome, RocketError):
                status = status_of(outcome)
            else:
                self._leases.drop(who, source, outcome)
                if (outcome.queue, outcome.offset) in stale:
                    status = status_of(_STALE)
            response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        codes = {entry.status.code for entry in response.entries}
        first = response.entries[0].status
        response.status.CopyFrom(first if len(codes) == 1 else pb.Status(code=pb.MULTIPLE_RESULTS))
        return response

    async def postpone(
        self, request: pb.ChangeInvisibleDurationRequest, who: ClientKey
    ) -> pb.ChangeInvisibleDurationResponse:
        source = source_of(request.group, request.topic, self._store.partitions)
        require_reading(source)
        receipts = receipts_of(source, request.receipt_handle)
        delay_ms = int(request.invisible_duration.ToMilliseconds())
        if not 0 <= delay_ms <= self._limits.max_invisible_ms:
            raise RocketError(
                pb.ILLEGAL_INVISIBLE_TIME, f"an invisible duration is up to {self._limits.max_invisible_ms // 1000} s"
            )
        self._leases.drop(who, source, receipts)
        if await self._groups.settle(source, (), [(receipts, delay_ms)], who.client_id.encode()):
            raise _STALE
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=request.receipt_handle)

    async def bury(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, who: ClientKey
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        source = source_of(request.group, request.topic, self._store.partitions)
        require_reading(source)
        if source.key[:1] == b"d":
            raise RocketError(pb.ILLEGAL_TOPIC, "the message is a dead letter already")
        receipts = receipts_of(source, request.receipt_handle)
        self._leases.drop(who, source, receipts)
        if await self._groups.bury(source, [receipts], who.client_id.encode()):
            raise _STALE
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)
