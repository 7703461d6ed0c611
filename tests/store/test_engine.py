"""The engine through the face that fronts use: append, commit, fetch, read, and what is there after reopening."""

import asyncio
from itertools import chain
from pathlib import Path

import pytest

import record
from record.layout import Kind
from store import control
from store.api import (
    Appended,
    Child,
    Commit,
    dead_letter_queue,
    filter_queue,
    partition_of,
    partition_queue,
    topic_queue,
)
from store.config import StoreConfig
from store.engine import Engine
from store.errors import OffsetOutOfRange, RecordInvalid, RecordTooLarge, StoreBusy, StoreClosed, StoreError
from store.log.disk import Disk
from store.views.database.database import Database
from tests.store.images import copy_image
from tests.waiting import patience, until

pytestmark = pytest.mark.any_store

SMALL = StoreConfig(segment_size=1 << 16, generation_segments=2, checkpoint_keys=50)


def message(topic: bytes, payload: bytes = b"x", flags: int = 0, publisher: bytes = b"", packet_id: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, packet_id, topic, publisher, b"", payload)


async def append(engine: Engine, *frames: bytes) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), answer.set_result)
    return await answer


@pytest.mark.engine_only
@pytest.mark.parametrize(
    ("queue", "name"),
    [
        (partition_queue(b"home", 258), "partition 258 of 'home'"),
        (topic_queue(b"home/t"), "topic 'home/t'"),
        (filter_queue(b"home/+"), "filter 'home/\\+'"),
        (dead_letter_queue(b"g"), "the dead letters of 'g'"),
    ],
)
async def test_an_offset_out_of_range_names_its_queue_in_words(tmp_path: Path, queue: bytes, name: str):
    engine = await Engine.open(tmp_path, SMALL)
    with pytest.raises(OffsetOutOfRange, match=rf"^offset 7 is outside \[0, 0\) of {name}$"):
        await engine.fetch(queue, 7, 1, 1)
    with pytest.raises(OffsetOutOfRange, match=r"^offset 7 is outside \[0, 0\) of the log$"):
        await engine.read(7, 1)
    await engine.close()


async def payloads(engine: Engine, queue: bytes, offset: int = 0, step: int = 1000) -> list[bytes]:
    """All payloads of a queue from `offset` on, fetched `step` at a time."""
    found: list[bytes] = []
    while True:
        got = await engine.fetch(queue, offset, step, 1 << 20)
        if got.count == 0:
            return found
        starts = record.split(got.data)
        assert len(starts) == got.count
        found += [record.decode(got.data, start)[6] for start in starts]
        offset = got.next_offset


