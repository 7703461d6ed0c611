"""Old segments of a shared log in an object store: every node reads them, and keeps few files of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pytest

import record
from record.layout import FLAG_HALF, FLAG_RETAIN, Kind
from store.api import Appended
from store.cluster.engines import open_shared_log
from store.cluster.founding import found
from store.cluster.leaving import leave
from store.cluster.shared_log import SharedLogMisconfigured
from store.cluster.snapshots import read_contents, snapshots_of
from store.config import TierConfig
from store.engine import Engine
from store.errors import StoreBusy, StoreClosed, StoreError
from store.log.disk import Disk
from store.log.ranges import Ranges
from store.log.removed_ranges import Removed
from store.log.tiered import TieredSegment
from store.log.writer import clock_ms
from store.retention.tier_lists import RecordList, folder_of
from store.tier.stored_objects import _StoredObjects
from store.tier.tier import Tier
from store.views.fold import Views
from tests.store.cluster.nodes import CONFIG, Node, Nodes, Writer, append
from tests.store.filled import SIZE, Filled, check_state
from tests.store.simulation.checks import read_log
from tests.waiting import patience, until

LOCAL = 2 * SIZE


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    tier = TierConfig(f"file://{tmp_path}/tier", retention_local_bytes=LOCAL, cache_bytes=20_000)
    config = replace(CONFIG, tier=tier, retention_check_s=0.05)
    nodes = Nodes(tmp_path, monkeypatch, config)
    yield nodes
    await nodes.close()


def local_begin(node: Node) -> int:
    """Where the files of a node begin."""
    return min((int(path.stem) for path in (node.folder / "log").glob("*.log")), default=0)


def objects(nodes: Nodes) -> set[str]:
    """The names of all objects of segments. A "#" is in the names of those that are being written."""
    root = Path(nodes.config.tier.store.removeprefix("file://"))
    return {str(path.relative_to(root)) for path in root.glob("logs/*/segments/*") if "#" not in path.name}


def waiting(node: Node) -> int:
    """Bytes of closed segments that the tier does not have."""
    assert node.store.local is not None
    tier = node.store.local.stats().tier
    assert tier is not None
    return tier.waiting_bytes


def named(node: Node) -> set[str]:
    assert node.store.local is not None
    tier = node.store.local._tier
    assert tier is not None
    return {segment.name for segment in tier.tiered.segments}


async def fill(nodes: Nodes, writer: Writer, size: int = 8 * SIZE) -> None:
    """Append so much, and wait until all nodes have as few files as they may."""
    end = nodes.running[0].store.history.end + size
    while nodes.running[0].store.history.end < end:
        await writer.append(5)
    await until(lambda: all(local_begin(node) >= end - LOCAL - 3 * SIZE for node in nodes.running))


async def test_each_node_reads_what_only_the_tier_has(nodes: Nodes) -> None:
    await nodes.start_leader("a")
    await nodes.start("b")
    writer = Writer(nodes)
    await fill(nodes, writer)
    await nodes.check_equal()
    for node in nodes.running:
        assert local_begin(node) > 0
        await writer.check_log(node)
        assert node.store.local is not None
        await check_state(node.store.local, await read_log(node.store.local), Random(1))
        stats = node.store.local.stats()
        assert stats.tier is not None
        assert stats.tier.reads > 0
        assert stats.log_begin == 0


async def test_the_next_leader_goes_on_and_removes_what_the_last_one_left(nodes: Nodes, tmp_path: Path) -> None:
    first = await nodes.start_leader("a")
    await nodes.start("b")
    writer = Writer(nodes)
    await fill(nodes, writer)
    assert first.store.local is not None
    left = f"{folder_of(first.store.local.meta.log_id)}/segments/{1:020}-{0:020}-{'ab' * 16}"
    (tmp_path / "tier" / left).write_bytes(b"of a leader that died before its record")
    nodes.kill(first, tmp_path / "killed")
    await nodes.leader()
    await fill(nodes, writer, 4 * SIZE)
    await until(lambda: objects(nodes) == named(nodes.running[0]))
    await nodes.start("a", tmp_path / "killed")
    await nodes.check_equal()
    for node in nodes.running:
        await writer.check_log(node)


async def test_a_leader_that_was_deposed_removes_nothing_of_the_next_one(nodes: Nodes, tmp_path: Path) -> None:
    first = await nodes.start_leader("a")
    await nodes.start("b")
    writer = Writer(nodes)
    await fill(nodes, writer)
    engine = first.engine
    await until(lambda: not waiting(first))  # it knows the outcome of its records
    nodes.kill(first, tmp_path / "killed")
    second = await nodes.leader()
    await fill(nodes, writer, 6 * SIZE)
    assert first.store.engine is engine, "it has not heard of the next leader"
    assert engine._retention._tiering is not None
    late = f"{folder_of(engine.meta.log_id)}/segments/{1:020}-{SIZE:020}-{'ab' * 16}"
    (tmp_path / "tier" / late).write_bytes(b"of an upload that failed")
    await engine._retention._tiering._list.sweep()
    assert late not in objects(nodes)
    assert named(second) <= objects(nodes)
    await writer.check_log(second)


async def test_a_file_stays_until_the_log_says_where_its_object_is(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await nodes.start_leader("a")
    add, held = RecordList.add, asyncio.Event()

    async def add_late(self: RecordList, segment: TieredSegment, removed: Sequence[tuple[int, int]]) -> None:
        await held.wait()
        await add(self, segment, removed)

    monkeypatch.setattr(RecordList, "add", add_late)
    writer = Writer(nodes)
    while first.store.history.end < 8 * SIZE:
        await writer.append(5)
    await until(lambda: objects(nodes))
    nodes.kill(first, tmp_path / "killed")
    held.set()
    await until(lambda: first.port.waiting)  # the record is on its way to a slot
    for _ in range(3):
        await first.engine._retention.enforce()
    assert not named(first)
    assert local_begin(first) == 0
    assert first.engine._retention._tiering is not None
    await first.engine._retention._tiering._list.sweep()
    assert objects(nodes), "the record may be in the log"


async def test_a_node_with_an_empty_folder_copies_only_what_is_not_in_the_tier(nodes: Nodes) -> None:
    nodes.snapshot_bytes = 6 * SIZE
    await nodes.start_leader("a")
    second = await nodes.start("b")
    writer = Writer(nodes)
    await fill(nodes, writer, 12 * SIZE)
    async with patience():
        while True:
            found = await snapshots_of(second.port)
            if found and found[0].manifest.position > 12 * SIZE:
                break
            await writer.append(5)
    contents = await read_contents(second.port, found[0].manifest)
    bases = [int(file.name[4:24]) for file in contents.files if file.name.endswith(".log")]
    assert min(bases) >= 6 * SIZE
    third = await nodes.start("c")
    await nodes.check_equal()
    assert min(third.port.reads - {1}) > found[0].manifest.slot
    assert local_begin(third) >= min(bases)
    await writer.check_log(third)
    await nodes.stop(third)
    third = await nodes.start("c")
    await nodes.check_equal()
    await writer.check_log(third)


async def test_a_node_that_starts_again_knows_what_the_tier_has(nodes: Nodes) -> None:
    """Also if it has all files."""
    nodes.config = replace(nodes.config, tier=replace(nodes.config.tier, retention_local_bytes=1 << 40))
    first = await nodes.start_leader("a")
    writer = Writer(nodes)
    while first.store.history.end < 6 * SIZE:
        await writer.append(5)
    await until(lambda: len(named(first)) >= 5)
    before = named(first)
    await nodes.stop(first)
    first = await nodes.start_leader("a")
    assert before <= named(first)
    # A segment that is uploaded twice has two objects and one name, for good.
    await until(lambda: len(objects(nodes)) == len(named(first)))


async def test_a_retained_message_that_is_released_when_its_file_is_gone(nodes: Nodes) -> None:
    """The leader has its file, and releases the message by its record."""
    everything = replace(nodes.config, tier=replace(nodes.config.tier, retention_local_bytes=1 << 40))
    first = await nodes.start("a", config=everything)
    await until(lambda: first.leads)
    second = await nodes.start("b")
    half = record.frame(Kind.MESSAGE, FLAG_HALF | FLAG_RETAIN, 0, b"a/held", b"p", b"", b"kept")
    handle = (await append(first.engine, [half])).positions[0]
    writer = Writer(nodes)
    while first.store.history.end < 8 * SIZE:
        await writer.append(5)
    await until(lambda: local_begin(second) >= 4 * SIZE)
    assert local_begin(first) == 0
    assert await first.engine.end_transaction([handle], True) == []
    await nodes.check_equal()
    await nodes.stop(first)
    await until(lambda: second.leads)
    found = await second.engine.retained(b"a/held", None, 10)
    assert [record.decode(each.frame, 0)[6] for each in found] == [b"kept"]


async def test_a_node_without_a_tier_says_what_it_lacks(nodes: Nodes) -> None:
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await fill(nodes, Writer(nodes))
    await nodes.stop(second)
    with pytest.raises(SharedLogMisconfigured, match="none is configured"):
        await nodes.start("b", config=CONFIG)
    await nodes.start("b")
    await nodes.check_equal()


async def test_retention_removes_objects_whoever_wrote_them(nodes: Nodes, tmp_path: Path) -> None:
    first = await nodes.start_leader("a")
    await nodes.start("b")
    writer = Writer(nodes)
    await fill(nodes, writer)
    nodes.kill(first, tmp_path / "killed")
    await nodes.stop(nodes.running[0])
    second = await nodes.start("b", config=replace(nodes.config, retention_bytes=4 * SIZE))
    await until(lambda: second.leads)
    await until(lambda: second.engine.stats().log_begin > 0)
    await until(lambda: objects(nodes) == named(second))
    assert min(segment.base for segment in second.engine._segments.tiered.segments) >= second.engine.stats().log_begin
    await nodes.start("a", tmp_path / "killed")
    await nodes.check_equal()
    for node in nodes.running:
        assert node.store.local is not None
        frames = await read_log(node.store.local)
        assert frames


async def test_a_file_stays_while_its_object_is_not_found(nodes: Nodes, tmp_path: Path) -> None:
    """As at a site whose bucket is a replica that is behind."""
    elsewhere = replace(nodes.config.tier, store=f"file://{tmp_path}/replica")
    await nodes.start_leader("a")
    second = await nodes.start("b", config=replace(nodes.config, tier=elsewhere))
    writer = Writer(nodes)
    while second.store.history.end < 8 * SIZE:
        await writer.append(5)
    await until(lambda: local_begin(nodes.running[0]) >= 3 * SIZE)
    await nodes.settle()
    assert local_begin(second) == 0
    (tmp_path / "replica").rmdir()
    (tmp_path / "tier").rename(tmp_path / "replica")
    (tmp_path / "tier").symlink_to(tmp_path / "replica")
    await until(lambda: local_begin(second) >= 3 * SIZE)
    await writer.check_log(second)


async def test_an_object_that_is_lost_is_uploaded_again_by_a_leader_that_has_the_file(
    nodes: Nodes, tmp_path: Path
) -> None:
    """As at a site whose replica of the store got the record of an object, and not the object, before its promotion.
    It is the newest object, by which a store is known."""
    everything = replace(nodes.config, tier=replace(nodes.config.tier, retention_local_bytes=1 << 40))
    first = await nodes.start("a", config=everything)
    await until(lambda: first.leads)
    writer = Writer(nodes)
    while first.store.history.end < 4 * SIZE:
        await writer.append(5)
    await until(lambda: len(named(first)) >= 3 and not waiting(first))
    await nodes.stop(first)
    names = sorted(objects(nodes), key=lambda name: name.rpartition("/")[2].split("-")[1])
    (tmp_path / "tier" / names[-1]).unlink()
    (tmp_path / "tier" / names[0]).unlink()
    first = await nodes.start("a", config=everything)
    await until(lambda: first.leads)
    await until(lambda: not {names[0], names[-1]} & named(first))
    await until(lambda: objects(nodes) == named(first))
    second = await nodes.start("b")
    while first.store.history.end < 8 * SIZE:
        await writer.append(5)
    await until(lambda: not waiting(first) and len(named(first)) >= 7)
    await until(lambda: local_begin(second) >= 4 * SIZE)
    await nodes.check_equal()
    await writer.check_log(second)
    await nodes.stop(second)
    second = await nodes.start("b")
    assert named(second) == named(first)


async def test_a_record_that_the_log_had_no_room_for_is_in_no_doubt() -> None:
    """Otherwise nothing would be uploaded until another node leads."""
    answers: list[StoreError | None] = [StoreBusy("too much waits"), None]

    def append(_: list[bytes], done: Callable[[Appended], None]) -> None:
        done(Appended(error=answers.pop(0)))

    tier_list = RecordList(cast("Tier", None), cast("Views", None), append, "log", 3)
    segment = TieredSegment(0, "logs/log/segments/1", 10, SIZE, 0)
    with pytest.raises(StoreBusy):
        await tier_list.add(segment, [])
    tier_list.start_for(SIZE)
    await tier_list.add(segment, [])
    answers.append(StoreClosed("another node leads"))
    with pytest.raises(StoreClosed):
        await tier_list.add(segment, [])
    with pytest.raises(StoreClosed, match="does not lead"):
        tier_list.start_for(SIZE)


async def test_a_node_that_stops_waits_for_no_answer_about_its_files(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop ends when its threads have: a request to a store that does not answer is in none of them."""
    threads: set[str] = set()
    size = _StoredObjects.size

    def noted(self: _StoredObjects, name: str) -> int | None:
        threads.add(threading.current_thread().name)
        return size(self, name)

    monkeypatch.setattr(_StoredObjects, "size", noted)
    await nodes.start_leader("a")
    await nodes.start("b")
    await fill(nodes, Writer(nodes))
    assert threads
    assert all(name.startswith("sluice-tier") for name in threads), threads


