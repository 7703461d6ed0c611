"""Retention takes segments whole, and whoever asks for what is gone is told what there is: never wrong data."""

import asyncio
import shutil
import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from record.layout import FLAG_RETAIN, Kind
from store import control
from store.api import Appended, Commit, StoredSubscription, filter_queue, partition_of, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import OffsetOutOfRange, StoreError, StoreFailed
from store.log.disk import Disk
from store.log.reader import LogReader
from store.views.database.database import Database
from tests.store.images import copy_image

pytestmark = pytest.mark.usefixtures("retention_on_request")

SEGMENT = 4096
AGE_MS, BYTES = 60_000, 6 * SEGMENT
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    generation_segments=2,
    checkpoint_keys=12,
    max_queue_ends=2,
    retention_age_s=AGE_MS / 1000,
    retention_bytes=BYTES,
    retention_check_s=3600,
    tail_cache_bytes=SEGMENT,
)
TOPICS = [b"a/b", b"a/c", b"b", b"b/x/y", b"c"]

messages = st.tuples(
    st.sampled_from(TOPICS), st.sampled_from([b"", b"v", b"w" * 300, b"x" * 2000]), st.booleans(), st.integers(1, 6)
)
histories = st.lists(
    st.one_of(
        st.lists(messages, min_size=1, max_size=8),
        st.lists(messages, min_size=1, max_size=8),
        st.sampled_from(["retain", "retain", "later", "reopen", "crash"]),
    ),
    max_size=40,
)


