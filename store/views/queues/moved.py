"""The view of released messages whose queues refer to their old record, by the position of that record.

Their references are among those of younger messages. Retention finds here which records have to stay in the log for
them. Each has a row: its table is `w` and the generation of the record's position, its name the parent topic, 0 and
the position. The rows are dropped with the generation's index entries.
"""

from typing import Final

from matcher.names import parent_of
from store.views.database.state import State
from store.views.queues.index import MOVED, by_generation

_POSITION: Final = 8  # bytes


class MovedMessages:
    """Records of released messages, by parent topic and position."""

    __slots__ = ("_generation_bytes", "_state", "entered")

    def __init__(self, state: State, generation_bytes: int) -> None:
        self.entered = 0  # since the store was opened
        self._state = state
        self._generation_bytes = generation_bytes

    def enter(self, topic: bytes, position: int) -> None:
        """Add a released message whose record is at `position`."""
        self.entered += 1
        table = by_generation(MOVED, position // self._generation_bytes)
        self._state.put(table, _prefix(parent_of(topic)) + position.to_bytes(_POSITION, "big"), b"")

    def has(self, parent: bytes, log: range) -> bool:
        """Whether the parent topic has such a record in the range `log`, which must be in one generation."""
        prefix = _prefix(parent)
        rows = self._state.rows(by_generation(MOVED, log.start // self._generation_bytes), prefix)
        is_at_row = rows.seek(prefix + log.start.to_bytes(_POSITION, "big"))
        return is_at_row and int.from_bytes(rows.name[-_POSITION:], "big") < log.stop


def _prefix(parent: bytes) -> bytes:
    return parent + b"\0"
