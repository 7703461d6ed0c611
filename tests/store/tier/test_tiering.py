"""Old segments go to the tier, and whoever reads the log or a queue does not see where its records are."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import record
from record.layout import Kind
from store.api import TierStats, partition_queue
from store.config import StoreConfig, TierConfig
from store.engine import Engine
from store.errors import LogCorrupt, StoreError, TierUnavailable
from store.exports.backup import back_up_staged
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.snapshot import Snapshot
from store.exports.stage import stage
from store.exports.until import Until
from store.log.segments import segment_name
from store.log.tiered import read_tiered
from tests.store.filled import SIZE, SMALL, Filled
from tests.store.simulation import checks
from tests.store.simulation.truth import Truth
from tests.store.tier.memory_objects import MemoryObjects
from tests.waiting import until

CONFIG = replace(
    SMALL,
    tier=TierConfig("memory", retention_local_bytes=2 * SIZE, cache_bytes=10_000),
    retention_check_s=3600,
    parent_partitions={b"a": 1},
)


class Node(Filled):
    """A store with a tier in memory, which this test moves segments to."""

    def __init__(self, path: Path, config: StoreConfig = CONFIG, seed: int = 1) -> None:
        super().__init__(path, config, seed)
        self.objects = MemoryObjects()

    async def open(self) -> "Node":
        self.engine = await Engine.open(self.path, self.config, clock=self._clock, objects=self.objects)
        return self

    @property
    def tier(self) -> TierStats:
        found = self.engine.stats().tier
        assert found is not None
        return found

    async def move(self) -> None:
        """Move what may be moved."""
        await self.engine._checkpointed()
        tiering = self.engine._retention._tiering
        assert tiering is not None
        await tiering.run_once()
        await self.engine._retention.enforce()

    async def filled(self, segments: int = 12) -> "Node":
        await self.fill_to(segments * SIZE + 1)
        await self.move()
        return self

    async def reopen(self) -> None:
        await self.engine.close()
        await self.open()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = await Node(tmp_path / "data").open()
    yield node
    node.objects.fault = lambda _: ""
    await node.engine.close()


def files(node: Filled) -> list[int]:
    return sorted(int(path.stem) for path in (node.path / "log").glob("*.log"))


async def test_records_are_read_across_the_border(node: Node) -> None:
    await node.fill_to(12 * SIZE + 1)
    log = await checks.read_log(node.engine)
    truth = Truth(SMALL.partitions)
    truth.grow(log)
    await node.move()
    assert files(node)[0] == 10 * SIZE == node.tier.local_begin
    assert (node.tier.segments, node.tier.waiting_bytes) == (12, 0)
    assert node.engine.stats().log_begin == 0
    for _ in range(2):
        assert await checks.read_log(node.engine) == log
        await checks.check_all(node.engine, truth.model, Random(1))
        await node.reopen()


async def test_a_full_segment_at_the_end_of_the_log_stays(node: Node) -> None:
    node.config = replace(CONFIG, tier=replace(CONFIG.tier, retention_local_bytes=0))
    await node.reopen()
    await node.fill_to(2 * SIZE + 1)
    rest = 3 * SIZE - node.engine.stats().log_end
    empty = record.frame(Kind.MESSAGE, 0, 0, b"a", b"", b"", b"")
    await node.append([record.frame(Kind.MESSAGE, 0, 0, b"a", b"", b"", bytes(rest - len(empty)))])
    assert node.engine.stats().log_end == 3 * SIZE
    await node.move()
    assert [base for base in files(node) if base < 3 * SIZE] == [2 * SIZE]
    await node.reopen()
    assert node.engine.stats().log_end == 3 * SIZE


async def test_a_position_is_found_by_time_without_reading_each_segment(node: Node) -> None:
    await node.filled()
    log = await checks.read_log(node.engine)
    for frame in log[:: len(log) // 10]:
        time_ms = record.store_time_of(frame, 0)
        found = await node.engine.position_at(time_ms)
        first = next(each for each in log if record.store_time_of(each, 0) == time_ms)
        assert found == record.position_of(first, 0)


async def test_what_was_read_is_read_from_memory_again(node: Node) -> None:
    await node.filled()
    await node.engine.read(0, SIZE)
    reads = node.tier.reads
    await node.engine.read(0, SIZE)
    assert node.tier.reads == reads
    assert node.tier.hits
    await checks.read_log(node.engine)
    assert node.tier.cache_bytes <= CONFIG.tier.cache_bytes


async def test_without_an_answer_old_reads_fail_and_all_else_goes_on(node: Node) -> None:
    await node.filled()
    objects = node.objects
    objects.fault = lambda _: "refused"
    with pytest.raises(TierUnavailable):
        await node.engine.read(0, 1)
    requests = len(objects.requests)
    with pytest.raises(TierUnavailable):
        await node.engine.read(SIZE, 1)
    assert len(objects.requests) == requests, "each reader waits for the answer by itself"
    assert node.tier.error
    # What views need is not in the tier.
    everything = await node.engine.retained(b"#", None, 10_000)
    assert len(everything[0]) == node.engine.stats().retained if isinstance(everything, tuple) else everything
    end = node.engine.stats().log_end
    await node.fill_to(end + 5 * SIZE)
    with pytest.raises(TierUnavailable):
        await node.move()
    assert (await node.engine.read(end, 1)).data
    await until(lambda: files(node)[0] >= 12 * SIZE)  # those that are in the tier go meanwhile
    assert files(node)[0] == 12 * SIZE, "a segment is gone that is not in the tier"
    assert node.tier.waiting_bytes == node.engine.stats().log_end // SIZE * SIZE - 12 * SIZE
    objects.fault = lambda _: ""
    await node.move()
    assert not node.tier.waiting_bytes
    assert files(node)[0] > 12 * SIZE
    await until(lambda: _is_readable(node))
    assert len(await checks.read_log(node.engine)) == node.engine.stats().records


def _is_readable(node: Node) -> bool:
    tier = node.engine._tier
    assert tier is not None
    try:
        tier._reading.check()
    except TierUnavailable:
        return False
    return True


async def test_an_object_with_other_bytes_frees_no_file(node: Node) -> None:
    put = node.objects.put

    def put_badly(name: str, pieces: object) -> None:
        put(name, pieces)  # type: ignore[arg-type]
        data = bytearray(node.objects.objects[name])
        data[10] ^= 1
        node.objects.objects[name] = bytes(data)

    node.objects.put = put_badly  # type: ignore[method-assign]
    await node.fill_to(5 * SIZE + 1)
    with pytest.raises(TierUnavailable, match="other bytes than were written"):
        await node.move()
    assert files(node)[0] == 0
    assert node.tier.segments == 0
    node.objects.put = put  # type: ignore[method-assign]
    await node.move()
    assert files(node)[0] > 0
    assert len([name for name in node.objects.objects if "/segments/" in name]) == node.tier.segments


async def test_a_damaged_segment_stays_and_so_do_those_behind_it(node: Node) -> None:
    node.objects.fault = lambda _: "refused"
    await node.fill_to(6 * SIZE + 1)
    await node.engine.close()
    node.objects.fault = lambda _: ""
    path = node.path / "log" / segment_name(2 * SIZE)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    node.config = replace(node.config, tail_cache_bytes=0)
    await node.open()
    await node.move()
    assert node.tier.segments == 2
    assert files(node)[0] == 2 * SIZE


async def test_a_damaged_object_is_told_to_its_readers_only(node: Node) -> None:
    await node.filled()
    segments = read_tiered(node.path / "log").segments
    data = bytearray(node.objects.objects[segments[1].name])
    data[20] ^= 1
    node.objects.objects[segments[1].name] = bytes(data)
    del node.objects.objects[segments[2].name]
    for base in (SIZE, 2 * SIZE):
        with pytest.raises(LogCorrupt):
            await node.engine.read(base, 1)
    assert (await node.engine.read(0, 1)).data
    assert (await node.engine.read(3 * SIZE, 1)).data


async def test_retention_removes_objects(node: Node) -> None:
    await node.filled()
    node.config = replace(node.config, retention_bytes=5 * SIZE)
    await node.reopen()
    await node.engine._retention.enforce()
    begin = node.engine.stats().log_begin
    assert begin == 7 * SIZE
    await node.move()
    named = {segment.name for segment in read_tiered(node.path / "log").segments}
    assert {segment.base for segment in read_tiered(node.path / "log").segments} == set(range(begin, 12 * SIZE, SIZE))
    assert {name for name in node.objects.objects if "/segments/" in name} == named
    assert len(node.objects.objects) == len(named) + 1, "older manifests are there"
    await checks.read_log(node.engine)


async def test_retention_may_take_all_that_is_in_the_tier(node: Node) -> None:
    await node.filled(5)
    node.objects.fault = lambda _: "refused"
    await node.fill_to(12 * SIZE + 1)
    node.config = replace(node.config, retention_bytes=2 * SIZE)
    await node.reopen()
    await node.engine._retention.enforce()
    assert node.engine.stats().log_begin == 10 * SIZE
    await node.reopen()
    node.objects.fault = lambda _: ""
    await node.move()
    assert [segment.base for segment in read_tiered(node.path / "log").segments] == [10 * SIZE, 11 * SIZE]
    await checks.read_log(node.engine)


async def test_a_full_disk_takes_files_and_nothing_of_the_log(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.config = replace(
        CONFIG,
        retention_free_bytes=1 << 40,
        retention_keep_bytes=0,
        tier=replace(CONFIG.tier, retention_local_bytes=1 << 40),
    )
    await node.reopen()
    await node.fill_to(6 * SIZE + 1)
    await node.move()
    assert node.engine.stats().log_begin == 0
    assert files(node)[0] == 6 * SIZE
    assert node.engine.stats().is_disk_low


async def test_a_folder_without_its_tier_does_not_open(node: Node) -> None:
    await node.filled()
    await node.engine.close()
    with pytest.raises(StoreError, match="in a tier, and none is configured"):
        await Engine.open(node.path, SMALL)
    before = files(node)
    engine = await Engine.open(node.path, SMALL, needs_old_segments=False)  # as commands about users do
    assert engine.stats().log_begin == 0
    await engine.close()
    assert files(node) == before
    (node.path / "log" / "tiered.json").rename(node.path / "tiered.json")
    engine = await Engine.open(node.path, SMALL)
    assert engine.stats().log_begin == 10 * SIZE
    await engine.close()
    (node.path / "tiered.json").rename(node.path / "log" / "tiered.json")
    await node.open()
    assert node.engine.stats().log_begin == 0


async def test_segments_between_the_tier_and_the_files_are_missed(node: Node) -> None:
    await node.filled()
    await node.engine.close()
    path = node.path / "log" / "tiered.json"
    whole = path.read_bytes()
    tiered = read_tiered(path.parent)
    path.write_bytes(replace(tiered, segments=tiered.segments[:-4]).packed())
    with pytest.raises(LogCorrupt, match="the segment is missing"):
        await node.open()
    path.write_bytes(whole)
    await node.open()


async def test_two_copies_of_a_folder_take_nothing_from_each_other(node: Node, tmp_path: Path) -> None:
    await node.filled(6)
    await node.engine.close()
    copy = Node(tmp_path / "copy", node.config, seed=7)
    copy.objects, copy.now = node.objects, node.now
    await asyncio.to_thread(_copy, node.path, copy.path)
    await node.open()
    await copy.open()
    log = await checks.read_log(copy.engine)
    for each in (node, copy, node, copy):
        await each.fill_to(each.engine.stats().log_end + 3 * SIZE)
        await each.move()
        await each.move()
    folders = [read_tiered(each.path / "log").folder for each in (node, copy)]
    assert folders[0] != folders[1]
    copy.config = replace(copy.config, retention_bytes=2 * SIZE)
    await copy.reopen()
    await copy.engine._retention.enforce()
    await copy.move()
    assert copy.engine.stats().log_begin > 6 * SIZE
    assert (await checks.read_log(node.engine))[: len(log)] == log
    await copy.engine.close()


def _copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target)


async def test_a_backup_reads_what_is_in_the_tier(node: Node, tmp_path: Path) -> None:
    await node.filled()
    log = await checks.read_log(node.engine)
    with stage(node.path) as folder:
        staged = await node.engine.stage(folder)
        back_up_staged(node.path, folder, staged, tmp_path / "backup", CopyOptions(clock=node._clock))
    snapshot = await Snapshot.open(tmp_path / "backup")
    assert await checks.read_log(snapshot) == [each for each in log if record.position_of(each, 0) >= 10 * SIZE]
    await snapshot.close()
    restore(tmp_path / "backup", tmp_path / "restored", Until(), (), CopyOptions())
    restored = Node(tmp_path / "restored")
    restored.objects, restored.now = node.objects, node.now
    await restored.open()
    assert await checks.read_log(restored.engine) == log
    objects = set(node.objects.objects)
    restored.config = replace(restored.config, retention_bytes=2 * SIZE)
    await restored.reopen()
    await restored.fill_to(16 * SIZE)
    await restored.engine._retention.enforce()
    await restored.move()
    assert objects <= set(node.objects.objects), "a restored backup removes objects of the log that it was taken from"
    await restored.engine.close()


async def test_a_manifest_whose_writing_had_no_answer_is_found(node: Node) -> None:
    node.objects.fault = lambda kind: "unanswered" if kind == "create" else ""
    await node.fill_to(3 * SIZE + 1)
    with pytest.raises(TierUnavailable):
        await node.move()
    assert node.tier.segments == 0
    folder = read_tiered(node.path / "log").folder
    await node.reopen()
    node.objects.fault = lambda _: ""
    await node.move()
    assert node.tier.segments == 3
    assert read_tiered(node.path / "log").folder == folder
    await node.move()
    assert len([name for name in node.objects.objects if "/segments/" in name]) == 3


async def test_an_upload_that_died_leaves_no_object(node: Node) -> None:
    node.objects.fault = lambda kind: "refused" if kind == "create" else ""
    await node.fill_to(3 * SIZE + 1)
    with pytest.raises(TierUnavailable):
        await node.move()
    assert [name for name in node.objects.objects if "/segments/" in name]
    await node.reopen()
    node.objects.fault = lambda _: ""
    await node.move()
    named = {segment.name for segment in read_tiered(node.path / "log").segments}
    assert {name for name in node.objects.objects if "/segments/" in name} == named


async def test_many_readers_of_an_old_block_share_it(node: Node) -> None:
    await node.filled()
    await node.reopen()
    queue = partition_queue(b"a", 0)
    bounds = await node.engine.bounds(queue)
    found = await asyncio.gather(*(node.engine.fetch(queue, bounds.begin, 1, 1 << 20) for _ in range(20)))
    assert len({each.data for each in found}) == 1
    assert node.tier.reads <= 2, "the index and the block are read once"
