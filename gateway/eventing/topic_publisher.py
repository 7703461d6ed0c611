"""Publishes the events of a rule to a topic of this store."""

import asyncio
from collections.abc import Callable
from typing import Final

import record
from gateway.auth.rules.permissions import Permissions
from gateway.eventing.settling import MATCHED, Settling
from gateway.eventing.targets import MAX_HELD, Figures, Target
from gateway.events.compiled_rule import CompiledRule, Output
from gateway.events.definition import TopicTarget
from gateway.events.errors import EvaluationFailed
from gateway.events.event import (
    MAX_RULES,
    MAX_RULES_AGAIN,
    RULES,
    SPEC_VERSION,
    Event,
    is_structured,
    message_block,
)
from gateway.mqtt.properties import (
    CONTENT_TYPE,
    MessageProperties,
    build_message_block,
    text_property,
    user_property,
)
from record.layout import FLAG_RETAIN, Kind
from store.api import Appended, EventRule, LogStore, Receipts
from store.errors import StoreBusy

_TOPIC_BATCHES: Final = 4  # that are on their way to the log
_LEASE_MS: Final = 60_000
_BATCH: Final = 512  # events
_BUSY_S: Final = 0.1  # until a busy store is tried again
_MAX_KNOWN: Final = 4096  # topics and blocks in a cache, which is cleared when it is full


class TopicPublisher(Target):
    """Publishes events to a topic."""

    def __init__(
        self,
        store: LogStore,
        rule: EventRule,
        compiled: CompiledRule,
        settling: Settling,
        figures: Figures,
        on_room: Callable[[], None],
        reads: Callable[[str, bytes], bool],
    ) -> None:
        """reads: whether the rule of that name reads a topic."""
        super().__init__(_LEASE_MS)
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
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []  # of the events that were added, here and in the next two lines
        self._runs: list[Receipts] = []
        self._size = 0
        self._batches = 0  # on their way to the log
        self._held = 0  # bytes of these
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
        return max(MAX_HELD - self._held, 0)

    def add(self, queue: bytes, offset: int, deliveries: int, event: Event, output: Output) -> int:
        # Nothing is kept of an event but bytes and numbers, which cost the garbage collector nothing.
        frame = self._frame(event, output)
        self._frames.append(frame)
        self._size += len(frame)
        runs = self._runs
        if runs:
            last = runs[-1]
            if last.offset + last.count == offset and last.queue == queue and last.deliveries == deliveries:
                last.count += 1
                return len(frame)
        runs.append(Receipts(queue, offset, 1, deliveries))
        return len(frame)

    def _frame(self, event: Event, output: Output) -> bytes:
        """The record of the message for an event, unsealed. Raises `EvaluationFailed`."""
        topic = self._rule.topic(event)
        if not self._may_publish(topic):
            raise EvaluationFailed(f"the user of the rule may not publish to {topic.decode()[:100]!r}")
        block = self._block(event, output, topic)
        payload = output.data
        return record.frame(int(Kind.MESSAGE), self._flags, 0, topic, self._publisher, block, payload)

    def send(self) -> None:
        if not self._frames:
            return
        frames, runs, size = self._frames, self._runs, self._size
        self._frames, self._runs, self._size = [], [], 0
        self._batches += 1
        self._held += size
        self._append(frames, runs, size)

    def stop(self) -> None:
        self._is_stopped = True

    def _append(self, frames: list[bytes], runs: list[Receipts], size: int) -> None:
        def done(appended: Appended) -> None:
            if isinstance(appended.error, StoreBusy) and not self._is_stopped:
                self._loop.call_later(_BUSY_S, self._append, frames, runs, size)
                return
            self._batches -= 1
            self._held -= size
            if appended.error is None:
                self._figures.delivered += len(frames)
                for run in runs:
                    self._settling.done(run.queue, run.offset, run.count, run.deliveries, MATCHED)
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
        if len(rules) >= MAX_RULES_AGAIN:
            again = next((each for each in rules if self._reads(each, event.topic)), None)
            if again is not None:
                text = (
                    f"the rules {', '.join(rules)} have published this one after the other, and {again} reads it again"
                )
                raise EvaluationFailed(f"{text}: no more rules may publish it")
        return rules
