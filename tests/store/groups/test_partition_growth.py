"""Groups of a parent topic that gets more partitions: messages of a key may be in several, and stay in order."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import record
from cloud_sdk.properties import Properties, encode
from matcher.selector import EVERYTHING, Selection
from record.layout import Kind
from store import control
from store.api import Failed, Ordering, PopResult, Receipts, Start, partition_of, partition_queue
from store.groups.ordered_pop import KeyOrders
from tests.store.popping import CONFIG, Bench, payloads, receipts
from tests.waiting import until

ONE = replace(CONFIG, partitions=1, segment_size=1 << 20, max_deliveries=250)
SOME = Selection(topic_filter=b"a/+")
NAMED = "xyz"  # keys that messages name; the others are topics


def of(key: str, number: int) -> bytes:
    topic = f"a/{number % 3}" if key in NAMED else f"a/{key}"
    block = encode(Properties(user=[("ordering_key", key)])) if key in NAMED else b""
    return record.frame(Kind.MESSAGE, 0, 0, topic.encode(), b"c", block, f"{key}{number}".encode())


def unwanted(number: int) -> bytes:
    """A message that `SOME` does not select."""
    return record.frame(Kind.MESSAGE, 0, 0, b"a/u/u", b"c", b"", b"u%d" % number)


def partition(key: str, count: int) -> int:
    _, _, _, topic, _, properties, _ = record.decode(of(key, 0), 0)
    return partition_of(record.tag_of(topic, properties), count)


def queues_of(bench: Bench) -> list[bytes]:
    return [partition_queue(b"a", number) for number in range(bench.engine.partition_count(b"a"))]


async def publish(bench: Bench, text: str) -> None:
    await bench.append(*(of(word[0], int(word[1:])) for word in text.split()))


async def grow(bench: Bench, count: int) -> None:
    await bench.append(control.TopicPartitions(count).frame(b"a"))


async def pop(bench: Bench, records: int = 100, ordering: Ordering = Ordering.ALL_KEYS) -> PopResult:
    return await bench.pop(*queues_of(bench), records=records, ordering=ordering)


async def words(bench: Bench, records: int = 100, ordering: Ordering = Ordering.ALL_KEYS) -> set[str]:
    return set(b" ".join(payloads((await pop(bench, records, ordering)).runs)).decode().split())


def where(popped: PopResult) -> dict[str, Receipts]:
    found: dict[str, Receipts] = {}
    for run in popped.runs:
        for index, start in enumerate(record.split(run.data)):
            word = record.decode(run.data, start)[6].decode()
            found[word] = Receipts(run.queue, run.offset + index, 1, run.deliveries)
    return found


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data", ONE).open()
    yield bench
    assert bench.is_idle
    await bench.engine.close()


MOVED = next(key for key in "abcdefghijk" if partition(key, 2) == 1)
STAYS = next(key for key in "abcdefghijk" if partition(key, 2) == 0)
RETURNS = next(key for key in "abcdefghijk" if (partition(key, 2), partition(key, 3)) == (1, 0))


@pytest.mark.parametrize("ordering", [Ordering.ALL_KEYS, Ordering.NAMED_KEYS])
async def test_a_key_that_moves_waits_for_its_older_messages_and_others_do_not(bench: Bench, ordering: Ordering):
    moved, stays = MOVED, STAYS
    if ordering is Ordering.NAMED_KEYS:
        moved = next(key for key in NAMED if partition(key, 2) == 1)
        stays = next(key for key in NAMED if partition(key, 2) == 0)
    await publish(bench, f"{moved}0 {stays}1")
    first = where(await pop(bench, ordering=ordering))
    assert set(first) == {f"{moved}0", f"{stays}1"}
    await grow(bench, 2)
    await publish(bench, f"{moved}2 {stays}3")
    assert (await bench.engine.bounds(partition_queue(b"a", 1))).end == 1
    assert await words(bench, ordering=ordering) == set()
    assert await bench.engine.settle(b"g", [first[f"{stays}1"]]) == []
    assert await words(bench, ordering=ordering) == {f"{stays}3"}
    assert await bench.engine.settle(b"g", [], failed=[Failed(first[f"{moved}0"], 5_000)]) == []
    bench.now += 1_000
    assert await words(bench, ordering=ordering) == set()
    bench.now += 4_000
    again = await pop(bench, records=1, ordering=ordering)
    assert set(where(again)) == {f"{moved}0"}
    assert await bench.engine.settle(b"g", receipts(again)) == []
    bench.now += 1_000
    assert await words(bench, ordering=ordering) == {f"{moved}2"}


async def test_a_key_that_returns_to_a_partition_waits_for_what_entered_another_meanwhile(bench: Bench):
    await publish(bench, f"{RETURNS}0")
    first = where(await pop(bench))
    await grow(bench, 2)
    await publish(bench, f"{RETURNS}1")
    await grow(bench, 3)
    await publish(bench, f"{RETURNS}2")
    assert await words(bench) == set()
    assert await bench.engine.settle(b"g", [], failed=[Failed(first[f"{RETURNS}0"], 5_000)]) == []
    bench.now += 5_000
    for number in range(3):
        popped = await pop(bench)
        assert set(where(popped)) == {f"{RETURNS}{number}"}
        assert await bench.engine.settle(b"g", receipts(popped)) == []
        bench.now += 1_000


async def test_a_group_that_begins_late_reads_the_time_before_the_growth_first(bench: Bench):
    await publish(bench, " ".join(f"{MOVED}{number}" for number in range(40)))
    await grow(bench, 2)
    await publish(bench, f"{MOVED}40 {STAYS}41")
    expected = [f"{MOVED}{number}" for number in range(41)]
    got: list[str] = []
    while len(got) < len(expected):
        popped = await pop(bench, records=7)
        got += [word for word in where(popped) if word[0] == MOVED]
        assert await bench.engine.settle(b"g", receipts(popped)) == []
        bench.now = max(popped.available_at or 0, bench.now) if not popped.runs else bench.now
    assert got == expected


@pytest.mark.parametrize("ordering", list(Ordering))
async def test_a_group_misses_nothing_of_a_new_partition(bench: Bench, ordering: Ordering):
    """Also one that began at the newest message: what came before its first look at the partition is not older."""
    queues = queues_of(bench)
    await bench.pop(*queues, start=Start.LATEST, ordering=ordering)
    await publish(bench, f"{STAYS}0")
    await grow(bench, 2)
    await publish(bench, f"{MOVED}1")
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST, ordering=ordering)
    assert set(where(popped)) == {f"{STAYS}0", f"{MOVED}1"}
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST, ordering=ordering, group=b"new")
    assert not popped.runs


async def test_a_group_with_committed_offsets_misses_nothing_of_a_new_partition(bench: Bench):
    await publish(bench, f"{STAYS}0")
    await bench.append(control.GroupOffsetsCommitted(b"a", {0: 1}).frame(b"g"))
    await grow(bench, 2)
    await publish(bench, f"{MOVED}1")
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST)
    assert set(where(popped)) == {f"{MOVED}1"}


@pytest.mark.parametrize("was_popped", [True, False], ids=["popped", "committed"])
async def test_a_group_misses_nothing_of_a_partition_that_was_added_before_the_first_message(
    bench: Bench, was_popped: bool
):
    if was_popped:
        await bench.pop(*queues_of(bench), start=Start.LATEST)
    else:
        await bench.append(control.GroupOffsetsCommitted(b"a", {0: 0}).frame(b"g"))
    await grow(bench, 3)
    await grow(bench, 2)
    await publish(bench, f"{STAYS}0 {MOVED}1")
    await bench.reopen()
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST)
    assert set(where(popped)) == {f"{STAYS}0", f"{MOVED}1"}


@pytest.mark.parametrize(("start", "more"), [(Start.LATEST, set()), (Start.EARLIEST, {f"{MOVED}1"})])
async def test_a_partition_without_a_committed_offset_is_begun_at_the_start(bench: Bench, start: Start, more: set[str]):
    """As with Kafka and RocketMQ. The parent topic got its partitions when it had no messages."""
    await grow(bench, 2)
    await publish(bench, f"{STAYS}0 {MOVED}1 {STAYS}2")
    await bench.append(control.GroupOffsetsCommitted(b"a", {0: 1}).frame(b"g"))
    popped = await bench.pop(*queues_of(bench), start=start)
    assert set(where(popped)) == {f"{STAYS}2"} | more


@pytest.mark.parametrize("is_reopened", [False, True])
async def test_a_partition_that_was_not_reset_is_begun_at_the_start(tmp_path: Path, is_reopened: bool):
    """The number of the parent topic is its own, and never rose."""
    bench = await Bench(tmp_path / "data", replace(ONE, partitions=3)).open()
    await grow(bench, 2)
    await publish(bench, f"{STAYS}0 {MOVED}1")
    await bench.engine.reset_group(b"g", {partition_queue(b"a", 0): 0})
    if is_reopened:
        await bench.reopen()
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST)
    assert set(where(popped)) == {f"{STAYS}0"}
    await bench.engine.close()


async def test_an_added_partition_is_not_new_to_a_group_that_committed_offsets_from_after_it(bench: Bench):
    await publish(bench, f"{STAYS}0")
    await grow(bench, 2)
    await publish(bench, f"{STAYS}1 {STAYS}2 {MOVED}3")
    await bench.append(control.GroupOffsetsCommitted(b"a", {0: 2}).frame(b"g"))
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST)
    assert set(where(popped)) == {f"{STAYS}2"}


async def test_an_older_partition_without_a_committed_offset_is_not_an_added_one(bench: Bench):
    await grow(bench, 2)
    await publish(bench, f"{STAYS}0 {MOVED}1")
    await bench.append(control.GroupOffsetsCommitted(b"a", {0: 1}).frame(b"g"))
    await grow(bench, 3)
    added = next(key for key in "abcdefghijklmnop" if partition(key, 3) == 2)
    await publish(bench, f"{added}2")
    popped = await bench.pop(*queues_of(bench), start=Start.LATEST)
    assert set(where(popped)) == {f"{added}2"}


async def test_unwanted_messages_do_not_keep_a_group_from_what_came_after_the_growth(bench: Bench):
    """They fill what one pop may examine, several times."""
    await publish(bench, f"{STAYS}0")
    await bench.append(*(unwanted(number) for number in range(5_000)))
    await grow(bench, 2)
    await bench.append(*(unwanted(number) for number in range(10_000)))
    await publish(bench, f"{MOVED}1")
    got: list[str] = []
    for _ in range(30):
        popped = await bench.pop(*queues_of(bench), ordering=Ordering.ALL_KEYS, selection=SOME)
        got += where(popped)
        await bench.engine.settle(b"g", receipts(popped))
        if not popped.runs and popped.available_at != bench.now:
            break
    assert got == [f"{STAYS}0", f"{MOVED}1"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.text("uvwxyz", min_size=1, max_size=8)),
        st.tuples(st.just("grow"), st.sampled_from([2, 3, 4, 7])),
        st.tuples(st.just("pop"), st.sampled_from([1, 2, 3, 100])),
        st.tuples(st.just("pop"), st.sampled_from([1, 2, 3, 100])),
        st.tuples(st.just("finish"), st.integers(0, 99)),
        st.tuples(st.just("finish"), st.integers(0, 99)),
        st.tuples(st.just("fail"), st.integers(0, 99)),
        st.tuples(st.just("later"), st.sampled_from([0, 500, 2_000, 11_000])),
        st.tuples(st.sampled_from(["reopen", "forget"]), st.just(0)),
    ),
    min_size=10,
    max_size=60,
)


class GrowingRun:
    """A group in order whose parent topic grows, and what it was leased."""

    def __init__(self, bench: Bench, ordering: Ordering, selection: Selection, early: bool) -> None:
        self.bench = bench
        self.ordering = ordering
        self.selection = selection
        self.early = early
        self.sent: list[str] = []  # keys, by number
        self.out: dict[int, Receipts] = {}
        self.finished: set[int] = set()

    def in_order(self, key: str) -> bool:
        return self.ordering is Ordering.ALL_KEYS or key in NAMED

    async def act(self, step: str, argument: int | str) -> None:
        bench = self.bench
        if isinstance(argument, str):
            frames = []
            for key in argument:
                if self.selection is SOME and key == "u":
                    frames.append(unwanted(len(self.sent)))
                    self.finished.add(len(self.sent))
                else:
                    frames.append(of(key, len(self.sent)))
                self.sent.append(key)
            await bench.append(*frames)
        elif step == "grow":
            await grow(bench, argument)
        elif step == "pop":
            await self.pop(argument)
        elif step == "later":
            bench.now += argument
        elif step == "reopen":
            await bench.reopen()
        elif step == "forget":
            bench.engine._groups._orders = KeyOrders(limit=1)
        elif self.out:
            number = sorted(self.out)[argument % len(self.out)]
            taken = self.out.pop(number)
            if step == "fail":
                await bench.engine.settle(b"g", [], failed=[Failed(taken, (0, 3_000)[argument % 2])])
            elif not await bench.engine.settle(b"g", [taken]):
                self.finished.add(number)

    async def pop(self, records: int) -> PopResult:
        popped = await self.bench.pop(
            *queues_of(self.bench), records=records, ordering=self.ordering, selection=self.selection, early=self.early
        )
        came = {int(word[1:]): got for word, got in where(popped).items()}
        for number in came:
            key = self.sent[number]
            if self.in_order(key):
                older = {each for each in range(number) if self.sent[each] == key} - self.finished
                assert older <= set(came), f"{key}{number} came while {older} of its key are not finished"
                assert self.ordering is Ordering.ALL_KEYS or not older, "two messages of a key came at once"
        self.check_within(list(came))
        self.out.update(came)
        return popped

    def check_within(self, numbers: Sequence[int]) -> None:
        for key in set(self.sent) if self.ordering is Ordering.ALL_KEYS else ():
            own = [number for number in numbers if self.sent[number] == key]
            assert own == sorted(own), "a pop has messages of a key out of order"

    async def drain(self) -> None:
        """The group gets everything, at last."""
        for _ in range(len(self.sent) * 4 + 40):
            await until(lambda: self.bench.is_idle)
            popped = await self.pop(100)
            assert not await self.bench.engine.settle(b"g", receipts(popped))
            self.finished |= {int(word[1:]) for word in where(popped)}
            if popped.runs:
                continue
            if popped.available_at is None:
                break
            self.bench.now = max(self.bench.now, popped.available_at)
        assert self.finished == set(range(len(self.sent))), "messages did not come"


@pytest.mark.slow
@pytest.mark.parametrize("ordering", [Ordering.ALL_KEYS, Ordering.NAMED_KEYS])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(  # orders that are forgotten between pops
    steps=[("publish", "uuuuuvv"), ("grow", 2), ("pop", 1), ("publish", "v"), ("forget", 0)],
    selection=SOME,
    early=False,
)
@example(  # a message that was passed over comes again before older ones of another partition are examined
    steps=[("publish", "uuuuuu"), ("grow", 3), ("publish", "yy"), ("grow", 4), ("publish", "yw")],
    selection=EVERYTHING,
    early=False,
)
@given(steps=STEPS, selection=st.sampled_from([EVERYTHING, SOME]), early=st.booleans())
async def test_each_key_is_in_order_however_the_parent_topic_grows(
    tmp_path_factory: pytest.TempPathFactory,
    ordering: Ordering,
    steps: list[tuple[str, int | str]],
    selection: Selection,
    early: bool,
):
    bench = await Bench(tmp_path_factory.mktemp("data"), ONE).open()
    try:
        run = GrowingRun(bench, ordering, selection, early)
        for step in steps:
            await run.act(*step)
        await run.drain()
    finally:
        await bench.engine.close()
