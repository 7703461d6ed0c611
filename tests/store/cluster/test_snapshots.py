"""Nodes that begin with a snapshot of the shared log, and what is removed when it is there."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.cluster.engines import open_shared_log
from store.cluster.shared_log import SharedLog, SharedLogDamaged
from store.cluster.snapshots import KEPT, Numbered, lacks, read_contents, snapshots_of, written_parts
from tests.store.cluster.nodes import CONFIG, Node, Nodes, Writer
from tests.store.filled import SIZE
from tests.waiting import patience, until


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path, monkeypatch)
    nodes.snapshot_bytes = 3 * SIZE
    yield nodes
    await nodes.close()


@pytest.fixture
def writer(nodes: Nodes) -> Writer:
    return Writer(nodes)


async def append_until(writer: Writer, node: Node, number: int) -> Numbered:
    """Append until there is a snapshot of this number, or a later one. Returns the newest."""
    async with patience():
        while not (found := await snapshots_of(node.port)) or found[0].number < number:
            await writer.append(5)
            await asyncio.sleep(0.02)
        return found[0]


def objects(nodes: Nodes, folder: str) -> list[Path]:
    """The files of objects, in the order of their names."""
    root = Path(nodes.log.removeprefix("file://")) / "snapshots" / folder
    return sorted(path for path in root.rglob("*") if path.is_file())


async def unneeded(log: SharedLog) -> set[str]:
    """The parts that were written for snapshots and that none of them needs. Fails if a snapshot lacks one."""
    found = await snapshots_of(log)
    parts = await written_parts(log)
    named: set[str] = set()
    for each in found:
        contents = await read_contents(log, each.manifest)
        assert not lacks(parts, each.manifest, contents)
        named |= {part.name for part in (*each.manifest.contents, *contents.parts())}
    return {part for part in parts if int(part.split("/")[1]) <= found[0].number} - named


async def test_a_node_with_an_empty_folder_begins_with_a_snapshot(nodes: Nodes, writer: Writer):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    found = await append_until(writer, second, 2)
    assert found.manifest.node == "b", "a follower writes it"
    third = await nodes.start("c")
    await nodes.check_equal()
    await writer.check_log(third)
    assert min(third.port.reads - {1}) > found.manifest.slot
    state = await third.store.log_state()
    assert state.snapshot is not None
    assert state.snapshot.number >= found.number
    await nodes.stop(third)
    again = await nodes.start("c")
    await nodes.check_equal()
    assert 2 not in again.port.reads, "the copy goes on after a restart"


async def test_a_node_that_is_alone_writes_snapshots(nodes: Nodes, writer: Writer):
    first = await nodes.start_leader("a")
    found = await append_until(writer, first, 1)
    assert found.manifest.position >= 4 * nodes.snapshot_bytes
    await nodes.start("b")
    await nodes.check_equal()


async def test_a_snapshot_has_the_parts_of_the_one_before(nodes: Nodes, writer: Writer):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await append_until(writer, second, 3)
    found = (await snapshots_of(second.port))[0]
    numbers = {part.number for part in (await read_contents(second.port, found.manifest)).parts()}
    assert 1 in numbers, "the log's begin was written once"
    assert found.number in numbers


async def test_what_no_snapshot_needs_is_removed(nodes: Nodes, writer: Writer):
    nodes.config = replace(CONFIG, retention_bytes=4 * SIZE)
    await nodes.start_leader("a")
    second = await nodes.start("b")
    root = Path(nodes.log.removeprefix("file://")) / "snapshots" / "parts" / f"{1:012}"
    root.mkdir(parents=True)
    (root / ("ab" * 32)).write_bytes(b"of a node that died halfway")
    found = await append_until(writer, second, 5)
    assert found.manifest.begin > 0
    log = await open_shared_log(nodes.log, {})
    async with patience():  # the writer of the newest snapshot removes when that is there
        while await unneeded(log):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await nodes.stop(await nodes.leader())
    for node in list(nodes.running):
        await nodes.stop(node)
    assert len(objects(nodes, "manifests")) == KEPT
    assert not await unneeded(log)
    await log.close()


async def test_slots_are_removed_that_two_snapshots_have(nodes: Nodes, writer: Writer, tmp_path: Path):
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    await append_until(writer, second, 1)
    await asyncio.sleep(0.2)
    if len(await snapshots_of(first.port)) < KEPT:
        assert await first.port.begin() == 1, "one snapshot may be damaged"
    await append_until(writer, second, 3)
    await until_begins(first, lambda begin: begin > 1)
    older = (await snapshots_of(first.port))[-1]
    assert await first.port.begin() <= older.manifest.slot
    third = await nodes.start("c")
    await nodes.check_equal()
    await writer.check_log(third)
    for node in list(nodes.running):
        await nodes.stop(node)
    alone = await nodes.start_leader("d")
    await writer.append(3)
    await writer.check_log(alone)


async def until_begins(node: Node, is_so: Callable[[int], bool]) -> None:
    async with patience():
        while not is_so(await node.port.begin()):  # noqa: ASYNC110  others trim
            await asyncio.sleep(0.02)


async def test_a_node_that_was_away_for_too_long_begins_with_a_snapshot(
    nodes: Nodes, writer: Writer, caplog: pytest.LogCaptureFixture
):
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    third = await nodes.start("c")
    await writer.append(10)
    await nodes.settle()
    slot = third.store.history.slot
    await nodes.stop(third)
    await append_until(writer, second, 3)
    await until_begins(first, lambda begin: begin > slot + 1)
    third = await nodes.start("c")
    await nodes.check_equal()
    await writer.check_log(third)
    assert "a snapshot takes the place of its copy" in caplog.text


async def test_a_node_that_slept_lets_go_of_its_copy_first(nodes: Nodes, writer: Writer):
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    third = await nodes.start("c")
    await nodes.settle()
    seen: list[object] = []

    async def let_go() -> None:
        seen.append(third.store.local)

    third.store.before_close(let_go)
    slot = third.store.history.slot
    third.port.cut()
    await append_until(writer, second, 3)
    await until_begins(first, lambda begin: begin > slot + 9)
    third.port.mend()
    await nodes.check_equal()
    assert seen == [None]
    assert third.roles[-1][1] == first.store.leader


@pytest.mark.parametrize("damage", ["a part is gone", "a part has changed", "manifest", "contents"])
async def test_a_snapshot_that_is_damaged_is_passed_over(
    nodes: Nodes, writer: Writer, damage: str, caplog: pytest.LogCaptureFixture
):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await append_until(writer, second, 3)
    for node in list(nodes.running):
        await nodes.stop(node)
    log = await open_shared_log(nodes.log, {})
    newest, older = await snapshots_of(log)
    folder = f"parts/{newest.number:012}"
    own = objects(nodes, folder)
    victim = next(path for path in own if path.name not in {part.digest.hex() for part in newest.manifest.contents})
    if damage == "a part is gone":
        victim.unlink()
    elif damage == "a part has changed":
        victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    elif damage == "manifest":
        path = objects(nodes, "manifests")[-1]
        path.write_bytes(path.read_bytes().replace(b'"slot":', b'"slot":1'))
    else:
        (objects(nodes, folder)[0].parent / newest.manifest.contents[0].digest.hex()).write_bytes(b"")
    nodes.snapshot_bytes = 1 << 40
    third = await nodes.start_leader("c")
    await writer.check_log(third)
    assert f"snapshot {newest.number} of the shared log cannot be read" in caplog.text
    assert min(third.port.reads - {1}) == older.manifest.slot + 1
    await log.close()


async def test_a_log_without_its_begin_and_without_snapshots_is_damaged(nodes: Nodes, writer: Writer):
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    await append_until(writer, second, 2)
    await until_begins(first, lambda begin: begin > 1)
    for node in list(nodes.running):
        await nodes.stop(node)
    for path in objects(nodes, "manifests"):
        path.unlink()
    third = await nodes.start("c")
    async with patience():
        with pytest.raises(SharedLogDamaged, match="no snapshot"):
            await third.running
    nodes.running.remove(third)
    await third.store.close()


async def test_slots_that_the_engine_lost_behind_a_snapshot_are_damage(nodes: Nodes, writer: Writer):
    """They look as if they had been removed, but no snapshot has them."""
    await nodes.start_leader("a")
    second = await nodes.start("b")
    found = await append_until(writer, second, 2)
    nodes.snapshot_bytes = 1 << 40
    for node in list(nodes.running):
        await nodes.stop(node)
    log = await open_shared_log(nodes.log, {})
    await log.trim(await log.end() - 1)
    assert await log.begin() > found.manifest.slot + 1
    third = await nodes.start("c")
    async with patience():
        with pytest.raises(SharedLogDamaged, match="no snapshot"):
            await third.running
    nodes.running.remove(third)
    await third.store.close()
    await log.close()


async def test_no_slot_is_removed_while_a_snapshot_lacks_a_part(
    nodes: Nodes, writer: Writer, caplog: pytest.LogCaptureFixture
):
    trims: list[int] = []

    async def trim(before: int) -> None:
        trims.append(before)

    first = await nodes.start_leader("a")
    first.port.trim = trim  # type: ignore[method-assign]
    await append_until(writer, first, 2)
    await until(lambda: bool(trims))
    await nodes.stop(first)
    trims.clear()
    lost = objects(nodes, "parts")[0]
    data = lost.read_bytes()
    lost.unlink()
    nodes.snapshot_bytes = 1 << 40
    first = await nodes.start_leader("a")
    first.port.trim = trim  # type: ignore[method-assign]
    await until(lambda: caplog.text.count("no slots are removed") > 1)
    assert not trims
    assert await first.port.begin() == 1
    lost.write_bytes(data)
    await until(lambda: bool(trims))


async def test_a_part_that_was_lost_is_written_again(nodes: Nodes, writer: Writer):
    first = await nodes.start_leader("a")
    found = await append_until(writer, first, 1)
    for path in objects(nodes, "parts"):
        if path.name != found.manifest.contents[0].digest.hex():
            path.unlink()
    await append_until(writer, first, found.number + 1)
    third = await nodes.start("c")
    await nodes.check_equal()
    await writer.check_log(third)
    assert min(third.port.reads - {1}) > found.manifest.slot


async def test_a_node_that_dies_while_it_joins_begins_again(nodes: Nodes, writer: Writer, tmp_path: Path):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await append_until(writer, second, 2)
    nodes.snapshot_bytes = 1 << 40
    for count in (1, 3, 6, 12):
        third = await nodes.start(f"c{count}")
        gets = 0
        get = third.port.get_object

        async def count_gets(name: str, port=third.port, get=get, most=count) -> bytes | None:
            nonlocal gets
            gets += 1
            if gets > most:
                port.cut()
            return await get(name)

        third.port.get_object = count_gets  # type: ignore[method-assign]
        await until(lambda: gets > count or third.store.history.slot > 0)
        nodes.kill(third, tmp_path / "again")
        again = await nodes.start("again", tmp_path / "again")
        await nodes.check_equal()
        await writer.check_log(again)
        await nodes.stop(again)
        shutil.rmtree(tmp_path / "again")
