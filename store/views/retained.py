"""The retained view: topic → the message that is its retained value (MQTT-3.3.1.3).

A row is the reference of the message. Before its segment goes, the row becomes the message itself, as the sealed
frame it was: longer than any reference, which tells the two apart. Behind either, for a message that was held, is the
position of the record that let it in.
"""

from itertools import islice, takewhile
from typing import Final

from matcher.names import has_wildcard, levels
from record import length_of, position_of, unpack_refs
from record.layout import REFERENCE
from store.views.count import Count
from store.views.keeping import Page
from store.views.levels import row_name, topic_of, where_matches_go_on
from store.views.state import State

NOWHERE: Final = 1 << 64  # behind every position
_RETAINED: Final = b"r"
_ENTERED: Final = 8  # bytes of the position of the record that let a value in


def is_reference(row: bytes) -> bool:
    """Whether the row says where the message is, and is not the message."""
    return len(row) <= REFERENCE + _ENTERED


def frame_in(row: bytes) -> bytes:
    """The message itself."""
    return row[: length_of(row, 0)]


def entered_at(row: bytes) -> int:
    """Position of the record by which the value came in."""
    own = REFERENCE if is_reference(row) else length_of(row, 0)
    if len(row) > own:
        return int.from_bytes(row[own:], "little")
    return _position(row) if is_reference(row) else position_of(row, 0)


class RetainedValues:
    """Retained values by topic."""

    __slots__ = ("_state", "count", "moved_from")

    def __init__(self, state: State) -> None:
        self._state = state
        self.count = Count(state, _RETAINED)
        self.moved_from = NOWHERE  # since that was set, no value refers to a record before it that entered late

    def fold(self, topic: bytes, reference: bytes, is_empty: bool) -> None:
        """Take a message with RETAIN set; one without payload clears the topic's value (MQTT-3.3.1-6)."""
        name = row_name(topic)
        is_known = self._state.get(_RETAINED, name) is not None
        if not is_empty:
            self._state.put(_RETAINED, name, reference)
            if not is_known:
                self.count.change(1)
        elif is_known:
            self._state.delete(_RETAINED, name)
            self.count.change(-1)

    def fold_moved(self, topic: bytes, reference: bytes, is_empty: bool, by: int) -> None:
        """The same for a message whose record is older than what was folded before: that at `by` lets it in."""
        self.fold(topic, reference + by.to_bytes(_ENTERED, "little"), is_empty)
        self.moved_from = min(self.moved_from, _position(reference))

    def to_keep(self, below: int, after: bytes | None, limit: int) -> Page:
        """A page of the values whose records lie before `below`."""
        page = Page()
        for name, row in islice(self._state.scan(_RETAINED, after=after), limit):
            page.after = name
            if is_reference(row) and _position(row) < below:
                page.rows.append((name, _position(row), unpack_refs(row[:REFERENCE])[1][0]))
        return page

    def keep(self, name: bytes, frame: bytes) -> None:
        """Put the message itself in place of its reference, unless the topic has another value by now."""
        row = self._state.get(_RETAINED, name)
        if row is not None and is_reference(row) and _position(row) == position_of(frame, 0):
            self._state.put(_RETAINED, name, frame + row[REFERENCE:])

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


def _position(reference: bytes) -> int:
    return int.from_bytes(reference[:8], "little")


def _literal_prefix(wanted: list[bytes]) -> bytes:
    """What the rows of all topics that match begin with."""
    literal = takewhile(lambda level: level not in (b"+", b"#"), wanted)
    return b"\0".join(literal)
