"""The retained view: the retained message of each topic (MQTT 5.0, 3.3.1.3).

A row is the reference of the message. Before retention removes the message's segment, its sealed frame replaces the
reference. A frame is always longer than a reference, so the length tells which it is. For a message that was held,
the position of the record that released it follows.
"""

from itertools import islice, takewhile
from typing import Final

from matcher.names import has_wildcard, levels
from record import length_of, position_of, unpack_refs
from record.layout import REFERENCE
from store.views.database.count import Count
from store.views.database.keeping import Page
from store.views.database.state import State
from store.views.topics.levels import row_name, topic_of, where_matches_go_on

NOWHERE: Final = 1 << 64  # greater than every position
RETAINED: Final = b"r"
_ENTERED: Final = 8  # bytes of the position of the record that released a value


def is_reference(row: bytes) -> bool:
    """Whether the row is a reference, and not the message itself."""
    return len(row) <= REFERENCE + _ENTERED


def frame_in(row: bytes) -> bytes:
    """The sealed frame of a row that has one."""
    return row[: length_of(row, 0)]


def entered_at(row: bytes) -> int:
    """Position of the record that made the message the retained one."""
    own = REFERENCE if is_reference(row) else length_of(row, 0)
    if len(row) > own:
        return int.from_bytes(row[own:], "little")
    return _position(row) if is_reference(row) else position_of(row, 0)


def record_in(row: bytes) -> tuple[int, int]:
    """Position and length of the record of a row."""
    if is_reference(row):
        return _position(row), unpack_refs(row[:REFERENCE])[1][0]
    return position_of(row, 0), length_of(row, 0)


class RetainedValues:
    """Retained values by topic."""

    __slots__ = ("_state", "count", "moved_from")

    def __init__(self, state: State) -> None:
        self._state = state
        self.count = Count(state, RETAINED)
        self.moved_from = NOWHERE  # the lowest position of a released message that was retained since this was reset

    def fold(self, topic: bytes, reference: bytes, is_empty: bool) -> None:
        """Fold a message with RETAIN set. One without payload clears the topic's value (MQTT-3.3.1-6)."""
        name = row_name(topic)
        is_known = self._state.get(RETAINED, name) is not None
        if not is_empty:
            self._state.put(RETAINED, name, reference)
            if not is_known:
                self.count.change(1)
        elif is_known:
            self._state.delete(RETAINED, name)
            self.count.change(-1)

    def fold_moved(self, topic: bytes, value: bytes, is_empty: bool, by: int) -> None:
        """Fold a message that was held and has RETAIN set. The record at position `by` released it.

        value: its reference, or its sealed frame if that was kept.
        """
        self.fold(topic, value + by.to_bytes(_ENTERED, "little"), is_empty)
        if is_reference(value):
            self.moved_from = min(self.moved_from, _position(value))

    def to_keep(self, below: int, after: bytes | None, limit: int) -> Page:
        """A page of the values with records before `below`."""
        page = Page()
        for name, row in islice(self._state.scan(RETAINED, after=after), limit):
            page.after = name
            if is_reference(row) and _position(row) < below:
                page.rows.append((name, _position(row), unpack_refs(row[:REFERENCE])[1][0]))
        return page

    def keep(self, name: bytes, frame: bytes) -> None:
        """Replace the reference by the message itself, unless the topic has another value meanwhile."""
        row = self._state.get(RETAINED, name)
        if row is not None and is_reference(row) and _position(row) == position_of(frame, 0):
            self._state.put(RETAINED, name, frame + row[REFERENCE:])

    def matching(
        self, topic_filter: bytes, after: bytes | None, limit: int, max_rows: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Find up to `limit` values that match, in order of levels, from after `after` on, among up to `max_rows` rows.

        Returns their (topic, row), and the topic to continue after; None at the end.
        """
        if not has_wildcard(topic_filter):
            row = self._state.get(RETAINED, row_name(topic_filter))
            return [] if row is None or after == topic_filter else [(topic_filter, row)], None
        found: list[tuple[bytes, bytes]] = []
        wanted = levels(topic_filter)
        rows = self._state.rows(RETAINED, _literal_prefix(wanted))
        is_at_row = rows.seek(b"" if after is None else row_name(after) + b"\0")
        while is_at_row:
            if max_rows <= 0 or len(found) >= limit:
                return found, after
            max_rows -= 1
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
    """The common prefix of the rows of all topics that match."""
    literal = takewhile(lambda level: level not in (b"+", b"#"), wanted)
    return b"\0".join(literal)
