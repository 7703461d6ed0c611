"""Delayed messages and transactions in a store: they enter their queues when they are due or committed, once."""

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import record
import store.held.release as service
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, Kind
from store import control
from store.api import Commit, HeldMessage, StoredSubscription, filter_queue, partition_of, partition_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import RecordTooLarge, StoreBusy
from store.log.disk import Disk
from store.log.writer import clock_ms
from tests.store.images import copy_image
from tests.store.test_engine import append

pytestmark = [pytest.mark.any_store, pytest.mark.usefixtures("retention_on_request")]

SEGMENT = 4096
HOUR = 3_600_000  # ms
YEAR = 365 * 24 * HOUR
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    generation_segments=2,
    checkpoint_keys=12,
    tail_cache_bytes=SEGMENT,
    retention_age_s=3600,
    retention_check_s=3600,
    transaction_check_s=60,
    transaction_checks=3,
)
LAST = 2**64 - 1


class Clock:
    """Stands until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def frame(topic: bytes, flags: int, due: int = 0, payload: bytes = b"x", packet: int = 0) -> bytes:
    trailer = due if flags & FLAG_DELAYED else None
    return record.frame(Kind.MESSAGE, flags, packet, topic, b"me", b"", payload, trailer)


def delayed(topic: bytes, due: int, payload: bytes = b"x", flags: int = 0) -> bytes:
    return frame(topic, FLAG_DELAYED | flags, due, payload)


async def hold(engine: Engine, *frames: bytes) -> list[int]:
    """Append held messages. Their handles."""
    done = await append(engine, *frames)
    assert done.error is None
    return list(done.positions)


async def payloads(engine: Engine, queue: bytes) -> list[bytes]:
    """The messages that a reader gets from the beginning of the queue."""
    found: list[bytes] = []
    offset = (await engine.bounds(queue)).begin
    while (got := await engine.fetch(queue, offset, 100, 1 << 20)).count:
        found += [record.decode(got.data, start)[6] for start in record.split(got.data)]
        offset = got.next_offset
    return found


async def fill(engine: Engine, segments: int = 3, size: int = 3000) -> None:
    """Write so much that what is in the log now lies in segments that may go."""
    for _ in range(0, segments * 3000, size):
        done = await append(engine, frame(b"fill", 0, payload=bytes(size)))
        assert done.error is None


async def timers(engine: Engine) -> list[int]:
    return [held.handle for held in (await engine.timers(None, 9999)).messages]


async def transactions(engine: Engine) -> list[int]:
    return [held.handle for held in (await engine.transactions(None, 9999)).messages]


def rows(engine: Engine, view: bytes) -> list[bytes]:
    engine._views.checkpoint(engine._writer.durable)
    return [key for key, _ in engine._database.scan(view, view)]


async def reopen(engine: Engine, clock: Clock, kill: bool, config: StoreConfig = CONFIG) -> Engine:
    """The store opened again, after a clean close or on what a kill leaves."""
    old = engine._folder.path
    new = old.with_name(old.name + "x")
    if kill:
        copy_image(old, new)
    await engine.close()
    if not kill:
        old.rename(new)
    return await Engine.open(new, config, clock=clock)


async def test_a_delayed_message_is_nowhere_before_its_time_and_everywhere_then(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    opened = control.SessionOpened(1, LAST >> 32, True).frame(b"s")
    late = control.subscribed(b"s", [StoredSubscription(b"+/t", 1, False, False, 0, 0, 0, 0)])
    number = partition_of(record.tag_of(b"a/t", b""), engine.partition_count(b"a"))
    queues = [topic_queue(b"a/t"), partition_queue(b"a", number)]
    (handle,) = await hold(engine, delayed(b"a/t", clock.now + 5000, b"later", FLAG_RETAIN | 1))
    await append(engine, opened, late)
    clock.now += 4999
    await engine.release_due()
    assert [(await engine.bounds(queue)).end for queue in queues] == [0, 0]
    assert await engine.retained(b"#", None, 9) == []
    assert (await engine.topics(b"", None, 9)).names == []
    assert (await engine.children(b"", None, 9)).children == []
    assert (await engine.timers(None, 9)).messages == [HeldMessage(handle, b"a/t", b"me", 1_005_000, 0)]
    assert engine.stats().messages == 0
    clock.now += 1
    await engine.release_due()
    for queue in (*queues, filter_queue(b"+/t")):
        assert await payloads(engine, queue) == [b"later"]
        assert await engine.offset_at(queue, clock.now) == 0
        assert await engine.offset_at(queue, clock.now + 1) == 1
    assert [value.topic for value in await engine.retained(b"#", None, 9)] == [b"a/t"]
    assert (await engine.topics(b"", None, 9)).names == [b"a/t"]
    assert await timers(engine) == []
    assert engine.stats().messages == 1
    await engine.close()


@pytest.mark.parametrize("kill", [False, True])
async def test_thousands_that_fall_due_at_once_enter_by_due_time_and_arrival(tmp_path: Path, kill: bool):
    clock = Clock()
    config = StoreConfig(segment_size=1 << 20)
    engine = await Engine.open(tmp_path / "data", config, clock=clock)
    dice = random.Random(7)
    dues = [clock.now + dice.randrange(1, 50) for _ in range(3000)]
    for first in range(0, 3000, 500):
        await hold(engine, *[delayed(b"t", due, b"%d" % due) for due in dues[first : first + 500]])
        await append(engine, frame(b"t", 0, payload=b"plain"))
    engine = await reopen(engine, clock, kill, config)
    assert len(await timers(engine)) == 3000
    most: list[int] = []
    engine.on_commit(lambda commit: most.append(len(commit.moved)))
    clock.now += 50
    await engine.release_due()
    assert 0 < max(most) <= service._MAX_HANDLES
    assert await payloads(engine, topic_queue(b"t")) == [b"plain"] * 6 + [b"%d" % due for due in sorted(dues)]
    references = engine._views.references(topic_queue(b"t"), 6, 3000)
    positions, _, times, _ = record.unpack_refs(references)
    assert set(times) == {clock.now}
    assert positions != sorted(positions)
    engine = await reopen(engine, clock, kill, config)
    await engine.release_due()
    assert (await engine.bounds(topic_queue(b"t"))).end == 3006
    assert (rows(engine, b"d"), rows(engine, b"h")) == ([], [])
    await engine.close()


async def moved_by(engine: Engine, count: int) -> list[bytes]:
    """Wait until so many messages were let go. Their topics."""
    topics: list[bytes] = []
    enough = asyncio.Event()

    def listen(commit: Commit) -> None:
        topics.extend(moved.topic for moved in commit.moved)
        if len(topics) >= count:
            enough.set()

    engine.on_commit(listen)
    await enough.wait()
    return topics


async def test_the_timer_wakes_for_what_is_due_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "_LONGEST_S", 3600)
    clock = Clock()
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 20), clock=clock)
    waiting = asyncio.ensure_future(moved_by(engine, 4))
    await asyncio.sleep(0)
    now = clock.now
    await hold(engine, delayed(b"far", now + HOUR), delayed(b"never", LAST), delayed(b"huge", YEAR * 1000))
    await hold(engine, delayed(b"second", now + 60), delayed(b"third", now + 90))
    await hold(engine, delayed(b"first", now + 20))
    await hold(engine, delayed(b"past", 0))
    began = clock_ms()
    while not waiting.done():
        clock.now = now + clock_ms() - began
        await asyncio.sleep(0.001)
    assert waiting.result() == [b"past", b"first", b"second", b"third"]
    assert clock.now >= now + 90
    assert [held.topic for held in (await engine.timers(None, 9)).messages] == [b"far", b"huge", b"never"]
    await engine.close()


@pytest.mark.engine_only
async def test_messages_due_while_the_node_was_down_are_released_at_the_start(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    await hold(engine, delayed(b"t", clock.now + 1000, b"down"))
    clock.now += 500
    engine = await reopen(engine, clock, kill=True)
    await engine.release_due()
    assert (await engine.bounds(topic_queue(b"t"))).end == 0
    await engine.close()
    clock.now += 500
    engine = await Engine.open(engine._folder.path, CONFIG, clock=clock)
    assert await moved_by(engine, 1) == [b"t"]
    assert await payloads(engine, topic_queue(b"t")) == [b"down"]
    await engine.close()


@pytest.mark.engine_only
async def test_recall_says_which_could_not_be_recalled(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    one, two, three, half = await hold(
        engine, *[delayed(b"t", clock.now + 10 * i, b"%d" % i) for i in (1, 2, 3)], frame(b"t", FLAG_HALF)
    )
    clock.now += 10
    await engine.release_due()
    assert await engine.recall([]) == []
    assert await engine.recall([one, two, two, half, 5, -1, LAST + 1]) == [one, half, 5, -1, LAST + 1]
    assert await engine.recall([two]) == [two]
    engine = await reopen(engine, clock, kill=True)
    clock.now += 100
    await engine.release_due()
    assert await payloads(engine, topic_queue(b"t")) == [b"1", b"3"]
    assert await engine.recall([three]) == [three]
    assert await transactions(engine) == [half]
    ending = asyncio.ensure_future(engine.end_transaction([half], False))
    await asyncio.sleep(0)
    await engine.close()
    assert await ending == []


@pytest.mark.engine_only
async def test_a_message_is_either_fired_or_recalled(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    handles = await hold(engine, *[delayed(b"t", clock.now + HOUR + i % 3, b"%d" % i) for i in range(400)])
    clock.now += 2 * HOUR
    dice = random.Random(3)
    wishes = [dice.sample(handles, 40) for _ in range(12)]
    first = asyncio.ensure_future(engine.recall(wishes[0]))
    looking = asyncio.ensure_future(engine.release_due())
    await asyncio.sleep(0)
    missed = await asyncio.gather(first, *[engine.recall(wish) for wish in wishes[1:]])
    await looking
    await engine.release_due()
    recalled: set[int] = set()
    for wish, missing in zip(wishes, missed, strict=True):
        done = set(wish) - set(missing)
        assert not done & recalled
        recalled |= done
    entered = record.unpack_refs(engine._views.references(topic_queue(b"t"), 0, 1000))[0]
    assert sorted([*entered, *recalled]) == handles
    assert set(wishes[0]) <= recalled < set(handles)
    await engine.close()


async def test_a_caller_that_gives_up_leaves_no_claim(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    engine = await Engine.open(tmp_path, CONFIG, clock=Clock())
    (handle,) = await hold(engine, frame(b"t", FLAG_HALF))
    giving_up = asyncio.ensure_future(engine.end_transaction([handle], True))
    await asyncio.sleep(0)
    giving_up.cancel()
    missing = await engine.end_transaction([handle], False)
    # A gateway may give up before it has sent the call: the message is then rolled back.
    assert ((await engine.bounds(topic_queue(b"t"))).end, missing) in [(1, [handle]), (0, [])]
    await engine.close()
    assert caplog.records == []


@pytest.mark.engine_only
@pytest.mark.parametrize("busy", [False, True])
async def test_a_claimed_message_is_checked_when_the_claim_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
):
    monkeypatch.setattr(service, "_LONGEST_S", 3600)
    clock = Clock()
    engine = await Engine.open(tmp_path, replace(CONFIG, max_pending_bytes=2048), clock=clock)
    waiting = asyncio.ensure_future(moved_by(engine, 1))
    first, _ = await hold(engine, delayed(b"claimed", clock.now + HOUR), delayed(b"other", clock.now + 2 * HOUR))
    clock.now += HOUR
    if busy:
        fill_up(engine)
    recalling = asyncio.ensure_future(engine.recall([first]))
    await asyncio.sleep(0)
    assert list(engine._held._claims) == [first]
    engine._held._wake()  # as the timer does
    if busy:
        with pytest.raises(StoreBusy):
            await recalling
        assert await waiting == [b"claimed"]
    else:
        assert await recalling == []
        clock.now += HOUR
        await engine.release_due()
        assert await waiting == [b"other"]
        assert await timers(engine) == []
    await engine.close()


def fill_up(engine: Engine) -> None:
    """Have a log of 2 KiB refuse what comes next, control records too."""
    engine.append([frame(b"full", 0, payload=bytes(1700))], lambda _: None)
    engine.append([control.SessionOpened(1, 1, True).frame(bytes(200))], lambda _: None)


async def test_half_messages_are_delivered_or_dropped_as_their_transaction_ends(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    a, b, c, d = await hold(engine, *[frame(b"t", FLAG_HALF, payload=name) for name in (b"a", b"b", b"c", b"d")])
    assert await transactions(engine) == [a, b, c, d]
    assert (await engine.bounds(topic_queue(b"t"))).end == 0
    assert await engine.end_transaction([c, a], True) == []
    assert await engine.end_transaction([b, a], False) == [a]
    assert await payloads(engine, topic_queue(b"t")) == [b"c", b"a"]
    engine = await reopen(engine, clock, kill=True)
    assert await transactions(engine) == [d]
    assert await engine.end_transaction([d, b], True) == [b]
    assert await payloads(engine, topic_queue(b"t")) == [b"c", b"a", b"d"]
    assert rows(engine, b"c") == []
    await engine.close()


@pytest.mark.engine_only
async def test_publishers_are_asked_and_orphans_rolled_back(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    asked: list[tuple[int, int]] = []

    def listen(halves: Sequence[HeldMessage]) -> None:
        asked.extend((half.handle, half.rounds) for half in halves)
        raise ValueError("a listener that fails")

    engine.on_transaction_check(listen)
    first, committed = await hold(engine, frame(b"t", FLAG_HALF), frame(b"t", FLAG_HALF, payload=b"told"))
    clock.now += 30_000
    (second,) = await hold(engine, frame(b"t", FLAG_HALF))
    clock.now += 29_999
    await engine.release_due()
    assert asked == []
    clock.now += 1
    await engine.release_due()
    assert asked == [(first, 1), (committed, 1)]
    await engine.end_transaction([committed], True)
    clock.now += 30_000
    await engine.release_due()
    assert asked[2:] == [(second, 1)]
    engine = await reopen(engine, clock, kill=True)
    asked.clear()
    engine.on_transaction_check(listen)
    clock.now += 30_000
    await engine.release_due()
    assert asked == [(first, 2)]
    for _ in range(3):
        clock.now += 60_000
        await engine.release_due()
    assert asked == [(first, 2), (second, 2), (first, 3), (second, 3)]
    assert await transactions(engine) == []
    assert rows(engine, b"c") == []
    assert await payloads(engine, topic_queue(b"t")) == [b"told"]
    await engine.close()


@pytest.mark.engine_only
async def test_another_publisher_is_asked_when_it_is_known_that_the_own_one_is_not_there(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    (own, other) = await hold(engine, frame(b"t", FLAG_HALF), frame(b"t", FLAG_HALF))
    asked: list[tuple[int, int, bool]] = []
    knows = True

    def listen(halves: Sequence[HeldMessage]) -> list[int] | None:
        asked.extend((half.handle, half.rounds, half.is_orphan) for half in halves)
        return [own] if knows else None

    engine.on_transaction_check(listen)
    clock.now += 60_000
    await engine.release_due()
    assert asked == [(own, 1, False), (other, 1, False), (other, 1, True)]
    asked.clear()
    knows = False
    clock.now += 60_000
    await engine.release_due()
    assert asked == [(own, 2, False), (other, 2, True)]
    engine.publishers_asked([other])  # a gateway says so later
    asked.clear()
    clock.now += 60_000
    await engine.release_due()
    assert asked == [(own, 3, True), (other, 3, False)]
    await engine.close()


async def test_orphans_are_rolled_back_at_once_without_a_check(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path, replace(CONFIG, transaction_checks=0), clock=clock)
    engine.on_transaction_check(lambda halves: pytest.fail("nobody is to be asked"))
    await hold(engine, frame(b"t", FLAG_HALF))
    clock.now += 60_000
    await engine.release_due()
    assert await transactions(engine) == []
    await engine.close()


async def test_a_delayed_half_waits_for_its_transaction_and_for_its_time(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    early, late = await hold(
        engine, frame(b"t", FLAG_HELD, clock.now, b"e"), frame(b"t", FLAG_HELD, clock.now + 9, b"l")
    )
    await engine.release_due()
    assert await timers(engine) == []
    assert await engine.recall([early]) == [early]
    assert await engine.end_transaction([early, late], True) == []
    await engine.release_due()
    assert await payloads(engine, topic_queue(b"t")) == [b"e"]
    assert await engine.end_transaction([late], False) == [late]
    clock.now += 9
    await engine.release_due()
    assert await payloads(engine, topic_queue(b"t")) == [b"e", b"l"]
    await engine.close()


@pytest.mark.engine_only
async def test_a_year_of_delay_with_an_hour_of_retention(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    topics = {b"year": FLAG_DELAYED | FLAG_RETAIN | 1, b"half": FLAG_HALF | FLAG_TRACK_ID | 2, b"both": FLAG_HELD}
    frames = [frame(name, flags, clock.now + YEAR, name * 9, 7) for name, flags in topics.items()]
    frames += [delayed(b"recalled", clock.now + YEAR), frame(b"rolled back", FLAG_HALF)]
    year, half, both, recalled, rolled_back = handles = await hold(engine, *frames)
    for kill in (False, True, False):
        await fill(engine)
        clock.now += 2 * HOUR
        await engine._retention.enforce()
        assert engine.stats().log_begin > rolled_back
        assert [int.from_bytes(key[1:], "big") for key in rows(engine, b"b")] == handles
        engine = await reopen(engine, clock, kill)
    assert await engine.recall([recalled]) == []
    assert await engine.end_transaction([rolled_back], False) == []
    assert await engine.end_transaction([half, both], True) == []
    assert await payloads(engine, topic_queue(b"half")) == [b"half" * 9]
    got = await engine.fetch(topic_queue(b"half"), 0, 1, 1)
    assert record.decode(got.data, 0)[1:3] == (FLAG_REVIVED | 2, 0)
    assert await timers(engine) == [year, both]
    clock.now = 1_000_000 + YEAR - 1
    await engine.release_due()
    assert (await engine.bounds(topic_queue(b"year"))).end == 0
    clock.now += 1
    commits: list[Commit] = []
    engine = await reopen(engine, clock, kill=True)
    engine.on_commit(commits.append)
    await engine.release_due()
    assert [(commit.topics, commit.moved) for commit in commits] == [([b"year", b"both"], [])]
    for name in (b"both", b"year"):
        got = await engine.fetch(topic_queue(name), 0, 9, 1 << 20)
        kind, flags, packet, topic, publisher, properties, payload = record.decode(got.data, 0)
        assert (kind, packet, topic, publisher, properties, payload) == (Kind.MESSAGE, 0, name, b"me", b"", name * 9)
        assert flags == FLAG_REVIVED | (FLAG_RETAIN | 1 if name == b"year" else 0)
        assert record.store_time_of(got.data, 0) == clock.now
    assert [value.topic for value in await engine.retained(b"#", None, 9)] == [b"year"]
    for name in (b"recalled", b"rolled back"):
        assert (await engine.bounds(topic_queue(name))).end == 0
    assert [rows(engine, view) for view in (b"h", b"b", b"d", b"c")] == [[], [], [], []]
    await engine.close()


async def test_messages_by_record_and_by_copy_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "_COPIED_BYTES", 600)
    clock = Clock()
    engine = await Engine.open(tmp_path / "data", CONFIG, clock=clock)
    old = await hold(engine, *[frame(b"t", FLAG_HALF, payload=b"%d" % i + bytes(200)) for i in range(0, 20, 2)])
    await hold(engine, *[delayed(b"d", clock.now + 3 * HOUR + i, b"%d" % i + bytes(200)) for i in range(0, 20, 2)])
    await fill(engine, 4)
    clock.now += 2 * HOUR
    await engine._retention.enforce()
    assert len(rows(engine, b"b")) == 20
    new = await hold(engine, *[frame(b"t", FLAG_HALF, payload=b"%d" % i + bytes(200)) for i in range(1, 20, 2)])
    await hold(engine, *[delayed(b"d", clock.now + HOUR + i, b"%d" % i + bytes(200)) for i in range(1, 20, 2)])
    sizes: list[int] = []
    engine.on_commit(lambda commit: sizes.append(len(commit.data)))
    assert await engine.end_transaction([handle for pair in zip(old, new, strict=True) for handle in pair], True) == []
    clock.now += 2 * HOUR
    await engine.release_due()
    assert max(sizes) < 1200
    for name in (b"t", b"d"):
        assert [int(payload[:-200]) for payload in await payloads(engine, topic_queue(name))] == list(range(20))
    await engine.close()


async def test_retention_keeps_a_retained_message_that_was_released_late(tmp_path: Path):
    """Retention looks at the retained values once a generation: one that enters by an old record comes behind that."""
    config = replace(CONFIG, generation_segments=16)
    clock = Clock()
    engine = await Engine.open(tmp_path, config, clock=clock)
    await fill(engine, 2)
    clock.now += HOUR // 2
    await hold(engine, delayed(b"late", clock.now + HOUR // 2 + 2, b"value", FLAG_RETAIN))
    await fill(engine, 3)
    clock.now += HOUR // 2 + 1
    await engine._retention.enforce()
    begin = engine.stats().log_begin
    assert begin > 0
    clock.now += 1
    await engine.release_due()
    assert rows(engine, b"b") == []
    clock.now += HOUR
    await engine._retention.enforce()
    assert engine.stats().log_begin > begin
    values = await engine.retained(b"#", None, 9)
    assert [record.decode(value.frame, 0)[6] for value in values] == [b"value"]
    await engine.close()


async def test_a_change_while_retention_copies_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The state of a held message changes between the read of its row and the copy of its record."""
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    both, gone = await hold(engine, frame(b"t", FLAG_HELD, clock.now + YEAR, b"kept"), delayed(b"t", clock.now + YEAR))
    await fill(engine)
    clock.now += 2 * HOUR
    read = engine._reader.each

    class Slow:
        async def each(self, wanted: list[tuple[int, int]]) -> list[bytes | None]:
            found = await read(wanted)
            if wanted[0][0] == both:
                await engine.end_transaction([both], True)
                await engine.recall([gone])
            return found

    monkeypatch.setattr(engine._retention.removal, "_reader", Slow())
    monkeypatch.setattr(Slow, "chunk", engine._reader.chunk, raising=False)
    await engine._retention.enforce()
    assert engine.stats().log_begin > gone
    assert [int.from_bytes(key[1:], "big") for key in rows(engine, b"b")] == [both]
    clock.now += YEAR
    await engine.release_due()
    assert await payloads(engine, topic_queue(b"t")) == [b"kept"]
    await engine.close()


