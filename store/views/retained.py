"""The retained view: topic → the message that is its retained value (MQTT-3.3.1.3).

A row is the reference of the message. Before its segment goes, the row becomes the message itself, as the sealed
frame it was: longer than any reference, which tells the two apart.
"""

from itertools import islice, takewhile
from typing import Final

from matcher.names import has_wildcard, levels
from store.views.index import REFERENCE
from store.views.levels import row_name, topic_of, where_matches_go_on
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
            self._state.put(_RETAINED, row_name(topic), reference)
        elif self._state.get(_RETAINED, row_name(topic)) is not None:
            self._state.delete(_RETAINED, row_name(topic))

    def page(self, after: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` (topic, row), in order of levels, behind `after`."""
        rows = self._state.scan(_RETAINED, after=None if after is None else row_name(after))
        return [(topic_of(name), row) for name, row in islice(rows, limit)]

    def keep(self, topic: bytes, reference: bytes, frame: bytes) -> None:
        """Put the message itself in place of its reference, unless the topic has another value by now."""
        if self._state.get(_RETAINED, row_name(topic)) == reference:
            self._state.put(_RETAINED, row_name(topic), frame)

    def matching(
        self, topic_filter: bytes, after: bytes | None, limit: int, looks: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Up to `limit` (topic, row) of values that match, in order of levels, behind `after`, found by looking at no
        more than `looks` values; and the topic to go on behind, None at the end."""
        if not has_wildcard(topic_filter):
            row = self._state.get(_RETAINED, row_name(topic_filter))
            return [] if row is None or after == topic_filter else [(topic_filter, row)], None
        found: list[tuple[bytes, bytes]] = []
        wanted = levels(topic_filter)
        rows = self._state.rows(_RETAINED, _literal_prefix(wanted))
        is_at_row = rows.seek(b"" if after is None else row_name(after) + b"\0")
        while is_at_row:
            if looks <= 0 or len(found) >= limit:
                return found, after
            looks -= 1
            name = rows.name
            after = topic_of(name)
            following = where_matches_go_on(wanted, levels(after))
            if following == name:
                found.append((after, rows.value))
                is_at_row = rows.next()
            else:
                is_at_row = following is not None and rows.seek(following)
        return found, None


def _literal_prefix(wanted: list[bytes]) -> bytes:
    """What the rows of all topics that match begin with."""
    literal = takewhile(lambda level: level not in (b"+", b"#"), wanted)
    return b"\0".join(literal)
