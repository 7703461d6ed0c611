"""Held messages: delayed ones, and those of open transactions."""

from collections.abc import Sequence

from gateway.management.paging import MAX_PAGE, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, SUB, TOPIC
from gateway.management.rights import Manager, require_one
from gateway.rpc.access.visibility import topic_of
from gateway.rpc.status import invalid
from store.api import HeldPage
from store.engine import Engine
from store.errors import NoSuchMessage


class HeldService:
    """Implements the service `Held`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list_timers(self, request: pb.ListTimersRequest, manager: Manager) -> pb.ListHeldReply:
        after = request.after if request.HasField("after") else None
        return await _reply(await self._engine.timers(after, page_size(request.limit)), manager)

    async def recall_timers(self, request: pb.RecallTimersRequest, manager: Manager) -> pb.RecallTimersReply:
        positions = await self._publishable(request.positions, manager)
        return pb.RecallTimersReply(missing=await self._engine.recall(positions))

    async def list_transactions(self, request: pb.ListTransactionsRequest, manager: Manager) -> pb.ListHeldReply:
        after = request.after if request.HasField("after") else None
        return await _reply(await self._engine.transactions(after, page_size(request.limit)), manager)

    async def end_transactions(self, request: pb.EndTransactionsRequest, manager: Manager) -> pb.EndTransactionsReply:
        if not request.HasField("commit"):
            raise invalid("say whether to commit the messages (true) or to roll them back (false)")
        positions = await self._publishable(request.positions, manager)
        return pb.EndTransactionsReply(missing=await self._engine.end_transaction(positions, request.commit))

    async def _publishable(self, positions: Sequence[int], manager: Manager) -> list[int]:
        """The positions of messages to whose topics the caller may publish. Raises `RequestError` and `StoreError`."""
        if len(positions) > MAX_PAGE:
            raise invalid(f"a request has at most {MAX_PAGE} messages")
        for position in positions:
            if position < 0:
                raise invalid(f"{position} is not the position of a message")
            try:
                frame = await self._engine.message(position)
            except NoSuchMessage:
                continue  # the call then does nothing about it
            await require_one(manager, PUB, TOPIC, topic_of(frame).decode())
        return list(positions)


async def _reply(page: HeldPage, manager: Manager) -> pb.ListHeldReply:
    """A page without the messages whose topics the caller may not read."""
    reply = pb.ListHeldReply(after=page.after)
    for held in page.messages:
        if await manager.may(SUB, TOPIC, held.topic.decode()):
            row = reply.messages.add(position=held.handle, topic=held.topic.decode(), checks=held.rounds)
            row.publisher = held.publisher.decode(errors="replace")
            if held.due_ms is not None:
                row.due_ms = held.due_ms
    return reply
