"""Ages by parent topic: queues begin at them, and a segment stays as long as any parent wants what is in it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import record
from record.layout import FLAG_DELAYED, FLAG_RETAIN, Kind
from store import control
from store.api import (
    Appended,
    StoredSubscription,
    dead_letter_queue,
    filter_queue,
    partition_of,
    partition_queue,
    topic_queue,
)
from store.config import StoreConfig
from store.engine import Engine
from store.errors import NoSuchMessage, OffsetOutOfRange
from store.log.segments import segment_name
from store.views.queues.begins import Floors
from tests.store.moves import enter

pytestmark = [pytest.mark.any_store, pytest.mark.usefixtures("retention_on_request")]

SEGMENT = 4096
COMMON_S, AGES_S = 60, {b"brief": 20, b"long": 200, b"ever": 0}
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    generation_segments=2,
    checkpoint_keys=12,
    max_queue_ends=2,
    retention_age_s=COMMON_S,
    retention_parents=AGES_S,
    retention_check_s=3600,
    tail_cache_bytes=SEGMENT,
)
TOPICS = [b"brief/1", b"brief/2", b"long/1", b"ever", b"common/1", b"other"]


def frame(topic: bytes, payload: bytes, flags: int = 0, properties: bytes = b"") -> bytes:
    return record.frame(Kind.MESSAGE, flags, 0, topic, b"", properties, payload)


async def append(engine: Engine, *frames: bytes) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), answer.set_result)
    done = await answer
    assert done.error is None
    return done


async def subscribe(engine: Engine) -> None:
    wish = StoredSubscription(b"#", 1, False, False, 0, 0, 0, 0)
    await append(engine, control.SessionOpened(1, 0xFFFFFFFF, True).frame(b"s"), control.subscribed(b"s", [wish]))


class Log:
    """A store, its clock, and what it must answer."""

    def __init__(self, path: Path, config: StoreConfig) -> None:
        self.path = path
        self.config = config
        self.now = 1_000_000
        self.looked = self.now  # when retention did
        self.begin = 0
        self.end = 0
        self.records: list[tuple[int, int, bytes]] = []  # (position, store time, topic), b"" for control records
        self.engine: Engine

    async def open(self) -> None:
        self.engine = await Engine.open(self.path, self.config, clock=lambda: self.now)
        self.looked = self.now

    async def reopen(self) -> None:
        await self.engine.close()
        await self.open()

    async def publish(self, topic: bytes, size: int) -> None:
        (position,) = (await append(self.engine, frame(topic, bytes(size)))).positions
        self.records.append((position, self.now, topic))
        self.end = self.engine.stats().log_end

    def age_s(self, topic: bytes) -> float:
        return self.config.retention_parents.get(topic.split(b"/")[0], self.config.retention_age_s)

    def is_past(self, time: int, topic: bytes) -> bool:
        age = self.age_s(topic)
        return age > 0 and time < self.now - age * 1000

    async def retain(self) -> None:
        """Check twice: the record of a removal may itself begin a segment."""
        self.looked = self.now
        for _ in range(2):
            while self.may_go(self.begin + SEGMENT):
                self.begin += SEGMENT
            await self.engine._retention.enforce()
            end = self.engine.stats().log_end
            if end > self.end:
                self.records.append((end - 1, self.now, b""))  # a byte of that record
                self.end = end

    def may_go(self, following: int) -> bool:
        """Whether the segment in front of `following` may be removed."""
        if following > (self.end - 1) // SEGMENT * SEGMENT:  # the segment of the last byte never goes
            return False
        size = self.config.retention_bytes
        if size and self.end - following - self.freed(following) >= size:
            return True
        newest = next(time for position, time, _ in self.records if position >= following)
        inside = [topic for position, _, topic in self.records if self.begin <= position < following]
        return all(self.is_past(newest, topic) for topic in inside if topic)

    def freed(self, begin: int) -> int:
        """Bytes from `begin` on that take no place on disk, because nobody needs the records there."""
        paths = [self.path / "log" / segment_name(base) for base in range(begin, self.end, SEGMENT)]
        return sum(SEGMENT - 512 * path.stat().st_blocks for path in paths)

    def is_there(self, position: int, time: int, topic: bytes) -> bool:
        age = self.age_s(topic)
        return position >= self.begin and not (age > 0 and time < self.looked - age * 1000)

    async def check(self) -> None:
        assert self.engine.stats().log_begin == self.begin
        for topic in TOPICS:
            own = [entry for entry in self.records if entry[2] == topic]
            await self.check_queue(topic_queue(topic), own)
        for parent in {topic.split(b"/")[0] for topic in TOPICS}:
            count = self.engine.partition_count(parent)
            for number in range(count):
                own = [
                    entry
                    for entry in self.records
                    if entry[2].split(b"/")[0] == parent and partition_of(record.tag_of(entry[2], b""), count) == number
                ]
                await self.check_queue(partition_queue(parent, number), own)
        if await self.engine.session(b"s") is not None:
            await self.check_queue(filter_queue(b"#"), [entry for entry in self.records if entry[2]])

    async def check_queue(self, queue: bytes, entries: list[tuple[int, int, bytes]]) -> None:
        there = [offset for offset, entry in enumerate(entries) if self.is_there(*entry)]
        bounds = await self.engine.bounds(queue)
        assert bounds.end == len(entries)
        if queue[:1] != b"f":
            assert bounds.begin == (there[0] if there else len(entries))
            if bounds.begin:
                with pytest.raises(OffsetOutOfRange):
                    await self.engine.fetch(queue, bounds.begin - 1, 1, 1)
        assert await self.engine.offset_at(queue, 0) == bounds.begin
        found, offset = [], bounds.begin
        while offset < len(entries):
            fetched = await self.engine.fetch(queue, offset, 3, 1 << 20)
            for number, start in enumerate(record.split(fetched.data)):
                assert record.position_of(fetched.data, start) == entries[fetched.offset + number][0]
            assert fetched.count or fetched.next_offset == len(entries)
            found += range(fetched.offset, fetched.next_offset)
            offset = fetched.next_offset
        assert found == there


@pytest.mark.engine_only
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(TOPICS), st.sampled_from([1, 300, 2000]), st.integers(1, 4)),
            st.integers(1, 70),
            st.sampled_from(["retain", "reopen"]),
        ),
        max_size=40,
    ),
    st.sampled_from([0, 60]),
    st.sampled_from([0, 6 * SEGMENT]),
)
@example(
    history=[(b"long/1", 2000, 3), (b"brief/1", 2000, 3), 21, "retain", (b"brief/1", 2000, 2)],
    common_s=0,
    size=6 * SEGMENT,
)
def test_any_history_with_ages_by_parent_equals_the_model(tmp_path_factory, history, common_s, size):
    config = replace(CONFIG, retention_age_s=common_s, retention_bytes=size)
    log = Log(tmp_path_factory.mktemp("parents") / "data", config)

    async def run() -> None:
        await log.open()
        await subscribe(log.engine)
        log.records.append((0, log.now, b""))
        for step in [*history, "retain"]:
            if isinstance(step, tuple):
                topic, length, count = step
                for _ in range(count):
                    await log.publish(topic, length)
            elif isinstance(step, int):
                log.now += step * 1000
            elif step == "retain":
                await log.retain()
                await log.check()
            else:
                await log.reopen()
                await log.retain()  # it also looks by itself, some time after it was opened
                await log.check()
        await log.engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("counts", [{}, {b"long": 7}])
async def test_a_parent_keeps_only_segments_that_it_has_records_in(tmp_path: Path, counts: dict[bytes, int]):
    log = Log(tmp_path, replace(CONFIG, parent_partitions=counts))
    await log.open()
    for _ in range(8):
        await log.publish(b"brief/1", 1500)
    for _ in range(4):
        await log.publish(b"common/1", 1500)
    await log.publish(b"long/1", 100)
    for _ in range(10):
        log.now += 1000
        await log.publish(b"common/1", 1500)
    log.now += 30_000
    await log.retain()
    assert log.begin == 4 * SEGMENT  # nothing but what is brief was in them, and that is past
    log.now += 50_000
    await log.retain()
    assert log.begin == 5 * SEGMENT  # up to the one with the record that is to stay long
    await log.check()
    log.now += 200_000
    await log.publish(b"common/1", 1)
    await log.retain()
    assert log.begin == (log.engine.stats().log_end - 1) // SEGMENT * SEGMENT
    await log.check()
    await log.engine.close()


async def test_the_cost_does_not_grow_with_queues_and_is_bounded_with_parents(tmp_path: Path, monkeypatch):
    config = replace(CONFIG, retention_age_s=0, retention_parents={b"brief": 20})
    log = Log(tmp_path, config)
    await log.open()
    for number in range(300):
        await log.publish(b"brief/%d" % number, 60)
    parents = 3
    for number in range(parents):
        await log.publish(b"p%d" % number, 1500)
    log.now += 60_000
    await log.publish(b"brief/1", 1)
    asked = 0
    has_entered = type(log.engine._views).has_entered

    def counted(*arguments):
        nonlocal asked
        asked += 1
        return has_entered(*arguments)

    monkeypatch.setattr(type(log.engine._views), "has_entered", counted)
    await log.engine._retention.enforce()
    begin = log.engine.stats().log_begin
    assert begin >= 6 * SEGMENT
    assert asked <= (begin // SEGMENT + 1) * log.engine.partitions.default * parents
    before, asked = asked, 0
    for _ in range(5):
        await log.engine._retention.enforce()
    assert asked <= 5 * log.engine.partitions.default  # the parent that kept the segment last is asked first
    assert before > asked / 5
    await log.engine.close()
    monkeypatch.setattr("store.retention.expiry._MAX_PARENTS", 2)
    log.path = tmp_path / "again"
    log.records.clear()
    await log.open()
    for number in range(parents):
        await log.publish(b"p%d" % number, 0)
    for _ in range(30):
        await log.publish(b"brief/1", 1500)
    log.now += 60_000
    await log.publish(b"brief/1", 1)
    await log.engine._retention.enforce()
    assert log.engine.stats().log_begin == 0
    await log.engine.close()


async def test_messages_beyond_their_age_are_not_found_and_retained_values_stay(tmp_path: Path):
    key = b"\x26" + b"\0\3key" + b"\0\1k"
    log = Log(tmp_path, CONFIG)
    await log.open()
    (old,) = (await append(log.engine, frame(b"brief/1", b"old", FLAG_RETAIN, key))).positions
    (ever,) = (await append(log.engine, frame(b"ever", b"ever", 0, key))).positions
    log.now += 30_000
    (new,) = (await append(log.engine, frame(b"brief/1", b"new", 0, key))).positions
    assert (await log.engine.by_key(b"brief", b"k", None, 10, 1 << 20)).count == 2
    await log.engine._retention.enforce()
    found = await log.engine.by_key(b"brief", b"k", None, 10, 1 << 20)
    assert [record.position_of(found.data, start) for start in record.split(found.data)] == [new]
    assert (await log.engine.by_key(b"ever", b"k", None, 10, 1 << 20)).count == 1
    with pytest.raises(NoSuchMessage, match="is older than its topic"):
        await log.engine.message(old)
    for position in (ever, new):
        assert record.position_of(await log.engine.message(position), 0) == position
    values = await log.engine.retained(b"#", None, 10)
    assert [record.decode(value.frame, 0)[6] for value in values] == [b"old"]
    await log.engine.close()


async def test_queues_of_many_parents_skip_what_is_too_old(tmp_path: Path):
    """Also long runs of it; a message that entered late is as old as its entry."""
    log = Log(tmp_path, replace(CONFIG, segment_size=1 << 16))
    await log.open()
    await subscribe(log.engine)
    await log.publish(b"ever", 1)
    for _ in range(300):
        await log.publish(b"brief/1", 1)
    await log.publish(b"long/1", 1)
    log.now += 30_000
    await append(log.engine, frame(b"brief/2", b"young"))
    position, _, _ = log.records[1]
    moved = enter(log.engine, b"brief/1", position, 48 + len(b"brief/1") + 1)
    await log.engine._retention.enforce()
    queue = filter_queue(b"#")
    found, offset = [], 0
    while (fetched := await log.engine.fetch(queue, offset, 100, 1 << 20)).count:
        found += range(fetched.offset, fetched.next_offset)
        offset = fetched.next_offset
    assert found == [0, 301, 302, 303]
    assert moved.filter_offsets == ((b"#", 303),)
    assert (await log.engine.bounds(topic_queue(b"brief/1"))).begin == 300
    assert (await log.engine.fetch(queue, 5, 1, 1)).offset == 301
    await log.engine.close()


def test_floors_are_found_by_queue():
    floors = Floors({b"a": 7, b"": 3, b"x\0y": 4}, 5)
    assert floors.highest == 7
    assert floors.of_queue(topic_queue(b"a/b/c")) == floors.of_queue(topic_queue(b"a")) == 7
    assert floors.of_queue(topic_queue(b"/a")) == floors.of_queue(partition_queue(b"", 9)) == 3
    assert floors.of_queue(partition_queue(b"x\0y", 0)) == 4
    assert floors.of_queue(partition_queue(b"b", 256)) == 5
    assert floors.of_queue(filter_queue(b"a/#")) == floors.of_queue(dead_letter_queue(b"a")) == 0


async def test_floors_do_not_go_back_with_the_clock(tmp_path: Path):
    log = Log(tmp_path, CONFIG)
    await log.open()
    await log.publish(b"brief/1", 1)
    log.now += 30_000
    await log.publish(b"brief/1", 1)
    await log.engine._retention.enforce()
    log.now -= 25_000
    await log.engine._retention.enforce()
    assert (await log.engine.bounds(topic_queue(b"brief/1"))).begin == 1
    await log.engine.close()


async def test_a_message_that_was_held_stays_as_long_as_its_parent_wants(tmp_path: Path):
    """It entered its queues behind its neighbours in the log: its segment holds it all the same."""
    log = Log(tmp_path, CONFIG)
    await log.open()
    due = log.now + 30_000
    await append(log.engine, record.frame(Kind.MESSAGE, FLAG_DELAYED, 0, b"ever", b"", b"", b"late", due))
    for _ in range(4):
        await append(log.engine, frame(b"brief/1", bytes(2000)))
    log.now += 30_000
    await log.engine.release_due()
    for _ in range(4):
        await append(log.engine, frame(b"brief/1", bytes(2000)))
    log.now += 3_600_000
    await append(log.engine, frame(b"brief/1", b""))
    await log.engine._retention.enforce()
    fetched = await log.engine.fetch(topic_queue(b"ever"), 0, 1, 1 << 20)
    assert record.decode(fetched.data, 0)[6] == b"late"
    await log.reopen()
    await log.engine._retention.enforce()
    assert (await log.engine.fetch(topic_queue(b"ever"), 0, 1, 1 << 20)).count == 1
    await log.engine.close()


async def test_a_message_that_enters_while_others_are_kept_has_its_segment_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = Log(tmp_path, CONFIG)
    await log.open()
    due = log.now + 30_000
    await append(log.engine, record.frame(Kind.MESSAGE, FLAG_DELAYED, 0, b"ever", b"", b"", b"late", due))
    for _ in range(8):
        await append(log.engine, frame(b"brief/1", bytes(2000)))
    removal = log.engine._retention.removal
    keep_held = removal.keep_held

    async def after_its_time_came(cut: int) -> None:
        await log.engine.release_due()
        await keep_held(cut)

    monkeypatch.setattr(removal, "keep_held", after_its_time_came)
    log.now += 3_600_000
    await append(log.engine, frame(b"brief/1", b""))
    await log.engine._retention.enforce()
    assert log.engine.stats().log_begin == 0
    assert (await log.engine.fetch(topic_queue(b"ever"), 0, 1, 1 << 20)).count == 1
    await log.engine.close()
