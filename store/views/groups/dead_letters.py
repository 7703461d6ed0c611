"""The view of dead letters: where each came from, and why its group gave it up.

Each dead letter has a row. Its table is `D` and the generation of the index in which its reference entered the group's
dead-letter queue, its name the digest of that queue and the offset in it. So the rows are dropped together with the
references.
"""

from struct import Struct
from typing import Final

from store.api import DeadLetter, DeadLetterReason
from store.control import DeadLettered
from store.views.database.state import State
from store.views.groups.leases import UNSENT, Entry
from store.views.queues.index import DEAD_LETTERS, Index, by_generation
from store.views.queues.tails import queue_digest

_ROW: Final = Struct(
    ">BBQQQI"
)  # deliveries, reason, ms of the first and of the last lease, offset, length of the queue


class DeadLetters:
    """Dead letters by their queue and their offset in it."""

    __slots__ = ("_index", "_state")

    def __init__(self, state: State, index: Index) -> None:
        self._state = state
        self._index = index  # knows the generations

    def enter(self, letters: bytes, at: int, event: DeadLettered, offset: int, entry: Entry) -> None:
        """Add the message at `offset` of the record's queue, which is now at offset `at` of the dead-letter queue
        `letters`. entry: that of the message before it was given up."""
        deliveries, first_ms, last_ms = entry
        if deliveries == UNSENT:
            deliveries = 0
        row = _ROW.pack(deliveries, event.reason, first_ms, last_ms, offset, len(event.queue))
        table = by_generation(DEAD_LETTERS, self._index.newest)
        self._state.put(table, _name(letters, at), row + event.queue + event.error)

    def find(self, letters: bytes, first: int, count: int) -> list[DeadLetter]:
        """The dead letters at `count` offsets of the queue `letters`, from `first` on. They must have references."""
        found: list[DeadLetter] = []
        generation = self._index.newest
        for at in range(first + count - 1, first - 1, -1):  # those behind entered later
            name = _name(letters, at)
            row = self._state.get(by_generation(DEAD_LETTERS, generation), name)
            while row is None:
                generation -= 1
                assert generation >= self._index.oldest, "a dead letter has no row"
                row = self._state.get(by_generation(DEAD_LETTERS, generation), name)
            found.append(_unpacked(row))
        found.reverse()
        return found


def _name(letters: bytes, at: int) -> bytes:
    return queue_digest(letters) + at.to_bytes(8, "big")


def _unpacked(row: bytes) -> DeadLetter:
    deliveries, reason, first_ms, last_ms, offset, length = _ROW.unpack_from(row)
    queue, error = row[_ROW.size : _ROW.size + length], row[_ROW.size + length :]
    return DeadLetter(DeadLetterReason(reason), error, deliveries, queue, offset, first_ms, last_ms)
