"""The ReceiveMessage call: leases messages that match the filter of a group."""

import asyncio
from typing import Final

import record
from gateway.observe.service_clients import CLIENT
from gateway.rocketmq.access import ClientKey, require_consuming
from gateway.rocketmq.clients import GroupConfigs, TelemetryClients
from gateway.rocketmq.lease_renewal import LEASE_MS, MAX_TOTAL_S, LeaseRenewal
from gateway.rocketmq.messages import StoredMessage
from gateway.rocketmq.names import source_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import RocketError
from gateway.rpc.access.visibility import why_unreadable
from gateway.rpc.groups.long_polling import LongPolling, Source, current_source
from gateway.rpc.limits import RpcLimits
from matcher.selector import EVERYTHING, Selection, SelectorError, compile_selection
from store.api import Ordering, PopRequest, Receipts, Start, Store

_MARGIN_S: Final = 0.5  # between the reply and the client's timeout
_DEFAULT_WAIT_S: Final = 20.0
_BATCH: Final = 32


class LeasedMessages:
    """The messages of one call and their receipts."""

    __slots__ = ("messages", "receipts", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.messages: list[pb.Message] = []
        self.receipts: list[Receipts] = []


class ReceiveCalls:
    """Answers ReceiveMessage calls."""

    def __init__(
        self,
        store: Store,
        groups: LongPolling,
        clients: TelemetryClients,
        leases: LeaseRenewal,
        limits: RpcLimits,
        configured: GroupConfigs,
    ) -> None:
        self._store = store
        self._groups = groups
        self._clients = clients
        self._leases = leases
        self._limits = limits
        self._configured = configured

    async def receive(
        self, request: pb.ReceiveMessageRequest, client_key: ClientKey, left_s: float | None
    ) -> LeasedMessages:
        """Lease messages. Wait for the first one as long as the request and `left_s` (the rest of the call's timeout)
        allow. Raises `RocketError`, `RequestError` and `StoreError`."""
        topic = request.message_queue.topic
        source = source_of(request.group, topic, self._store)
        await require_consuming(self._store, source)
        invisible_ms = self._invisible_ms(request)
        records = min(request.batch_size or _BATCH, self._limits.max_fetch_records)
        if records < 0:
            raise RocketError(pb.BAD_REQUEST, "the batch size must not be negative")
        selection = selection_of(request.filter_expression)
        pop = PopRequest(
            source.group,
            source.queues,
            records,
            self._limits.max_fetch_bytes,
            invisible_ms,
            self._start(source),
            selection=selection,
            ordering=self._ordering(source, client_key),
            member=client_key.client_id.encode(),
            user=client_key.user,
        )
        popped = await self._groups.receive(source, pop, wait_of(request, left_s, self._limits))
        source = current_source(source, self._store)
        received = LeasedMessages(source)
        letters = iter(popped.dead_letters)
        for run in popped.runs:
            partition = source.queues.index(run.queue)
            for index, start in enumerate(record.split(run.data)):
                offset = run.offset + index
                message = StoredMessage(run.data, start).delivered(
                    topic, partition, offset, run.deliveries, invisible_ms
                )
                letter = next(letters, None)
                if letter is not None:
                    StoredMessage.add_dead_letter(message, letter)
                received.messages.append(message)
                received.receipts.append(Receipts(run.queue, offset, 1, run.deliveries))
        try:
            await require_consuming(self._store, source)  # the rights may have changed during the wait
            if why := why_unreadable(popped.dead_letters):
                raise RocketError(pb.FORBIDDEN, why)
        except BaseException:
            await asyncio.shield(self._groups.return_leases(source, received.receipts))
            raise
        if request.auto_renew and self._clients.has(client_key):  # the end of its stream ends the renewal
            self._leases.add(client_key, source, received.receipts)
            client = CLIENT.get()
            if client is not None:
                client.extended(source.group, int(MAX_TOTAL_S * 1000))
        return received

    async def return_leases(self, received: LeasedMessages) -> None:
        """Make messages available again that may not have reached the client. Their leases count as deliveries."""
        await self._groups.settle(received.source, (), [(receipt, 0) for receipt in received.receipts])

    def _start(self, source: Source) -> Start:
        """Where a new group begins: as configured, but at the beginning of its dead letters."""
        if source.key[:1] == b"d":
            return Start.EARLIEST
        configured = self._configured.get(source.group)
        return Start.RECENT if configured is None else Start(configured.start)

    def _ordering(self, source: Source, client_key: ClientKey) -> Ordering:
        """Which messages a client gets in order. A client without FIFO may handle the messages of an answer at the same
        time. It gets dead letters without order: they do not become dead letters again, so one that always fails would
        hold up its key for good."""
        if self._clients.is_fifo(client_key, source.group):
            return Ordering.ALL_KEYS
        return Ordering.NONE if source.key[:1] == b"d" else Ordering.NAMED_KEYS

    def _invisible_ms(self, request: pb.ReceiveMessageRequest) -> int:
        if request.auto_renew or not request.HasField("invisible_duration"):
            return LEASE_MS
        invisible_ms = int(request.invisible_duration.ToMilliseconds())
        check_invisible_ms(invisible_ms, 1, self._limits)
        return invisible_ms


def wait_of(
    request: pb.ReceiveMessageRequest | pb.PullMessageRequest, left_s: float | None, limits: RpcLimits
) -> float:
    """How many seconds a request waits for a message. left_s: the rest of the call's timeout. Raises `RocketError`."""
    wait_s = _DEFAULT_WAIT_S
    if request.HasField("long_polling_timeout"):
        wait_s = request.long_polling_timeout.ToMilliseconds() / 1000
        if wait_s < 0:
            raise RocketError(pb.ILLEGAL_POLLING_TIME, "the long polling timeout must not be negative")
    wait_s = min(wait_s, limits.max_wait_ms / 1000)
    return wait_s if left_s is None else max(0.0, min(wait_s, left_s - _MARGIN_S))


def check_invisible_ms(invisible_ms: int, minimum: int, limits: RpcLimits) -> None:
    """Raise `RocketError` for an invisible duration that is too short or too long."""
    if not minimum <= invisible_ms <= limits.max_invisible_ms:
        text = f"the longest invisible duration is {limits.max_invisible_ms // 1000} s"
        raise RocketError(pb.ILLEGAL_INVISIBLE_TIME, text)


def selection_of(expression: pb.FilterExpression) -> Selection:
    """The selection of a filter expression. Raises `RocketError`."""
    text = expression.expression.strip()
    if expression.type == pb.SQL:
        selection = Selection(sql=text)
    else:
        selection = EVERYTHING if text in ("", "*") else Selection(tags=text)
    try:
        compile_selection(selection)
    except SelectorError as error:
        raise RocketError(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
    return selection
