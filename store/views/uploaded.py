"""The view of the segments that an object store has, as the log of several nodes says. One row for each: `O`.

A single node has a list of its own instead (`store.log.tiered`).
"""

from itertools import takewhile
from struct import Struct
from typing import Final

from store.control import SegmentUploaded
from store.log.segments import Segments
from store.log.tiered import TieredSegment
from store.views.database.database import Database
from store.views.database.state import State

_TABLE: Final = b"O"
_ROW: Final = Struct(">QQQH")  # end, bytes of the object, store time, removed ranges; these and the name follow
_RANGE: Final = Struct(">QQ")


class UploadedSegments:
    """The segments by their positions. `follower` is told of each change."""

    __slots__ = ("_state", "follower")

    def __init__(self, state: State) -> None:
        self._state = state
        self.follower: Segments | None = None

    def uploaded(self, event: SegmentUploaded) -> None:
        """The tier has a segment that is not before the log's begin."""
        ranges = b"".join(_RANGE.pack(*each) for each in event.removed)
        row = _ROW.pack(event.end, event.size, event.time_ms, len(event.removed)) + ranges + event.name.encode()
        self._state.put(_TABLE, _name(event.base), row)
        if self.follower is not None:
            self.follower.add_tiered(_segment(_name(event.base), row))

    def trimmed(self, begin: int) -> None:
        """The log begins at `begin`."""
        rows = takewhile(lambda row: row[0] < _name(begin), self._state.scan(_TABLE))
        for name in [name for name, _ in rows]:
            self._state.delete(_TABLE, name)
        if self.follower is not None:
            self.follower.trim_tiered(begin)

    def removed(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The ranges that objects of segments in [begin, end) may lack."""
        found: list[tuple[int, int]] = []
        for _, row in takewhile(lambda row: row[0] < _name(end), self._state.scan(_TABLE, _name(begin))):
            count = _ROW.unpack_from(row)[3]
            found += _RANGE.iter_unpack(row[_ROW.size : _ROW.size + count * _RANGE.size])
        return found


def saved_segments(database: Database) -> list[TieredSegment]:
    """The segments as of the checkpoint of the views, the oldest first."""
    return [_segment(key[len(_TABLE) :], row) for key, row in database.scan(_TABLE, _TABLE)]


def _name(base: int) -> bytes:
    return base.to_bytes(8, "big")


def _segment(name: bytes, row: bytes) -> TieredSegment:
    end, size, time_ms, count = _ROW.unpack_from(row)
    return TieredSegment(
        int.from_bytes(name, "big"), row[_ROW.size + count * _RANGE.size :].decode(), size, end, time_ms
    )
