"""The calls of producers: send messages, end transactions and recall delayed messages."""

import asyncio
import time
from contextlib import suppress
from typing import Final

from gateway.observe.service_clients import CLIENT
from gateway.rocketmq.access import ClientKey, require_publishing
from gateway.rocketmq.clients import TelemetryClients
from gateway.rocketmq.messages import Outgoing, StoredMessage
from gateway.rocketmq.names import parent_of_topic
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import OK, RocketError
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.payloads import checked_frame
from gateway.schemas.errors import InvalidPayload
from gateway.schemas.payload_checks import PayloadChecks
from store.api import Appended, Store
from store.errors import NoSuchMessage

_SLICE: Final = 128  # messages that are translated before everything else on the loop has its turn


class SendCalls:
    """Answers SendMessage, EndTransaction and RecallMessage. Every method raises `RocketError` and `StoreError`."""

    def __init__(
        self, store: Store, clients: TelemetryClients, limits: RpcLimits, payload_checks: PayloadChecks
    ) -> None:
        self._store = store
        self._clients = clients
        self._limits = limits
        self._payload_checks = payload_checks

    async def send(self, request: pb.SendMessageRequest, client_key: ClientKey) -> pb.SendMessageResponse:
        """Append all messages of a request, or none. Returns after their commit."""
        if not 0 < len(request.messages) <= self._limits.max_request_records:
            raise RocketError(pb.BAD_REQUEST, f"a request has 1 to {self._limits.max_request_records} messages")
        now_ms = int(time.time() * 1000)
        outgoing: list[Outgoing] = []
        for message in request.messages:
            if outgoing and len(outgoing) % _SLICE == 0:
                await asyncio.sleep(0)
            parent = parent_of_topic(message.topic)
            outgoing.append(Outgoing(message, parent, client_key.client_id, now_ms, self._limits))
            require_publishing(outgoing[-1].topic)
            if outgoing[-1].is_half:
                self._clients.remember_topic(client_key, parent)
        if any(each.is_half or each.due_ms is not None for each in outgoing) and not self._store.may_hold():
            raise RocketError(pb.TOO_MANY_REQUESTS, "too many delayed messages and open transactions (store.max_held)")
        frames = [each.frame for each in outgoing]
        if self._payload_checks.is_active:
            frames = await self._checked(frames)
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def on_appended(appended: Appended) -> None:
            if not answer.done():  # the call was cancelled
                answer.set_result(appended)

        self._store.append(frames, on_appended)
        appended = await answer
        if appended.error is not None:
            raise appended.error
        client = CLIENT.get()
        if client is not None:
            client.published(len(outgoing))
        response = pb.SendMessageResponse(status=OK)
        for sent, position in zip(outgoing, appended.positions, strict=True):
            entry = response.entries.add(status=OK, message_id=sent.message_id, offset=position)
            if sent.is_half:
                entry.transaction_id = str(position)
            elif sent.due_ms is not None:
                entry.recall_handle = str(position)
        return response

    async def _checked(self, frames: list[bytes]) -> list[bytes]:
        """The frames as they are stored: some may be marked, or in quarantine."""
        found = []
        for number, frame in enumerate(frames):
            if number and number % _SLICE == 0:
                await asyncio.sleep(0)
            try:
                found.append(checked_frame(frame, self._payload_checks))
            except InvalidPayload as error:
                raise RocketError(pb.BAD_REQUEST, str(error)) from error
        return found

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        parent_of_topic(request.topic)
        handle = _handle(request.transaction_id, pb.INVALID_TRANSACTION_ID, "transaction id")
        if request.resolution not in (pb.COMMIT, pb.ROLLBACK):
            # RocketMQ treats this as "unknown": the producer is asked again.
            return pb.EndTransactionResponse(status=OK)
        await self._require_publishing(handle)
        if await self._store.end_transaction([handle], request.resolution == pb.COMMIT):
            raise RocketError(pb.INVALID_TRANSACTION_ID, "the transaction is not open: it was committed or rolled back")
        return pb.EndTransactionResponse(status=OK)

    async def recall(self, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        parent_of_topic(request.topic)
        handle = _handle(request.recall_handle, pb.BAD_REQUEST, "recall handle")
        await self._require_publishing(handle)
        if await self._store.recall([handle]):
            raise RocketError(pb.BAD_REQUEST, "the message is not delayed: it was delivered or recalled")
        message = StoredMessage(await self._store.message(handle), 0)
        return pb.RecallMessageResponse(status=OK, message_id=message.message_id())

    async def _require_publishing(self, handle: int) -> None:
        """Raises `RocketError` unless the caller may publish to the topic of a message. A removed message passes."""
        with suppress(NoSuchMessage):
            require_publishing(StoredMessage(await self._store.message(handle), 0).topic)


def _handle(text: str, code: "pb.Code", name: str) -> int:
    if not text.isdecimal() or len(text) > 19:
        raise RocketError(code, f"{text[:100]!r} is not a {name}")
    return int(text)
