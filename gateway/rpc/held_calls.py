"""The calls about messages that are held: recalled, listed, and those whose transactions somebody has to end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.request_fields import within
from gateway.rpc.status import invalid
from gateway.rpc.visibility import CALLER, is_visible
from store.api import HeldMessage, Store
from store.errors import NoSuchMessage

_WAITING: Final = 1_024  # checks of one stream that its client has not taken; others are asked again later


class _Stream:
    """Whom to ask about transactions: of what he may publish. Others would be asked in vain, in his place."""

    __slots__ = ("caller", "halves")

    def __init__(self) -> None:
        """Of who makes the call of this task."""
        self.caller = CALLER.get()
        self.halves: asyncio.Queue[HeldMessage | None] = asyncio.Queue(_WAITING)

    def is_for(self, topic: bytes) -> bool:
        """One whose user is none any more ends when he is asked."""
        return self.caller is None or self.caller.is_revoked or self.caller.may_publish(topic)


class HeldCalls:
    """Answers them. All raise `RequestError` for what is wrong with a request, and what the store raises."""

    def __init__(self, store: Store, limits: RpcLimits) -> None:
        self._store = store
        self._limits = limits
        self._streams: dict[bytes, list[_Stream]] = {}  # by publisher, the next to ask first
        self._stopped = False
        store.on_transaction_check(self._ask)

    def stop(self) -> None:
        """End the streams of checks."""
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
            budget.add(sum([len(each.topic) + len(each.publisher) for each in page.messages]))
        timers = [
            pb.Timer(
                handle=each.handle,
                topic=each.topic.decode(),
                publisher=each.publisher.decode(),
                due_ms=each.due_ms or 0,
            )
            for each in page.messages
            if is_visible(each.topic)
        ]
        return pb.TimersReply(timers=timers, after=page.after)

    async def checks(self, request: pb.TransactionChecksRequest) -> AsyncIterator[pb.TransactionCheck]:
        """What a stream of checks tells, until the node stops."""
        publisher = request.publisher.encode()
        if not publisher:
            raise invalid("the publisher of the half messages is missing")
        stream = _Stream()
        streams = self._streams.setdefault(publisher, [])
        streams.append(stream)
        try:
            while not self._stopped and (half := await stream.halves.get()) is not None:
                try:
                    frame = await self._store.message(half.handle)
                except NoSuchMessage:
                    continue  # it ended meanwhile, and is gone
                yield pb.TransactionCheck(handle=half.handle, rounds=half.rounds, frame=frame)
        finally:
            streams.remove(stream)
            if not streams:
                del self._streams[publisher]

    def _ask(self, halves: Sequence[HeldMessage]) -> None:
        for half in halves:
            streams = self._streams.get(half.publisher, [])
            stream = next((each for each in streams if each.is_for(half.topic)), None)
            if stream is None:
                continue
            streams.remove(stream)  # in turns
            streams.append(stream)
            if not stream.halves.full():
                stream.halves.put_nowait(half)

    def _handles(self, handles: Sequence[int]) -> list[int]:
        if len(handles) > self._limits.max_handles:
            raise invalid(f"{len(handles)} messages in one request, the limit is {self._limits.max_handles}")
        return list(handles)
