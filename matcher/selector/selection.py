"""The messages that a consumer wants: `Selection` is the text, and `Selector` its compiled form."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

from matcher.names import has_wildcard, is_shared, is_valid_filter, matches
from matcher.selector.errors import SelectorError
from matcher.selector.nodes import SelectorNode
from matcher.selector.sql import parse_sql
from matcher.selector.tags import parse_tags

TAG: Final = "tag"  # the user property that is a message's tag
_TAGS: Final = "TAGS"  # the name of the tag in conditions for RocketMQ
_COMPILED: Final = 1_024  # cached selections
_USER_PROPERTY: Final = 0x26  # property identifiers (MQTT 5.0, section 2.2.2.2); the others have a text as value
_PAYLOAD_FORMAT: Final = 0x01
_MESSAGE_EXPIRY: Final = 0x02


# Final: msgspec creates them without their constructor, so compiled code must not look up methods in a vtable.
@final
@dataclass(slots=True, frozen=True)
class Selection:
    """The conditions on a message, which must satisfy all of them. An empty one is always satisfied."""

    topic_filter: bytes = b""  # an MQTT filter for the whole topic
    tags: str = ""
    sql: str = ""

    def __bool__(self) -> bool:
        return bool(self.topic_filter or self.tags or self.sql)


EVERYTHING: Final = Selection()


class Selector:
    """A compiled selection."""

    __slots__ = ("_condition", "_is_exact", "_names", "_tags", "_topic_filter")

    def __init__(
        self, topic_filter: bytes, tags: frozenset[str] | None, condition: SelectorNode | None, names: frozenset[str]
    ) -> None:
        self._topic_filter = topic_filter
        self._is_exact = not has_wildcard(topic_filter)
        self._tags = tags
        self._condition = condition
        wanted = set(names)
        if tags is not None or _TAGS in wanted:
            wanted.add(TAG)
        self._names = {name.encode(): name for name in wanted}

    @property
    def only_topic(self) -> bytes:
        """The only topic whose messages may be selected; empty if there may be several."""
        return self._topic_filter if self._is_exact else b""

    @property
    def reads_properties(self) -> bool:
        """Whether the selection depends on user properties."""
        return bool(self._names) or self._condition is not None

    def matches_topic(self, topic: bytes) -> bool:
        """Whether a message of this topic may be selected."""
        if not self._topic_filter:
            return True
        return topic == self._topic_filter if self._is_exact else matches(self._topic_filter, topic)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these user properties is selected, if its topic is."""
        if self._tags is not None and properties.get(TAG) not in self._tags:
            return False
        return self._condition is None or self._condition.test(properties) is True

    def matches_message(self, topic: bytes, block: bytes) -> bool:
        """Whether a message is selected, given its topic and its MQTT 5 properties (without their length). If a name
        occurs twice, its last value counts. Raises ValueError for a truncated block."""
        if not self.matches_topic(topic):
            return False
        return not self.reads_properties or self.matches(self._wanted(block))

    def _wanted(self, block: bytes) -> dict[str, str]:
        """The user properties that the selection depends on."""
        found: dict[str, str] = {}
        if block and self._names:
            names = self._names
            for raw, value in _user_properties(block):
                name = names.get(raw)
                if name is not None:
                    found[name] = value.decode(errors="replace")
            tag = found.get(TAG)
            if tag is not None and b"TAGS" in names:
                found.setdefault(_TAGS, tag)
        return found


@lru_cache(_COMPILED)
def compile_selection(selection: Selection) -> Selector:
    """Compile a selection, or return the cached result. Raises `SelectorError`."""
    topic_filter = selection.topic_filter
    if topic_filter and (not is_valid_filter(topic_filter) or is_shared(topic_filter)):
        text = topic_filter.decode(errors="replace")
        raise SelectorError(f"{text[:100]!r} is not a topic filter", 1, text)
    condition: SelectorNode | None = None
    names: frozenset[str] = frozenset()
    if selection.sql.strip():
        condition, names = parse_sql(selection.sql)
    return Selector(topic_filter, parse_tags(selection.tags), condition, names)


def _user_properties(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    at, end = 0, len(block)
    while at < end:
        identifier = block[at]
        at += 1
        if identifier == _PAYLOAD_FORMAT:
            at += 1
        elif identifier == _MESSAGE_EXPIRY:
            at += 4
        else:
            start = at + 2
            at = start + _length(block, at)
            if identifier == _USER_PROPERTY:
                name, start = block[start:at], at + 2
                at = start + _length(block, at)
                yield name, block[start:at]
    if at != end:
        raise ValueError("the block is cut short")


def _length(block: bytes, at: int) -> int:
    if at + 2 > len(block):
        raise ValueError("the block is cut short")
    return (block[at] << 8) | block[at + 1]
