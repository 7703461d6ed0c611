"""`commit_delay_ms`: fewer writes to disk for few messages, each of which waits for no longer than that.

Time is simulated. It passes only while nothing is to be done, and a flush takes none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import record
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.log.commitlog import LARGE, MANY, PATIENCE_S
from tests.store.simulation.loop import SimulatedLoop, replayable

DELAY_S = 0.02
CONFIG = StoreConfig(segment_size=16 << 20, spacing_ms=0, commit_delay_ms=20)
FRAME = record.frame(1, 0, 0, b"t", b"", b"", b"small")
ALMOST = 1e-9  # what is lost in sums of seconds


class AtOnce(Random):
    """Of several delays, takes the first, which is none."""

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]


class Appends:
    """Appends to an engine, with the seconds that each has waited for its commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self.waits: list[float] = []
        self.flushes = -engine.stats().batches

    def count_flushes(self) -> None:
        self.flushes += self._engine.stats().batches

    def __call__(self, count: int = 1, frame: bytes = FRAME) -> None:
        for _ in range(count):
            self._engine.append([frame], self._timed())

    def later(self) -> None:
        """Append without a waiting caller."""
        assert self._engine._log.offer_later([FRAME], self._timed()) is None

    def _timed(self) -> Callable[[Appended], None]:
        start = self._loop.time()

        def done(appended: Appended) -> None:
            assert appended.error is None
            self.waits.append(self._loop.time() - start)

        return done


def simulated(path: Path, history: Callable[[Appends], Awaitable[None]], config: StoreConfig = CONFIG) -> Appends:
    """Run a history of a store that has just flushed one append."""

    async def run() -> Appends:
        engine = await Engine.open(path, config)
        try:
            await asyncio.sleep(1)
            engine.append([FRAME], lambda _: None)
            await asyncio.sleep(0)  # its flush starts
            appends = Appends(engine)
            await history(appends)
            appends.count_flushes()
        finally:
            await engine.close()
        return appends

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(AtOnce())) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        with replayable(loop, lambda _: None):
            return runner.run(run())


def test_appends_within_the_delay_share_a_flush(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        for _ in range(10):
            append()
            await asyncio.sleep(DELAY_S / 10)
        await asyncio.sleep(DELAY_S)

    done = simulated(tmp_path, history)
    assert done.flushes == 2  # the one before them, and theirs
    assert max(done.waits) == pytest.approx(DELAY_S)


def test_a_lone_append_after_the_delay_does_not_wait(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        await asyncio.sleep(2 * DELAY_S)
        for _ in range(3):
            append()
            await asyncio.sleep(2 * DELAY_S)

    assert simulated(tmp_path, history).waits == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_no_append_waits_longer_than_the_delay(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    counts: list[int] = []

    async def history(append: Appends) -> None:
        for _ in range(300):
            counts.append(rng.choice((1, 1, 1, 2, MANY - 1, MANY, 3 * MANY)))
            append(counts[-1])
            await asyncio.sleep(rng.choice((0, 0.0001, 0.003, DELAY_S, 3 * DELAY_S)))
        await asyncio.sleep(2 * DELAY_S)

    done = simulated(tmp_path, history)
    assert len(done.waits) == sum(counts)
    assert DELAY_S / 2 < max(done.waits) <= DELAY_S + ALMOST


def test_flushes_of_few_appends_start_at_least_the_delay_apart(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        for _ in range(500):
            append()
            await asyncio.sleep(DELAY_S / 10)

    done = simulated(tmp_path, history)
    assert len(done.waits) >= 490
    assert done.flushes <= 50 + 2  # 500 without the delay


def test_many_appends_do_not_wait_for_the_delay(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        append(MANY - 1)
        await asyncio.sleep(DELAY_S / 2)
        assert append.waits == []
        append()
        await asyncio.sleep(DELAY_S / 4)
        assert len(append.waits) == MANY
        append(MANY)  # as many as are likely after these
        await asyncio.sleep(0)

    waits = simulated(tmp_path, history).waits
    assert waits == pytest.approx([DELAY_S / 2] * (MANY - 1) + [0] * (MANY + 1))


def test_many_bytes_do_not_wait_for_the_delay(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        append(frame=record.frame(1, 0, 0, b"t", b"", b"", bytes(LARGE)))
        await asyncio.sleep(2 * DELAY_S)

    assert simulated(tmp_path, history).waits == [0]


def test_closing_does_not_wait_for_the_delay(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        append(3)

    assert simulated(tmp_path, history).waits == [0, 0, 0]


def test_an_append_without_a_waiting_caller_shares_the_delayed_flush(tmp_path: Path) -> None:
    config = StoreConfig(segment_size=1 << 20, commit_delay_ms=1000)  # longer than such an append starts no flush

    async def history(append: Appends) -> None:
        append.later()
        await asyncio.sleep(0)
        append()
        await asyncio.sleep(2)

    done = simulated(tmp_path, history, config)
    assert done.waits == [pytest.approx(PATIENCE_S)] * 2
    assert done.flushes == 2


def test_without_a_delay_an_append_starts_a_flush_at_once(tmp_path: Path) -> None:
    async def history(append: Appends) -> None:
        for _ in range(10):
            append()
            await asyncio.sleep(0.0001)

    done = simulated(tmp_path, history, StoreConfig(segment_size=1 << 20))
    assert done.waits == [0] * 10
    assert done.flushes == 11
