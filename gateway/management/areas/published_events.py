"""Events that are published: each is stored once."""

import asyncio
from collections.abc import Sequence
from typing import Final

import grpc

import record
from gateway.broker.append import append
from gateway.eventing.recent_events import RecentEvents, identity_of
from gateway.events.errors import InvalidEvent
from gateway.events.event import check_attributes, message_block
from gateway.management.paging import AT_ONCE, MAX_PAGE
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, TOPIC
from gateway.management.rights import Manager, require_one
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.messages import MessageCheck
from gateway.rpc.status import RequestError, invalid
from gateway.schemas.payload_checks import PayloadChecks
from matcher.names import is_valid_topic
from matcher.reserved import DOLLAR
from record.layout import MAX_KEY, Kind
from store.engine import Engine

_QOS: Final = 1  # of published events


class PublishedEvents:
    """Publishes events to one store."""

    def __init__(self, engine: Engine, limits: RpcLimits, payload_checks: PayloadChecks | None) -> None:
        """payload_checks: see `MessageCheck`."""
        self._store = engine
        self._check = MessageCheck(limits, engine.may_hold, payload_checks)
        self._recent = RecentEvents(engine)

    async def publish(self, request: pb.PublishEventsRequest, manager: Manager) -> pb.PublishEventsReply:
        """Raises `RequestError` and `StoreError`."""
        events = request.events
        if not 0 < len(events) <= MAX_PAGE:
            raise invalid(f"a call publishes 1 to {MAX_PAGE} events, and not {len(events)}")
        topics = [await _publishable(number, each, manager) for number, each in enumerate(events, 1)]
        frames = [_frame(topic, each, manager.name) for topic, each in zip(topics, events, strict=True)]
        for index, reason in await self._check.faults(frames):
            raise _refused(index + 1, reason)
        positions: list[asyncio.Future[int]] = []
        new: list[tuple[int, asyncio.Future[int]]] = []
        identities = [
            identity_of(topic, manager.name.encode(), each.attributes["source"], each.attributes["id"])
            for topic, each in zip(topics, events, strict=True)
        ]
        try:
            for index, identity in enumerate(identities):
                is_new, position = await self._recent.begin(identity)
                positions.append(position)
                if is_new:
                    new.append((index, position))
            stored = await append(self._store, [frames[index] for index, _ in new])
        except BaseException:
            for index, position in new:
                self._recent.forget(identities[index], position)
            raise
        for (_, position), at in zip(new, stored, strict=True):
            position.set_result(at)
        try:
            found = [await asyncio.shield(position) for position in positions]
        except asyncio.CancelledError as error:
            if not any(position.cancelled() for position in positions):
                raise
            text = "another call published one of these events at the same time, and failed: repeat this one"
            raise RequestError(grpc.StatusCode.UNAVAILABLE, text) from error
        return pb.PublishEventsReply(positions=found, repeated_events=len(events) - len(new))


async def _publishable(number: int, event: pb.PublishedEvent, manager: Manager) -> bytes:
    """The topic of an event that the caller may publish. Raises `RequestError` and `StoreError`."""
    try:
        check_attributes(event.attributes)
    except InvalidEvent as error:
        raise _refused(number, str(error)) from error
    text = event.topic or event.attributes.get("subject", "")
    topic = text.encode()
    if not is_valid_topic(topic) or topic[0] == DOLLAR:
        raise _refused(number, f"its topic {text[:100]!r} is none to publish to: give one, or a subject that is one")
    await require_one(manager, PUB, TOPIC, text)
    if number % AT_ONCE == 0:
        await asyncio.sleep(0)
    return topic


def _frame(topic: bytes, event: pb.PublishedEvent, publisher: str) -> bytes:
    """The record of an event, unsealed. Its id is its key, unless it has one. Raises `RequestError`."""
    attributes = dict(event.attributes)
    more: Sequence[tuple[str, str]] = ()
    if "key" not in attributes and len(attributes["id"].encode()) <= MAX_KEY:
        more = [("key", attributes["id"])]
    try:
        block = message_block(attributes, topic, more)
    except ValueError as error:
        raise invalid(str(error)) from error
    return record.frame(int(Kind.MESSAGE), _QOS, 0, topic, publisher.encode(), block, event.data)


def _refused(number: int, reason: str) -> RequestError:
    return invalid(f"event {number}: {reason}")
