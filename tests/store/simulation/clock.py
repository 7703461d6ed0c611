"""The clock of a store in a history: the time of its loop, which somebody sets now and then."""

from tests.store.simulation.loop import SimulatedLoop

BACK_MS = 500  # the most that it goes back at once


class Clock:
    """Milliseconds."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._ahead = 100_000  # of the loop
        self.latest = 0  # that it ever showed

    def now(self) -> int:
        time = self._ahead + int(self._loop.time() * 1000)
        self.latest = max(self.latest, time)
        return time

    def set(self, by: int) -> None:
        """It goes forward or back."""
        self._ahead += by
