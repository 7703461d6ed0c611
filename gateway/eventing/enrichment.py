"""Enrichment: values that a rule looks up for each event, as `enriched.NAME` of patterns, SQL and templates.

They are retained values of topics, and entries of buckets. A value that is not there, has expired or is neither JSON
nor text is not there for the rule either. One that may not be read, is damaged or is too large fails: the event becomes
a dead letter.
"""

from collections.abc import Callable
from typing import Any, Final

from gateway.events.compiled_rule import CompiledRule
from gateway.events.errors import EvaluationFailed
from gateway.events.event import MISSING, Event
from matcher.reserved import KV, is_below
from store.api import Store, split_entry_subject
from store.errors import LogCorrupt

MAX_VALUE: Final = 65_536  # bytes
_MAX_KNOWN: Final = 4 << 20  # bytes of the values of one batch that are remembered
_LEAST: Final = 64  # bytes that a value counts, at least


class Enrichment:
    """Looks values up for a batch of events. Each topic and each entry is read once for the batch."""

    def __init__(self, store: Store, rule: CompiledRule, may_read: Callable[[bytes], bool], now_ms: int) -> None:
        """may_read: whether the user of the rule may read a topic (`$kv/BUCKET/KEY` for an entry). now_ms: since 1970,
        for values that expire."""
        self._store = store
        self._rule = rule
        self._may_read = may_read
        self._now_ms = now_ms
        self._known: dict[bytes, tuple[Any, int]] = {}  # value and size by topic
        self._size = 0  # of the known values

    async def enrich(self, event: Event) -> None:
        """Raises `EvaluationFailed` and `StoreError`."""
        values: dict[str, Any] = {}
        size = 0
        for lookup in self._rule.lookups:
            topic = lookup.topic(event)
            if topic is None:
                continue
            known = self._known.get(topic)
            if known is None:
                known = await self._read(topic)
                if self._size < _MAX_KNOWN:
                    self._known[topic] = known
                    self._size += known[1] + _LEAST
            value, bytes_of_value = known
            if value is not MISSING:
                values[lookup.name] = value
                size += bytes_of_value
        event.enrich(values, size)

    async def _read(self, topic: bytes) -> tuple[Any, int]:
        """The value of a topic, or `MISSING`, and its size. Raises `EvaluationFailed` and `StoreError`."""
        if not self._may_read(topic):
            raise EvaluationFailed(f"the user of the rule may not read {topic.decode()[:100]!r}")
        if is_below(topic, KV):
            bucket, key = split_entry_subject(topic[len(KV) + 1 :])
            entry = await self._store.entry(bucket, key)
            return (MISSING, 0) if entry is None else _value(topic, Event(topic, entry.value))
        try:
            found = await self._store.retained(topic, None, 1)
        except LogCorrupt as error:
            raise EvaluationFailed(f"the value of {topic.decode()[:100]!r} cannot be read: {error}") from error
        for retained in found:
            event = Event.of_frame(retained.frame, 0)
            expiry_s = event.properties.message_expiry
            if expiry_s is None or event.stored_ms + expiry_s * 1000 > self._now_ms:
                return _value(topic, event)
        return MISSING, 0


def _value(topic: bytes, event: Event) -> tuple[Any, int]:
    """What a topic has, or `MISSING`, and its size. Raises `EvaluationFailed`."""
    if len(event.payload) > MAX_VALUE:
        raise EvaluationFailed(f"the value of {topic.decode()[:100]!r} has more than {MAX_VALUE} bytes")
    return event.body, len(event.payload)