@pytest.mark.engine_only
async def test_a_released_message_can_be_read_at_once(tmp_path: Path):
    """Also when its segment goes at the same time: retention waits for what is under way."""
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    entered: list[bytes] = []

    def listen(commit: Commit) -> None:
        for moved in commit.moved:
            assert moved.position >= engine.stats().log_begin
            entered.append(moved.topic)
        entered.extend(topic for topic in commit.topics if topic != b"fill")

    engine.on_commit(listen)
    for turn in range(10):
        await hold(engine, *[delayed(b"%d/%d" % (turn, i), clock.now + HOUR) for i in range(20)])
        halves = await hold(engine, *[frame(b"%d/h%d" % (turn, i), FLAG_HALF) for i in range(20)])
        await fill(engine)
        clock.now += HOUR + 1
        ends = [engine.end_transaction([half], True) for half in halves]
        missing = await asyncio.gather(engine._retention.enforce(), engine.release_due(), *ends)
        assert missing[2:] == [[]] * 20
        await engine._retention.enforce()
    assert len(entered) == len(set(entered)) == 400
    assert engine.stats().log_begin > 0
    assert rows(engine, b"b") == []
    await engine.close()


class HeldUpDisk(Disk):
    """Its durable writes wait for somebody once told so."""

    __slots__ = ("free", "loop", "waits")

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.loop = asyncio.get_running_loop()
        self.waits = asyncio.Event()  # one does

    def write_durable(self, fd: int, data: bytes, offset: int) -> None:
        if not self.free.is_set():
            self.loop.call_soon_threadsafe(self.waits.set)
            self.free.wait()
        super().write_durable(fd, data, offset)


