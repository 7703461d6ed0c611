"""The producers view: what each gateway that is attached, or may come back, has appended last.

A PRODUCED record stands before the records of one append. Whether all of those are in the log, which a crash may have
cut, the log itself says: they follow the record, of the same epoch.
"""

from struct import Struct
from typing import Final

from store.api import ProducerState
from store.control import Produced, ProducerEnded
from store.views.state import State

_PRODUCERS: Final = b"P"
_ROW: Final = Struct(">QQIQ")  # sequence, position of the record, records behind it, digest


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
        """Up to `limit`, sorted by name, behind `after`."""
        found: list[ProducerState] = []
        for name, row in self._state.scan(_PRODUCERS, after=after):
            if len(found) == limit:
                break
            found.append(_read(name, row))
        return found


def _read(producer: bytes, row: bytes) -> ProducerState:
    return ProducerState(producer, *_ROW.unpack(row))
