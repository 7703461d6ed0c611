"""The life of a store, again and again: what happens in a history, and what is checked on the way."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

import record
from matcher.names import parent_of
from record.layout import FLAG_HELD, Kind
from store.api import Appended, Commit
from store.engine import Engine
from store.errors import RecordTooLarge, StoreError, ViewsDamaged
from store.log.commitlog import PendingAppend
from store.log.removed_ranges import Removed, read_removed
from store.log.segments import segment_name
from store.log.tiered import read_tiered
from store.tier.segment_object import SegmentIndex, unpack_index
from store.tier.tier import number_of
from tests.store.simulation import checks
from tests.store.simulation.backups import Backups
from tests.store.simulation.clock import BACK_MS, Clock
from tests.store.simulation.copies import Copies
from tests.store.simulation.damage import damage_record
from tests.store.simulation.disk import FAULTS, Fault, SimulatedDisk
from tests.store.simulation.held_clients import HeldClients
from tests.store.simulation.life import Life
from tests.store.simulation.loop import SimulatedLoop
from tests.store.simulation.model import Entry
from tests.store.simulation.pop_clients import PopClients
from tests.store.simulation.reclaiming import Reclaiming
from tests.store.simulation.records import Records
from tests.store.simulation.rows import check_rows
from tests.store.simulation.settings import DISK, settings
from tests.store.simulation.truth import Truth
from tests.store.tier.memory_objects import Deflate, MemoryObjects

First = TypeVar("First")
Second = TypeVar("Second")

LIVES = 5
STEPS = 16
LOOK_S = 12  # until the store's own looks have come to what is due


class History:
    """The state of one history."""

    def __init__(self, seed: int, folder: Path, loop: SimulatedLoop) -> None:
        self.rng = rng = Random(seed)
        self.root = folder / "disk"
        self.root.mkdir()
        self.path = self.root / "parent" / "data"
        self.disk = SimulatedDisk(self.root, Random(seed + 1), self._check_removal)
        self.copies = Copies(folder)
        self.counts: Counter[str] = Counter()
        self.config = settings(rng)
        self.disk.capacity = DISK * self.config.segment_size
        self.objects = MemoryObjects() if self.config.tier.is_on else None
        self._tier_chance = Random(seed + 3)
        self.is_tier_away = False
        if self.objects is not None:
            self.objects.fault = self._tier_fault
        self.reclaiming = Reclaiming(self.config, self.path / "log", self.disk)
        # Either the store's services alone let messages go and tell of groups, or records of theirs come at random too.
        self._moves = rng.random() < 0.4
        self.records = Records(rng, self.config.segment_size - 200, moves=self._moves, reclaims=self.reclaiming.is_on)
        self._clock = Clock(loop)
        self._publishers = HeldClients(rng, self.config, self.counts)
        self._members = PopClients(rng, self.config, self.counts, self._clock)
        self.truth = Truth(self.config.partitions)
        self.life = Life()
        self.commits: list[Commit] = []  # of this life, not checked yet
        self._complaints: list[str] = []  # of listeners
        self._backups = Backups(folder / "backups", rng, self.counts, self.now, self.objects)
        self._highest_begin = 0  # of the log, that there ever was
        self._reclaimed: dict[int, list[bytes]] = {}  # sealed records of segments that retention took, by base
        self._dropped: set[int] = set()  # positions of records that retention took out of the middle of the log
        self._durable = 0  # up to where the last life knew the log to be on disk
        self.engine: Engine | None = None  # while it is open

    async def run(self) -> None:
        """Live it. A violation leaves no store open."""
        try:
            await self._live()
        finally:
            if self.engine is not None:
                self.disk.dead = True
                with suppress(Exception):  # what was violated is told, and not what came of it
                    await self.engine.close()

    def on_flush(self, units: list[PendingAppend]) -> None:
        """The flush thread gets these appends."""
        for unit in units:
            self.life.submitted += unit.frames

    def now(self) -> int:
        """The store's clock, ms."""
        return self._clock.now()

    async def _live(self) -> None:
        for _ in range(self.rng.randint(2, LIVES)):
            engine = await self.open()
            await self.check_start(engine)
            for _ in range(self.rng.randint(1, STEPS)):
                if not await self._step(engine):
                    break
            await self._end(engine)
            if self.rng.random() < 0.3:
                await damage_record(self)
        engine = await self.open()
        self.disk.full = False
        await self.check_start(engine)
        if not self._moves:
            await self._wait_for_all(engine)
        await engine._retention.enforce()
        assert checks.log_begin(engine) <= engine._views.files_begin, "files of what is gone are there"
        if self.objects is None:
            assert checks.log_begin(engine) == engine._views.files_begin, "the log lacks files"
        else:
            await self._check_tier(engine)
        await self._check(engine)
        await self._backups.check_one()
        await self.close(engine)

    async def _wait_for_all(self, engine: Engine) -> None:
        """Everything happens that is to happen."""
        last = self._publishers.last_due(self.truth.model)
        await asyncio.sleep(max(last - self._clock.now(), 0) / 1000 + LOOK_S)
        await self._members.drain(engine)
        await self._check(engine)
        self._publishers.check_end(self.truth.model, self._clock.now())
        self._members.check_end(self.truth.model, self._is_gone)

    async def open(self) -> Engine:
        """The next life. It may take several tries: the disk fails then, too."""
        self.counts["lives"] += 1
        for attempt in range(4):
            if attempt < 3 and self.rng.random() < 0.25:
                self._arm(8)
            try:
                self._members.begin_life()
                engine = await Engine.open(self.path, self.config, self.disk, self.now, self.objects)
            except (OSError, ViewsDamaged):
                self._crash(self.rng.random() < 0.5)
                self.disk.full = self.disk.full and attempt < 1
                continue
            self.disk.fault = None
            self.engine = engine
            self._watch_retention(engine)
            engine.on_commit(self._on_commit)
            engine.on_transaction_check(self._publishers.on_check)
            return engine
        raise AssertionError("the store does not open")

    def _watch_retention(self, engine: Engine) -> None:
        retention, compaction = engine._retention, engine._retention._compaction
        trim, publish = retention._trim, compaction._publish

        async def checked_trim(begin: int) -> None:
            self._check_trim(engine, begin)
            await trim(begin)

        async def checked_publish(removed: Removed) -> None:
            self._check_dropping(engine, removed)
            await publish(removed)

        retention._trim = checked_trim  # type: ignore[method-assign]
        compaction._publish = checked_publish  # type: ignore[method-assign]

    def _on_commit(self, commit: Commit) -> None:
        self.commits.append(commit)
        assert self.engine is not None
        if not self._moves and any(self.engine._views.is_gone(moved.position) for moved in commit.moved):
            self._complaints.append("a held message entered its queues when its record was gone")

    async def close(self, engine: Engine) -> None:
        await engine.close()
        self.engine = None

    async def check_start(self, engine: Engine) -> None:
        """Check that the folder has what the last life left, and nothing else."""
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
        found = checks.there(engine, found)  # without what was removed while it was read
        known = checks.there(engine, self.truth.behind(begin))
        moved = checks.log_begin(engine)  # meanwhile, perhaps: what was removed before it is forgotten
        at = {record.position_of(frame, 0) for frame in found}
        known = [frame for frame in known if (place := record.position_of(frame, 0)) >= moved or place in at]
        assert found[: len(known)] == known, "records are not what they were"
        self.truth.grow(found[len(known) :])

    def _learn_reclaimed(self, begin: int) -> None:
        """Records that retention took before anybody read them, or is about to take."""
        size = self.config.segment_size
        for base in range(self.truth.end // size * size, begin, size):
            path = self.path / "log" / segment_name(base)
            frames = self._reclaimed[base] if base in self._reclaimed else _frames(path)
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
                self._check_promises(engine)
                return
        raise AssertionError("the log grows and grows by itself")

    def _check_promises(self, engine: Engine) -> None:
        """Check that promises to the store's clients hold."""
        self._highest_begin = max(self._highest_begin, checks.log_begin(engine))
        assert not self._complaints, self._complaints
        if not self._moves:
            self._publishers.check(self.truth.model)
            self._members.check(self.truth.model, self._is_gone)

    async def _step(self, engine: Engine) -> bool:
        """Something happens. False when the life is over."""
        failed = engine.stats().failed
        match self.rng.randrange(20):
            case 0 | 1 | 2 as number if not failed:
                await self._checkpoint(engine, copy=number > 0)
            case 3:
                await asyncio.sleep(self.rng.choice((0.001, 1, 30)))
            case 4:
                self._arm(6)
            case 5 if not self.disk.dead:
                await self._check(engine)
            case 6 | 15 if not failed:
                await self._reclaim(engine)
            case 14 if not failed and self.rng.random() < 0.4:
                await self._back_up(engine)
            case 16 | 17 if self.objects is not None and not failed:
                await self._tier(engine)
            case 7 | 8 if not self._moves:
                await self._publishers.act(engine, self.truth.model)
            case 9 | 10 | 11 | 12 | 13 if not self._moves:
                async with asyncio.timeout(600):
                    await self._members.act(engine)
            case _:
                await self._append(engine)
        return not self.disk.dead and (not engine.stats().failed or self.rng.random() < 0.5)

    async def _back_up(self, engine: Engine) -> None:
        """Somebody takes a backup, while messages come."""
        if self.rng.random() < 0.2:
            self._arm(8)
        manifest, _ = await _together(self._backups.take(engine, self.path), self._append(engine))
        if manifest is not None and not self.disk.dead:
            await self._learn(engine)
            await self._backups.check_new(manifest, self.truth)

    def _arm(self, soon: int) -> None:
        self.counts["faults"] += 1
        self.disk.fault = Fault(self.rng.choice(FAULTS), self.rng.randrange(soon))

    async def _append(self, engine: Engine) -> None:
        """Appends in one turn of the loop, some of which go together."""
        self._clock.set(self.rng.choice((0, 1, 1000, -BACK_MS)))
        loop = asyncio.get_running_loop()
        answers: list[tuple[list[bytes], asyncio.Future[Appended]]] = []
        refused = engine.stats().failed
        for _ in range(self.rng.choice((1, 1, 3, 10))):
            frames = self.records.append(self._clock.now())
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
                self._tell_publishers(positions, appended.store_time)
            refused = refused or not isinstance(appended.error, RecordTooLarge | None)

    def _tell_publishers(self, positions: dict[int, bytes], time: int) -> None:
        for position, frame in positions.items():
            kind, flags, *_ = record.decode(frame, 0)
            if kind == Kind.MESSAGE and flags & FLAG_HELD:
                self._publishers.on_acknowledged(position, frame, time)

    async def _checkpoint(self, engine: Engine, *, copy: bool) -> None:
        """The views are written; with `copy`, RocksDB puts that on disk by itself."""
        if not self.reclaiming.is_on and self.rng.random() < 0.2:
            try:
                engine._views.checkpoint(engine._writer.durable)  # ahead of a log that was not synced: must not be
            except StoreError as error:
                engine._log.fail(error)
        else:
            await _attempt(engine._checkpointed())
        if copy and not engine.stats().failed:
            self.copies.add(engine._database)

    async def _reclaim(self, engine: Engine) -> None:
        """Retention takes all that it may."""
        if self.reclaiming.is_on and self.rng.random() < 0.3:
            self._arm(8)
        await self._learn(engine)
        now = self._clock.now()
        cut = self.reclaiming.cut(checks.log_begin(engine), self.truth.end, now, self.truth.model)
        done, _ = await _together(_attempt(engine._retention.enforce()), self._meanwhile(engine))
        if not done:
            return
        for parent in (b"a", b"b", b"c", b"", b"many"):
            floor = engine._views.floors.of_parent(parent)
            latest = max(self.reclaiming.floor(parent, self._clock.latest), 0)
            assert self.reclaiming.floor(parent, now) <= floor <= latest, "a parent has another age"
        if engine.stats().failed:
            return
        begin = checks.log_begin(engine)
        if begin < cut:  # then something entered meanwhile that has it stay
            await self._learn(engine)
            is_kept = not self.reclaiming.may_go(begin, self.truth.end, now, self.truth.model)
            assert is_kept, "retention left what may go"
        async with engine._retention._one:  # not in the middle of a check that a new segment has started
            # Files begin before the log if the disk failed another check since, and behind it if the tier has the rest.
            begin = min(engine._views.files_begin, engine._views.begin)
            oldest = int.from_bytes(engine._database.get(b"moldest") or b"", "big")
        generation_bytes = self.config.segment_size * self.config.generation_segments
        assert oldest == begin // generation_bytes, "the index of what is gone is there"

    async def _tier(self, engine: Engine) -> None:
        """Segments go to the tier and from the disk, while the tier fails or the disk does."""
        await self._learn(engine)
        self.is_tier_away = self.rng.random() < 0.5
        if self.rng.random() < 0.4:
            self._arm(20)
        await _together(_attempt(engine._retention.enforce()), self._append(engine))
        self.is_tier_away = False

    async def _meanwhile(self, engine: Engine) -> None:
        """Work beside a check of retention."""
        for _ in range(self.rng.choice((0, 1, 4))):
            await asyncio.sleep(self.rng.choice((0, 0.001)))
            if not self._moves:
                await self._publishers.act(engine, self.truth.model)
                await self._members.act(engine)

    def _check_trim(self, engine: Engine, cut: int) -> None:
        """The log is about to say that it begins at `cut`."""
        begin, end = checks.log_begin(engine), engine._log.end
        self._learn_reclaimed(cut)
        for base in range(begin, cut, self.config.segment_size):
            may_go = self.reclaiming.may_go(base, end, self._clock.latest, self.truth.model, base - begin)
            assert may_go, "a segment goes too early"

    def _check_removal(self, path: Path) -> None:
        """A file of the log is about to go."""
        assert self.engine is not None
        base, end = int(path.stem), self.engine._log.end
        following = base + self.config.segment_size
        assert following < min(end, self.engine._writer.durable), "the segment that is written to goes"
        self._learn_reclaimed(following)
        # Whatever a crash leaves, the views know that the segment has gone, and have all of its records.
        if base < self.engine._views.log_begin.position:
            assert all(copy.begin >= following for copy in self.copies.possible), "the views on disk still need it"
            self.counts["reclaimed"] += 1
        else:
            assert all(copy.files >= following for copy in self.copies.possible), "the views on disk look for it"
            self._check_object(base, path.read_bytes())
            self.counts["tiered"] += 1
        self._reclaimed[base] = _frames(path)

    def _check_object(self, base: int, content: bytes) -> None:
        """The tier has a segment whose file is about to go."""
        assert self.objects is not None, "a segment goes that the log has"
        segment = read_tiered(self.path / "log").find(base)
        assert segment is not None, "a file goes before the list has its object"
        data = self.objects.objects.get(segment.name)
        assert data is not None, "a file goes, and its object is not there"
        index = unpack_index(data, len(data))
        assert isinstance(index, SegmentIndex)
        starts = index.starts
        blocks = [index.open_block(i, data[starts[i] : starts[i + 1]], Deflate()) for i in range(len(starts) - 1)]
        found = b"".join(blocks)
        gone = read_removed(self.path / "log").ranges
        if not gone.touches(base, base + len(content) - 1):  # else the file lost what the object may still have
            assert found == content[: len(found)], "the object has other bytes"
            assert not any(content[len(found) :]), "the object lacks the end of the segment"

    async def _check_tier(self, engine: Engine) -> None:
        """In the end the tier has what its list names, and nothing else."""
        tiering = engine._retention._tiering
        assert tiering is not None and self.objects is not None
        self._tier_chance.seed(0)
        self.objects.fault = lambda _: ""
        await engine._checkpointed()
        for _ in range(3):  # the manifest of an earlier life may have to be found first
            await tiering.run_once()
        tiered = engine._segments.tiered
        assert all(segment.base >= checks.log_begin(engine) for segment in tiered.segments), "the tier has what is gone"
        above = f"logs/{tiered.folder}/"
        # What was written for a next manifest may be one that had no answer: the next change looks.
        own = {name for name in self.objects.objects if name.startswith(above) and number_of(name) <= tiered.number}
        named = {segment.name for segment in tiered.segments if segment.name.startswith(above)}
        assert {name for name in own if "/segments/" in name} == named, "objects that nobody needs are there"
        assert len(own) - len(named) == min(tiered.number, 1), "older manifests are there"
        size = self.config.segment_size
        closed = engine._segments.base_of(max(engine._views.checkpointed - 1, 0))
        last = tiered.last
        assert closed == engine._views.begin or (last is not None and last.base + size == closed), "a segment is left"

    def _tier_fault(self, kind: str) -> str:
        """A fault of a request. Reads fail only while nobody checks what they give."""
        chance = self._tier_chance.random()
        if self.is_tier_away:
            return "refused" if chance < 0.3 else "unanswered" if chance < 0.5 else ""
        if kind == "read":
            return ""
        return "refused" if chance < 0.05 else "unanswered" if chance < 0.1 else ""

    def _check_dropping(self, engine: Engine, removed: Removed) -> None:
        """Records in the middle of the log are about to go."""
        size, known = self.config.segment_size, engine._segments.removed.ranges
        end = -(-removed.ranges.end // size) * size
        assert end <= engine._writer.durable // size * size, "records go from the segment that is written to"
        self._learn_reclaimed(end)
        frames = [frame for frame in self.truth.behind(checks.log_begin(engine)) if record.position_of(frame, 0) < end]
        dropped = [frame for frame in frames if removed.ranges.covers(record.position_of(frame, 0))]
        dropped = [frame for frame in dropped if not known.covers(record.position_of(frame, 0))]
        assert all(self.reclaiming.may_drop(frame, self._clock.latest) for frame in dropped), "a record goes too early"
        if dropped:
            assert all(copy.position >= end for copy in self.copies.possible), "the views on disk still need it"
            self._dropped |= {record.position_of(frame, 0) for frame in dropped}
            self.counts["dropped"] += len(dropped)

    async def _end(self, engine: Engine) -> None:
        ending = self.rng.choice(("stop", "kill", "kill", "power", "power", "power"))
        is_armed = self.disk.fault is not None and self.disk.fault.kind != "views"
        clean = ending == "stop" and not (self.disk.dead or is_armed or engine.stats().failed)
        if not clean:
            self.disk.fault = None
            self.disk.dead = True
        async with asyncio.timeout(30):
            await self.close(engine)
        self._durable = engine._writer.durable
        self._highest_begin = max(self._highest_begin, checks.log_begin(engine))
        if clean:
            self.keep_views(engine)
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
            self.forget(self._durable)  # all that is not synced, under the interval policy
        if self.path.exists():
            self.copies.leave(self.path / "views", self.rng)

    def keep_views(self, engine: Engine) -> None:
        """After a clean stop the views are on disk; or somebody deletes them, which is allowed."""
        if self.rng.random() < 0.1 and not engine._segments.whole_from:
            shutil.rmtree(self.path / "views")
            self.copies.lost()
        else:
            begin = engine._views.log_begin.position
            self.copies.closed(self.path / "views", engine._views.checkpointed, begin, engine._views.files_begin)

    def forget(self, position: int) -> None:
        """Forget promises from `position` on: they need not survive the next crash."""
        self.truth.cut(position)
        self.life.forget(position)
        self._publishers.forget(position)
        self._members.forget(position)

    def _is_gone(self, entry: Entry) -> bool:
        """Whether a message may be passed over: retention took it, or its parent topic keeps nothing as old."""
        floor = self.reclaiming.floor(parent_of(entry.topic), self._clock.latest)
        return entry.position < self._highest_begin or entry.position in self._dropped or entry.time < floor


async def _attempt(work: Coroutine[None, None, object]) -> bool:
    """Whether the work was done, which the disk may not let it."""
    try:
        await work
    except (StoreError, OSError):
        return False
    return True


async def _together(one: Coroutine[None, None, First], other: Coroutine[None, None, Second]) -> tuple[First, Second]:
    """Both at the same time, to the end."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    for result in (first, second):
        if isinstance(result, BaseException):
            raise result
    return first, second


def _frames(path: Path) -> list[bytes]:
    """The records of a segment."""
    data = path.read_bytes()
    _, length = record.verify(data, int(path.stem))
    return [data[start:end] for start, end in pairwise([*record.split(data[:length]), length])]