async def test_the_size_of_the_views_does_not_depend_on_files_that_come_and_go(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    await append(engine, *[message(b"home/%d" % i) for i in range(500)])
    engine._database.flush()
    (tmp_path / "views" / "999999.sst").symlink_to("compacted away")
    assert engine.stats().view_bytes > 0
    (tmp_path / "views" / "999999.sst").unlink()
    await engine.close()


async def test_listeners_get_a_commit_before_the_append_is_answered(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    order: list[str] = []
    engine.on_commit(lambda commit: order.append("heard"))
    answered = asyncio.Event()

    def done(appended: Appended) -> None:
        order.append("answered")
        answered.set()

    engine.append([message(b"a")], done)
    async with patience():
        await answered.wait()
    assert order == ["heard", "answered"]
    await engine.close()


@pytest.mark.engine_only
async def test_a_message_is_in_its_queues(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    commits: list[Commit] = []
    engine.on_commit(commits.append)
    done = await append(engine, message(b"home/bath", b"1"), message(b"home/hall", b"2"), message(b"home/bath", b"3"))
    assert done.error is None
    assert len(done.positions) == 3
    assert commits[0].topics == [b"home/bath", b"home/hall", b"home/bath"]
    assert commits[0].topic_offsets == [0, 0, 1]
    assert commits[0].filter_offsets is None
    assert [commits[0].position + start for start in commits[0].starts] == list(done.positions)
    assert await payloads(engine, topic_queue(b"home/bath")) == [b"1", b"3"]
    partition = partition_of(record.tag_of(b"home/bath", b""), engine.partition_count(b"home"))
    assert b"3" in await payloads(engine, partition_queue(b"home", partition))
    assert (await engine.children(b"", None, 9)).children == [Child(b"home", False, True)]
    assert (await engine.topics(b"home/", None, 10)).names == [b"home/bath", b"home/hall"]
    assert (await engine.bounds(topic_queue(b"nobody"))).end == 0
    await engine.close()


@pytest.mark.engine_only
@pytest.mark.parametrize("tail", [0, 64 << 20], ids=["from disk", "from the tail cache"])
async def test_everything_can_be_fetched_and_read_across_segments(tmp_path: Path, tail: int):
    config = StoreConfig(segment_size=1 << 14, generation_segments=1, checkpoint_keys=7, tail_cache_bytes=tail)
    engine = await Engine.open(tmp_path, config)
    wanted: dict[bytes, list[bytes]] = {}
    for i in range(300):
        topic = b"a/%d" % (i % 7)
        payload = b"%d" % i * (1 + i % 50)
        wanted.setdefault(topic, []).append(payload)
        assert (await append(engine, message(topic, payload))).error is None
    stats = engine.stats()
    assert stats.log_end > 2 << 14
    assert (stats.records, stats.messages) == (300, 300)
    for again in range(2):
        for topic, expected in wanted.items():
            assert await payloads(engine, topic_queue(topic), 0, 5) == expected
            assert await payloads(engine, topic_queue(topic), 3) == expected[3:]
        partitions = [await payloads(engine, partition_queue(b"a", i)) for i in range(4)]
        assert sorted(chain(*partitions)) == sorted(chain(*wanted.values()))
        position, count = 0, 0
        while True:
            chunk = await engine.read(position, 1000)
            if not chunk.data:
                break
            count += len(record.split(chunk.data))
            position = chunk.next_position
        assert (position, count) == (stats.log_end, 300)
        if not again:
            await engine.close()
            engine = await Engine.open(tmp_path, config)
    await engine.close()


async def test_offsets_are_found_by_time(tmp_path: Path):
    now = [1000]
    engine = await Engine.open(tmp_path, SMALL, clock=lambda: now[0])
    for time in (1000, 1000, 2000, 1500, 3000):
        now[0] = time
        await append(engine, message(b"t"))
    queue = topic_queue(b"t")
    found = [await engine.offset_at(queue, time) for time in (0, 1000, 1001, 2000, 2001, 3000, 3001)]
    assert found == [0, 0, 2, 2, 4, 4, 5]  # 1500 came after 2000: store time does not run backwards
    await engine.close()


async def test_fetch_outside_the_queue_says_what_there_is(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    await append(engine, message(b"t"))
    assert (await engine.fetch(topic_queue(b"t"), 1, 10, 100)).count == 0
    assert (await engine.fetch(topic_queue(b"t"), 0, 10, 1)).count == 1
    with pytest.raises(OffsetOutOfRange) as caught:
        await engine.fetch(topic_queue(b"t"), 2, 10, 100)
    assert (caught.value.begin, caught.value.end) == (0, 1)
    with pytest.raises(OffsetOutOfRange):
        await engine.read(1 << 40, 100)
    await engine.close()


@pytest.mark.engine_only
async def test_appends_beyond_the_limits_are_answered_with_errors(tmp_path: Path):
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=4096, max_pending_bytes=10_000))
    assert isinstance((await append(engine, message(b"t", bytes(5000)))).error, RecordTooLarge)
    assert isinstance((await append(engine, message(b"t", bytes(20_000)))).error, RecordTooLarge)
    answers: list[Appended] = []
    for _ in range(8):
        engine.append([message(b"t", bytes(2000))], answers.append)
    assert (await append(engine)).error is None
    kinds = [type(answer.error) for answer in answers]
    assert kinds.count(StoreBusy) == 4
    assert kinds.count(type(None)) == 4
    assert engine.stats().pending_bytes == 0
    await engine.close()
    assert isinstance((await append(engine, message(b"t"))).error, StoreClosed)


@pytest.mark.engine_only
async def test_control_records_are_accepted_while_messages_are_refused(tmp_path: Path):
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=4096, max_pending_bytes=10_000))
    answers: list[Appended] = []
    for _ in range(5):
        engine.append([message(b"t", bytes(2000))], answers.append)
    closed = await append(engine, control.SessionClosed(1, 60, 1).frame(b"c"))
    assert closed.error is None
    kinds = [type(answer.error) for answer in answers]
    assert (kinds.count(StoreBusy), kinds.count(type(None))) == (1, 4)
    await engine.close()


