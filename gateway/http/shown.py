"""Which topics and groups have series of their own, and the sums of all others.

Prometheus keeps each series for as long as its own retention, so there must not be one for every topic that a device
thinks of. A name that is shown stays so for a while, and gives its place only to one with clearly more traffic: series
that come and go cost more than they tell.
"""

import asyncio
from collections.abc import Iterable, Mapping
from heapq import nlargest
from time import monotonic
from typing import Final

OTHER: Final = "+other"  # instead of a name: no topic is called so, since + is a wildcard
MAX_NAME: Final = 256  # bytes: longer names have no series of their own
_HOLD_S: Final = 600.0  # that a name is shown at least
_MORE: Final = 2  # times the traffic of the name whose place it takes
_SLICE_S: Final = 0.001


class Slices:
    """Gives other tasks of the loop their turn after each millisecond of work."""

    def __init__(self) -> None:
        self._began = monotonic()

    async def rest(self) -> None:
        if monotonic() - self._began > _SLICE_S:
            await asyncio.sleep(0)
            self._began = monotonic()


class Shown:
    """The names that are shown, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._since: dict[bytes, float] = {}

    @property
    def names(self) -> list[bytes]:
        return list(self._since)

    @property
    def room(self) -> int:
        """How many more may be shown."""
        return self._limit - len(self._since)

    def __contains__(self, name: bytes) -> bool:
        return name in self._since

    def fill(self, names: Iterable[bytes], now: float) -> None:
        """Show these too, as long as there is room. now: s, of any clock that never runs backwards."""
        for name in names:
            if len(self._since) < self._limit and is_showable(name):
                self._since.setdefault(name, now)

    def drop(self, name: bytes) -> None:
        """Show a name no more: there is no such thing any longer."""
        self._since.pop(name, None)

    def choose(self, scores: Mapping[bytes, float], now: float) -> None:
        """Show names with high scores instead of those with low ones. A name without a score has 0."""
        others = [(score, name) for name, score in scores.items() if name not in self._since and is_showable(name)]
        best = nlargest(self._limit, others)
        self.fill([name for _, name in best[: self.room]], now)
        weakest = sorted((scores.get(name, 0), name) for name, since in self._since.items() if now - since >= _HOLD_S)
        rivals = [each for each in best if each[1] not in self._since]
        for (score, name), (rival_score, rival) in zip(weakest, rivals, strict=False):
            if rival_score <= _MORE * score:
                break
            del self._since[name]
            self._since[rival] = now


class Rest:
    """The part of a counter that belongs to names without a series of their own. It never falls."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._shown: Mapping[bytes, int] = {}
        self._grown = 0
        self.value = 0

    def update(self, total: int, shown: Mapping[bytes, int]) -> None:
        """total: of all names. shown: the counters of the names that are shown now. What a name counted before it was
        shown, and after, is in the rest.

        The counters may have been read after the total: then a part of their growth is counted the next time.
        """
        if self._total is not None:
            known = self._shown
            own = sum(count - known[name] for name, count in shown.items() if name in known)
            self._grown += total - self._total - own
            self.value = max(self.value, self._grown)
        self._total = total
        self._shown = dict(shown)


def is_showable(name: bytes) -> bool:
    """Whether a name may have a series of its own."""
    return len(name) <= MAX_NAME and name != OTHER.encode()
