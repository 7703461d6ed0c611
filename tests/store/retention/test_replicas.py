"""All who fold a log have the same views, whenever each of them removes what the log has let go."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import record
from record.layout import Kind
from store import control
from store.api import Commit, dead_letter_queue, topic_queue
from store.config import StoreConfig
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from store.log.reader import LogReader
from store.log.tail_cache import TailCache
from store.log.writer import SealedBatch
from store.retention.removal import Removal
from store.views.digest import digest_of_views
from tests.store.bare import BareStore, Frame
from tests.store.filled import SIZE, SMALL, Filled

GENERATION = SIZE * SMALL.generation_segments


class Replica(BareStore):
    """Writes and folds what another one has decided. It has no retention settings."""

    def __init__(self, path: Path, config: StoreConfig = SMALL, seconds: int = 0, handles: Sequence[int] = ()) -> None:
        super().__init__(path, config, seconds, handles)
        reader = LogReader(self.segments, TailCache(0), 1)
        self.removal = Removal(
            config, self.segments, reader, self.database, self.views, self._checkpoint, asyncio.Event()
        )

    async def _checkpoint(self) -> None:
        self.views.checkpoint(self.views.position)

    def apply(self, batch: SealedBatch) -> None:
        base = self.segments.base_of(batch.position)
        fd = self.segments.open_for_writing(base)
        os.pwrite(fd, batch.data, batch.position - base)
        os.close(fd)
        self.views.fold(batch)

    def digest(self) -> bytes:
        self.views.checkpoint(self.views.position)
        return digest_of_views(self.database, GENERATION)

    async def act(self, rng: Random) -> "Replica":
        """Do something that changes nothing. Returns the replica that goes on."""
        match rng.randrange(12):
            case 0:
                self.views.checkpoint(self.views.position)
            case 1:
                await self.removal.remove()
                await self.removal.drop_generations(asyncio.sleep)
            case 2:
                removing = asyncio.ensure_future(self.removal.remove())
                for _ in range(rng.randrange(8)):
                    await asyncio.sleep(0)
                removing.cancel()
                await asyncio.wait([removing])
                return self.crash()
            case 3:
                return self.crash()
        return self


async def written(path: Path, seed: int) -> tuple[list[SealedBatch], dict[int, bytes]]:
    """The batches of a log whose writer removes at once what it may, and digests of its views by position."""
    store = await Filled(path, replace(SMALL, retention_bytes=3 * SIZE), seed).open()
    batches: list[SealedBatch] = []

    def gather(commit: Commit) -> None:
        batches.append(SealedBatch(commit.position, commit.data, commit.store_time))

    store.engine.on_commit(gather)
    digests: dict[int, bytes] = {}
    for _ in range(40):
        await store.fill(5)
        await store.engine._retention.enforce()
        await store.engine._checkpointed()
        digests[store.engine.stats().checkpoint] = digest_of_views(store.engine._database, GENERATION)
    assert store.engine.stats().log_begin > 2 * GENERATION, "nothing was removed"
    await store.engine.close()
    return batches, digests


@pytest.mark.parametrize("seed", range(4))
async def test_replicas_have_the_views_of_the_writer_whenever_they_remove(tmp_path: Path, seed: int):
    batches, digests = await written(tmp_path / "data", seed)
    rng = Random(seed)
    late, busy = Replica(tmp_path / "late"), Replica(tmp_path / "busy")
    compared = 0
    for batch in batches:
        late.apply(batch)
        busy.apply(batch)
        busy = await busy.act(rng)
        wanted = digests.get(batch.position + len(batch.data))
        if wanted is not None:
            assert busy.digest() == wanted
            assert late.digest() == wanted
            compared += 1
    assert compared == len(digests)
    assert late.segments.begin == 0 < busy.segments.begin
    assert late.views.begin == busy.views.begin > 0
    assert late.views.oldest_generation() is None  # not before its files are gone
    await late.removal.remove()
    await late.removal.drop_generations(asyncio.sleep)
    assert late.segments.begin == late.views.begin
    assert late.digest() == digests[late.views.position]
    late.close()
    busy.close()


async def test_a_folder_has_the_digest_of_an_earlier_position(tmp_path: Path):
    batches, digests = await written(tmp_path / "data", 9)
    replica = Replica(tmp_path / "replica")
    for batch in batches:
        replica.apply(batch)
    replica.database.flush()
    replica.close()
    (tmp_path / "replica" / "store.json").write_bytes((tmp_path / "data" / "store.json").read_bytes())
    (tmp_path / "replica" / "views").rename(tmp_path / "away")
    for position in (min(digests), max(digests)):
        snapshot = await Snapshot.open(tmp_path / "replica", Until(position=position), temporary=tmp_path)
        assert snapshot.position == position
        assert await snapshot.digest() == digests[position]
        await snapshot.close()


async def test_a_dead_letter_is_the_same_before_and_after_its_message_is_removed(tmp_path: Path):
    """Its reference is null as soon as the log begins behind the message."""
    first, second = Replica(tmp_path / "first"), Replica(tmp_path / "second")
    queue = topic_queue(b"t")

    def write(frames: Sequence[Frame]) -> None:
        for commit in first.write(frames):
            second.apply(SealedBatch(commit.position, commit.data, commit.store_time))

    write([record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", b"m")])
    write([control.Popped(0, {queue: [(0, 1)]}).frame(b"g")])
    while first.views.position < 3 * GENERATION:
        write([record.frame(Kind.MESSAGE, 0, 0, b"other", b"", b"", bytes(1000))])
    write([control.LogTrimmed(2 * GENERATION, 0).frame()])
    await first.removal.remove()
    await first.removal.drop_generations(asyncio.sleep)
    assert first.segments.begin == 2 * GENERATION
    write([control.DeadLettered(queue, [0]).frame(b"g")])
    assert second.segments.begin == 0
    assert first.views.end(dead_letter_queue(b"g")) == 1
    assert first.digest() == second.digest()
    first.close()
    second.close()
