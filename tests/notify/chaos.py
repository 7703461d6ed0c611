"""Events that are lost, late, doubled and out of order."""

from random import Random

from notify.event_receiver import EventReceiver
from store.api import Commit


class ChaoticReceiver(EventReceiver):
    """A receiver that no event reaches for sure. In the end it hears where the log ends."""

    __slots__ = ("_held", "_rng")

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._held: list[bytes] = []

    def commits_of(self, body: bytes) -> list[Commit]:
        rng = self._rng
        arriving: list[bytes] = []
        fate = rng.random()
        if fate < 0.25:
            pass  # lost
        elif fate < 0.5:
            self._held.append(body)
        else:
            arriving.append(body)
        if fate > 0.9:
            arriving.append(body)
        while self._held and rng.random() < 0.4:
            arriving.append(self._held.pop(rng.randrange(len(self._held))))
        rng.shuffle(arriving)
        return [commit for each in arriving for commit in super(ChaoticReceiver, self).commits_of(each)]