async def test_an_invalid_frame_fails_alone(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    answers: list[Appended] = []
    for frames in ([message(b"t", b"1")], [b"rubbish"], [message(b"t", b"2")], [message(b"t"), b""]):
        engine.append(frames, answers.append)
    assert (await append(engine, message(b"t", b"3"))).error is None
    assert sorted(str(type(answer.error).__name__) for answer in answers) == [
        "NoneType", "NoneType", RecordInvalid.__name__, RecordInvalid.__name__,
    ]  # fmt: skip
    assert await payloads(engine, topic_queue(b"t")) == [b"1", b"2", b"3"]
    await engine.close()


async def test_a_folder_is_opened_by_one_process_at_a_time(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    with pytest.raises(StoreError, match="in use"):
        await Engine.open(tmp_path, SMALL)
    await engine.close()
    await (await Engine.open(tmp_path, SMALL)).close()


async def test_settings_of_a_folder_stay(tmp_path: Path):
    await (await Engine.open(tmp_path, SMALL)).close()
    engine = await Engine.open(tmp_path, StoreConfig(partitions=9, segment_size=1 << 20))
    assert engine.partitions.default == 4
    assert engine.stats().log_bytes == 1 << 16
    await engine.close()


async def test_a_failing_listener_or_callback_does_not_affect_others(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    topics: list[bytes] = []
    engine.on_commit(lambda commit: 1 / 0)
    engine.on_commit(lambda commit: topics.extend(commit.topics))
    engine.append([message(b"t")], lambda appended: 1 / 0)
    assert (await append(engine, message(b"t"))).error is None
    assert topics == [b"t", b"t"]
    assert (await engine.bounds(topic_queue(b"t"))).end == 2
    await engine.close()


async def test_interval_policy_commits_and_survives_a_restart(tmp_path: Path):
    config = StoreConfig(segment_size=1 << 14, policy="interval", interval_ms=1)
    engine = await Engine.open(tmp_path, config)
    for i in range(100):
        assert (await append(engine, message(b"t", b"%d" % i * 100))).error is None
    await engine.close()
    engine = await Engine.open(tmp_path, config)
    assert len(await payloads(engine, topic_queue(b"t"))) == 100
    assert (await engine.bounds(filter_queue(b"#"))).end == 0
    await engine.close()


@pytest.mark.parametrize(
    "bad",
    [{"partitions": 0}, {"segment_size": 5000}, {"policy": "never"}, {"spacing_ms": -1}, {"checkpoint_keys": 0},
     {"batch_bytes": 1}, {"max_queue_ends": 0}],
)  # fmt: skip
def test_config_is_checked(bad: dict[str, int]):
    with pytest.raises(ValueError, match="must"):
        StoreConfig(**bad)


@pytest.mark.parametrize("tail", [0, 1 << 20])
async def test_parts_of_records_can_be_left_out(tmp_path: Path, tail: int):
    """Of a topic's and a partition's; what is counted is what the records are in the log."""
    engine = await Engine.open(tmp_path, StoreConfig(partitions=1, segment_size=1 << 14, tail_cache_bytes=tail))
    for number in range(50):
        await append(engine, message(b"t/%d" % (number % 2), b"%d" % number * 100))
    for queue, count in ((partition_queue(b"t", 0), 50), (topic_queue(b"t/1"), 25)):
        whole = await engine.fetch(queue, 0, 100, 1 << 20)
        assert whole.count == count
        for parts in range(16):
            left = await engine.fetch(queue, 0, 100, len(whole.data), parts)
            assert (left.count, left.data) == (count, record.without(whole.data, parts))
            assert (await engine.fetch(queue, 0, 100, len(whole.data) - 1, parts)).count == count - 1
    await engine.close()


@pytest.mark.engine_only
async def test_reads_that_wait_for_the_device_leave_the_loop(tmp_path: Path):
    class ColdDisk(Disk):
        __slots__ = ()

        def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
            return False

    config = StoreConfig(segment_size=1 << 14, tail_cache_bytes=0)
    engine = await Engine.open(tmp_path, config, ColdDisk())
    for i in range(50):
        await append(engine, message(b"t", b"%d" % i * 100))
    assert await payloads(engine, topic_queue(b"t")) == [b"%d" % i * 100 for i in range(50)]
    assert len((await engine.read(0, 1)).data) == record.length_of(message(b"t", b"0" * 100), 0)
    await engine.close()


@pytest.mark.parametrize("reclaimed", [False, True])
async def test_views_of_another_version_are_folded_again_where_that_can_be(tmp_path: Path, reclaimed: bool):
    config = StoreConfig(segment_size=4096, retention_bytes=4096 * reclaimed, retention_check_s=3600)
    engine = await Engine.open(tmp_path, config)
    for i in range(20):
        await append(engine, message(b"a/b", b"%d" % i * 400))
    await engine._retention.enforce()
    await engine.close()
    database = Database(tmp_path / "views", 0)
    row = database.get(b"mcheckpoint")
    assert row is not None
    database.put_all([(b"mcheckpoint", row[:24] + (2).to_bytes(4, "big")), (b"pa", b"")])
    database.delete_ranges([(b"ta\0b", b"ta\0c")], b"pa", b"")
    database.close()
    if reclaimed:
        with pytest.raises(StoreError, match="of another version, and retention removed"):
            await Engine.open(tmp_path, config)
        return
    engine = await Engine.open(tmp_path, config)
    assert (await engine.topics(b"", None, 9)).names == [b"a/b"]
    assert await payloads(engine, topic_queue(b"a/b")) == [b"%d" % i * 400 for i in range(20)]
    await engine.close()
    database = Database(tmp_path / "views", 0)
    assert database.get(b"pa") is None
    database.close()


@pytest.mark.engine_only
async def test_flushed_views_bound_the_replay(tmp_path: Path):
    config = StoreConfig(segment_size=1 << 14, checkpoint_age_s=0, view_flush_bytes=0)
    engine = await Engine.open(tmp_path / "data", config)
    async with patience():
        await append(engine, message(b"t"), message(b"t"))
        await until(lambda: engine.stats().checkpoint == engine.stats().log_end and engine._view_flush is None)
    copy_image(tmp_path / "data", tmp_path / "killed")
    end = engine.stats().log_end
    await engine.close()
    database = Database(tmp_path / "killed" / "views", 1 << 20)
    assert database.checkpoint().position == end
    database.close()
    engine = await Engine.open(tmp_path / "killed", config)
    assert (await engine.bounds(topic_queue(b"t"))).end == 2
    await engine.close()
