"""The view of the log's begin: how far records of the log have let the log go. One row: `B`."""

from struct import Struct
from typing import Final

from store.control import LogTrimmed
from store.views.database.database import Database
from store.views.database.state import State

_TABLE: Final = b"B"
_NAME: Final = b""
_ROW: Final = Struct(">QQ")


class LogBegin:
    """The log begins at `position`, with a record that was stored at `store_time` (ms) or later.

    It is what the records say, so all who fold the same log agree. The files of earlier segments may still be there.
    """

    __slots__ = ("_state", "position", "store_time")

    def __init__(self, state: State) -> None:
        self._state = state
        self.position: int
        self.store_time: int
        self.position, self.store_time = _unpack(state.get(_TABLE, _NAME))

    def trimmed(self, _: bytes, event: LogTrimmed) -> None:
        if event.begin > self.position:
            self.position, self.store_time = event.begin, event.begin_time
            self._state.put(_TABLE, _NAME, _ROW.pack(self.position, self.store_time))


def saved_begin(database: Database) -> int:
    """The position that the log begins at, as of the checkpoint of the views."""
    return _unpack(database.get(_TABLE + _NAME))[0]


def _unpack(row: bytes | None) -> tuple[int, int]:
    if row is None:
        return 0, 0
    position, store_time = _ROW.unpack(row)
    return position, store_time
