"""Nodes of a cluster with their real stores: who leads, and what each of them has."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import record
from record.layout import Kind
from store.api import Appended, topic_queue
from store.cluster import replica
from store.cluster.history import unpack_history
from store.cluster.member import NodeRole, NotLeading
from store.cluster.shared_log import SharedLogDamaged, SharedLogMisconfigured, SharedLogUnavailable
from store.cluster.slot import SlotKind, parse_slot
from store.data_folder import read_meta
from store.engine import Engine
from store.errors import RecordTooLarge, StoreClosed, StoreError, StoreFailed
from store.queries import Queries
from store.views.database.database import seen_checkpoint
from tests.store.cluster.nodes import CONFIG, Node, Nodes, Port, Writer, append
from tests.store.filled import SIZE
from tests.store.images import copy_image
from tests.waiting import patience, until


@pytest.fixture
def writer(nodes: Nodes) -> Writer:
    return Writer(nodes)


def message(payload: bytes = b"x") -> bytes:
    return record.frame(Kind.MESSAGE, 0, 0, b"t/x", b"", b"", payload)


async def payloads(store: Queries) -> list[bytes]:
    """Of all messages of the topic t/x, in their order."""
    found: list[bytes] = []
    bounds = await store.bounds(topic_queue(b"t/x"))
    while len(found) < bounds.end:
        fetched = await store.fetch(topic_queue(b"t/x"), len(found), 1000, 1 << 20)
        found += [record.decode(fetched.data, start)[6] for start in record.split(fetched.data)]
    return found


async def test_a_store_goes_on_where_it_was_after_a_restart(nodes: Nodes):
    for number in range(3):
        node = await nodes.start_leader()
        for each in range(4):
            assert (await append(node.engine, [message(b"%d" % (4 * number + each))])).error is None
        assert await payloads(node.engine) == [b"%d" % each for each in range(4 * number + 4)]
        assert node.store.history.epoch == number + 1
        assert node.store.leader is not None
        assert node.store.leader.address == "a:1"
        await nodes.stop(node)
    assert len(read_meta(node.folder).openings) == 3


async def test_all_nodes_have_the_views_of_the_leader(nodes: Nodes, writer: Writer):
    for name in "abc":
        await nodes.start(name)
    await writer.append(120)
    await nodes.check_equal()
    assert sum(node.leads for node in nodes.running) == 1
    assert {node.store.leader for node in nodes.running} == {(await nodes.leader()).store.leader}
    for node in nodes.running:
        await writer.check_log(node)


async def test_another_node_leads_when_the_leader_is_killed(nodes: Nodes, writer: Writer, tmp_path: Path):
    first = await nodes.start_leader("a")
    for name in "bc":
        await nodes.start(name)
    await writer.append(30)
    nodes.kill(first, tmp_path / "a again")
    second = await nodes.leader()
    assert second.store.history.epoch == 2
    await writer.append(30)
    again = await nodes.start("a", tmp_path / "a again")
    await nodes.check_equal()
    await writer.check_log(again)
    assert again.store.role is NodeRole.FOLLOWER
    assert again.store.leader == second.store.leader
    assert again.roles[-1] == (NodeRole.FOLLOWER, second.store.leader)
    await writer.append(5)
    await nodes.check_equal()


async def test_an_append_of_a_deposed_leader_is_refused_and_not_in_the_log(nodes: Nodes):
    first = await nodes.start_leader("a")
    await nodes.start("b")
    assert (await append(first.engine, [message(b"before")])).error is None
    engine = first.engine
    first.port.cut()
    late = [asyncio.ensure_future(append(engine, [message(b"late %d" % number)])) for number in range(3)]
    await until(lambda: any(node.leads for node in nodes.running if node is not first))
    second = next(node for node in nodes.running if node.leads and node is not first)
    assert (await append(second.engine, [message(b"after")])).error is None
    told: list[int] = []
    first.store.on_role(lambda *_: told.append(sum(each.done() for each in late)))
    first.port.mend()
    answers = [await each for each in late]
    assert all(isinstance(each.error, StoreClosed) for each in answers)
    assert told[0] == 0, "listeners hear of the end before anybody is answered"
    assert first.store.engine is None
    assert isinstance((await append(engine, [message(b"later")])).error, StoreClosed)
    await nodes.check_equal()
    for node in nodes.running:
        assert node.store.local is not None
        assert await payloads(node.store.local) == [b"before", b"after"]


async def test_a_leader_that_was_deposed_while_it_began_to_lead_follows(nodes: Nodes, monkeypatch: pytest.MonkeyPatch):
    create = Port.create
    first: list[Port] = []

    async def take_no_batch_of_the_first(port: Port, slot: int, data: bytes) -> bool:
        if parse_slot(slot, data).kind is SlotKind.BATCH and port in first:
            raise SharedLogUnavailable("no answer")
        return await create(port, slot, data)

    monkeypatch.setattr(Port, "create", take_no_batch_of_the_first)
    config = replace(CONFIG, parent_partitions={b"t": CONFIG.partitions + 1})  # a record before all others
    a = await nodes.start("a", config=config, prepare=first.append)
    await until(lambda: a.store.history.epoch == 1)
    b = await nodes.start_leader("b")
    assert (await append(b.engine, [message()])).error is None
    first.clear()
    await nodes.check_equal()
    assert not a.leads
    await b.store.hand_over("a")
    await until(lambda: a.leads)
    assert await payloads(a.engine) == [b"x"]
    await nodes.check_equal()


async def test_an_idle_leader_knows_its_newest_slot(nodes: Nodes):
    node = await nodes.start_leader()
    before = node.store.history.slot
    await until(lambda: node.store.history.slot >= before + 2)


async def test_an_append_whose_answer_was_lost_is_acknowledged_once(nodes: Nodes):
    node = await nodes.start_leader()
    node.port.loses_answers = True
    appending = [asyncio.ensure_future(append(node.engine, [message(b"%d" % each)])) for each in range(5)]
    async with patience():
        assert [(await each).error for each in appending] == [None] * 5
    assert await payloads(node.engine) == [b"%d" % each for each in range(5)]


async def test_a_leader_hands_over(nodes: Nodes, writer: Writer):
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    await writer.append(10)
    await nodes.settle()
    with pytest.raises(NotLeading):
        await second.store.hand_over("a")
    await first.store.hand_over("b")
    await until(lambda: second.leads)
    await writer.append(10, second)
    await nodes.check_equal()
    assert first.store.role is NodeRole.FOLLOWER
    await second.store.hand_over("a")
    await until(lambda: first.leads)
    await writer.append(10, first)
    await nodes.check_equal()
    openings = read_meta(first.folder).openings
    assert len({each.name for each in openings}) == 3, "a process that leads twice opens the log twice"
    assert read_meta(first.folder).has_log_up_to(openings[0].name, openings[1].begin)


async def test_a_node_with_an_empty_folder_reads_the_whole_log(nodes: Nodes, writer: Writer):
    await nodes.start_leader("a")
    await writer.append(60)
    await nodes.start("b")
    await nodes.check_equal()


async def test_what_is_behind_the_checkpoint_comes_from_the_slots_again(nodes: Nodes, writer: Writer, tmp_path: Path):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await writer.append(40)
    await nodes.settle()
    await nodes.stop(second)
    end = second.store.history.end
    # A sound record that nobody decided, as a leader's disk has it that lied about what the engine said.
    forged = record.seal([message(b"forged")], end, 1, 1, end)
    path = second.folder / "log" / f"{end - end % SIZE:020d}.log"
    with path.open("r+b") as file:
        file.seek(end % SIZE)
        file.write(forged)
    again = await nodes.start("b")
    await writer.append(1)
    await nodes.check_equal()
    await writer.check_log(again)
    assert 2 not in again.port.reads, "the slots up to the checkpoint are read again"


async def test_a_kill_at_any_moment_leaves_a_copy_that_goes_on(nodes: Nodes, writer: Writer, tmp_path: Path):
    # Checkpoints reach the disk at once, and so most copies have some of the log.
    nodes.config = replace(CONFIG, view_flush_bytes=1)
    rng = Random(1)
    await nodes.start_leader("a")
    await nodes.start("b")
    images: list[Path] = []

    async def take_images() -> None:
        while len(images) < 12:
            await asyncio.sleep(rng.random() * 0.02)
            image = tmp_path / f"image {len(images)}"
            copy_image(rng.choice(nodes.running).folder, image)
            images.append(image)
            if len(images) == 6:
                await (await nodes.leader()).store.hand_over("b")

    taking = asyncio.ensure_future(take_images())
    while not taking.done():
        await writer.append(1)
    await taking
    went_on = 0
    for number, image in enumerate(images):
        node = await nodes.start(f"image {number}", image)
        await nodes.check_equal()
        await writer.check_log(node)
        went_on += 2 not in node.port.reads
        await nodes.stop(node)
    assert went_on >= 4


@pytest.mark.parametrize("damage", ["views", "log", "checkpoint"])
async def test_a_damaged_copy_is_read_again(
    nodes: Nodes, writer: Writer, damage: str, caplog: pytest.LogCaptureFixture
):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await writer.append(40)
    await nodes.settle()
    await nodes.stop(second)
    if damage == "views":
        for path in (second.folder / "views").glob("MANIFEST*"):
            path.write_bytes(b"no manifest")
    elif damage == "log":
        end = second.store.history.end
        (second.folder / "log" / f"{end - end % SIZE:020d}.log").write_bytes(bytes(SIZE))
    else:
        for path in (second.folder / "views").iterdir():
            path.unlink()
    await nodes.start("b")
    await nodes.check_equal()
    assert "is read from the shared log again" in caplog.text


async def test_a_copy_that_was_killed_before_its_first_checkpoint_says_so(
    nodes: Nodes, writer: Writer, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    await nodes.start_leader("a")
    node = await nodes.start("b")
    await writer.append(5)
    await nodes.settle()
    nodes.kill(node, tmp_path / "b again")
    await nodes.start("b", tmp_path / "b again")
    await nodes.check_equal()
    assert "is read from the shared log again: it has no checkpoint yet" in caplog.text


async def test_a_follower_of_an_idle_leader_knows_after_a_kill_which_slots_it_had(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "_UNSAVED_SLOTS", 2)
    await nodes.start_leader("a")
    node = await nodes.start("b")
    await until(lambda: node.store.history.slot >= 6)
    nodes.kill(node, tmp_path / "b again")
    again = await nodes.start("b", tmp_path / "b again")
    await nodes.check_equal()
    assert 2 not in again.port.reads


def saved_slot(node: Node) -> int:
    """The slot that a restart of the node after a kill goes on from."""
    saved = seen_checkpoint(node.folder / "views")
    return unpack_history(saved.slots).slot if saved is not None and saved.slots else 0


async def test_a_leader_knows_after_a_kill_which_slots_it_had(
    nodes: Nodes, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "_UNSAVED_SLOTS", 2)
    monkeypatch.setattr(replica, "_COUNT_S", 0.01)
    node = await nodes.start_leader("a")
    await nodes.start("b")
    await writer.append(20)
    newest = node.store.history.slot
    await until(lambda: saved_slot(node) >= newest + 2)  # idle slots too
    nodes.kill(node, tmp_path / "a again")
    again = await nodes.start("a", tmp_path / "a again")
    await nodes.check_equal()
    assert min(again.port.reads - {1}) > newest


async def test_a_node_reads_few_bytes_again_after_a_kill(
    nodes: Nodes, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "_UNSAVED_BYTES", 1)
    node = await nodes.start_leader("a")
    await nodes.start("b")
    await writer.append(5)
    written = node.store.history.slot
    await until(lambda: saved_slot(node) >= written)
    nodes.kill(node, tmp_path / "a again")
    again = await nodes.start("a", tmp_path / "a again")
    await nodes.check_equal()
    assert min(again.port.reads - {1}) > written


async def test_a_copy_of_another_log_is_kept(nodes: Nodes, writer: Writer, tmp_path: Path):
    """It may be all that is left of a log whose engine was lost, while somebody has founded another one there."""
    first = await nodes.start_leader("a")
    await writer.append(30)
    await nodes.stop(first)
    nodes.log = f"file://{tmp_path}/other log"
    await nodes.start_leader("b")
    again = await nodes.start("a")
    async with patience():
        with pytest.raises(SharedLogMisconfigured, match="the node fills an empty one"):
            await again.running
    assert again.store.history.end == first.store.history.end
    nodes.running.remove(again)
    await again.store.close()
    shutil.rmtree(tmp_path / "a")
    await nodes.start("a")
    await nodes.check_equal()


async def test_a_shared_log_that_is_gone_is_not_founded_again(nodes: Nodes, writer: Writer, tmp_path: Path):
    first = await nodes.start_leader("a")
    await writer.append(10)
    await nodes.stop(first)
    nodes.log = f"file://{tmp_path}/empty log"
    again = await nodes.start("a")
    async with patience():
        with pytest.raises(SharedLogDamaged, match="empty"):
            await again.running
    assert again.store.history.end == first.store.history.end
    nodes.running.remove(again)
    await again.store.close()


async def test_a_folder_with_a_log_of_its_own_is_not_taken(nodes: Nodes, tmp_path: Path):
    engine = await Engine.open(tmp_path / "a", CONFIG)
    await append(engine, [message()])
    await engine.close()
    with pytest.raises(StoreError, match="a log of its own"):
        await nodes.start("a")
    engine = await Engine.open(tmp_path / "a", CONFIG)  # it is whole, and nobody has it locked
    assert await payloads(engine) == [b"x"]
    await engine.close()


async def test_a_copy_is_not_opened_as_a_store_of_its_own(nodes: Nodes):
    node = await nodes.start_leader("a")
    await nodes.stop(node)
    with pytest.raises(StoreError, match="a copy of a shared log"):
        await Engine.open(node.folder, CONFIG)


async def test_limits_that_change_hold_for_whoever_leads_later(nodes: Nodes, writer: Writer):
    first = await nodes.start_leader("a")
    second = await nodes.start("b")
    await writer.append(60)
    await nodes.settle()
    limited = replace(CONFIG, retention_bytes=4 * SIZE)
    second.store.change_retention(limited)  # it does not decide yet
    assert first.engine.stats().log_begin == 0
    await nodes.stop(first)
    await until(lambda: second.leads and second.engine.stats().log_begin > 0)
    begin = second.engine.stats().log_begin
    second.store.change_retention(replace(limited, retention_bytes=SIZE))
    await until(lambda: second.engine.stats().log_begin > begin)


async def test_followers_remove_what_the_log_lets_go(nodes: Nodes, writer: Writer):
    nodes.config = replace(CONFIG, retention_bytes=4 * SIZE)
    first = await nodes.start_leader("a")
    # Only who leads decides.
    second = await nodes.start("b", config=replace(CONFIG, retention_bytes=10 * SIZE))
    await writer.append(150)
    await nodes.settle()

    def files(node: Node) -> list[str]:
        return sorted(path.name for path in (node.folder / "log").glob("*.log"))

    begin = first.engine.stats().log_begin
    assert begin > 0
    assert second.store.local is not None
    await until(lambda: first.engine.stats().log_begin == second.store.local.stats().log_begin)  # type: ignore[union-attr]
    await until(lambda: files(first)[0] == files(second)[0] > f"{begin - 1:020d}.log")
    await nodes.check_equal()
    await nodes.stop(second)
    await nodes.start("b")
    await nodes.check_equal()


async def test_a_large_append_takes_several_slots(nodes: Nodes):
    nodes.max_slot_bytes = 1000
    node = await nodes.start_leader()
    follower = await nodes.start("b")
    await nodes.settle()
    slot = node.store.history.slot
    frames = [message(b"%02d" % number * 150) for number in range(11)]
    appended = await append(node.engine, frames)
    assert appended.error is None
    assert len(appended.positions) == 11
    assert await payloads(node.engine) == [frame[51:] for frame in frames]
    assert node.store.history.slot >= slot + 5
    assert node.engine.max_record == 960
    assert isinstance((await append(node.engine, [message(bytes(960))])).error, RecordTooLarge)
    await nodes.check_equal()
    assert follower.store.local is not None
    assert len(await payloads(follower.store.local)) == 11


async def test_nothing_is_acknowledged_while_the_engine_is_away(nodes: Nodes):
    node = await nodes.start_leader()
    await nodes.start("b")
    await nodes.settle()
    for each in nodes.running:
        each.port.cut()
    appending = asyncio.ensure_future(append(node.engine, [message(b"1")]))
    await until(lambda: node.port.waiting)
    assert (await node.engine.bounds(topic_queue(b"t/x"))).end == 0
    assert not appending.done()
    for each in nodes.running:
        each.port.mend()
    assert (await appending).error is None
    await nodes.check_equal()


async def test_a_leader_stops_when_its_disk_fails(nodes: Nodes):
    node = await nodes.start_leader()
    await nodes.start("b")
    await nodes.settle()
    engine, answers = node.engine, list[Appended]()

    def done(appended: Appended) -> None:
        assert isinstance(appended.error, StoreFailed)
        assert not node.leads, "listeners have heard before that the leadership is over"
        answers.append(appended)

    node.port.cut()
    for _ in range(2):  # one is under way, one waits
        engine.append([message()], done)
        await asyncio.sleep(0)
    engine._log.fail(OSError("no disk"))
    node.port.mend()
    await until(lambda: len(answers) == 2)
    async with patience():
        with pytest.raises(StoreError, match="failed"):
            await node.running
    nodes.running.remove(node)
    await node.store.close()
    assert (await append((await nodes.leader()).engine, [message()])).error is None


async def test_views_that_a_power_failure_brought_back_are_removed(nodes: Nodes, writer: Writer):
    await nodes.start_leader("a")
    second = await nodes.start("b")
    await writer.append(20)
    await nodes.settle()
    await nodes.stop(second)
    (second.folder / "store.json").unlink()
    for path in (second.folder / "log").iterdir():
        path.unlink()
    await nodes.start("b")
    await nodes.check_equal()
