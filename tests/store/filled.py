"""Stores with something in them, for tests of what is taken out of them."""

import asyncio
from pathlib import Path
from random import Random

import record
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.queries import Queries
from tests.store.simulation.checks import check_all, read_log
from tests.store.simulation.records import Records
from tests.store.simulation.truth import Truth

SIZE = 4096
NEVER_MS = 10**9  # held messages stay held
BEGIN_MS = 1_700_000_000_000
SMALL = StoreConfig(
    segment_size=SIZE,
    partitions=2,
    generation_segments=2,
    tail_cache_bytes=0,
    checkpoint_keys=20,
    transaction_check_s=NEVER_MS,
)


class Filled:
    """An open store of random records, a second of store time apart."""

    def __init__(self, path: Path, config: StoreConfig = SMALL, seed: int = 1) -> None:
        self.path = path
        self.config = config
        self.now = BEGIN_MS
        self._records = Records(Random(seed), 2500, moves=False, reclaims=True, delays=(NEVER_MS,))

    async def open(self) -> "Filled":
        self.engine = await Engine.open(self.path, self.config, clock=self._clock)
        return self

    def _clock(self) -> int:
        return self.now

    async def append(self, frames: list[bytes]) -> None:
        self.now += 1000
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append(frames, answer.set_result)
        appended = await answer
        assert appended.error is None
        self._records.learn(dict(zip(appended.positions, frames, strict=True)))

    async def fill(self, appends: int) -> None:
        for _ in range(appends):
            await self.append(self._records.append(self.now))

    async def fill_to(self, position: int) -> None:
        """Append until the log ends behind `position`."""
        while self.engine.stats().log_end < position:
            await self.fill(1)

    async def inside(self, segment: int) -> int:
        """Where in this segment's file there is a record with one before it: damage there is that segment's own."""
        starts = [record.position_of(frame, 0) - segment for frame in await self.frames()]
        return sorted(start for start in starts if 0 <= start < SIZE)[1]

    async def frames(self) -> list[bytes]:
        """All sealed records, in the log's order."""
        return await read_log(self.engine)


async def opened(folder: Path) -> tuple[list[bytes], Engine]:
    """A copy of such a store, at its own time, and all its records."""
    engine = await Engine.open(folder, SMALL, clock=lambda: BEGIN_MS)
    return await read_log(engine), engine


async def check_state(store: Queries, frames: list[bytes], rng: Random) -> None:
    """The store answers as the model of all these records does, those included that retention took."""
    truth = Truth(store.partitions.default)
    truth.grow(frames)
    await check_all(store, truth.model, rng)
