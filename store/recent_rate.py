"""How often something happens a second, counted where it happens."""

from typing import Final

_WINDOW_MS: Final = 10_000


class RecentRate:
    """The rate in the last whole window of 10 s. A count costs a comparison and an addition."""

    __slots__ = ("_began", "_count", "_last")

    def __init__(self) -> None:
        self._began: int = 0  # ms, when the window began
        self._count: int = 0  # in the window
        self._last: int = 0  # in the window before

    def add(self, count: int, now: int) -> None:
        """now: ms, since 1970."""
        if now - self._began >= _WINDOW_MS:
            self._turn(now)
        self._count += count

    def per_second(self, now: int) -> float:
        """now: ms, since 1970."""
        if now - self._began >= _WINDOW_MS:
            self._turn(now)
        return self._last * 1000 / _WINDOW_MS

    def _turn(self, now: int) -> None:
        """Begin a window."""
        self._last = self._count if now - self._began < 2 * _WINDOW_MS else 0
        self._count = 0
        self._began = now - now % _WINDOW_MS
