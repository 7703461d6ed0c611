"""What parent topics with longer ages keep does not keep the records of others on disk."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import record
from record.layout import FLAG_RETAIN, Kind
from store.api import Appended, filter_queue, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import NoSuchMessage, StoreError
from store.exports.backup import back_up_stopped
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from store.log.removed_ranges import FILE, read_removed
from store.log.segments import Segments
from store.repair.verify import audit
from tests.store.retention.test_parents import subscribe

pytestmark = pytest.mark.usefixtures("retention_on_request")

SEGMENT = 256 << 10
CONFIG = StoreConfig(
    partitions=1,
    segment_size=SEGMENT,
    retention_age_s=60,
    retention_parents={b"home": 3600, b"ever": 0},
    retention_check_s=3600,
    tail_cache_bytes=0,
)


class Store:
    """A store whose clock the test sets."""

    def __init__(self, path: Path, config: StoreConfig = CONFIG) -> None:
        self.path = path
        self.config = config
        self.now = 1_000_000  # ms
        self.engine: Engine

    async def open(self) -> "Store":
        self.engine = await Engine.open(self.path, self.config, clock=lambda: self.now)
        return self

    async def append(self, topic: bytes, size: int, flags: int = 0) -> int:
        """Append a message, and return its position."""
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append([record.frame(Kind.MESSAGE, flags, 0, topic, b"", b"", bytes(size))], answer.set_result)
        appended = await answer
        assert appended.error is None
        return appended.positions[0]

    async def fill(self, segments: int, kept: bytes) -> list[int]:
        """Fill segments with short-lived messages, and one that is kept in each. Returns the positions of these."""
        positions: list[int] = []
        for _ in range(segments):
            position = await self.append(b"debug/x", 9000)
            positions.append(await self.append(kept, 500))
            while self.engine.stats().log_end // SEGMENT == position // SEGMENT:
                await self.append(b"debug/x", 9000)
        return positions

    def disk_bytes(self) -> int:
        """Bytes that the log takes on disk."""
        return sum(512 * path.stat().st_blocks for path in (self.path / "log").glob("*.log"))

    async def readable(self) -> list[int]:
        """Positions of all records that the log answers."""
        found: list[int] = []
        position, end = self.engine.stats().log_begin, self.engine.stats().log_end
        while position < end:
            chunk = await self.engine.read(position, 1 << 20)
            assert not chunk.damaged
            found += [record.position_of(chunk.data, start) for start in record.split(chunk.data)]
            position = chunk.next_position
        return found


async def filled(path: Path, kept: bytes = b"ever/x", segments: int = 8) -> tuple[Store, list[int]]:
    """A store in which one parent topic keeps one record in each segment, and the rest is too old."""
    store = await Store(path).open()
    positions = await store.fill(segments, kept)
    store.now += 61_000
    return store, positions


async def test_long_lived_records_stay_and_the_disk_of_the_others_is_freed(tmp_path: Path):
    store, kept = await filled(tmp_path)
    before = store.engine.stats()
    await store.engine._retention.enforce()
    after = store.engine.stats()
    assert (after.log_begin, after.log_end) == (before.log_begin, before.log_end)
    assert store.disk_bytes() <= 4 * SEGMENT < before.log_bytes
    assert after.log_bytes == store.disk_bytes()
    left = await store.readable()
    assert left[: len(kept)] == kept
    assert len(left) <= len(kept) + 1
    fetched = await store.engine.fetch(topic_queue(b"ever/x"), 0, 100, 1 << 20)
    assert [record.position_of(fetched.data, start) for start in record.split(fetched.data)] == kept
    bounds = await store.engine.bounds(partition_queue(b"debug", 0))
    assert (await store.engine.fetch(partition_queue(b"debug", 0), bounds.begin, 1000, 1 << 20)).offset == bounds.begin
    with pytest.raises(NoSuchMessage, match="retention removed it"):
        await store.engine.message(0)
    assert store.engine.stats().damage_met == 0
    await store.engine.close()


async def test_a_store_opens_again_without_the_removed_records(tmp_path: Path):
    store, kept = await filled(tmp_path)
    await store.engine._retention.enforce()
    left, stats = await store.readable(), store.engine.stats()
    await store.engine.close()
    await store.open()
    assert await store.readable() == left
    assert store.engine.stats().log_bytes == stats.log_bytes
    assert store.engine.stats().damaged_places == 0
    found = audit(tmp_path)
    assert (found.damage, found.torn) == ([], 0)
    assert kept[0] in left
    await store.engine.close()


async def test_queues_answer_the_same_after_a_restart(tmp_path: Path):
    """The log's begin and the time of its first record are what the record of the removal says."""
    store = await Store(tmp_path).open()
    await subscribe(store.engine)
    while store.engine.stats().log_end < SEGMENT:
        await store.append(b"debug/x", 9000)
    store.now += 1
    kept = await store.fill(4, b"ever/x")
    store.now += 61_000
    kept.append(await store.append(b"debug/x", 10))
    await store.engine._retention.enforce()
    queue = filter_queue(b"#")
    begins: list[int] = []
    for _ in range(2):
        assert store.engine.stats().log_begin == SEGMENT
        begins.append((await store.engine.bounds(queue)).begin)
        fetched = await store.engine.fetch(queue, begins[-1], 1, 1 << 20)
        offset = fetched.offset
        found = [record.position_of(fetched.data, 0)]
        while (fetched := await store.engine.fetch(queue, fetched.next_offset, 1, 1 << 20)).count:
            found.append(record.position_of(fetched.data, 0))
        assert found == kept
        await store.engine.close()
        await store.open()
    assert begins[0] == begins[1] <= offset
    await store.engine.close()