async def test_retention_waits_for_what_is_on_its_way_to_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    disk = HeldUpDisk()
    engine = await Engine.open(tmp_path, CONFIG, disk=disk, clock=clock)
    await hold(engine, delayed(b"t", clock.now + 2 * HOUR))
    await fill(engine)
    clock.now += 2 * HOUR
    reached: asyncio.Queue[str] = asyncio.Queue()
    settle, flush = engine._retention._wait_for_held, engine._database.flush
    loop = asyncio.get_running_loop()

    async def watched_settle() -> None:
        reached.put_nowait("waits")
        await settle()

    def watched_flush() -> None:
        loop.call_soon_threadsafe(reached.put_nowait, "flushes")
        flush()

    monkeypatch.setattr(engine._retention, "_wait_for_held", watched_settle)
    monkeypatch.setattr(type(engine._database), "flush", lambda _: watched_flush())
    begins: list[int] = []
    engine.on_commit(lambda commit: begins.extend(engine.stats().log_begin for _ in commit.moved))
    disk.free.clear()
    firing = asyncio.ensure_future(engine.release_due())
    await disk.waits.wait()
    retaining = asyncio.ensure_future(engine._retention.enforce())
    assert await reached.get() == "waits"
    disk.free.set()
    await firing
    await retaining
    assert begins == [0]
    assert engine.stats().log_begin > 0
    await engine.close()


