"""The retained view: topic → the message that is its retained value (MQTT-3.3.1.3).

A row is the reference of the message. Before its segment goes, the row becomes the message itself, as the sealed
frame it was: longer than any reference, which tells the two apart.
"""

from itertools import islice
from typing import Final

from matcher.names import has_wildcard, matches
from store.views.index import REFERENCE
from store.views.state import State

_RETAINED: Final = b"r"


def is_reference(row: bytes) -> bool:
    """Whether the row says where the message is, and is not the message."""
    return len(row) == REFERENCE


class RetainedValues:
    """Retained values by topic."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def fold(self, topic: bytes, reference: bytes, is_empty: bool) -> None:
        """Take a message with RETAIN set; one without payload clears the topic's value (MQTT-3.3.1-6)."""
        if not is_empty:
            self._state.put(_RETAINED, topic, reference)
        elif self._state.get(_RETAINED, topic) is not None:
            self._state.delete(_RETAINED, topic)

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` (topic, row), sorted, behind `after`."""
        return list(islice(self._state.scan(_RETAINED, after=after), limit))

    def keep(self, topic: bytes, reference: bytes, frame: bytes) -> None:
        """Put the message itself in place of its reference, unless the topic has another value by now."""
        if self._state.get(_RETAINED, topic) == reference:
            self._state.put(_RETAINED, topic, frame)

    def matching(
        self, topic_filter: bytes, after: bytes | None, limit: int, looks: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Up to `limit` (topic, row) of values that match, sorted, behind `after`, found by looking at no more
        than `looks` values; and the topic to go on behind, None at the end."""
        found: list[tuple[bytes, bytes]] = []
        if not has_wildcard(topic_filter):
            reference = self._state.get(_RETAINED, topic_filter)
            if reference is not None and (after is None or topic_filter > after):
                found.append((topic_filter, reference))
            return found, None
        prefix = _literal_prefix(topic_filter)
        behind = after if after is not None and after >= prefix else None
        for topic, reference in self._state.scan(_RETAINED, prefix, behind):
            if not topic.startswith(prefix):
                break
            if matches(topic_filter, topic):
                found.append((topic, reference))
            looks -= 1
            if looks <= 0 or len(found) >= limit:
                return found, topic
        return found, None


def _literal_prefix(topic_filter: bytes) -> bytes:
    """What every topic that matches begins with. `a/#` also matches `a`, so the slash before # is not in it."""
    prefix = topic_filter.partition(b"#")[0].partition(b"+")[0]
    return prefix[:-1] if topic_filter == prefix + b"#" and prefix else prefix
