"""The clock of connections: each is looked at once its time has come, and once only."""

from collections.abc import Callable

import pytest

from gateway.listen import connection_timer as clock
from gateway.listen.connection_timer import TICK, ConnectionTimer


class Loop:
    """A loop whose time a test holds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.soon: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Timer":
        entry = (self.now + delay, callback)
        self.later.append(entry)
        return Timer(self, entry)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def go(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self.now + seconds
        while True:
            while self.soon:
                self.soon.pop(0)()
            due = sorted(entry[0] for entry in self.later)
            if not due or due[0] > end:
                break
            self.now = max(self.now, due[0])
            for entry in [entry for entry in self.later if entry[0] <= self.now]:
                self.later.remove(entry)
                entry[1]()
        self.now = end


class Timer:
    def __init__(self, loop: Loop, entry: tuple[float, Callable[[], None]]) -> None:
        self._loop = loop
        self._entry = entry

    def cancel(self) -> None:
        if self._entry in self._loop.later:
            self._loop.later.remove(self._entry)


class Watched:
    """As much of a connection as a clock sees."""

    def __init__(self) -> None:
        self.tick = 0


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(clock, "monotonic", lambda: made.now)
    return made


def test_each_deadline_fires_once_in_time(loop: Loop) -> None:
    looked: list[tuple[Watched, float]] = []
    watch = ConnectionTimer(loop, lambda each, _late: looked.append((each, loop.now)))  # type: ignore[arg-type,return-value]
    seconds = [3.0, 0.3, 10.0, 0.3, 7.5, 0.0]
    connections = [Watched() for _ in seconds]
    for connection, wait in zip(connections, seconds, strict=True):
        watch.set(connection, wait)  # type: ignore[arg-type]
    loop.go(20.0)
    assert len(looked) == len(seconds)
    times = dict(looked)
    for connection, wait in zip(connections, seconds, strict=True):
        assert wait < times[connection] - 1000.0 <= wait + TICK
    assert not loop.later


def test_cancelled_and_postponed_deadlines_do_not_fire_early(loop: Loop) -> None:
    looked: list[tuple[Watched, float]] = []
    watch = ConnectionTimer(loop, lambda each, _late: looked.append((each, loop.now)))  # type: ignore[arg-type,return-value]
    dropped, put_off, hastened = Watched(), Watched(), Watched()
    for connection in (dropped, put_off, hastened):
        watch.set(connection, 5.0)  # type: ignore[arg-type]
    watch.cancel(dropped)  # type: ignore[arg-type]
    watch.set(put_off, 9.0)  # type: ignore[arg-type]
    watch.set(hastened, 1.0)  # type: ignore[arg-type]
    loop.go(30.0)
    assert [each for each, _ in looked] == [hastened, put_off]
    assert looked[0][1] <= 1001.0 + TICK
    assert looked[1][1] > 1009.0


def test_many_at_once_are_looked_at_in_slices_and_one_that_goes_meanwhile_is_not(loop: Loop) -> None:
    looked: list[Watched] = []
    connections = [Watched() for _ in range(3000)]

    def look(each: Watched, _late: float) -> None:
        looked.append(each)
        if len(looked) == 1:
            for other in connections:
                if other is not each:
                    watch.cancel(other)  # type: ignore[arg-type]

    watch = ConnectionTimer(loop, look)  # type: ignore[arg-type]
    for connection in connections:
        watch.set(connection, 1.0)  # type: ignore[arg-type]
    loop.go(5.0)
    assert len(looked) == 1


def test_the_timer_reports_its_delay(loop: Loop) -> None:
    late: list[float] = []
    watch = ConnectionTimer(loop, lambda _, seconds: late.append(seconds))  # type: ignore[arg-type]
    watch.set(Watched(), 1.0)  # type: ignore[arg-type]
    loop.now += 31.0  # the process was stopped
    loop.go(1.0)
    assert 29.0 < late[0] <= 30.0 + TICK
