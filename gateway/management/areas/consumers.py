"""Members of consumer groups over the management surface: messages leased with a receipt, and settled by it."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

import record
from gateway.management.areas.messages import message_of
from gateway.management.paging import AT_ONCE, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.groups.long_polling import LongPolling, Source, parent_source
from gateway.rpc.limits import RpcLimits
from gateway.rpc.loop_turns import LoopTurns
from gateway.rpc.request_fields import client_group_name, member_name, parent_name
from gateway.rpc.status import invalid
from gateway.rpc.wakeups import Wakeups
from matcher.names import is_shared
from store.api import MAX_ERROR, Failed, PopRequest, Receipts, Start, Store
from store.config import MAX_MAX_DELIVERIES

_BYTES: Final = 1 << 20  # of the records of a reply; one may be larger
_LEASE_MS: Final = 30_000  # unless the request has another number
_MAX_WAIT_MS: Final = 20_000
_MAX_NUMBER: Final = (1 << 63) - 1
_SEPARATOR: Final = "-"


class ConsumersService:
    """Implements the service `Consumers`."""

    def __init__(self, store: Store, limits: RpcLimits) -> None:
        self._store = store
        self._limits = limits

    @cached_property
    def _groups(self) -> LongPolling:
        # No call waits for a turn here: the surface carries out few calls at a time, each with a short reply.
        turns = LoopTurns(1.0, 0.0, lambda: 0, asyncio.get_running_loop())
        return LongPolling(self._store, Wakeups(self._store), turns)

    async def receive_messages(self, request: pb.ReceiveMessagesRequest, manager: Manager) -> pb.ReceiveMessagesReply:
        source = self._source(request.group, request.parent)
        lease_ms = request.lease_ms or _LEASE_MS
        if lease_ms > self._limits.max_invisible_ms:
            raise invalid(f"a lease has at most {self._limits.max_invisible_ms} ms")
        if request.wait_ms > _MAX_WAIT_MS:
            raise invalid(f"a call waits at most {_MAX_WAIT_MS} ms, and wait_ms is {request.wait_ms}")
        pop = PopRequest(
            source.group,
            source.queues,
            page_size(request.limit),
            _BYTES,
            lease_ms,
            Start.EARLIEST if request.from_earliest else Start.LATEST,
            _max_deliveries(request.max_deliveries),
            member=_member(request.member, manager),
            user=manager.name.encode(),
        )
        popped = await self._groups.receive(source, pop, request.wait_ms / 1000)
        reply = pb.ReceiveMessagesReply()
        for run in popped.runs:
            partition = int.from_bytes(run.queue[-2:], "big")
            for number, start in enumerate(record.split(run.data)):
                message = message_of(run.data, start, len(run.data))
                message.offset = run.offset + number
                receipt = _SEPARATOR.join(map(str, (partition, message.offset, run.deliveries)))
                reply.messages.add(receipt=receipt, deliveries=run.deliveries, message=message)
                if len(reply.messages) % AT_ONCE == 0:
                    await asyncio.sleep(0)
        return reply

    async def acknowledge_messages(
        self, request: pb.AcknowledgeMessagesRequest, manager: Manager
    ) -> pb.AcknowledgeMessagesReply:
        source = self._source(request.group, request.parent)
        failed: list[Failed] = []
        for each in request.failed:
            error = each.error.encode()
            if len(error) > MAX_ERROR:
                raise invalid(f"an error has at most {MAX_ERROR} bytes")
            delay_ms = each.delay_ms if each.HasField("delay_ms") else None
            if delay_ms is not None and delay_ms > self._limits.max_invisible_ms:
                raise invalid(f"a delay is at most {self._limits.max_invisible_ms} ms")
            failed.append(Failed(_receipt(source, each.receipt), delay_ms, error))
        expired = await self._groups.settle(
            source,
            await _receipts(source, request.done),
            (),
            _member(request.member, manager),
            [(receipt, 0) for receipt in await _receipts(source, request.unhandled)],
            failed,
            _max_deliveries(request.max_deliveries),
        )
        return pb.AcknowledgeMessagesReply(expired=_texts(expired))

    def _source(self, group: str, parent: str) -> Source:
        """Raises `RequestError`."""
        name = client_group_name(group, self._limits)
        if is_shared(name):
            raise invalid("a group name that begins with $share/ belongs to an MQTT shared subscription")
        topic = parent_name(parent)
        return parent_source(name, topic, self._store.partition_count(topic))


def _max_deliveries(count: int) -> int:
    if count > MAX_MAX_DELIVERIES:
        raise invalid(f"max_deliveries is {count}, the limit is {MAX_MAX_DELIVERIES}")
    return count


def _member(name: str, manager: Manager) -> bytes:
    return member_name(name or manager.name)


async def _receipts(source: Source, texts: Iterable[str]) -> Sequence[Receipts]:
    """Receipts in slices, between which devices have their turn. Raises `RequestError`."""
    found: list[Receipts] = []
    rest = iter(texts)
    while part := list(islice(rest, AT_ONCE)):
        found += [_receipt(source, text) for text in part]
        await asyncio.sleep(0)
    return found


def _receipt(source: Source, text: str) -> Receipts:
    """Raises `RequestError`."""
    numbers = [int(part) for part in text.split(_SEPARATOR) if part.isascii() and part.isdigit() and len(part) < 20]
    if len(numbers) != 3 or text.count(_SEPARATOR) != 2 or numbers[1] > _MAX_NUMBER or numbers[2] > 255:
        raise invalid(f"{text[:50]!r} is not a receipt")
    partition, offset, deliveries = numbers
    if partition >= len(source.queues):
        raise invalid(f"there is no partition {partition}: there are {len(source.queues)} partitions")
    return Receipts(source.queues[partition], offset, 1, deliveries)


def _texts(runs: Iterable[Receipts]) -> list[str]:
    """The receipt of each message of runs."""
    return [
        _SEPARATOR.join(map(str, (int.from_bytes(run.queue[-2:], "big"), run.offset + number, run.deliveries)))
        for run in runs
        for number in range(run.count)
    ]
