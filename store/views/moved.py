"""The view of messages that were held and entered their queues by their record, by where that is.

Their references are where they entered, among younger messages. What has to stay in the log for them is found here: a
row for each, bucket `w` and the generation of the record's position, name the parent topic, 0 and the position. It goes
with the generation's index.
"""

from typing import Final

from matcher.names import parent_of
from store.views.index import MOVED, by_generation
from store.views.state import State

_POSITION: Final = 8  # bytes


class MovedMessages:
    """Records of messages that entered their queues late, by parent topic and position."""

    __slots__ = ("_generation_bytes", "_state", "entered")

    def __init__(self, state: State, generation_bytes: int) -> None:
        self.entered = 0  # since the store is open
        self._state = state
        self._generation_bytes = generation_bytes

    def enter(self, topic: bytes, position: int) -> None:
        """A message has entered its queues, whose record is at `position`."""
        self.entered += 1
        bucket = by_generation(MOVED, position // self._generation_bytes)
        self._state.put(bucket, _prefix(parent_of(topic)) + position.to_bytes(_POSITION, "big"), b"")

    def has(self, parent: bytes, log: range) -> bool:
        """Whether there is one of the parent topic in a part of the log, which lies in one generation."""
        prefix = _prefix(parent)
        rows = self._state.rows(by_generation(MOVED, log.start // self._generation_bytes), prefix)
        is_at_row = rows.seek(prefix + log.start.to_bytes(_POSITION, "big"))
        return is_at_row and int.from_bytes(rows.name[-_POSITION:], "big") < log.stop


def _prefix(parent: bytes) -> bytes:
    return parent + b"\0"
