"""One history of a store with crashes, from a seed: the same seed, the same history.

A history is lives of a store on one folder. In a life it appends, checkpoints, syncs, reclaims and is asked; the life
ends with a clean stop, a kill, a power cut or a disk that fails, at any operation of the disk, also while it opens.
Then the folder is what that leaves, the views are one of the copies that RocksDB may have had on disk, and the
next life has to show everything that was acknowledged, in order, and nothing else.
"""

import asyncio
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import record
from store.api import Appended, Commit
from store.engine import Engine
from store.errors import LogCorrupt, StoreError, ViewsDamaged
from store.log import Unit
from store.segments import segment_name
from store.views.database import Database
from tests.store.simulation import checks
from tests.store.simulation.copies import Copies
from tests.store.simulation.disk import FAULTS, Fault, PowerCut, SimulatedDisk
from tests.store.simulation.life import Life
from tests.store.simulation.loop import SimulatedLoop, replayable
from tests.store.simulation.reclaiming import Reclaiming
from tests.store.simulation.records import Records
from tests.store.simulation.rows import check_rows
from tests.store.simulation.settings import settings
from tests.store.simulation.truth import Truth

LIVES = 5
STEPS = 12


class Violation(AssertionError):
    """The store did what it must not. The message begins with the seed."""


@dataclass(slots=True, frozen=True)
class Lived:
    """What became of a history."""

    counts: dict[str, int]  # of what happened in it
    digest: int  # of all records that were ever in its log: the same for the same seed


def simulate(seed: int, folder: Path) -> Lived:
    """Run a history in the empty `folder`. Raises `Violation`."""
    history: History | None = None
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(Random(seed + 2))) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        history = History(seed, folder, loop)
        with replayable(loop, history.on_flush), _flushes(history):
            try:
                runner.run(history.run())
            except Exception as error:
                raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    return Lived(dict(history.counts), zlib.crc32(b"".join(history.truth.frames)))


@contextmanager
def _flushes(history: "History") -> Iterator[None]:
    """While it lasts, RocksDB's flushes are operations of the history's disk."""
    flush = Database.flush

    def flush_or_fail(database: Database) -> None:
        try:
            cut = history.disk.flush_views()
        except PowerCut:
            raise
        except OSError as error:
            raise ViewsDamaged(history.path / "views", error) from error
        flush(database)
        history.copies.flushed(database)
        if cut:
            history.disk.dead = True
            raise PowerCut

    Database.flush = flush_or_fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database.flush = flush  # type: ignore[method-assign]


