"""Where the events of a rule go: a topic of this store, or a webhook."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Final, Protocol

import record
from gateway.auth.rules.permissions import Permissions
from gateway.eventing.settling import MATCHED, Settling
from gateway.eventing.webhook_client import WebhookClient, WebhookFailed
from gateway.events.definition import CompiledRule, Output, TopicTarget, WebhookTarget
from gateway.events.errors import EvaluationFailed
from gateway.events.event import MAX_RULES, RULES, SPEC_VERSION, Event, is_structured, message_block
from gateway.events.requests import Request, webhook_request
from gateway.mqtt.properties import (
    CONTENT_TYPE,
    MessageProperties,
    build_message_block,
    text_property,
    user_property,
)
from gateway.net.token_bucket import TokenBucket
from record.layout import FLAG_RETAIN, Kind
from store.api import Appended, EventRule, LogStore, Receipts
from store.errors import StoreBusy

log = logging.getLogger(__name__)

_TOPIC_BATCHES: Final = 4  # that are on their way to the log
_BATCH: Final = 512  # events
_BUSY_S: Final = 0.1  # until a busy store is tried again
_MAX_KNOWN: Final = 4096  # topics and blocks in a cache, which is cleared when it is full
_BACKOFF_S: Final = (1.0, 60.0)  # after the first failure of an endpoint, and at most
_RATE_WAIT_S: Final = 30  # that an event may wait for the rate limit, with its lease
_MAX_HELD: Final = 8 << 20  # bytes of outputs that are on their way; one output may be larger


@dataclass(slots=True)
class Figures:
    """What a rule has done since this process began to run it."""

    matched: int = 0
    unmatched: int = 0
    delivered: int = 0
    failed: int = 0  # deliveries; an event may fail several times
    refused: int = 0  # events that can never be delivered
    error: str = ""  # the last one
    error_ms: int = 0

    def note_error(self, text: str) -> None:
        self.error, self.error_ms = text, int(time() * 1000)


@dataclass(slots=True)
class Prepared:
    """An event that a rule is about, and what is sent of it."""

    receipts: Receipts
    event: Event
    output: Output
    frame: bytes = b""  # of a message, unsealed

    @property
    def size(self) -> int:
        """Bytes that wait for the target."""
        return len(self.output.data) + len(self.frame)


class Target(Protocol):
    """The target of one rule."""

    lease_ms: int

    @property
    def room(self) -> int:
        """How many events may be taken now."""

    @property
    def room_bytes(self) -> int:
        """How many bytes of outputs may be sent now. The first output may have more."""

    def prepare(self, receipts: Receipts, event: Event, output: Output) -> Prepared:
        """Prepare to send an event. Raises `EvaluationFailed`."""

    def send(self, batch: list[Prepared]) -> None:
        """Send events, and settle them when the outcome is known."""

    def stop(self) -> None:
        """Send no more. What is on its way is settled as not sent."""


class TopicPublisher:
    """Publishes events to a topic."""

    lease_ms = 60_000

    def __init__(
        self,
        store: LogStore,
        rule: EventRule,
        compiled: CompiledRule,
        settling: Settling,
        figures: Figures,
        on_room: Callable[[], None],
    ) -> None:
        assert compiled.definition.topic is not None
        self._target: TopicTarget = compiled.definition.topic
        self._flags = self._target.qos | (FLAG_RETAIN if self._target.retain else 0)
        self._store = store
        self._name = rule.name.decode()
        self._publisher = rule.group
        self._rule = compiled
        self._settling = settling
        self._figures = figures
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._batches = 0
        self._held = 0  # bytes on their way to the log
        self._is_stopped = False
        self._blocks: dict[str | None, bytes] = {}  # of messages without properties, by content type
        self._allowed: dict[bytes, bool] = {}
        self.permissions: Permissions | None = None

    def permit(self, permissions: Permissions | None) -> None:
        """Take the rights of the rule's user."""
        self.permissions = permissions
        self._allowed.clear()

    @property
    def room(self) -> int:
        return _BATCH if self._batches < _TOPIC_BATCHES and self.room_bytes else 0

    @property
    def room_bytes(self) -> int:
        return max(_MAX_HELD - self._held, 0)

    def prepare(self, receipts: Receipts, event: Event, output: Output) -> Prepared:
        return Prepared(receipts, event, output, self.frame(event, output))

    def frame(self, event: Event, output: Output) -> bytes:
        """The record of the message for an event, unsealed. Raises `EvaluationFailed`."""
        topic = self._rule.topic(event)
        if not self._may_publish(topic):
            raise EvaluationFailed(f"the user of the rule may not publish to {topic.decode()[:100]!r}")
        block = self._block(event, output, topic)
        payload = output.data
        return record.frame(int(Kind.MESSAGE), self._flags, 0, topic, self._publisher, block, payload)

    def send(self, batch: list[Prepared]) -> None:
        self._batches += 1
        self._held += sum(each.size for each in batch)
        self._append([each.frame for each in batch], batch)

    def stop(self) -> None:
        self._is_stopped = True

    def _append(self, frames: list[bytes], batch: list[Prepared]) -> None:
        def done(appended: Appended) -> None:
            if isinstance(appended.error, StoreBusy) and not self._is_stopped:
                self._loop.call_later(_BUSY_S, self._append, frames, batch)
                return
            self._batches -= 1
            self._held -= sum(each.size for each in batch)
            if appended.error is None:
                self._figures.delivered += len(batch)
                for each in batch:
                    receipts = each.receipts
                    self._settling.done(receipts.queue, receipts.offset, receipts.deliveries, MATCHED)
            else:  # unknown: they come again
                self._figures.note_error(f"cannot publish: {appended.error}")
            self._on_room()

        self._store.append(frames, done)

    def _may_publish(self, topic: bytes) -> bool:
        if self.permissions is None:
            return True
        known = self._allowed.get(topic)
        if known is None:
            if len(self._allowed) >= _MAX_KNOWN:
                self._allowed.clear()
            known = self._allowed[topic] = self.permissions.may_publish(topic)
        return known

    def _block(self, event: Event, output: Output, topic: bytes) -> bytes:
        """The MQTT 5 properties of the message for an event. Raises `EvaluationFailed`."""
        if not event.block:
            known = self._blocks.get(output.content_type)
            if known is None:
                kind = output.content_type
                known = b"" if kind is None else text_property(CONTENT_TYPE, kind.encode())
                known += user_property(RULES.encode(), self._name.encode())
                self._blocks[kind] = known
            return known
        more = [(RULES, ",".join([*self._checked_rules(event), self._name]))]
        properties = event.properties
        try:
            if not output.is_whole and is_structured(properties.content_type):
                attributes = {"specversion": SPEC_VERSION, **event.attributes}
                attributes.pop("datacontenttype", None)
                if output.content_type is not None:
                    attributes["datacontenttype"] = output.content_type
                attributes.pop(RULES, None)
                return message_block(attributes, topic, more)
            user = [(name, value) for name, value in properties.user if name != RULES] + more
            given = MessageProperties(output.content_type, user=user, message_expiry=properties.message_expiry)
            if output.is_whole:
                given.response_topic = properties.response_topic
                given.correlation_data = properties.correlation_data
                given.is_text = properties.is_text
            return build_message_block(given)
        except ValueError as error:
            raise EvaluationFailed(f"the properties of the message are not valid: {error}") from error

    def _checked_rules(self, event: Event) -> list[str]:
        """The rules that published an event one after the other. Raises `EvaluationFailed` if they form a loop."""
        rules = event.rules
        if self._name in rules:
            raise EvaluationFailed(f"this rule has published it before: the rules {', '.join(rules)} form a loop")
        if len(rules) >= MAX_RULES:
            raise EvaluationFailed(f"{MAX_RULES} rules have published this one after the other, which is the limit")
        return rules


