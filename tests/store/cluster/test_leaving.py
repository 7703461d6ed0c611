"""Copies of a shared log that become folders of single nodes."""

import shutil
from pathlib import Path
from random import Random

import pytest

import record
from store.cluster.clustered_store import ClusteredStore, ClusteredStoreConfig
from store.cluster.leaving import Left, leave
from store.data_folder import META, read_meta
from store.engine import Engine
from store.errors import LogCorrupt, StoreError
from store.exports.backup import back_up_stopped
from store.exports.copying import CopyOptions
from store.exports.restore import restore
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from store.log.disk import Disk
from store.log.segments import segment_name
from store.views.database.database import seen_checkpoint
from tests.store.cluster.nodes import CONFIG, Node, Nodes, Writer
from tests.store.filled import SIZE, Filled, check_state, opened
from tests.store.simulation.checks import read_log


@pytest.fixture
async def follower(nodes: Nodes) -> Node:
    """It has some segments of random records of all kinds, a checkpoint in the middle of them, and follows `a`."""
    await nodes.start_leader("a")
    follower, writer = await nodes.start("b"), Writer(nodes)
    await writer.append(60)
    await nodes.settle()
    await nodes.stop(follower)
    follower = await nodes.start("b")
    await writer.append(40)
    await nodes.settle()
    return follower


def left(folder: Path) -> Left:
    return leave(folder, Disk())


async def test_a_single_node_goes_on_with_all_that_the_cluster_had(nodes: Nodes, follower: Node):
    assert follower.store.local is not None
    frames = await read_log(follower.store.local)
    position, digest = await follower.store.digest()
    await nodes.stop(follower)
    found = left(follower.folder)
    assert (found.position, found.dropped_bytes) == (position, 0)
    assert found.slot == follower.store.history.slot
    assert found.time_ms == record.store_time_of(frames[-1], 0)
    snapshot = await Snapshot.open(follower.folder, Until())
    assert (snapshot.position, await snapshot.digest()) == (position, digest)
    await snapshot.close()
    single = await Filled(follower.folder, seed=2).open()
    assert (await single.frames())[: len(frames)] == frames
    await single.fill(40)
    frames = await single.frames()
    await check_state(single.engine, frames, Random(1))
    await single.engine.close()
    saved = seen_checkpoint(follower.folder / "views")
    assert saved is not None
    assert saved.slots == b"", "no slot has what it wrote"
    again, engine = await opened(follower.folder)
    await engine.close()
    assert again == frames


async def test_a_killed_node_leaves_with_all_that_it_had(nodes: Nodes, follower: Node, tmp_path: Path):
    copy = tmp_path / "copy"
    nodes.kill(follower, copy)
    saved = seen_checkpoint(copy / "views")
    assert saved is not None
    found = left(copy)
    assert found.position == follower.store.history.end > saved.position
    frames, engine = await opened(copy)
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_a_node_that_was_killed_before_its_first_checkpoint_leaves_with_all_that_it_had(
    nodes: Nodes, tmp_path: Path
):
    leader, copy = await nodes.start_leader("a"), tmp_path / "copy"
    await Writer(nodes).append(20)
    end = leader.store.history.end
    nodes.kill(leader, copy)
    assert left(copy).position == end
    frames, engine = await opened(copy)
    await check_state(engine, frames, Random(1))
    await engine.close()
    shutil.rmtree(copy / "views")
    meta = (copy / META).read_bytes()
    (copy / META).write_bytes(meta.replace(b'"shared": false', b'"shared": true'))
    with pytest.raises(StoreError, match="it was still being filled from a snapshot"):
        left(copy)


async def test_a_backup_of_a_node_becomes_a_single_node(nodes: Nodes, follower: Node, tmp_path: Path):
    end = follower.store.history.end
    await nodes.stop(follower)
    back_up_stopped(follower.folder, tmp_path / "backup", CopyOptions())
    restore(tmp_path / "backup", tmp_path / "restored", Until(), (), CopyOptions())
    assert left(tmp_path / "restored").position == end
    frames, engine = await opened(tmp_path / "restored")
    await check_state(engine, frames, Random(1))
    await engine.close()