async def test_a_segment_is_searched_once_for_each_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, _ = await filled(tmp_path)
    searched: list[tuple[int, float]] = []
    compaction = store.engine._retention._compaction
    search = compaction._search

    async def counted(wanted: object) -> object:
        searched.append((wanted.base // SEGMENT, wanted.age_s))  # type: ignore[attr-defined]
        return await search(wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "_search", counted)
    await store.engine._retention.enforce()
    first = [(number, 60.0) for number in range(store.engine.stats().log_end // SEGMENT)]
    assert searched == first
    await store.engine._retention.enforce()
    assert searched == first
    await store.engine.close()
    await store.open()
    monkeypatch.setattr(store.engine._retention._compaction, "_search", None)
    await store.engine._retention.enforce()
    await store.engine.close()


async def test_a_segment_that_would_free_little_stays(tmp_path: Path):
    store = await Store(tmp_path).open()
    while store.engine.stats().log_end < 3 * SEGMENT:
        await store.append(b"ever/x", 9000)
        await store.append(b"debug/x", 5000)
    store.now += 61_000
    await store.engine._retention.enforce()
    assert not read_removed(tmp_path / "log").ranges
    assert store.engine.stats().log_bytes >= 3 * SEGMENT
    await store.engine.close()


@pytest.mark.parametrize("step", ["_copy", "_publish", "replace"])
async def test_a_crash_in_each_step_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    store, kept = await filled(tmp_path / "data")
    whole = await store.readable()

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    async def crash_later(*_: object) -> None:
        raise Crash

    if step == "replace":
        monkeypatch.setattr(Segments, "replace", crash)
    else:
        monkeypatch.setattr(store.engine._retention._compaction, step, crash_later)
    with pytest.raises(Crash):
        await store.engine._retention.enforce()
    monkeypatch.undo()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data", copy, ignore=shutil.ignore_patterns("lock"))
    await store.engine.close()
    store.path = copy
    await store.open()
    left = await store.readable()
    assert set(kept) <= set(left) <= set(whole)
    monkeypatch.setattr(type(store.engine._retention), "segment_begun", lambda _: None)
    await store.engine._retention.enforce()
    assert set(kept) <= set(await store.readable())
    assert store.disk_bytes() <= 4 * SEGMENT
    await store.engine.close()


async def test_retained_values_outlive_their_records(tmp_path: Path):
    store = await Store(tmp_path).open()
    await store.append(b"debug/value", 100, FLAG_RETAIN)
    await store.fill(4, b"ever/x")
    store.now += 61_000
    await store.engine._retention.enforce()
    assert 0 not in await store.readable()
    assert [value.topic for value in await store.engine.retained(b"debug/#", None, 9)] == [b"debug/value"]
    await store.engine.close()


async def test_views_cannot_be_folded_again(tmp_path: Path):
    store, _ = await filled(tmp_path)
    await store.engine._retention.enforce()
    await store.engine.close()
    shutil.rmtree(tmp_path / "views")
    with pytest.raises(StoreError, match="restore the views from a backup"):
        await store.open()


async def test_a_backup_and_a_restored_store_are_as_small(tmp_path: Path):
    store, kept = await filled(tmp_path / "data")
    await store.engine._retention.enforce()
    left = await store.readable()
    await store.engine.close()
    back_up_stopped(tmp_path / "data", tmp_path / "backup", CopyOptions(may_link=False))
    restore(tmp_path / "backup", tmp_path / "new", Until(), [], CopyOptions())
    for name in ("backup", "new"):
        store.path = tmp_path / name
        assert store.disk_bytes() <= 4 * SEGMENT
        assert audit(store.path).damage == []
    await store.open()
    assert await store.readable() == left
    await store.engine.close()
    with pytest.raises(StoreError, match="the earliest possible position"):
        await Snapshot.open(tmp_path / "backup", Until(position=kept[0]), temporary=tmp_path)


async def test_a_backup_from_before_has_its_records_still(tmp_path: Path):
    store, _ = await filled(tmp_path / "data")
    await store.engine.close()
    back_up_stopped(tmp_path / "data", tmp_path / "backup", CopyOptions())
    assert any(path.stat().st_nlink > 1 for path in (tmp_path / "backup" / "log").glob("*.log"))
    await store.open()
    whole = await store.readable()
    await store.engine._retention.enforce()
    await store.engine.close()
    assert (tmp_path / "data" / "log" / FILE).exists()
    assert audit(tmp_path / "backup").damage == []
    store.path, store.config = tmp_path / "backup", replace(CONFIG, retention_age_s=0, retention_parents={})
    await store.open()
    assert await store.readable() == whole
    await store.engine.close()


async def test_damage_in_a_segment_keeps_it_whole(tmp_path: Path):
    store, _ = await filled(tmp_path)
    path = tmp_path / "log" / f"{2 * SEGMENT:020d}.log"
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"x", 100_000)
    os.close(fd)
    await store.engine._retention.enforce()
    removed = read_removed(tmp_path / "log").ranges
    assert removed.covers(SEGMENT + 100)
    assert not removed.covers(2 * SEGMENT + 100_000)
    assert not removed.covers(2 * SEGMENT + 200_000)
    await store.engine.close()


async def test_the_limit_by_length_counts_what_is_on_disk(tmp_path: Path):
    store, kept = await filled(tmp_path)
    await store.engine._retention.enforce()
    await store.engine.close()
    store.config = replace(CONFIG, retention_bytes=3 * SEGMENT)
    await store.open()
    await store.engine._retention.enforce()
    assert store.engine.stats().log_begin == 0
    assert kept[0] in await store.readable()
    await store.engine.close()