@pytest.mark.engine_only
async def test_a_busy_log_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "_BUSY_S", 0.001)
    clock = Clock()
    engine = await Engine.open(tmp_path, replace(CONFIG, max_pending_bytes=2048), clock=clock)
    due, half = await hold(engine, delayed(b"t", clock.now + 5), frame(b"t", FLAG_HALF))
    waiting = asyncio.ensure_future(moved_by(engine, 1))
    await asyncio.sleep(0)
    clock.now += 5
    fill_up(engine)
    with pytest.raises(StoreBusy):
        await engine.end_transaction([half], True)
    fill_up(engine)
    await engine.release_due()
    assert await timers(engine) == [due]
    assert await waiting == [b"t"]
    assert await engine.end_transaction([half], True) == []
    await engine.close()


async def test_a_half_leaves_room_for_its_copy(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path, replace(CONFIG, max_pending_bytes=2 * SEGMENT), clock=clock)
    room = SEGMENT - len(frame(b"t", FLAG_HALF, payload=b""))
    done = await append(engine, frame(b"t", FLAG_HALF, payload=bytes(room - 7)))
    assert isinstance(done.error, RecordTooLarge)
    done = await append(engine, frame(b"t", 0, payload=bytes(room)))
    assert done.error is None
    (half,) = await hold(engine, frame(b"t", FLAG_HALF, payload=bytes(room - 8)))
    await hold(engine, delayed(b"t", clock.now + YEAR, bytes(room - 8)))
    await fill(engine)
    clock.now += YEAR
    await engine._retention.enforce()
    assert len(rows(engine, b"b")) == 2
    assert await engine.end_transaction([half], True) == []
    await engine.release_due()
    assert len(await payloads(engine, topic_queue(b"t"))) == 2
    await engine.close()


@pytest.mark.engine_only
async def test_the_copy_of_a_large_message_finds_room(tmp_path: Path):
    """Where messages are told to wait, and one as large as any that was ever taken."""
    clock = Clock()
    engine = await Engine.open(tmp_path, replace(CONFIG, max_pending_bytes=2048), clock=clock)
    largest = 2048 - 2048 // 8 - len(frame(b"t", FLAG_HALF, payload=b""))
    (half,) = await hold(engine, frame(b"t", FLAG_HALF, payload=bytes(largest)))
    await fill(engine, size=1500)
    clock.now += 2 * HOUR
    await engine._retention.enforce()
    assert len(rows(engine, b"b")) == 1
    engine.append([control.SessionOpened(1, 1, True).frame(b"c")], lambda _: None)
    assert await engine.end_transaction([half], True) == []
    assert await payloads(engine, topic_queue(b"t")) == [bytes(largest)]
    await engine.close()
