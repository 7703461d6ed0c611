"""How much may wait to be committed, by time: more is refused at once than would be committed within a given time."""

from typing import Final

_RESERVE: Final = 8  # the last eighth of the bytes that may wait is kept for control records


class WaitLimit:
    """The room for messages among the bytes that are accepted and not committed.

    A commit of up to `unit` bytes is taken to last as long as the quicker of the last two: one slow commit says
    little about the next.
    """

    __slots__ = ("_before", "_unit", "max_s", "most", "room")

    def __init__(self, max_wait_ms: int, limit: int, unit: int) -> None:
        self._unit = unit  # bytes
        self.most: int = limit - limit // _RESERVE  # bytes that may wait, whatever the disk does
        self._before: float = 0.0  # seconds of the last commit
        self.max_s: float = max_wait_ms / 1000  # 0: no limit by time
        self.room: int = self.most  # bytes that may wait before messages are refused

    def committed(self, seconds: float, size: int) -> None:
        """Note how long a commit of `size` bytes has lasted."""
        if size > self._unit:
            seconds = seconds * self._unit / size
        quicker = min(seconds, self._before)
        self._before = seconds
        room = self.most
        if self.max_s and quicker * room > self.max_s * self._unit:
            room = int(self.max_s / quicker) * self._unit
        self.room = room

    def overdue(self) -> None:
        """Leave no room: the commit under way lasts longer than `max_s` already."""
        self.room = 0
