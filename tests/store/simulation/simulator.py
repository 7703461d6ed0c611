"""One history of a store with crashes, from a seed: the same seed, the same history.

A history is lives of a store on one folder. In a life it appends, checkpoints, syncs and is asked; the life ends
with a clean stop, a kill, a power cut or a disk that fails, at any operation of the disk, also while it opens.
Then the folder is what that leaves, the views are one of the copies that RocksDB may have had on disk, and the
next life has to show everything that was acknowledged, in order, and nothing else.
"""

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from rocksdict import Checkpoint

import record
import store.segments
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt, StoreError
from store.segments import segment_name
from tests.store.images import copy_image
from tests.store.simulation import checks
from tests.store.simulation.disk import FAULTS, Fault, SimulatedDisk
from tests.store.simulation.records import Records

LIVES = 5
STEPS = 12
FOREVER = 10**9  # ms: timers of the store do not fire by themselves, the history calls them


class Violation(AssertionError):
    """The store did what it must not. The message begins with the seed."""


class Deferred:
    """In place of a thread that prepares a segment: runs when it is joined, so that order is the seed's."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "") -> None:
        self._work: Callable[[], None] | None = lambda: target(*args)

    def start(self) -> None:
        pass

    def join(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


@dataclass(slots=True)
class Copy:
    """What RocksDB had on disk once. No `path`: nothing."""

    path: Path | None
    position: int  # the log position it is true up to


def simulate(seed: int, folder: Path) -> dict[str, int]:
    """Run a history in the empty `folder`. Returns counts of what happened. Raises `Violation`."""
    with _deferred_threads():
        history = History(seed, folder)
        try:
            asyncio.run(history.run())
        except Exception as error:
            raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error
    return history.counts


@contextmanager
def _deferred_threads() -> Iterator[None]:
    threads = store.segments.threading
    store.segments.threading = SimpleNamespace(  # type: ignore[assignment]
        Thread=Deferred, Event=threading.Event, Lock=threading.Lock
    )
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        store.segments.threading = threads
        logging.disable(level)


class History:
    """The state of one history."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = rng = Random(seed)
        self.root = folder / "disk"
        self.root.mkdir()
        self.path = self.root / "parent" / "data"
        self._aside = folder
        self.disk = SimulatedDisk(self.root, Random(seed + 1))
        size = rng.choice((4096, 4096, 8192, 16384))
        self.config = StoreConfig(
            partitions=rng.choice((1, 2, 4)),
            segment_size=size,
            generation_segments=rng.choice((1, 2, 16)),
            policy=rng.choice(("fsync", "fsync", "interval")),
            interval_ms=FOREVER,
            batch_bytes=rng.choice((200, 1000, 4000, 1 << 20)),
            spacing_ms=0,
            tail_cache_bytes=rng.choice((0, 2000, 1 << 20)),
            checkpoint_keys=rng.choice((1, 5, 50, 5000)),
            checkpoint_age_s=FOREVER,
            max_queue_ends=rng.choice((1, 3, 1000)),
            view_cache_bytes=0,
        )
        self.records = Records(rng, size - 200)
        self.now = 1_000
        self.frames: list[bytes] = []  # sealed, that earlier lives have left
        self.submitted: list[bytes] = []  # unsealed, by this life in order
        self.acknowledged: list[int] = []  # positions of those of `submitted` that were, a prefix of it
        self._durable = 0  # up to where the last life knew the log to be on disk
        self._engine: Engine | None = None  # while it is open
        self.copies = [Copy(None, 0)]  # of the views, that may be found after a crash
        self._copied = 0
        self.counts = dict.fromkeys(("lives", "records", "cuts", "kills", "faults", "flips", "cut records"), 0)

    async def run(self) -> None:
        """Live it. A violation leaves no store open."""
        try:
            await self._live()
        finally:
            if self._engine is not None:
                self.disk.dead = True
                await self._engine.close()

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
            return engine
        raise AssertionError("the store does not open")

    async def _close(self, engine: Engine) -> None:
        self._engine = None
        await engine.close()

    async def _check_start(self, engine: Engine) -> None:
        """What the last life left is there, and nothing else."""
        found = await checks.read_log(engine)
        begun = len(self.frames)
        assert found[:begun] == self.frames, "records of earlier lives are not what they were"
        fresh = found[begun:]
        assert len(fresh) >= len(self.acknowledged), "an acknowledged record is lost"
        assert len(fresh) <= len(self.submitted), "there are records that nobody appended"
        for sealed, unsealed in zip(fresh, self.submitted, strict=False):
            assert record.decode(sealed, 0) == record.decode(unsealed, 0), "not the record that was appended"
        positions = [record.position_of(frame, 0) for frame in fresh[: len(self.acknowledged)]]
        assert positions == self.acknowledged, "an acknowledged record is elsewhere"
        self.counts["records"] += len(fresh)
        self.counts["cut records"] += len(self.submitted) - len(fresh)
        self.frames = found
        self.submitted, self.acknowledged = [], []
        await checks.check_state(engine, found, self.rng)
        self.copies = [copy for copy in self.copies[-1:] if copy.position <= engine.stats().log_end] or [Copy(None, 0)]
        if self.rng.random() < 0.3:
            self._check_replay(engine)

    def _check_replay(self, engine: Engine) -> None:
        checks.check_replay(engine, self._fresh_folder())

    async def _step(self, engine: Engine) -> bool:
        """Something happens. False when the life is over."""
        match self.rng.randrange(12):
            case 0:
                self._checkpoint(engine)
            case 1 | 2:
                self._copy_views(engine)
            case 3:
                self._prepare(engine)
            case 4:
                engine._log._sync()
                await self._append(engine)
            case 5:
                self._arm(6)
            case 6 if not engine.stats().failed:
                await checks.check_state(engine, await checks.read_log(engine), self.rng)
            case _:
                await self._append(engine)
        return not self.disk.dead and (not engine.stats().failed or self.rng.random() < 0.5)

    def _arm(self, soon: int) -> None:
        self.counts["faults"] += 1
        self.disk.fault = Fault(self.rng.choice(FAULTS), self.rng.randrange(soon))

    async def _append(self, engine: Engine) -> None:
        """Appends in one turn of the loop, some of which go together."""
        self.now += self.rng.choice((0, 1, 1000, -500))
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Appended]] = []
        failed = engine.stats().failed
        for _ in range(self.rng.choice((1, 1, 3, 10))):
            frames = self.records.append()
            answers.append(loop.create_future())
            engine.append(frames, answers[-1].set_result)
            if not failed:
                self.submitted += frames
        await checks.settled(answers)  # type: ignore[arg-type]
        refused = failed
        for answer in answers:
            appended = answer.result()
            if appended.error is None:
                assert not refused, "acknowledged behind what was not"
                self.acknowledged += appended.positions
            refused = refused or appended.error is not None

    def _checkpoint(self, engine: Engine) -> None:
        if not engine.stats().failed:
            engine._views.checkpoint(engine._writer.durable)

    def _copy_views(self, engine: Engine) -> None:
        """RocksDB flushes: from here on a crash finds this, or something newer."""
        if engine.stats().failed:
            return
        self._checkpoint(engine)
        path = self._fresh_folder()
        Checkpoint(engine._database._db).create_checkpoint(str(path))
        self.copies.append(Copy(path, engine.stats().checkpoint))

    def _prepare(self, engine: Engine) -> None:
        """The thread that prepares the next segment comes to its turn."""
        preparing = engine._segments._preparing
        if preparing is not None:
            preparing.join()

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
            self._aside_views()
            if self.rng.random() < 0.5:
                self.disk.cut_power()
        else:
            self._crash(ending == "power")

    def _crash(self, lost_power: bool) -> None:
        """The folder becomes what a crash leaves."""
        self.counts["cuts" if lost_power else "kills"] += 1
        if lost_power:
            self.disk.cut_power()
            # Under the interval policy, what was not synced was never promised to survive this.
            self.acknowledged = [position for position in self.acknowledged if position < self._durable]
        else:
            self.disk.kill()
        if self.path.exists():
            copy = self.rng.choice(self.copies)
            views = self.path / "views"
            shutil.rmtree(views, ignore_errors=True)
            if copy.path is not None:
                shutil.copytree(copy.path, views)
            self.copies = [copy]

    def _aside_views(self) -> None:
        """After a clean stop the views are on disk; or somebody deletes them, which is allowed."""
        if self.rng.random() < 0.1:
            shutil.rmtree(self.path / "views")
            self.copies = [Copy(None, 0)]
        else:
            path = self._copy_closed_views()
            position = len(self.submitted) and self.acknowledged[-1] if self.acknowledged else 0
            self.copies = [Copy(path, position)]

    def _copy_closed_views(self) -> Path:
        """RocksDB may still be removing files that it does not need when it was closed."""
        path = self._fresh_folder()
        copy_image(self.path / "views", path)
        return path

    def _fresh_folder(self) -> Path:
        self._copied += 1
        return self._aside / f"views{self._copied}"

    def _clock(self) -> int:
        return self.now

    async def _damage(self) -> None:
        """A bit of a record turns around while the store is down: it is told, or it was the torn tail."""
        engine = await self._open()
        await self._check_start(engine)
        await self._close(engine)
        self._aside_views()
        if not self.frames:
            return
        self.counts["flips"] += 1
        self.disk.full = False
        hit = self.rng.randrange(len(self.frames))
        position = record.position_of(self.frames[hit], 0)
        base = position - position % self.config.segment_size
        path = self.path / "log" / segment_name(base)
        at = position - base + self.rng.randrange(len(self.frames[hit]))
        bit = self.rng.randrange(8)
        self.disk.flip(path, at, bit)
        damaged = self._log_bytes()
        proven = any(record.durable_of(frame, 0) > position for frame in self.frames[hit + 1 :])
        refusal: LogCorrupt | None = None
        try:
            engine = await Engine.open(self.path, self.config, self.disk, self._clock)
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
            self.frames = self.frames[:hit]
            await self._close(engine)
            self.copies = [Copy(None, 0)]
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
