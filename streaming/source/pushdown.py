"""Filter pushdown: using the filters of a query to read less. They are evaluated again (`predicates`, or Spark), so
reading too much is allowed.

An upper bound of `stored_at` is not used, because a message that was held (delayed or half) comes after younger ones in
its partition. The option `endingTimestamp` refers to the time at which records entered their partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from cloud_sdk.blocking import Client
from cloud_sdk.properties import MAX_KEY, MAX_KEYS
from streaming.history.index import HistoryIndex
from streaming.source.offsets import Holding, Offsets
from streaming.source.planning import offset_at
from streaming.source.topics import Topics

_MOST_TOPICS: Final = 100  # in one regular expression
_LONGEST_TOPIC: Final = 65_535  # bytes


@dataclass(slots=True, frozen=True)
class Narrowing:
    """The part of the log that filters do not exclude. A field of None excludes nothing."""

    from_ms: int | None = None  # stored at or after
    names: frozenset[str] | None = None  # topics
    keys: frozenset[str] | None = None  # one of which a message has, as its first
    prefixes: tuple[str, ...] = ()  # all of which topics begin with
    numbers: frozenset[int] | None = None  # partitions
    first: int = 0  # offsets
    until: int | None = None

    @classmethod
    def by(cls, filters: Sequence[Filter]) -> "Narrowing":
        """Combine filters."""
        narrowing = cls()
        for each in filters:
            narrowing = narrowing._and(each)
        return narrowing

    def topics(self, topics: Topics) -> Topics:
        """Return the topics that the filters do not exclude."""
        if self.names is not None:
            also = sorted(name for name in self.names if name.startswith(self.prefixes) or not self.prefixes)
        else:
            also = [prefix[: prefix.rindex("/")] + "/#" for prefix in self.prefixes[:1] if "/" in prefix]
        also = also if 0 < len(also) <= _MOST_TOPICS else []
        return replace(topics, also=tuple(also), keys=self._indexed_keys())

    def holdings(self, holdings: list[Holding]) -> list[Holding]:
        return [each for each in holdings if self.numbers is None or each.partition[1] in self.numbers]

    def start(self, client: Client, index: HistoryIndex, start: Offsets, holdings: Sequence[Holding]) -> Offsets:
        """Move the start of each partition past offsets that the filters exclude."""
        moved = dict(start)
        for each in holdings:
            low = self.first if self.from_ms is None else offset_at(client, index, each.partition, self.from_ms)
            moved[each.partition] = max(start[each.partition], min(max(low, self.first), each.end))
        return moved

    def end(self, end: Offsets) -> Offsets:
        """Move the end of each partition before offsets that the filters exclude."""
        return end if self.until is None else {each: min(stop, self.until) for each, stop in end.items()}

    def _indexed_keys(self) -> tuple[str, ...]:
        """Return the keys if the node can find all messages that have one of them, else none."""
        keys = self.keys or ()
        is_indexed = len(keys) <= MAX_KEYS and all(0 < len(key.encode()) <= MAX_KEY for key in keys)
        return tuple(sorted(keys)) if is_indexed else ()

    def _and(self, each: Filter) -> "Narrowing":
        match each:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                return self._among(name, (value,))
            case In((name,), values):
                return self._among(name, values)
            case GreaterThan((name,), value) | GreaterThanOrEqual((name,), value):
                return self._at_least(name, value, isinstance(each, GreaterThan))
            case LessThan(("offset",), int(value)):
                return self._until(value)
            case LessThanOrEqual(("offset",), int(value)):
                return self._until(value + 1)
            case StringStartsWith(("topic",), str(value)) if _may_be_topic(value):
                return replace(self, prefixes=tuple(sorted((*self.prefixes, value), key=len, reverse=True)))
        return self

    def _among(self, name: str, values: Sequence[object]) -> "Narrowing":
        """Add the condition that a column has one of these values."""
        if not values or any(value is None for value in values):
            return self
        if name == "topic":
            names = frozenset(value for value in values if isinstance(value, str) and _may_be_topic(value))
            return replace(self, names=names if self.names is None else self.names & names)
        if name == "key":
            keys = frozenset(value for value in values if isinstance(value, str) and _is_text(value))
            return replace(self, keys=keys if self.keys is None else self.keys & keys)
        if name == "partition":
            numbers = frozenset(value for value in values if isinstance(value, int))
            return replace(self, numbers=numbers if self.numbers is None else self.numbers & numbers)
        if name == "offset":
            offsets = [value for value in values if isinstance(value, int)]
            return self._at_least(name, min(offsets), False)._until(max(offsets) + 1) if offsets else self
        if name == "stored_at":
            times = [value for value in values if isinstance(value, datetime) and value.tzinfo]
            return self._at_least(name, min(times), False) if len(times) == len(values) else self
        return self

    def _at_least(self, name: str, value: object, is_above: bool) -> "Narrowing":
        if name == "offset" and isinstance(value, int):
            return replace(self, first=max(self.first, value + is_above))
        if name == "stored_at" and isinstance(value, datetime) and value.tzinfo:
            ms = floor(value.timestamp() * 1_000)  # a record of the same millisecond may match
            return replace(self, from_ms=ms if self.from_ms is None else max(self.from_ms, ms))
        return self

    def _until(self, stop: int) -> "Narrowing":
        return replace(self, until=stop if self.until is None else min(self.until, stop))


def _may_be_topic(text: str) -> bool:
    """Return whether a topic may be or begin with a text (MQTT-1.5.4-1, MQTT-1.5.4-2, MQTT-3.3.2-2, MQTT-4.7.3-3)."""
    return _is_text(text) and not any(sign in text for sign in "+#\0") and len(text.encode()) <= _LONGEST_TOPIC


def _is_text(text: str) -> bool:
    """Return whether a string can be UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
