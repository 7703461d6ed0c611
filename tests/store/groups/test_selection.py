"""Groups with a selection, and groups that keep the order of their queues, through the engine."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from cloud_sdk.properties import Properties, encode
from matcher.selector import Selection, SelectorError
from record.layout import Kind
from store.api import Ordering, PopResult, Receipts, Start, partition_queue
from store.engine import Engine
from store.groups.selection import MOST_EXAMINED
from tests.store.popping import CONFIG, DEAD, payloads, receipts
from tests.store.popping import Bench as PopBench

pytestmark = pytest.mark.any_store

P0 = partition_queue(b"a", 0)
RED = Selection(tags="red")


def tagged(number: int, tag: str, topic: bytes = b"a/b") -> bytes:
    block = encode(Properties(user=[("tag", tag), ("number", str(number))]))
    return record.frame(Kind.MESSAGE, 0, 0, topic, b"c", block, b"%d" % number)


def numbers(popped: PopResult) -> list[int]:
    return [int(payload) for payload in payloads(popped.runs)]


class Bench(PopBench):
    """A bench over the kind of store that this module runs with."""

    async def open(self) -> "Bench":
        self.engine = await Engine.open(self.path, self.config, clock=lambda: self.now)
        return self


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data", replace(CONFIG, partitions=1, segment_size=1 << 20)).open()
    yield bench
    assert bench.is_idle
    await bench.engine.close()


async def test_unselected_messages_are_finished_for_the_group(bench: Bench):
    await bench.append(*(tagged(number, "red" if number % 3 == 0 else "blue") for number in range(10)))
    popped = await bench.pop(P0, records=3, selection=RED)
    assert numbers(popped) == [0, 3, 6]
    assert (await bench.lag())[P0] == (0, 7, 3, 6)
    await bench.engine.settle(b"g", receipts(popped))
    assert numbers(await bench.pop(P0, selection=RED)) == [9]
    assert (await bench.lag())[P0] == (9, 10, 1, 1)


async def test_redelivered_messages_are_not_selected_a_second_time(bench: Bench):
    await bench.append(*(tagged(number, "red" if number % 2 else "blue") for number in range(6)))
    await bench.pop(P0, selection=RED)
    bench.now += 10_000
    popped = await bench.pop(P0, selection=Selection(tags="blue"))
    assert numbers(popped) == [1, 3, 5]


async def test_topics_and_conditions_select(bench: Bench):
    topics = [b"a/b/temp", b"a/c/temp", b"a/b/hum"]
    await bench.append(*(tagged(number, "red", topics[number % 3]) for number in range(9)))
    exact, wild = Selection(b"a/b/temp"), Selection(b"a/+/temp", sql="number BETWEEN 3 AND 6")
    assert numbers(await bench.pop(P0, group=b"exact", selection=exact)) == [0, 3, 6]
    assert numbers(await bench.pop(P0, group=b"wild", selection=wild)) == [3, 4, 6]
    assert numbers(await bench.pop(P0, group=b"sql", selection=Selection(sql="number > 7"))) == [8]


@pytest.mark.engine_only
async def test_many_unselected_messages_cost_one_record_per_thousands(bench: Bench):
    for first in range(0, 3 * MOST_EXAMINED, 1024):
        await bench.append(*(tagged(number, "blue") for number in range(first, first + 1024)))
    await bench.append(tagged(-1, "red"))
    begin = bench.engine.stats().records
    looks = 0
    while not (popped := await bench.pop(P0, selection=RED)).runs:
        assert popped.available_at == bench.now
        looks += 1
    assert looks == 3
    assert numbers(popped) == [-1]
    assert bench.engine.stats().records - begin <= 2 + looks


@pytest.mark.engine_only
async def test_few_unselected_messages_cost_no_record(bench: Bench):
    await bench.append(tagged(0, "red"))
    await bench.engine.settle(b"g", receipts(await bench.pop(P0, selection=RED)))
    begin = bench.engine.stats().records
    for _ in range(3):
        await bench.append(tagged(1, "blue"))
        for _ in range(2):
            assert await bench.pop(P0, selection=RED) == PopResult([], None, is_limited=False)
    assert bench.engine.stats().records - begin == 3
    await bench.append(tagged(2, "red"))
    assert numbers(await bench.pop(P0, selection=RED)) == [2]


async def test_a_group_that_is_new_and_finds_nothing_has_its_place(bench: Bench):
    await bench.append(tagged(0, "blue"))
    assert await bench.pop(P0, selection=RED) == PopResult([], None, is_limited=False)
    assert (await bench.lag())[P0] == (1, 1, 0, 0)
    assert await bench.pop(P0, group=b"late", start=Start.LATEST, selection=RED) == PopResult(
        [], None, is_limited=False
    )


async def test_a_selection_that_is_none_is_refused(bench: Bench):
    with pytest.raises(SelectorError):
        await bench.pop(P0, selection=Selection(sql="a ="))
    assert await bench.lag() == {}


async def test_a_key_of_an_ordered_group_is_blocked_while_a_message_is_leased(bench: Bench):
    await bench.append(*(tagged(number, "red") for number in range(6)))
    first = await bench.pop(P0, records=3, ordering=Ordering.ALL_KEYS)
    assert numbers(first) == [0, 1, 2]
    assert await bench.pop(P0, ordering=Ordering.ALL_KEYS) == PopResult([], bench.now + 10_000, is_limited=True, left=3)
    await bench.engine.settle(b"g", [Receipts(P0, 0, 1, 1)], [(Receipts(P0, 2, 1, 1), 0)])
    assert await bench.pop(P0, ordering=Ordering.ALL_KEYS) == PopResult([], bench.now + 10_000, is_limited=True, left=3)
    await bench.engine.settle(b"g", [], [(Receipts(P0, 1, 1, 1), 500)])
    assert await bench.pop(P0, ordering=Ordering.ALL_KEYS) == PopResult([], bench.now + 500, is_limited=True, left=3)
    bench.now += 500
    again = await bench.pop(P0, ordering=Ordering.ALL_KEYS)
    assert numbers(again) == [1, 2, 3, 4, 5]


async def test_order_continues_behind_a_dead_letter(bench: Bench):
    await bench.append(*(tagged(number, "red") for number in range(2)))
    for deliveries in range(1, CONFIG.max_deliveries + 1):
        popped = await bench.pop(P0, records=1, ordering=Ordering.ALL_KEYS)
        assert receipts(popped) == [Receipts(P0, 0, 1, deliveries)]
        bench.now += 10_000
    assert numbers(await bench.pop(P0, ordering=Ordering.ALL_KEYS)) == [1]
    assert numbers(await bench.pop(DEAD)) == [0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from(["red", "blue"]), min_size=1, max_size=5)),
        st.tuples(st.just("pop"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("nack"), st.integers(0, 9)),
        st.tuples(st.just("later"), st.sampled_from([0, 2_000, 11_000])),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
async def test_an_ordered_group_gets_each_wanted_message_and_none_before_an_older_one_is_settled(  # noqa: C901
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
):
    bench = await Bench(tmp_path_factory.mktemp("ordered"), replace(CONFIG, partitions=1, max_deliveries=250)).open()
    try:
        wanted: list[int] = []
        published = 0
        held: dict[int, Receipts] = {}  # by number, the newest lease
        settled: set[int] = set()

        async def pop(records: int) -> None:
            popped = await bench.pop(P0, records=records, selection=RED, ordering=Ordering.ALL_KEYS)
            got = numbers(popped)
            at = 0
            for run in popped.runs:
                for offset in range(run.offset, run.offset + run.count):
                    held[got[at]] = Receipts(P0, offset, 1, run.deliveries)
                    at += 1
            if got:
                unsettled = [number for number in wanted if number not in settled]
                assert got == unsettled[: len(got)]

        for step, argument in steps:
            if step == "publish":
                assert isinstance(argument, list)
                frames = []
                for tag in argument:
                    frames.append(tagged(published, tag))
                    if tag == "red":
                        wanted.append(published)
                    published += 1
                await bench.append(*frames)
            elif step == "pop":
                assert isinstance(argument, int)
                await pop(argument)
            elif step in {"ack", "nack"} and held:
                assert isinstance(argument, int)
                number = sorted(held)[argument % len(held)]
                receipt = held.pop(number)
                if step == "nack":
                    await bench.engine.settle(b"g", [], [(receipt, 1_000)])
                elif not await bench.engine.settle(b"g", [receipt]):
                    settled.add(number)
            elif step == "later":
                assert isinstance(argument, int)
                bench.now += argument
            elif step == "reopen":
                await bench.reopen()
        for _ in range(2 * len(wanted) + 2):
            bench.now += 20_000
            await pop(100)
            for number, receipt in list(held.items()):
                if not await bench.engine.settle(b"g", [receipt]):
                    settled.add(number)
            held.clear()
        assert sorted(settled) == wanted
    finally:
        await bench.engine.close()
