"""Events that are lost, late, doubled and out of order."""

from random import Random

from notify.intake import Intake
from store.api import Commit


class ChaoticIntake(Intake):
    """An intake that nothing can be relied on to reach, but that in the end it hears where the log ends."""

    __slots__ = ("_held", "_rng")

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._held: list[bytes] = []

    def take(self, body: bytes) -> list[Commit]:
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
        return [commit for each in arriving for commit in super(ChaoticIntake, self).take(each)]
