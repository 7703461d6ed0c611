"""Stored messages: read by offset, time, key and position, published, and traced."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import orjson

import record
from cloud_sdk.proto import sluice_pb2
from gateway.broker.append import append
from gateway.management.areas.services import Machines
from gateway.management.cbor_text import cbor_text
from gateway.management.paging import AT_ONCE, MAX_PAGE, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, SUB, TOPIC
from gateway.management.rights import Manager, require_one
from gateway.mqtt.properties import (
    CONTENT_TYPE,
    PAYLOAD_FORMAT,
    number_property,
    read_message_block,
    text_property,
    user_property,
)
from gateway.observe.service_clients import CLIENT
from gateway.rpc.access.visibility import topic_of
from gateway.rpc.consuming.trace import Trace
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.messages import MessageCheck
from gateway.rpc.request_fields import parent_name
from gateway.rpc.status import RequestError, invalid
from gateway.schemas.payload_checks import PayloadChecks
from gateway.topics.destination import InvalidDestination, frame_to, parse_destination
from matcher.names import is_valid_topic
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_QOS, FLAG_RETAIN, MAX_KEY
from store.api import Store, partition_queue, topic_queue
from store.errors import NoSuchMessage

_MAX_PAYLOAD: Final = 65_536  # bytes of each payload, unless the request has another number
_PAGE_BYTES: Final = 1 << 20  # of the records of a page; one may be larger
_NEVER_CUT: Final = 1 << 62
_BRACKETS: Final = ("{", "[")


class MessagesService:
    """Implements the service `Messages`."""

    def __init__(
        self, store: Store, limits: RpcLimits, machines: Machines, payload_checks: PayloadChecks | None = None
    ) -> None:
        """payload_checks: see `MessageCheck`."""
        self._store = store
        self._machines = machines
        self._limits = limits
        self._check = MessageCheck(limits, store.may_hold, payload_checks)

    async def browse_topic(self, request: pb.BrowseTopicRequest, _manager: Manager) -> pb.BrowseReply:
        return await self._browse(topic_queue(valid_topic(request.topic)), request)

    async def browse_partition(self, request: pb.BrowsePartitionRequest, _manager: Manager) -> pb.BrowseReply:
        parent = parent_name(request.parent)
        count = self._store.partition_count(parent)
        if request.partition >= count:
            raise invalid(f"there is no partition {request.partition}: {request.parent!r} has {count}")
        return await self._browse(partition_queue(parent, request.partition), request)

    async def publish_message(self, request: pb.PublishMessageRequest, manager: Manager) -> pb.PublishMessageReply:
        return pb.PublishMessageReply(position=(await self._publish([request], manager))[0])

    async def publish_messages(self, request: pb.PublishMessagesRequest, manager: Manager) -> pb.PublishMessagesReply:
        if not 0 < len(request.messages) <= MAX_PAGE:
            raise invalid(f"a call publishes 1 to {MAX_PAGE} messages, and not {len(request.messages)}")
        return pb.PublishMessagesReply(positions=await self._publish(request.messages, manager))

    async def _publish(self, messages: Sequence[pb.PublishMessageRequest], manager: Manager) -> Sequence[int]:
        """Store messages, all or none. Returns their positions. Raises `RequestError` and `StoreError`."""
        frames: list[bytes] = []
        allowed: set[bytes] = set()
        for number, message in enumerate(messages, 1):
            try:
                topic, frame = _frame_of(message, manager.name)
            except (InvalidDestination, ValueError) as error:
                raise _refused(number, messages, str(error)) from error
            if topic not in allowed:
                await require_one(manager, PUB, TOPIC, topic.decode())
                allowed.add(topic)
            frames.append(frame)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        for index, reason in await self._check.faults(frames):
            raise _refused(index + 1, messages, reason)
        positions = await append(self._store, frames)
        client = CLIENT.get()
        if client is not None:
            client.published(len(frames))
        return positions

    async def find_messages(self, request: pb.FindMessagesRequest, _manager: Manager) -> pb.FindMessagesReply:
        key = request.key.encode()
        if not 0 < len(key) <= MAX_KEY:
            raise invalid(f"a key has 1 to {MAX_KEY} bytes")
        after = request.after if request.HasField("after") else None
        limit = page_size(request.limit)
        found = await self._store.bulk.by_key(parent_name(request.parent), key, after, limit, _PAGE_BYTES)
        messages = await messages_in(found.data, request.max_payload)
        return pb.FindMessagesReply(messages=messages, after=found.after)

    async def get_message(self, request: pb.GetMessageRequest, manager: Manager) -> pb.Message:
        frame = await self._readable(request.position, manager)
        return message_of(frame, 0, request.max_payload or _NEVER_CUT)

    async def trace_message(self, request: pb.TraceMessageRequest, manager: Manager) -> pb.TraceMessageReply:
        frame = await self._readable(request.position, manager)
        after = request.after if request.HasField("after") else None
        trace = Trace(self._store, request.position, frame)
        found = await trace.page(after, self._limits.max_trace_bytes)
        reply = pb.TraceMessageReply(events=map(_event_of, found.events), read_to=trace.read_to)
        reply.end = self._store.stats().log_end
        machines = await self._machines.find({event.member or event.who for event in reply.events} - {""})
        for event in reply.events:
            machine = machines.get(event.member or event.who)
            if machine is not None:
                event.machine.CopyFrom(machine)
        if found.HasField("after"):
            reply.after = found.after
        return reply

    async def _readable(self, position: int, manager: Manager) -> bytes:
        """The frame of a message that the caller may read. Raises `RequestError` and `StoreError`."""
        if position < 0:
            raise NoSuchMessage(position)
        frame = await self._store.message(position)
        await require_one(manager, SUB, TOPIC, topic_of(frame).decode())
        return frame

    async def _browse(self, queue: bytes, request: pb.BrowseTopicRequest | pb.BrowsePartitionRequest) -> pb.BrowseReply:
        limit = page_size(request.limit)
        bounds = await self._store.bounds(queue)
        match request.WhichOneof("from"):
            case "offset":
                offset = max(request.offset, bounds.begin)
            case "time_ms":
                offset = await self._store.offset_at(queue, max(request.time_ms, 0))
            case _:
                offset = max(bounds.end - limit, bounds.begin)
        found = await self._store.bulk.fetch(queue, offset, limit, _PAGE_BYTES)
        messages = await messages_in(found.data, request.max_payload)
        for at, message in enumerate(messages, found.offset):
            message.offset = at
        return pb.BrowseReply(messages=messages, begin=found.bounds.begin, end=found.bounds.end, next=found.next_offset)


def valid_topic(text: str) -> bytes:
    """A topic, encoded. Raises `RequestError`."""
    topic = text.encode()
    if not is_valid_topic(topic):
        raise invalid(f"{text[:100]!r} is not a topic")
    return topic


def _frame_of(message: pb.PublishMessageRequest, publisher: str) -> tuple[bytes, bytes]:
    """The topic and the unsealed frame of a message. Raises `InvalidDestination` and ValueError."""
    topic = message.topic.encode()
    if not is_valid_topic(topic):
        raise ValueError(f"{message.topic[:100]!r} is not a topic")
    where = parse_destination(topic, time.time_ns() // 1_000_000)
    if message.qos > FLAG_QOS - 1:
        raise ValueError(f"a QoS is 0, 1 or 2, and not {message.qos}")
    is_text = message.WhichOneof("content") == "text"
    block = number_property(PAYLOAD_FORMAT, 1) if is_text else b""
    if message.content_type:
        block += text_property(CONTENT_TYPE, message.content_type.encode())
    block += b"".join([user_property(each.name.encode(), each.value.encode()) for each in message.properties])
    payload = message.text.encode() if is_text else message.payload
    flags = message.qos | (FLAG_RETAIN if message.retain else 0)
    return where.topic, frame_to(where, flags, 0, publisher.encode(), block, payload)


def _refused(number: int, messages: Sequence[pb.PublishMessageRequest], reason: str) -> RequestError:
    return invalid(reason if len(messages) == 1 else f"message {number} of {len(messages)}: {reason}")


async def messages_in(frames: bytes, max_payload: int) -> list[pb.Message]:
    """The messages of sealed frames, back to back. max_payload: bytes of each payload; 0: as usual."""
    messages: list[pb.Message] = []
    for number, start in enumerate(record.split(frames), 1):
        messages.append(message_of(frames, start, max_payload or _MAX_PAYLOAD))
        if number % AT_ONCE == 0 or messages[-1].HasField("cbor"):
            await asyncio.sleep(0)
    return messages


def message_of(data: bytes, start: int, max_payload: int) -> pb.Message:
    """The message of the sealed frame that begins at `start`, with up to `max_payload` bytes of its payload."""
    _, flags, _, topic, publisher, block, payload = record.decode(data, start)
    message = pb.Message(
        position=record.position_of(data, start),
        time_ms=record.store_time_of(data, start),
        topic=topic.decode(),
        publisher=publisher.decode(errors="replace"),
        qos=flags & FLAG_QOS,
        retain=bool(flags & FLAG_RETAIN),
        half=bool(flags & FLAG_HALF),
        payload_size=len(payload),
        payload=payload[:max_payload],
    )
    if flags & FLAG_DELAYED:
        message.due_ms = record.trailer_of(data, start)
    properties = read_message_block(block)
    if properties.content_type is not None:
        message.content_type = properties.content_type
    if properties.response_topic is not None:
        message.response_topic = properties.response_topic.decode()
    if properties.correlation_data is not None:
        message.correlation_data = properties.correlation_data
    if properties.message_expiry is not None:
        message.message_expiry_s = properties.message_expiry
    for name, value in properties.user:
        message.properties.add(name=name, value=value)
    if len(payload) <= max_payload:
        notation = cbor_text(payload, message.content_type)
        if notation is not None:
            message.cbor = notation
    text = _text(message.payload, is_cut=len(payload) > max_payload)
    if text is not None:
        message.text = text
        message.is_json = len(payload) <= max_payload and _is_json(text)
    return message


def _text(payload: bytes, *, is_cut: bool) -> str | None:
    """A payload as text, or None. is_cut: its last character may be incomplete."""
    for size in range(len(payload), len(payload) - (4 if is_cut else 1), -1):
        try:
            return payload[:size].decode()
        except UnicodeDecodeError:
            pass
    return None


def _is_json(text: str) -> bool:
    """Whether a text is a JSON object or array."""
    if not text.lstrip().startswith(_BRACKETS):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _event_of(event: sluice_pb2.TraceEvent) -> pb.TraceEvent:
    kind = sluice_pb2.TraceEvent.Kind.Name(event.kind)
    is_dead = event.kind == sluice_pb2.TraceEvent.DEAD_LETTERED
    return pb.TraceEvent(
        kind=kind,
        time_ms=event.time_ms,
        position=event.position,
        who=event.who,
        queue=event.queue,
        offset=event.offset,
        until_ms=event.until_ms,
        member=event.member,
        reason=sluice_pb2.DeadLetter.Reason.Name(event.reason) if is_dead else "",
        error=event.error,
    )
