"""Shared logs that begin with the log of a single node."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from store.cluster.engines import open_shared_log
from store.cluster.founding import Begun, found
from store.cluster.leaving import leave
from store.cluster.object_log import ObjectLog
from store.cluster.shared_log import SharedLog, SharedLogDamaged
from store.cluster.snapshots import snapshots_of
from store.data_folder import read_meta
from store.errors import LogCorrupt, StoreError
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from store.log.disk import Disk
from store.log.segments import segment_name
from store.log.writer import clock_ms
from tests.store.cluster.nodes import CONFIG, Nodes, Port, Writer
from tests.store.filled import SIZE, Filled, check_state, opened
from tests.store.simulation.checks import read_log
from tests.waiting import until


@pytest.fixture
async def single(tmp_path: Path) -> Path:
    """The folder of a stopped single node, with random records of all kinds."""
    store = await Filled(tmp_path / "single").open()
    await store.fill(100)
    await store.engine.close()
    return store.path


async def founded(nodes: Nodes, folder: Path) -> Begun:
    log = await open_shared_log(nodes.log, {})
    try:
        return await found(folder, CONFIG, log, "a", Disk(), clock_ms)
    finally:
        await log.close()


async def digest_of(folder: Path, position: int) -> bytes:
    snapshot = await Snapshot.open(folder, Until(position))
    try:
        return await snapshot.digest()
    finally:
        await snapshot.close()


async def test_a_cluster_goes_on_with_all_that_the_single_node_had(nodes: Nodes, single: Path):
    frames, engine = await opened(single)
    opening = engine.meta.openings[-1].name
    await engine.close()
    begun = await founded(nodes, single)
    node = await nodes.start_leader("a")
    assert node.store.local is not None
    assert (await read_log(node.store.local))[: len(frames)] == frames
    assert await node.store.digest(begun.position) == (begun.position, await digest_of(single, begun.position))
    meta = node.store.local.meta
    assert meta.log_id == begun.log_id != read_meta(single).log_id
    assert meta.has_log_up_to(opening, begun.position), "it is the same log for who read it before"
    assert not read_meta(single).shared
    await nodes.start("b")
    await Writer(nodes, seed=2).append(30)
    await nodes.check_equal()
    await check_state(node.store.local, await read_log(node.store.local), Random(1))


async def test_a_node_that_left_founds_another_log(nodes: Nodes, tmp_path: Path):
    first = await nodes.start_leader("a")
    await Writer(nodes).append(40)
    await nodes.stop(first)
    with pytest.raises(StoreError, match="let it leave its cluster first"):
        await founded(nodes, first.folder)
    left = leave(first.folder, Disk())
    nodes.log = f"file://{tmp_path}/other"
    begun = await founded(nodes, first.folder)
    assert begun.position == left.position
    await nodes.start("b")
    await nodes.start("c")
    await nodes.check_equal()


def hold_after_a_look(port: Port) -> None:
    """Let a node read one slot, and nothing more until `mend`."""
    read = port.read

    async def read_once(slot: int) -> bytes | None:
        found = await read(slot)
        port.cut()
        port.read = read  # type: ignore[method-assign]
        return found

    port.read = read_once  # type: ignore[method-assign]


@pytest.mark.parametrize("has_looked", [False, True])
async def test_a_node_that_waits_begins_with_what_the_log_is_founded_with(nodes: Nodes, single: Path, has_looked: bool):
    waiting = await nodes.start("a", prepare=hold_after_a_look if has_looked else Port.cut)
    await until(lambda: waiting.port.waiting > 0)
    begun = await founded(nodes, single)
    waiting.port.mend()
    await until(lambda: waiting.leads)
    assert waiting.store.history.end >= begun.position
    assert waiting.store.history.founded is not None
    assert waiting.store.history.founded.log_id == begun.log_id


async def test_a_log_with_slots_is_not_founded_again(nodes: Nodes, single: Path):
    await founded(nodes, single)
    with pytest.raises(StoreError, match="has slots already"):
        await founded(nodes, single)
    _, engine = await opened(single)
    await engine.close()


async def test_a_log_that_somebody_else_founds_meanwhile_is_theirs(nodes: Nodes, single: Path):
    class Late(ObjectLog):
        async def create(self, slot: int, data: bytes) -> bool:
            await nodes.start_leader("b")
            return await super().create(slot, data)

    log = await open_shared_log(nodes.log, {})
    log.__class__ = Late
    with pytest.raises(StoreError, match="somebody else has founded the shared log"):
        await found(single, CONFIG, log, "a", Disk(), clock_ms)
    await log.close()
    third = await nodes.start("c")
    await nodes.check_equal()
    assert third.store.history.founded is not None
    assert third.store.history.founded.log_id != (await snapshots_of(third.port))[0].manifest.log_id


async def test_a_snapshot_of_somebody_who_founded_nothing_is_not_taken(nodes: Nodes, single: Path, tmp_path: Path):
    """Two found a log at a time. The first one wins, and the newest snapshot is of the other one."""
    other = await Filled(tmp_path / "other", seed=3).open()
    await other.fill(20)
    await other.engine.close()

    class First(ObjectLog):
        async def create(self, slot: int, data: bytes) -> bool:
            log = await open_shared_log(nodes.log, {})
            log.__class__ = Gone
            with pytest.raises(asyncio.CancelledError):
                await found(other.path, CONFIG, log, "b", Disk(), clock_ms)
            await log.close()
            return await super().create(slot, data)

    waiting = await nodes.start("a", prepare=hold_after_a_look)
    await until(lambda: waiting.port.waiting > 0)
    log = await open_shared_log(nodes.log, {})
    log.__class__ = First
    begun = await found(single, CONFIG, log, "a", Disk(), clock_ms)
    await log.close()
    waiting.port.mend()
    await until(lambda: waiting.leads)
    assert waiting.store.history.founded is not None
    assert waiting.store.history.founded.log_id == begun.log_id


class Gone(ObjectLog):
    """Of a process that ends before it founds the log."""

    async def create(self, slot: int, data: bytes) -> bool:
        raise asyncio.CancelledError


async def test_founding_that_ended_halfway_begins_again(nodes: Nodes, single: Path):
    log: SharedLog = await open_shared_log(nodes.log, {})
    log.__class__ = Gone
    with pytest.raises(asyncio.CancelledError):
        await found(single, CONFIG, log, "a", Disk(), clock_ms)
    await log.close()
    begun = await founded(nodes, single)
    node = await nodes.start_leader("a")
    assert node.store.history.end >= begun.position


async def test_a_log_that_was_founded_with_records_needs_them(nodes: Nodes, single: Path):
    await founded(nodes, single)
    for part in (Path(nodes.log.removeprefix("file://")) / "snapshots" / "parts").rglob("*"):
        if part.is_file():
            part.write_bytes(b"x")
    node = await nodes.start("a")
    with pytest.raises(SharedLogDamaged, match="no snapshot that can be read has them"):
        await node.running
    nodes.running.remove(node)
    await node.store.close()


async def test_a_damaged_folder_founds_nothing(nodes: Nodes, single: Path, tmp_path: Path):
    file = single / "log" / segment_name(SIZE)
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(LogCorrupt, match="damaged record"):
        await founded(nodes, single)
    file.write_bytes(whole)
    with pytest.raises(StoreError, match="there is no data folder"):
        await founded(nodes, tmp_path / "nothing")
    await (await Filled(tmp_path / "empty").open()).engine.close()
    with pytest.raises(StoreError, match="has no records"):
        await founded(nodes, tmp_path / "empty")
    begun = await founded(nodes, single)
    assert begun.begin == 0