class WebhookSender:
    """Sends events to an endpoint."""

    def __init__(
        self,
        client: WebhookClient,
        name: str,
        rule: CompiledRule,
        settling: Settling,
        figures: Figures,
        on_room: Callable[[], None],
    ) -> None:
        assert rule.definition.webhook is not None
        self._target: WebhookTarget = rule.definition.webhook
        self._client = client
        self._name = name
        self._settling = settling
        self._figures = figures
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = 0  # bytes on their way to the endpoint
        rate = self._target.rate
        self._bucket = TokenBucket(rate, 1.0, self._loop.time()) if rate else None
        self._most = min(self._target.in_flight, rate * _RATE_WAIT_S) if rate else self._target.in_flight
        self._failures = 0  # of the endpoint, in a row
        self._down_until = 0.0  # loop time
        self._timer: asyncio.TimerHandle | None = None
        self.lease_ms = (self._target.timeout_s + _RATE_WAIT_S + 30) * 1000
        self.secret_name = self._target.secret  # "": requests are not signed
        self.secret = b""  # that signs requests

    @property
    def room(self) -> int:
        if self._loop.time() < self._down_until or not self.room_bytes:
            return 0
        return max(self._most - len(self._tasks), 0) * self._target.batch

    @property
    def room_bytes(self) -> int:
        return max(_MAX_HELD - self._held, 0)

    def prepare(self, receipts: Receipts, event: Event, output: Output) -> Prepared:
        return Prepared(receipts, event, output)

    def request(self, sent: Sequence[tuple[Event, Output]]) -> Request:
        """The request for events, and what is sent of each."""
        return webhook_request(self._name, self._target, sent, self.secret, int(time()))

    def send(self, batch: list[Prepared]) -> None:
        for at in range(0, len(batch), self._target.batch):
            part = batch[at : at + self._target.batch]
            size = sum(each.size for each in part)
            task = self._loop.create_task(self._post(part))
            self._tasks.add(task)
            self._held += size
            task.add_done_callback(partial(self._ended, size))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """Wait until no request is on its way, after `stop`."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, size: int, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._held -= size
        self._on_room()

    async def _post(self, batch: list[Prepared]) -> None:
        figures, settling = self._figures, self._settling
        try:
            if self._bucket is not None:
                await asyncio.sleep(self._bucket.spend(1, self._loop.time()))
            request = self.request([(each.event, each.output) for each in batch])
            await self._client.send(request, self._target.timeout_s)
        except WebhookFailed as error:
            figures.failed += 1
            figures.note_error(str(error))
            delay_ms = int(error.retry_after_s * 1000) or None
            for each in batch:
                settling.failed(each.receipts, str(error), delay_ms)
            if error.is_down:
                self._rest(error.retry_after_s)
        except asyncio.CancelledError:
            for each in batch:
                settling.unsent(each.receipts)
            raise
        except Exception as error:
            log.exception("rule %r cannot make a request", self._name)
            figures.failed += 1
            figures.note_error(f"an unexpected failure: {error!r}")
            for each in batch:
                settling.failed(each.receipts, f"an unexpected failure: {error!r}")
        else:
            self._failures = 0
            figures.delivered += len(batch)
            for each in batch:
                receipts = each.receipts
                settling.done(receipts.queue, receipts.offset, receipts.deliveries, MATCHED)

    def _rest(self, retry_after_s: float) -> None:
        """Send nothing for a while: the endpoint cannot take requests, and each event has a bounded number of tries."""
        now = self._loop.time()
        if now < self._down_until and not retry_after_s:
            return  # it failed once, with several requests on their way
        first, most = _BACKOFF_S
        seconds = max(min(first * 2**self._failures, most), min(retry_after_s, most))
        self._failures = min(self._failures + 1, 10)
        self._down_until = now + seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._on_room)