class Model:
    """A plain model of the answers of the store."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.now = 1_000_000  # ms
        self.records: list[tuple[int, int]] = []  # (position, store time) of all records, control too
        self.queues: dict[bytes, list[tuple[int, bytes]]] = {}  # (position, payload)
        self.retained: dict[bytes, bytes] = {}
        self.begin = 0
        self.end = 0

    def add(self, topic: bytes, payload: bytes, retain: bool, position: int) -> None:
        partition = partition_of(record.tag_of(topic, b""), self.partitions)
        names = [topic_queue(topic), partition_queue(topic.split(b"/")[0], partition), filter_queue(b"#")]
        for name in names:
            self.queues.setdefault(name, []).append((position, payload))
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)

    async def retain(self, engine: Engine) -> None:
        """Check twice: the record of a removal may itself begin a segment."""
        for _ in range(2):
            while self._may_go(self.begin + SEGMENT):
                self.begin += SEGMENT
            await engine._retention.enforce()
            end = engine.stats().log_end
            if end > self.end:
                self.records.append((end - 1, self.now))  # a byte of that record
                self.end = end

    def _may_go(self, following: int) -> bool:
        if following > (self.end - 1) // SEGMENT * SEGMENT:  # the segment of the last byte never goes
            return False
        newer = [time for position, time in self.records if position >= following]
        return self.end - following >= BYTES or newer[0] < self.now - AGE_MS

    async def check(self, engine: Engine) -> None:
        assert engine.stats().log_begin == self.begin
        assert engine.stats().log_end == self.end
        for name, entries in self.queues.items():
            begin = bisect_left(entries, (self.begin, b""))
            bounds = await engine.bounds(name)
            assert (bounds.begin, bounds.end) == (begin, len(entries))
            found: list[bytes] = []
            while begin + len(found) < len(entries):
                got = await engine.fetch(name, begin + len(found), 3, 1 << 20)
                found += [record.decode(got.data, start)[6] for start in record.split(got.data)]
            assert found == [payload for _, payload in entries[begin:]]
            if begin:
                with pytest.raises(OffsetOutOfRange) as caught:
                    await engine.fetch(name, begin - 1, 10, 1 << 20)
                assert (caught.value.begin, caught.value.end) == (begin, len(entries))
            assert await engine.offset_at(name, 0) == begin
        values = {value.topic: record.decode(value.frame, 0)[6] for value in await engine.retained(b"#", None, 100)}
        assert values == self.retained
        session = await engine.session(b"s")
        assert session is not None
        assert [s.topic_filter for s in session.subscriptions] == [b"#"]
        assert await engine.group_offsets(b"g", b"a") == {0: 7}


async def append(engine: Engine, frames: list[bytes]) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(frames, answer.set_result)
    return await answer


async def run(path: Path, history: list[object]) -> None:
    def clock() -> int:
        return model.now

    engine = await Engine.open(path / "0", CONFIG, clock=clock)
    model = Model(engine.partitions.default)
    first = [
        control.SessionOpened(1, 0xFFFFFFFF, True).frame(b"s"),
        control.subscribed(b"s", [StoredSubscription(b"#", 1, False, False, 0, 0, 0, 0)]),
        control.GroupOffsetsCommitted(b"a", {0: 7}).frame(b"g"),
    ]
    model.records += [(position, model.now) for position in (await append(engine, first)).positions]
    model.end = engine.stats().log_end
    for number, step in enumerate([*history, "retain", "reopen"]):
        if isinstance(step, list):
            frames = [
                record.frame(Kind.MESSAGE, FLAG_RETAIN * retain, 0, topic, b"", b"", payload)
                for topic, payload, retain, count in step
                for _ in range(count)
            ]
            done = await append(engine, frames)
            assert done.error is None
            for frame, position in zip(frames, done.positions, strict=True):
                fields = record.decode(frame, 0)
                model.records.append((position, model.now))
                model.add(fields[3], fields[6], bool(fields[1] & FLAG_RETAIN), position)
            model.end = engine.stats().log_end
        elif step == "later":
            model.now += AGE_MS // 2
        elif step == "retain":
            await model.retain(engine)
            await model.check(engine)
        else:
            await model.retain(engine)  # so that nothing is removed while the image is made
            engine = await again(engine, path, number, step == "crash", clock)
            await model.retain(engine)
            await model.check(engine)
    await engine.close()


async def again(engine: Engine, path: Path, number: int, crash: bool, clock: Callable[[], int]) -> Engine:
    """The store opened again, after a clean close or on what a kill leaves."""
    folder = path / str(number + 1)
    if crash:
        copy_image(engine._folder.path, folder)
    await engine.close()
    if not crash:
        engine._folder.path.rename(folder)
    return await Engine.open(folder, CONFIG, clock=clock)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories)
def test_any_history_with_retention_equals_the_model(tmp_path_factory, history):
    asyncio.run(run(tmp_path_factory.mktemp("retention"), history))


def frame(topic: bytes, size: int, flags: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, 0, topic, b"", b"", bytes(size))


async def test_a_queue_keeps_its_end_when_its_last_entry_is_gone(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    for name in [b"t/%d" % i for i in range(200)]:
        await append(engine, [frame(name, 1)] * 3)
    for _ in range(20):
        await append(engine, [frame(b"other", 3000)])
    await engine._retention.enforce()
    assert engine.stats().log_begin > 2 * 2 * SEGMENT
    for _ in range(2):
        for i in range(200):
            bounds = await engine.bounds(topic_queue(b"t/%d" % i))
            assert (bounds.begin, bounds.end) == (3, 3)
        await engine.close()
        left = [key for key, _ in _rows(tmp_path) if key.startswith(b"q\0\0\0\0")]
        assert left == []
        engine = await Engine.open(tmp_path, CONFIG)
    await append(engine, [frame(b"t/7", 1)])
    assert (await engine.fetch(topic_queue(b"t/7"), 3, 10, 100)).count == 1
    await engine.close()


def _rows(path: Path) -> list[tuple[bytes, bytes]]:
    database = Database(path / "views", 1 << 20)
    rows = list(database.scan(b"", b""))
    database.close()
    return rows


async def test_segments_that_the_stored_views_lack_are_kept(tmp_path: Path):
    """Views that are lost after retention cannot be folded anew: that is said, not papered over."""
    engine = await Engine.open(tmp_path / "data", CONFIG)
    for _ in range(20):
        await append(engine, [frame(b"other", 3000)])
    await engine._retention.enforce()
    begin = engine.stats().log_begin
    assert begin > 0
    copy_image(tmp_path / "data", tmp_path / "killed")
    await engine.close()
    killed = await Engine.open(tmp_path / "killed", CONFIG)
    assert (await killed.bounds(topic_queue(b"other"))).end == 20
    await killed.close()
    shutil.rmtree(tmp_path / "data" / "views")
    with pytest.raises(StoreError, match="restore the views from a backup"):
        await Engine.open(tmp_path / "data", CONFIG)


class ColdDisk(Disk):
    """Has nothing in the page cache: every read goes to a thread."""

    __slots__ = ()

    def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
        return False


@pytest.mark.parametrize("way", ["queue", "log", "retained"])
async def test_a_read_that_loses_its_segment_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str):
    engine = await Engine.open(tmp_path, CONFIG, disk=ColdDisk())
    await append(engine, [frame(b"kept", 50, FLAG_RETAIN)])
    for _ in range(20):
        await append(engine, [frame(b"other", 3000)])
    loop = asyncio.get_running_loop()
    with_file = LogReader._with_file
    late = True

    def read(reader: LogReader, base: int, function: Callable[..., object], *arguments: object) -> object:
        nonlocal late
        if late:  # in a thread of the reader, when retention is quicker
            late = False
            asyncio.run_coroutine_threadsafe(engine._retention.enforce(), loop).result(30)
        return with_file(reader, base, function, *arguments)

    monkeypatch.setattr(LogReader, "_with_file", read)
    if way == "retained":
        values = await engine.retained(b"#", None, 10)
        assert [record.decode(value.frame, 0)[6] for value in values] == [bytes(50)]
    else:
        attempt = engine.fetch(topic_queue(b"kept"), 0, 1, 10) if way == "queue" else engine.read(0, 10)
        with pytest.raises(OffsetOutOfRange) as caught:
            await attempt
        assert caught.value.begin == (1 if way == "queue" else engine.stats().log_begin)
    assert not late
    assert engine.stats().log_begin > 0
    await engine.close()


async def test_views_never_run_ahead_of_a_log_that_is_synced_later(tmp_path: Path):
    """Under the interval policy: views ahead of the log cannot be folded anew once retention has taken something."""
    config = replace(CONFIG, policy="interval", interval_ms=60_000, checkpoint_age_s=3600)
    engine = await Engine.open(tmp_path, config)
    seen: set[int] = set()

    def look(_: Commit) -> None:
        durable = engine._writer.durable
        saved = engine._database.checkpoint().position
        assert saved <= durable
        seen.add(saved)

    engine.on_commit(look)
    for i in range(300):
        await append(engine, [frame(b"t/%d" % (i % 40), 300)])
    assert len(seen) > 5
    await engine._retention.enforce()
    begin = engine.stats().log_begin
    assert 0 < begin <= engine._database.checkpoint().position <= engine._writer.durable
    assert (await engine.bounds(topic_queue(b"t/3"))).end == 8
    await engine.close()
    engine = await Engine.open(tmp_path, config)
    assert engine.stats().log_begin == begin
    await engine.close()


class UnsyncedDisk(Disk):
    """Cannot be synced once told so."""

    __slots__ = ("broken",)

    def __init__(self) -> None:
        self.broken = False

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        super().sync(fd)


async def test_no_segment_is_removed_if_the_log_cannot_be_synced(tmp_path: Path):
    disk = UnsyncedDisk()
    config = replace(CONFIG, policy="interval", interval_ms=60_000, checkpoint_age_s=3600, checkpoint_keys=10_000)
    engine = await Engine.open(tmp_path, config, disk=disk)
    for _ in range(30):
        await append(engine, [frame(b"t", 1000)])
    disk.broken = True
    with pytest.raises(StoreFailed):
        await engine._retention.enforce()
    assert engine.stats().failed
    assert engine.stats().log_begin == 0
    assert engine._database.checkpoint().position <= engine._writer.durable < engine.stats().log_end
    await engine.close()


async def test_a_store_closes_when_nothing_is_taken_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also what somebody asked for: another process may have the folder then."""
    engine = await Engine.open(tmp_path, CONFIG)
    for _ in range(30):
        await append(engine, [frame(b"t", 1000)])
    removing, go_on = threading.Event(), threading.Event()
    remove = Disk.remove

    def wait_and_remove(self: Disk, path: Path) -> None:
        removing.set()
        go_on.wait()
        remove(self, path)

    monkeypatch.setattr(Disk, "remove", wait_and_remove)
    enforcing = asyncio.create_task(engine._retention.enforce())
    await asyncio.to_thread(removing.wait)
    closing = asyncio.create_task(engine.close())
    for _ in range(100):
        await asyncio.sleep(0)
    monkeypatch.undo()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await closing
    assert enforcing.done(), "segments go from a folder that is not ours any more"
    await enforcing


async def test_a_pause_ends_when_it_is_cancelled_while_a_check_becomes_due(tmp_path: Path):
    """Otherwise the loop of a test that fails never closes."""
    engine = await Engine.open(tmp_path, CONFIG)
    pause = asyncio.create_task(engine._retention._pause(3600))
    for _ in range(10):
        await asyncio.sleep(0)
    engine._retention._is_due.set()
    pause.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pause
    await engine.close()
