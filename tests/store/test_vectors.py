"""Data folders that earlier versions made: each opens, and reads back exactly."""

import shutil
from pathlib import Path
from random import Random

import record
from record.layout import FLAG_RETAIN
from store.api import (
    GroupQueueState,
    PopRequest,
    Start,
    StoredWill,
    dead_letter_queue,
    filter_queue,
    partition_queue,
    topic_queue,
)
from store.config import StoreConfig
from store.engine import Engine
from tests.store.simulation.checks import check_state, read_log
from tests.store.simulation.truth import Truth
from tests.store.vectors.make import LATER, START, batches, moved_batches, session_batches

VECTORS = Path(__file__).parent / "vectors"


async def test_the_folder_of_format_1_opens_and_reads_back_exactly(tmp_path: Path):
    shutil.copytree(VECTORS / "v1", tmp_path / "data")
    engine = await Engine.open(tmp_path / "data", StoreConfig())
    assert engine.partitions.default == 2
    frames = await read_log(engine)
    expected = [frame for batch in batches() for frame in batch]
    assert [record.decode(frame, 0) for frame in frames] == [record.decode(frame, 0) for frame in expected]
    assert frames[0][:48].hex() == (VECTORS / "v1" / "first-header.hex").read_text().strip()
    truth = Truth(engine.partitions.default)
    truth.grow(frames)
    await check_state(engine, truth.model, Random(1))
    assert (await engine.bounds(filter_queue(b"home/+/temp"))).end == 10
    assert (await engine.bounds(topic_queue(b"home/bath/temp"))).end == 1
    session = await engine.session(b"device")
    assert session is not None
    assert [(s.topic_filter, s.offset, s.identifier) for s in session.subscriptions] == [(b"home/+/temp", 2, 7)]
    assert session.inbound == [9]
    assert [(o.packet_id, o.released) for o in session.outbound] == [(3, True)]
    assert await engine.session(b"old") is None
    assert await engine.group_offsets(b"billing", b"home") == {0: 1, 1: 3}
    assert [value.topic for value in await engine.retained(b"#", None, 9)] == [b"home/bath/temp"]
    await engine.close()


async def test_format_1_with_wills_and_an_open_session_is_read(tmp_path: Path):
    shutil.copytree(VECTORS / "v1-sessions", tmp_path / "data")
    engine = await Engine.open(tmp_path / "data", StoreConfig())
    frames = await read_log(engine)
    expected = [frame for batch in session_batches() for frame in batch]
    assert [record.decode(frame, 0) for frame in frames] == [record.decode(frame, 0) for frame in expected]
    truth = Truth(engine.partitions.default)
    truth.grow(frames)
    await check_state(engine, truth.model, Random(1))
    session = await engine.session(b"lost")
    assert session is not None
    assert [(s.offset, s.sent_before) for s in session.subscriptions] == [(1, 5)]
    assert [(o.packet_id, o.released, o.qos) for o in session.outbound] == [(7, True, 2), (8, False, 1)]
    clean, lost = await engine.wills(None, 9)
    assert lost == StoredWill(b"lost", 60, START + 60_000, b"wills/lost", FLAG_RETAIN | 1, b"\x01\x01", b"gone", 3)
    assert clean == StoredWill(b"clean", 0, 0, b"wills/clean", 2, b"", b"\xff", 1)
    assert await engine.wills_waiting(9) == [(b"lost", START + 60_000)]
    await engine.close()


async def payloads(engine: Engine, queue: bytes) -> list[bytes]:
    got = await engine.fetch(queue, 0, 100, 1 << 20)
    return [record.decode(got.data, start)[6] for start in record.split(got.data)]


async def test_messages_of_format_1_that_were_held_leased_and_given_up(tmp_path: Path):
    shutil.copytree(VECTORS / "v1-moved", tmp_path / "data")
    engine = await Engine.open(tmp_path / "data", StoreConfig())
    frames = await read_log(engine)
    expected = [frame for batch in moved_batches() for frame in batch]
    assert [record.decode(frame, 0) for frame in frames] == [record.decode(frame, 0) for frame in expected]
    places = {frame[48:].split(b"plant", 2)[1]: record.position_of(frame, 0) for frame in reversed(frames[2:11])}
    entered = [*(b"PLANT/%d" % number for number in range(6)), b"PLANT/FIRED", b"PLANT/COMMITTED", b"PLANT/REVIVED"]
    partition = partition_queue(b"plant", 0)
    for queue in (partition, filter_queue(b"plant/#")):
        assert await payloads(engine, queue) == entered
    assert await payloads(engine, dead_letter_queue(b"billing")) == [b"PLANT/4"]
    assert [value.topic for value in await engine.retained(b"#", None, 9)] == [b"plant/committed"]
    delayed = [(held.handle, held.due_ms, held.rounds) for held in (await engine.timers(None, 9)).messages]
    assert delayed == [(places[b"/waits"], LATER + 1, 0), (places[b"/both"], LATER + 3, 0)]
    halves = [(held.handle, held.due_ms, held.rounds) for held in (await engine.transactions(None, 9)).messages]
    assert halves == [(places[b"/asked"], None, 1), (places[b"/both asked"], LATER + 4, 1)]
    for key, found in ((b"a", [b"/fired", b"/committed"]), (b"b", [b"/fired"]), (b"1", [b"/1", b"/3", b"/5"])):
        page = await engine.by_key(b"plant", key, None, 9, 1 << 20)
        assert [record.decode(page.data, start)[3] for start in record.split(page.data)] == [
            b"plant" + n for n in found
        ]
    audit, billing = await engine.groups(None, 9)
    assert (audit.group, audit.queues) == (b"audit", [GroupQueueState(partition, 7, 7, 0, 2)])
    assert (billing.group, billing.queues) == (b"billing", [GroupQueueState(partition, 2, 5, 2, 6)])
    assert await engine.group_offsets(b"audit", b"plant") == {0: 2}
    popped = await engine.pop(PopRequest(b"billing", [partition], 9, 1 << 20, 1000, Start.EARLIEST))
    assert [(run.offset, run.count, run.deliveries) for run in popped.runs] == [(5, 4, 1)]
    assert popped.available_at is not None
    await engine.close()