class History:
    """The state of one history."""

    def __init__(self, seed: int, folder: Path, loop: SimulatedLoop) -> None:
        self.rng = rng = Random(seed)
        self.root = folder / "disk"
        self.root.mkdir()
        self.path = self.root / "parent" / "data"
        self.disk = SimulatedDisk(self.root, Random(seed + 1), self._check_removal)
        self.copies = Copies(folder)
        self.config = settings(rng)
        self.reclaiming = Reclaiming(self.config, self.path / "log")
        self.records = Records(rng, self.config.segment_size - 200, moves=True, reclaims=self.reclaiming.is_on)
        self.truth = Truth(self.config.partitions)
        self.life = Life()
        self.commits: list[Commit] = []  # of this life, not checked yet
        self.counts: Counter[str] = Counter()
        self._loop = loop
        self._skew = 1_000  # ms by which the store's clock is ahead of the loop's
        self._latest = 0  # ms, that the clock ever showed
        self._reclaimed: dict[int, list[bytes]] = {}  # sealed records of segments that retention took, by base
        self._durable = 0  # up to where the last life knew the log to be on disk
        self._engine: Engine | None = None  # while it is open

    async def run(self) -> None:
        """Live it. A violation leaves no store open."""
        try:
            await self._live()
        finally:
            if self._engine is not None:
                self.disk.dead = True
                with suppress(Exception):  # what was violated is told, and not what came of it
                    await self._engine.close()

    def on_flush(self, units: list[Unit]) -> None:
        """The flush thread gets these appends."""
        for unit in units:
            self.life.submitted += unit.frames

    async def _live(self) -> None:
        for _ in range(self.rng.randint(2, LIVES)):
            engine = await self._open()
            await self._check_start(engine)
            for _ in range(self.rng.randint(1, STEPS)):
                if not await self._step(engine):
                    break
            await self._end(engine)
            if self.rng.random() < 0.3:
                await self._damage()
        self.disk.full = False
        engine = await self._open()
        await self._check_start(engine)
        await self._close(engine)

    async def _open(self) -> Engine:
        """The next life. It may take several tries: the disk fails then, too."""
        self.counts["lives"] += 1
        for attempt in range(4):
            if attempt < 3 and self.rng.random() < 0.25:
                self._arm(8)
            try:
                engine = await Engine.open(self.path, self.config, self.disk, self._clock)
            except OSError:
                self._crash(self.rng.random() < 0.5)
                self.disk.full = self.disk.full and attempt < 1
                continue
            self.disk.fault = None
            self._engine = engine
            engine.on_commit(self.commits.append)
            return engine
        raise AssertionError("the store does not open")

    async def _close(self, engine: Engine) -> None:
        await engine.close()
        self._engine = None

    async def _check_start(self, engine: Engine) -> None:
        """What the last life left is there, and nothing else."""
        last, self.life = self.life, Life(engine.stats().log_end)
        await self._read(engine)
        left = [frame for frame in self.truth.behind(last.born) if record.position_of(frame, 0) < self.life.born]
        last.check(left)
        self.counts["records"] += len(left)
        self.counts["cut records"] += len(last.submitted) - len(left)
        self.copies.opened(engine.stats().log_end)
        await self._check(engine)
        if self.rng.random() < 0.5:
            folder = self.copies.folder() if self.rng.random() < 0.3 else None
            await check_rows(engine, self.truth, folder, self.rng)

    async def _learn(self, engine: Engine) -> None:
        """Read the log: it goes on with what was appended in this life."""
        await self._read(engine)
        self.life.check(self.truth.behind(self.life.born))

    async def _read(self, engine: Engine) -> None:
        """Read the log: what is known of it is there."""
        found = await checks.read_log(engine)
        begin = record.position_of(found[0], 0) if found else checks.log_begin(engine)
        self._learn_reclaimed(begin)
        known = self.truth.behind(begin)
        assert found[: len(known)] == known, "records are not what they were"
        self.truth.grow(found[len(known) :])

    def _learn_reclaimed(self, begin: int) -> None:
        """Records that retention took before anybody read them, or is about to take."""
        size = self.config.segment_size
        for base in range(self.truth.end // size * size, begin, size):
            path = self.path / "log" / segment_name(base)
            frames = self._reclaimed.get(base) or _frames(path)
            end = self.truth.end
            self.truth.grow([frame for frame in frames if record.position_of(frame, 0) >= end])

    async def _check(self, engine: Engine) -> None:
        """The store says what the model of its log says."""
        for _ in range(checks.TRIES):
            await self._learn(engine)
            known = [commit for commit in self.commits if commit.end <= self.truth.end]
            checks.check_commits(known, self.truth.model)
            del self.commits[: len(known)]
            if await checks.check_state(engine, self.truth.model, self.rng):
                return
        raise AssertionError("the log grows and grows by itself")

    async def _step(self, engine: Engine) -> bool:
        """Something happens. False when the life is over."""
        failed = engine.stats().failed
        match self.rng.randrange(13):
            case 0 if not failed:
                await self._checkpoint(engine)
            case 1 | 2 if not failed:
                await self._checkpoint(engine)
                self.copies.add(engine._database)
            case 3:
                await asyncio.sleep(self.rng.choice((0.001, 1, 30)))
            case 4:
                self._arm(6)
            case 5 if not failed:
                await self._check(engine)
            case 6 if not failed:
                await self._reclaim(engine)
            case _:
                await self._append(engine)
        return not self.disk.dead and (not engine.stats().failed or self.rng.random() < 0.5)

    def _arm(self, soon: int) -> None:
        self.counts["faults"] += 1
        self.disk.fault = Fault(self.rng.choice(FAULTS), self.rng.randrange(soon))

    async def _append(self, engine: Engine) -> None:
        """Appends in one turn of the loop, some of which go together."""
        self._skew += self.rng.choice((0, 1, 1000, -500))
        loop = asyncio.get_running_loop()
        answers: list[tuple[list[bytes], asyncio.Future[Appended]]] = []
        refused = engine.stats().failed
        for _ in range(self.rng.choice((1, 1, 3, 10))):
            frames = self.records.append(self._clock())
            answers.append((frames, loop.create_future()))
            engine.append(frames, answers[-1][1].set_result)
        await checks.settled([answer for _, answer in answers])
        for frames, answer in answers:
            appended = answer.result()
            if appended.error is None:
                assert not refused, "acknowledged behind what was not"
                positions = dict(zip(appended.positions, frames, strict=True))
                self.life.acknowledged.update(positions)
                self.records.learn(positions)
            refused = refused or appended.error is not None

    async def _checkpoint(self, engine: Engine) -> None:
        if not self.reclaiming.is_on and self.rng.random() < 0.2:
            engine._views.checkpoint(engine._writer.durable)  # ahead of a log that was not synced, which must not be
        else:
            await engine._checkpoint()

    async def _reclaim(self, engine: Engine) -> None:
        """Retention takes all that it may."""
        if self.reclaiming.is_on and self.rng.random() < 0.3:
            self._arm(8)
        await self._learn(engine)
        now = self._clock()
        cut = self.reclaiming.cut(checks.log_begin(engine), self.truth.end, now, self.truth.model)
        try:
            await engine.enforce_retention()
        except (StoreError, OSError):
            return
        for parent in (b"a", b"b", b"c", b"", b"many"):
            floor = engine._views.floors.of(parent)
            latest = max(self.reclaiming.floor(parent, self._latest), 0)
            assert self.reclaiming.floor(parent, now) <= floor <= latest, "a parent has another age"
        if engine.stats().failed:
            return
        begin = checks.log_begin(engine)
        assert begin >= cut, "retention left what may go"
        oldest = int.from_bytes(engine._database.get(b"moldest") or b"", "big")
        generation_bytes = self.config.segment_size * self.config.generation_segments
        assert oldest == begin // generation_bytes, "the index of what is gone is there"

    def _check_removal(self, path: Path) -> None:
        """A file of the log is about to go."""
        assert self._engine is not None
        base, end = int(path.stem), self._engine._log.end
        following = base + self.config.segment_size
        assert following < min(end, self._engine._writer.durable), "the segment that is written to goes"
        self._learn_reclaimed(following)
        assert self.reclaiming.may_go(base, end, self._latest, self.truth.model), "a segment goes too early"
        assert all(copy.position >= following for copy in self.copies.possible), "the views on disk still need it"
        self._reclaimed[base] = _frames(path)
        self.counts["reclaimed"] += 1

    async def _end(self, engine: Engine) -> None:
        ending = self.rng.choice(("stop", "kill", "kill", "power", "power", "power"))
        clean = ending == "stop" and not self.disk.dead and self.disk.fault is None and not engine.stats().failed
        if not clean:
            self.disk.fault = None
            self.disk.dead = True
        async with asyncio.timeout(30):
            await self._close(engine)
        self._durable = engine._writer.durable
        if clean:
            self._keep_views(engine)
            if self.rng.random() < 0.5:
                self.disk.cut_power()
        else:
            self._crash(ending == "power")
        self.commits.clear()

    def _crash(self, lost_power: bool) -> None:
        """The folder becomes what a crash leaves."""
        self.counts["cuts" if lost_power else "kills"] += 1
        if lost_power:
            self.disk.cut_power()
        else:
            self.disk.kill()
        if lost_power:
            # Under the interval policy, what was not synced was never promised to survive this.
            self.truth.cut(self._durable)
            self.life.forget(self._durable)
        if self.path.exists():
            self.copies.leave(self.path / "views", self.rng)

    def _keep_views(self, engine: Engine) -> None:
        """After a clean stop the views are on disk; or somebody deletes them, which is allowed."""
        if self.rng.random() < 0.1 and not checks.log_begin(engine):
            shutil.rmtree(self.path / "views")
            self.copies.lost()
        else:
            self.copies.closed(self.path / "views", engine._views.checkpointed)

    def _clock(self) -> int:
        now = self._skew + int(self._loop.time() * 1000)
        self._latest = max(self._latest, now)
        return now

    async def _damage(self) -> None:
        """A bit of a record turns around while the store is down: it is told, or it was the torn tail."""
        engine = await self._open()
        await self._check_start(engine)
        await self._close(engine)
        self._keep_views(engine)
        frames = self.truth.behind(checks.log_begin(engine))
        if not frames:
            return
        self.counts["flips"] += 1
        self.disk.full = False
        hit = self.rng.randrange(len(frames))
        position = record.position_of(frames[hit], 0)
        base = position - position % self.config.segment_size
        path = self.path / "log" / segment_name(base)
        at = position - base + self.rng.randrange(len(frames[hit]))
        bit = self.rng.randrange(8)
        self.disk.flip(path, at, bit)
        damaged = self._log_bytes()
        proven = any(record.durable_of(frame, 0) > position for frame in frames[hit + 1 :])
        config = replace(self.config, retention_bytes=0, retention_age_s=0, retention_parents={})
        refusal: LogCorrupt | None = None
        try:
            engine = await Engine.open(self.path, config, self.disk, self._clock)
        except LogCorrupt as error:
            refusal = error
        if refusal is not None:
            assert refusal.position <= position, "damage is told behind where it is"
            assert self._log_bytes() == damaged, "a log that does not open was changed"
            self.disk.flip(path, at, bit)
            return
        self._engine = engine
        if engine.stats().log_end <= position:
            assert not proven, "damage was taken for a torn tail"
            self.truth.cut(position)
            await self._close(engine)
            self.copies.lost()
            return
        await self._check_damage_is_told(engine, position)
        await self._close(engine)
        self.disk.flip(path, at, bit)

    async def _check_damage_is_told(self, engine: Engine, position: int) -> None:
        """The node opened behind the damage: who reads it hears of it."""
        try:
            await engine.read(position, 1)
        except StoreError:
            return
        raise AssertionError("a damaged record was read")

    def _log_bytes(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted((self.path / "log").glob("*.log")))


def _frames(path: Path) -> list[bytes]:
    """The records of a segment."""
    data = path.read_bytes()
    _, length = record.verify(data, int(path.stem))
    return [data[start:end] for start, end in pairwise([*record.split(data[:length]), length])]
