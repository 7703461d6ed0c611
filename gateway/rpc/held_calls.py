"""Calls about held messages: recall and list delayed messages, end transactions and check open ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.access.visibility import CALLER, is_readable
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.request_fields import within
from gateway.rpc.status import invalid
from store.api import HeldMessage, Store
from store.errors import NoSuchMessage

_MAX_CHECKS: Final = 1_024  # unread checks of one stream; the store repeats those that do not fit


class _CheckStream:
    """A stream of transaction checks. It gets checks only for topics that its user may publish to, since the user could
    not answer others."""

    __slots__ = ("caller", "halves")

    def __init__(self) -> None:
        self.caller = CALLER.get()
        self.halves: asyncio.Queue[HeldMessage | None] = asyncio.Queue(_MAX_CHECKS)

    def is_for(self, topic: bytes) -> bool:
        """Whether to send checks for a topic. A stream of a revoked user gets them too, and ends at the first one."""
        return self.caller is None or self.caller.is_revoked or self.caller.may_publish(topic)


class HeldCalls:
    """Answers calls about held messages. Each method raises `RequestError` for an invalid request, and `StoreError`."""

    def __init__(self, store: Store, limits: RpcLimits) -> None:
        self._store = store
        self._limits = limits
        self._streams: dict[bytes, list[_CheckStream]] = {}  # by publisher; the first gets the next check
        self._stopped = False
        store.on_transaction_check(self._send_checks)

    def stop(self) -> None:
        """End the streams of transaction checks."""
        self._stopped = True
        for streams in self._streams.values():
            for stream in streams:
                while stream.halves.full():
                    stream.halves.get_nowait()
                stream.halves.put_nowait(None)

    async def recall(self, request: pb.RecallRequest) -> pb.RecallReply:
        handles = self._handles(request.handles)
        return pb.RecallReply(missing=await self._store.recall(handles))

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionReply:
        handles = self._handles(request.handles)
        return pb.EndTransactionReply(missing=await self._store.end_transaction(handles, request.commit))

    async def timers(self, request: pb.TimersRequest) -> pb.TimersReply:
        limit = within(request.limit, self._limits.max_names)
        async with reply_budget() as budget:
            page = await self._store.timers(request.after if request.HasField("after") else None, limit)
            budget.add(sum([len(timer.topic) + len(timer.publisher) for timer in page.messages]))
        timers = [
            pb.Timer(
                handle=timer.handle,
                topic=timer.topic.decode(),
                publisher=timer.publisher.decode(),
                due_ms=timer.due_ms or 0,
            )
            for timer in page.messages
            if is_readable(timer.topic)
        ]
        return pb.TimersReply(timers=timers, after=page.after)

    async def checks(self, request: pb.TransactionChecksRequest) -> AsyncIterator[pb.TransactionCheck]:
        """Yield transaction checks for a publisher until the node stops."""
        publisher = request.publisher.encode()
        if not publisher:
            raise invalid("the publisher of the half messages is missing")
        stream = _CheckStream()
        streams = self._streams.setdefault(publisher, [])
        streams.append(stream)
        try:
            while not self._stopped and (half := await stream.halves.get()) is not None:
                try:
                    frame = await self._store.message(half.handle)
                except NoSuchMessage:
                    continue  # the transaction ended meanwhile, and its message was removed
                yield pb.TransactionCheck(handle=half.handle, rounds=half.rounds, frame=frame)
        finally:
            streams.remove(stream)
            if not streams:
                del self._streams[publisher]

    def _send_checks(self, halves: Sequence[HeldMessage]) -> list[int]:
        """Returns the handles of half messages whose publisher is asked."""
        asked: list[int] = []
        for half in halves:
            streams = self._streams.get(half.publisher, [])
            stream = next((candidate for candidate in streams if candidate.is_for(half.topic)), None)
            if stream is None:
                continue
            streams.remove(stream)  # round-robin
            streams.append(stream)
            if not stream.halves.full():
                stream.halves.put_nowait(half)
                asked.append(half.handle)
        return asked

    def _handles(self, handles: Sequence[int]) -> list[int]:
        if len(handles) > self._limits.max_handles:
            raise invalid(f"{len(handles)} messages in one request, the limit is {self._limits.max_handles}")
        return list(handles)