async def test_a_node_that_leaves_reads_what_the_cluster_had_in_the_tier(nodes: Nodes) -> None:
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await fill(nodes, Writer(nodes))
    await nodes.settle()
    assert second.store.local is not None
    frames = await read_log(second.store.local)
    await nodes.stop(second)
    leave(second.folder, Disk())
    engine = await Engine.open(second.folder, nodes.config)
    assert (await read_log(engine))[: len(frames)] == frames
    before = objects(nodes)
    await engine._checkpointed()
    assert engine._retention._tiering is not None
    await engine._retention._tiering.run_once()
    assert before <= objects(nodes), "what the cluster has is not the single node's to remove"
    await engine.close()


async def test_a_single_node_with_a_tier_founds_a_cluster(nodes: Nodes, tmp_path: Path) -> None:
    single = await Filled(tmp_path / "single", nodes.config).open()
    await single.fill_to(8 * SIZE)
    await until(lambda: single.engine._segments.begin >= 4 * SIZE)
    frames = await read_log(single.engine)
    await single.engine.close()
    files = sorted((tmp_path / "single" / "log").iterdir())
    log = await open_shared_log(nodes.log, {})
    await found(tmp_path / "single", nodes.config, log, "a", Disk(), clock_ms)
    await log.close()
    assert sorted((tmp_path / "single" / "log").iterdir()) == files
    first = await nodes.start_leader("a")
    assert first.store.local is not None
    assert local_begin(first) > 0
    assert (await read_log(first.store.local))[: len(frames)] == frames
    await nodes.start("b")
    await fill(nodes, Writer(nodes, seed=2))
    await nodes.check_equal()
    for node in nodes.running:
        assert node.store.local is not None
        assert (await read_log(node.store.local))[: len(frames)] == frames


async def test_what_an_object_lacks_is_passed_over_at_all_nodes(nodes: Nodes) -> None:
    """A leader may have freed parts of a segment before it goes to the tier."""
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    writer = Writer(nodes)
    await writer.append(3)
    engine = first.engine
    ranges = Ranges([(0, engine.stats().log_end)])
    await engine._checkpointed()
    engine._segments.set_gone(engine._segments.damaged, Removed(ranges))
    engine._views.remove(engine._segments.gone)
    await fill(nodes, writer)
    assert second.store.local is not None
    assert list(second.store.local._segments.removed.ranges) == list(ranges)
    frames = await read_log(second.store.local)
    assert (await read_log(engine))[: len(frames)] == frames  # the leader may append meanwhile
