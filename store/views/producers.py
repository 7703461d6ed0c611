"""The producers view: the last append of each gateway that is attached or may come back, and of other producers.

A PRODUCED record precedes the records of one append. A crash may have cut these. The log itself tells how many of
them it has: they follow the record and have the same epoch.
"""

from struct import Struct
from typing import Final

from store.api import ProducerState
from store.control import Produced, ProducerEnded
from store.views.database.state import State

_PRODUCERS: Final = b"P"
_ROW: Final = Struct(">QQIQ")  # sequence, position of the record, number of records after it, digest


class Producers:
    """The last append of each producer."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def produced(self, producer: bytes, event: Produced, position: int) -> None:
        self._state.put(_PRODUCERS, producer, _ROW.pack(event.sequence, position, event.records, event.digest))

    def ended(self, producer: bytes, event: ProducerEnded) -> None:
        known = self.find(producer)
        if known is not None and event.last in {None, known.position}:
            self._state.delete(_PRODUCERS, producer)

    def find(self, producer: bytes) -> ProducerState | None:
        row = self._state.get(_PRODUCERS, producer)
        return None if row is None else _read(producer, row)

    def page(self, after: bytes | None, limit: int) -> list[ProducerState]:
        """Up to `limit` producers in order of their names, from after `after` on."""
        found: list[ProducerState] = []
        for name, row in self._state.scan(_PRODUCERS, after=after):
            if len(found) == limit:
                break
            found.append(_read(name, row))
        return found


def _read(producer: bytes, row: bytes) -> ProducerState:
    return ProducerState(producer, *_ROW.unpack(row))
