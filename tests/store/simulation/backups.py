"""Backups that a history takes while its store goes on: each opens, says what the store said at its position, and says
so until the end."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import record
from store.config import StoreConfig, TierConfig
from store.data_folder import read_meta
from store.engine import Engine
from store.errors import StoreError
from store.exports.backup import BackupManifest, back_up_staged
from store.exports.copying import CopyOptions
from store.exports.snapshot import Snapshot
from store.exports.stage import stage
from store.exports.until import Until
from store.log.removed_ranges import read_removed
from store.log.segments import segment_name
from store.queries import Queries
from tests.store.simulation import checks
from tests.store.simulation.truth import Truth
from tests.store.tier.memory_objects import MemoryObjects


@dataclass(slots=True)
class Backup:
    """One that was made, of a log that had these sealed records, and those that retention had taken."""

    path: Path
    manifest: BackupManifest
    frames: list[bytes]


class Backups:
    """The backups of one history, in `folder`, which is not on its disk."""

    def __init__(
        self, folder: Path, rng: Random, counts: Counter[str], clock: Callable[[], int], objects: MemoryObjects | None
    ) -> None:
        self._folder = folder
        self._rng = rng
        self._counts = counts
        self._clock = clock
        self._objects = objects  # of the tier
        self._made: list[Backup] = []
        self._taken = 0  # also those that failed

    async def take(self, engine: Engine, data: Path) -> BackupManifest | None:
        """Back up the open store of the folder `data`. None when that failed: there is nothing left of it then."""
        self._folder.mkdir(exist_ok=True)
        self._taken += 1
        target = self._folder / f"{self._taken}."
        options = CopyOptions(may_link=self._rng.random() < 0.5, clock=self._clock)
        loop = asyncio.get_running_loop()
        try:
            with stage(data) as folder:
                staged = await engine.stage(folder)
                made = await loop.run_in_executor(None, back_up_staged, data, folder, staged, target, options)
        except (StoreError, OSError):
            assert not any(self._folder.glob(f"{target.name}*")), "something is left of a backup that failed"
            return None
        self._counts["backups"] += 1
        return made.manifest

    async def check_new(self, manifest: BackupManifest, truth: Truth) -> None:
        """The backup that was just made is right; `truth` knows all that is in it."""
        frames = [frame for frame in truth.frames if record.position_of(frame, 0) < manifest.position]
        backup = Backup(self._folder / f"{self._taken}.", manifest, frames)
        self._made.append(backup)
        await self._check(backup)

    async def check_one(self) -> None:
        """One that was made at some time is still right."""
        if self._made:
            await self._check(self._rng.choice(self._made))

    async def _check(self, backup: Backup) -> None:
        manifest = backup.manifest
        truth = Truth(read_meta(backup.path).partitions)
        truth.grow(backup.frames)
        assert manifest.position == truth.end, "a backup ends within a record"
        if self._rng.random() < 0.3:
            # The clock stands still, or the services of the store would let things happen.
            config = StoreConfig(transaction_check_s=10**6, view_cache_bytes=0)
            objects = None
            if self._objects is not None:  # as if the log that the backup is of had removed nothing since
                objects = MemoryObjects()
                objects.objects = self._objects.deleted | self._objects.objects
                config = replace(config, tier=TierConfig("memory"))
            engine = await Engine.open(backup.path, config, clock=lambda: 0, objects=objects)
            await self._check_is(engine, truth)
            await engine.close()
            return
        until = Until()
        if (
            (backup.path / "log" / segment_name(0)).exists()  # a store that was opened here may have gone on removing
            and not read_removed(backup.path / "log").ranges
            and backup.frames
            and self._rng.random() < 0.3
        ):
            position = self._rng.randrange(truth.end + 1)
            until = Until(position=position)
            truth.cut(position)
        snapshot = await Snapshot.open(backup.path, until, temporary=self._folder)
        await self._check_is(snapshot, truth)
        await snapshot.close()

    async def _check_is(self, store: Queries, truth: Truth) -> None:
        left = checks.there(store, truth.behind(checks.log_begin(store)))
        assert await checks.read_log(store) == left, "a backup has other records"
        await checks.check_all(store, truth.model, self._rng)