async def test_who_knows_more_of_the_shared_log_finds_out(nodes: Nodes, follower: Node):
    await nodes.stop(follower)
    before = read_meta(follower.folder)
    end = left(follower.folder).position
    engine = await Engine.open(follower.folder, CONFIG)
    try:
        meta = engine.meta
        assert (meta.log_id, meta.epoch) == (before.log_id, before.epoch + 1)
        opening = before.openings[-1].name
        assert meta.has_log_up_to(opening, end)
        assert not meta.has_log_up_to(opening, end + 1)
    finally:
        await engine.close()


async def test_a_node_that_left_takes_no_part_in_its_cluster(nodes: Nodes, follower: Node):
    await nodes.stop(follower)
    left(follower.folder)
    cluster = ClusteredStoreConfig("b", nodes.log, "b:1")
    with pytest.raises(StoreError, match="has a log of its own"):
        await ClusteredStore.open(follower.folder, CONFIG, cluster)
    with pytest.raises(StoreError, match="the folder of a single node already"):
        left(follower.folder)


async def test_a_damaged_copy_is_refused(nodes: Nodes, follower: Node):
    await nodes.stop(follower)
    file = follower.folder / "log" / segment_name(SIZE)
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(LogCorrupt, match=segment_name(SIZE)):
        left(follower.folder)
    assert read_meta(follower.folder).shared, "the shared log can still mend it"
    file.unlink()
    with pytest.raises(LogCorrupt, match="the segment before it is missing"):
        left(follower.folder)
    file.write_bytes(whole)
    left(follower.folder)


async def test_the_log_ends_where_a_power_failure_took_some_of_it(nodes: Nodes, follower: Node, tmp_path: Path):
    copy = tmp_path / "copy"
    nodes.kill(follower, copy)
    saved = seen_checkpoint(copy / "views")
    assert saved is not None
    assert follower.store.local is not None
    frames = await read_log(follower.store.local)
    positions = [record.position_of(frame, 0) for frame in frames]
    lost = next(position for position in positions if position > saved.position)
    file = copy / "log" / segment_name(lost - lost % SIZE)
    data = bytearray(file.read_bytes())
    data[lost % SIZE : lost % SIZE + 8] = bytes(8)
    file.write_bytes(data)
    found = left(copy)
    assert found.position <= lost
    assert found.position >= saved.position
    assert found.dropped_bytes > 0
    kept, engine = await opened(copy)
    await engine.close()
    assert kept == frames[: len(kept)]


async def test_a_folder_that_is_not_stopped_or_has_nothing_is_refused(nodes: Nodes, follower: Node, tmp_path: Path):
    with pytest.raises(StoreError, match="in use by another process"):
        left(follower.folder)
    with pytest.raises(StoreError, match="there is no data folder"):
        left(tmp_path / "nothing")


async def test_a_backup_goes_back_to_a_position_and_leaves(nodes: Nodes, follower: Node, tmp_path: Path):
    """The views of the backup are newer, so they are folded anew."""
    assert follower.store.local is not None
    frames = await read_log(follower.store.local)
    position = record.position_of(frames[30], 0)
    await nodes.stop(follower)
    back_up_stopped(follower.folder, tmp_path / "backup", CopyOptions())
    restored = restore(tmp_path / "backup", tmp_path / "restored", Until(position=position), (), CopyOptions())
    assert restored.views < restored.position <= position
    assert left(tmp_path / "restored").position == restored.position
    found, engine = await opened(tmp_path / "restored")
    assert found == [frame for frame in frames if record.position_of(frame, 0) < restored.position]
    await check_state(engine, found, Random(1))
    await engine.close()
