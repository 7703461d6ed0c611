"""Groups that are leased the messages of each ordering key in order, through the engine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from cloud_sdk.properties import Properties, encode
from matcher.selector import EVERYTHING, Selection
from record.layout import FLAG_HALF, Kind
from store.api import DeadLetterReason, Failed, Ordering, PopRequest, PopResult, Receipts, Start, partition_queue
from store.errors import StoreBusy
from store.groups.ordered_pop import KeyOrders
from store.groups.pop_decision import PASSED
from store.groups.selection import MOST_EXAMINED
from store.views.groups.key_order import KeyOrder
from store.views.groups.leases import QueueLeases
from tests.store.popping import CONFIG, DEAD, Bench, payloads, receipts
from tests.waiting import until

P0 = partition_queue(b"a", 0)
SOME = Selection(topic_filter=b"a/+")
ORDERED = replace(CONFIG, partitions=1, segment_size=1 << 20)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data", ORDERED).open()
    yield bench
    assert bench.is_idle
    await bench.engine.close()


def of(key: str, number: int) -> bytes:
    """A message whose ordering key is its topic."""
    return record.frame(Kind.MESSAGE, 0, 0, b"a/" + key.encode(), b"c", b"", b"%s%d" % (key.encode(), number))


def frame_of(key: str, number: int) -> bytes:
    """A message that names its ordering key, if that is one of x, y and z. `SOME` does not select u."""
    if key == "u":
        return record.frame(Kind.MESSAGE, 0, 0, b"a/u/u", b"c", b"", b"u")
    if key < "x":
        return of(key, number)
    block = encode(Properties(user=[("ordering_key", key)]))
    return record.frame(Kind.MESSAGE, 0, 0, b"a/%d" % number, b"c", block, b"%s%d" % (key.encode(), number))


async def publish_named(bench: Bench, text: str) -> None:
    """Append messages such as `x1 x2 v1`: of those, only x names its key."""
    await bench.append(*(frame_of(word[0], int(word[1:])) for word in text.split()))


async def publish(bench: Bench, text: str) -> None:
    """Append messages such as `x1 x2 y1`."""
    await bench.append(*(of(word[0], int(word[1:])) for word in text.split()))


def words(popped: PopResult) -> str:
    return b" ".join(payloads(popped.runs)).decode()


async def pop(bench: Bench, records: int = 100, **options: object) -> str:
    return words(await bench.pop(P0, records=records, ordering=Ordering.ALL_KEYS, **options))  # type: ignore[arg-type]


async def pop_named(bench: Bench, records: int = 100, **options: object) -> str:
    return words(await bench.pop(P0, records=records, ordering=Ordering.NAMED_KEYS, **options))  # type: ignore[arg-type]


def order_of(bench: Bench) -> KeyOrder | None:
    state = bench.engine._views.pops.find(b"g", P0)
    return None if state is None else state.order


async def finish(bench: Bench, *offsets: int, deliveries: int = 1) -> None:
    assert await bench.engine.settle(b"g", [Receipts(P0, offset, 1, deliveries) for offset in offsets]) == []


async def test_a_failing_message_holds_up_its_own_key_only(bench: Bench):
    await publish(bench, "x0 y1 x2 z3 x4 y5")
    assert await pop(bench, records=2) == "x0 y1"
    assert await pop(bench, records=2) == "z3"  # x2, x4 and y5 wait for x0 and y1
    await finish(bench, 1)
    assert await bench.engine.settle(b"g", [], failed=[Failed(Receipts(P0, 0, 1, 1), 5_000)]) == []
    assert await pop(bench) == "y5"
    await publish(bench, "x6 z7 w8")
    await finish(bench, 3)
    assert await pop(bench) == "z7 w8"
    popped = await bench.pop(P0, ordering=Ordering.ALL_KEYS)
    assert popped == PopResult([], bench.now + 5_000, is_limited=True)
    bench.now += 5_000
    assert await pop(bench) == "x0 x2 x4 x6"


async def test_a_key_that_is_named_has_one_order_over_topics(tmp_path: Path):
    bench = await Bench(tmp_path, replace(ORDERED, partitions=4)).open()
    block = encode(Properties(user=[("ordering_key", "order-7")]))
    frames = [record.frame(Kind.MESSAGE, 0, 0, b"a/%d" % n, b"c", block, b"%d" % n) for n in range(6)]
    held = record.frame(Kind.MESSAGE, FLAG_HALF, 0, b"a/held", b"c", block, b"held")
    half = await bench.append(held)
    await bench.append(*frames)
    await bench.engine.end_transaction([half.positions[0]], commit=True)
    await bench.reopen()
    queues = [partition_queue(b"a", number) for number in range(4)]
    popped = await bench.pop(*queues, records=1, ordering=Ordering.ALL_KEYS)
    assert words(popped) == "0"
    assert words(await bench.pop(*queues, ordering=Ordering.ALL_KEYS)) == ""
    assert await bench.engine.settle(b"g", receipts(popped)) == []
    assert words(await bench.pop(*queues, ordering=Ordering.ALL_KEYS)) == "1 2 3 4 5 held"
    found = await bench.pop(*queues, group=b"h", selection=Selection(topic_filter=b"a/3"))
    assert words(found) == "3"
    await bench.engine.close()


async def test_messages_that_are_kept_back_are_not_delivered_and_survive_a_restart(bench: Bench):
    await publish(bench, "x0 x1 y2 x3")
    assert await pop(bench, records=1) == "x0"
    assert await pop(bench) == "y2"
    assert (await bench.lag())[P0] == (0, 3, 3, 4)
    await bench.reopen()
    assert await pop(bench) == ""
    await finish(bench, 0)
    popped = await bench.pop(P0, ordering=Ordering.ALL_KEYS)
    assert words(popped) == "x1 x3"
    assert receipts(popped) == [Receipts(P0, 1, 1, 1), Receipts(P0, 3, 1, 1)]
    assert (await bench.lag())[P0] == (1, 4, 3, 3)


async def test_a_key_continues_behind_a_dead_letter(bench: Bench):
    await publish(bench, "x0 x1 y2")
    for deliveries in (1, 2, 3):
        popped = await bench.pop(P0, records=1, ordering=Ordering.ALL_KEYS)
        assert receipts(popped) == [Receipts(P0, 0, 1, deliveries)]
        bench.now += 10_000
    assert await pop(bench) == "x1 y2"
    assert await bench.take(DEAD) == [b"x0"]


async def test_an_early_lease_of_a_message_that_was_kept_back_can_be_settled(bench: Bench):
    await publish(bench, "x0 y1 x2 x3 y4")
    popped = [await bench.pop(P0, records=1, ordering=Ordering.ALL_KEYS)]
    popped.append(await bench.pop(P0, records=1, ordering=Ordering.ALL_KEYS, early=True))
    assert words(popped[1]) == "y1"
    await finish(bench, 0)
    popped.append(await bench.pop(P0, records=1, ordering=Ordering.ALL_KEYS, early=True))
    popped.append(await bench.pop(P0, ordering=Ordering.ALL_KEYS, early=True))
    assert [words(each) for each in popped] == ["x0", "y1", "x2", ""]
    stale = [await bench.engine.settle(b"g", receipts(each)) for each in popped[1:3]]
    assert stale == [[], []]
    assert await pop(bench) == "x3 y4"


async def test_a_message_far_behind_those_of_a_key_that_waits_is_leased(bench: Bench):
    count = 3 * PASSED
    await bench.append(*(of("x", number) for number in range(count)), of("y", 1))
    assert await pop(bench, records=1) == "x0"
    found = ""
    for _ in range(9):
        popped = await bench.pop(P0, records=1, ordering=Ordering.ALL_KEYS)
        found = words(popped)
        if found or popped.available_at != bench.now:
            break
    assert found == "y1"
    assert (await bench.lag())[P0] == (0, count + 1, count + 1, count + 1)
    state = bench.engine._views.pops.find(b"g", P0)
    assert state is not None and state.order is not None
    await pop(bench)
    assert not state.order.ready  # a pop does not examine what waits once more
    await finish(bench, 0)
    assert await pop(bench, records=3) == "x1 x2 x3"


async def test_a_group_keeps_back_no_more_than_it_may_have_unfinished(tmp_path: Path):
    bench = await Bench(tmp_path, replace(ORDERED, max_group_leases=4)).open()
    await publish(bench, "x0 x1 x2 x3 x4 x5 y6")
    assert await pop(bench, records=1) == "x0"
    popped = await bench.pop(P0, ordering=Ordering.ALL_KEYS)
    assert popped == PopResult([], bench.now + 10_000, is_limited=True, left=6)
    await bench.engine.close()


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("window", [1, 5, 100])
async def test_messages_that_are_not_selected_do_not_fill_a_small_window(
    tmp_path: Path, window: int, ordering: Ordering
) -> None:
    bench = await Bench(tmp_path, replace(ORDERED, max_group_window=window)).open()
    await bench.append(*[frame_of("u", 0)] * 200, of("x", 1), of("y", 2))
    found: list[bytes] = []
    is_over = False
    while not is_over:
        popped = await bench.pop(P0, ordering=ordering, selection=SOME)
        found += payloads(popped.runs)
        await bench.engine.settle(b"g", receipts(popped))
        is_over = not popped.runs and popped.available_at != bench.now
    assert found == [b"x1", b"y2"]
    await bench.engine.close()


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("objects", [1, 3])
async def test_messages_are_in_order_though_a_pop_has_more_queues_than_are_kept_in_memory(
    tmp_path: Path, objects: int, ordering: Ordering
) -> None:
    bench = await Bench(tmp_path, replace(ORDERED, max_group_objects=objects, checkpoint_keys=1, partitions=8)).open()
    queues = [partition_queue(b"a", number) for number in range(8)]
    await bench.append(*[frame_of(f"{key}", number) for number in range(6) for key in "xyz"])
    found: list[bytes] = []
    for _ in range(60):
        popped = await bench.pop(*queues, records=2, ordering=ordering)
        if ordering is not Ordering.NONE:
            again = await bench.pop(*queues, records=10, ordering=ordering)
            assert not {each[:1] for each in payloads(popped.runs)} & {each[:1] for each in payloads(again.runs)}
            await bench.engine.settle(b"g", receipts(again))
            found += payloads(again.runs)
        await bench.engine.settle(b"g", receipts(popped))
        found += payloads(popped.runs)
    for key in b"xyz":
        of_key = [each for each in found if each[0] == key]
        assert of_key == [b"%c%d" % (key, number) for number in range(6)]
    await bench.engine.close()


async def test_a_record_passes_over_messages_that_an_ordered_group_does_not_select(bench: Bench):
    """Otherwise they would fill the window, and be examined again after a restart."""
    await bench.append(*[frame_of("u", 0)] * (PASSED + 1))
    await bench.append(*[frame_of("u", 0)] * (PASSED + 1), of("x", 1))
    assert await pop(bench, selection=SOME) == "x1"
    await bench.append(*[frame_of("u", 0)] * (PASSED + 1))
    await finish(bench, 2 * PASSED + 2)
    assert await pop(bench, selection=SOME) == ""
    end = 3 * PASSED + 4
    assert (await bench.lag())[P0] == (end, end, 0, 0)


async def test_a_refused_pop_changes_nothing(bench: Bench):
    await publish(bench, "x0 y1 x2")
    assert await pop(bench, records=1) == "x0"
    groups = bench.engine._groups
    offer = groups._offer
    groups._offer = lambda frames, done: StoreBusy("full")
    with pytest.raises(StoreBusy):
        await pop(bench)
    groups._offer = offer
    assert await pop(bench) == "y1"
    await finish(bench, 0)
    groups._offer = lambda frames, done: StoreBusy("full")
    with pytest.raises(StoreBusy):
        await pop(bench)
    groups._offer = offer
    assert await pop(bench) == "x2"


async def test_members_that_are_not_ordered_may_join_and_leave(bench: Bench):
    await publish(bench, "x0 x1 y2 x3 y4")
    assert await pop(bench, records=1) == "x0"
    assert await pop(bench, records=1) == "y2"
    assert sorted(words(await bench.pop(P0, records=2)).split()) == ["x1", "x3"]
    assert await pop(bench) == ""
    await finish(bench, 2)
    assert await pop(bench) == "y4"
    await publish(bench, "x5")
    await finish(bench, 0, 1)
    assert await pop(bench) == ""
    await finish(bench, 3)
    assert await pop(bench) == "x5"


async def test_a_settlement_tells_members_elsewhere_that_a_key_continues(bench: Bench):
    again: list[list[bytes]] = []
    bench.engine.on_commit(lambda commit: again.append(commit.again))
    await publish(bench, "x0 x1")
    assert await pop(bench, records=1) == "x0"
    assert await pop(bench) == ""
    again.clear()
    await finish(bench, 0)
    assert again == [[b"g"]]


@pytest.mark.parametrize("lost", ["too many orders", "restart", "evicted"])
async def test_a_settlement_tells_members_that_a_key_continues_though_its_order_was_forgotten(
    tmp_path: Path, lost: str
) -> None:
    bench = await Bench(
        tmp_path, replace(ORDERED, partitions=2, max_group_objects=1 if lost == "evicted" else 100)
    ).open()
    bench.engine._groups._orders = KeyOrders(limit=1)
    again: list[list[bytes]] = []
    await publish(bench, "x0 x1")
    assert await pop(bench, records=1) == "x0"
    assert await pop(bench) == ""
    if lost == "restart":
        await bench.reopen()
    else:
        for _ in range(2):
            await bench.pop(P0, records=1, group=b"other", ordering=Ordering.ALL_KEYS)
    if lost == "evicted":
        bench.engine._views.pops.checkpoint()
    assert order_of(bench) is None
    bench.engine.on_commit(lambda commit: again.append(commit.again))
    await finish(bench, 0)
    assert again == [[b"g"]]
    await bench.engine.close()


@pytest.mark.usefixtures("retention_on_request")
async def test_what_has_left_the_log_holds_up_nothing(tmp_path: Path):
    config = replace(ORDERED, segment_size=4096, generation_segments=1, retention_bytes=4096, retention_check_s=1e6)
    bench = await Bench(tmp_path, config).open()
    long = record.frame(Kind.MESSAGE, 0, 0, b"a/w", b"c", b"", bytes(1500))
    await publish(bench, "x0 x1 y2 x3")
    assert await pop(bench, records=1) == "x0"
    assert await pop(bench, records=1) == "y2"
    await bench.append(*[long] * 9, of("x", 13))
    await bench.engine._retention.enforce()
    begin = (await bench.engine.bounds(P0)).begin
    assert 3 < begin < 13
    bench.now += 10_000
    popped = await bench.pop(P0, ordering=Ordering.ALL_KEYS)
    assert popped.runs[-1].offset + popped.runs[-1].count == 14
    assert sum(run.count for run in popped.runs) == 14 - begin
    assert popped.reclaimed == begin
    assert (await bench.lag())[P0] == (begin, 14, 14 - begin, 14 - begin)
    await bench.engine.close()


def test_only_so_many_orders_are_remembered():
    orders = KeyOrders(limit=200)
    some = [QueueLeases(b"g", b"p%d" % number, 0) for number in range(4)]
    for leases in some:
        orders.use(leases, KeyOrder(0, None))
    assert [leases.order is not None for leases in some] == [False, True, True, True]
    orders.use(some[1], some[1].order or KeyOrder(0, None))
    order = KeyOrder(0, None)
    order.extend(bytes(24 * 30))
    orders.use(some[0], order)
    assert [leases.order is not None for leases in some] == [True, True, False, False]
    orders.drop(some[0])
    orders.use(some[2], KeyOrder(0, None))
    orders.use(some[3], KeyOrder(0, None))
    assert [leases.order is not None for leases in some] == [False, True, True, True]


async def test_only_messages_that_name_a_key_are_in_order(bench: Bench):
    await publish_named(bench, "v0 x1 v2 x3 y4 x5 v6")
    assert await pop_named(bench, records=2) == "v0 x1"
    assert await pop_named(bench) == "v2 y4 v6"  # x3 and x5 wait for x1
    assert await bench.engine.settle(b"g", [], failed=[Failed(Receipts(P0, 1, 1, 1), 5_000)]) == []
    assert await pop_named(bench) == ""
    bench.now += 5_000
    assert await pop_named(bench) == "x1"  # x3 not with it: the member may handle both at the same time
    await finish(bench, 1, deliveries=2)
    assert await pop_named(bench) == "x3"
    await publish_named(bench, "x7 v8")
    assert await pop_named(bench) == "v8"
    await bench.reopen()
    assert await pop_named(bench) == ""
    await finish(bench, 3)
    assert await pop_named(bench) == "x5"


async def test_a_pop_has_one_message_of_a_named_key_however_far_it_looks(bench: Bench):
    await publish_named(bench, " ".join(f"x{number}" for number in range(100)) + " v100")
    assert await pop_named(bench, records=2) == "x0 v100"


async def test_a_dead_letter_releases_its_named_key(bench: Bench):
    await publish_named(bench, "x0 x1 x2 v3")
    for deliveries in (1, 2, 3):
        popped = await bench.pop(P0, records=1, ordering=Ordering.NAMED_KEYS)
        assert receipts(popped) == [Receipts(P0, 0, 1, deliveries)]
        bench.now += 10_000
    assert await pop_named(bench) == "x1 v3"
    assert await bench.take(DEAD) == [b"x0"]
    assert await bench.engine.dead_letter(b"g", [Receipts(P0, 1, 1, 1)], DeadLetterReason.FORWARDED) == []
    assert await pop_named(bench) == "x2"


async def test_a_group_has_no_order_in_memory_while_no_message_names_a_key(bench: Bench):
    await publish_named(bench, "v0 w1 v2")
    assert await pop_named(bench, records=2) == "v0 w1"
    assert await pop_named(bench) == "v2"
    assert order_of(bench) is None
    await publish_named(bench, "x3 v4")
    assert await pop_named(bench) == "x3 v4"
    assert order_of(bench) is not None
    await finish(bench, 3)
    await publish_named(bench, "v5 v6")
    assert await pop_named(bench, records=1) == "v5"  # finds that nothing of x is left
    assert await pop_named(bench) == "v6"
    assert order_of(bench) is None


async def test_a_named_key_is_found_behind_any_number_of_leased_messages(bench: Bench):
    count = 2 * MOST_EXAMINED
    await bench.append(*(of("v", number) for number in range(count)))
    for _ in range(2):
        await pop_named(bench, records=count // 2)
    await publish_named(bench, "x1 x2 v3")
    found = ""
    for _ in range(9):
        popped = await bench.pop(P0, ordering=Ordering.NAMED_KEYS)
        found = words(popped)
        if found or popped.available_at != bench.now:
            break
    assert found == "x1 v3"


async def test_a_pop_is_repeated_that_finds_a_named_key_behind_leases_under_way(bench: Bench):
    await publish_named(bench, "v0")
    assert await pop_named(bench) == "v0"
    await publish_named(bench, "v1 x2")
    assert await pop_named(bench, records=1, early=True) == "v1"
    popped = await bench.pop(P0, ordering=Ordering.NAMED_KEYS)
    assert not popped.runs
    assert popped.available_at is not None
    assert popped.available_at < bench.now + 100
    await until(lambda: bench.is_idle)
    assert await pop_named(bench) == "x2"


async def test_what_a_selection_passed_over_does_not_hide_a_named_key(bench: Bench):
    await publish_named(bench, "v0")
    assert await pop_named(bench, selection=SOME) == "v0"
    await publish_named(bench, "u1 u2")
    assert await pop_named(bench, selection=SOME) == ""
    await publish_named(bench, "x3 u4 x5 v6")
    assert await pop_named(bench, selection=SOME) == "x3 v6"
    assert await pop_named(bench, selection=SOME) == ""
    await finish(bench, 3)
    assert await pop_named(bench, selection=SOME) == "x5"


async def test_members_with_other_orders_share_the_strictest(bench: Bench):
    await publish_named(bench, "v0 x1 v2 x3 v4")
    assert await pop(bench, records=2) == "v0 x1"
    assert await pop(bench) == ""
    order = order_of(bench)
    assert await pop_named(bench) == ""
    assert order_of(bench) is order
    await finish(bench, 0, 1)
    assert await pop_named(bench) == "v2 x3"
    await finish(bench, 2, 3)
    assert await pop(bench) == "v4"
    await finish(bench, 4)
    await publish_named(bench, "v5 v6")
    assert await pop(bench, records=1) == "v5"
    assert await pop_named(bench) == ""


KEYS = "uvwxyz"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.text(KEYS, min_size=1, max_size=8)),
        st.tuples(st.just("pop"), st.sampled_from([1, 1, 2, 3, 100])),
        st.tuples(st.just("finish"), st.integers(0, 99)),
        st.tuples(st.just("fail"), st.integers(0, 99)),
        st.tuples(st.just("unseen"), st.integers(0, 99)),
        st.tuples(st.just("extend"), st.integers(0, 99)),
        st.tuples(st.just("later"), st.sampled_from([0, 2_000, 11_000])),
        st.tuples(st.sampled_from(["reopen", "forget", "both"]), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


class OrderedModel:
    """What an ordered group is to be leased: all unfinished messages of each key of which nothing is out. If only named
    keys are in order, it is one message of each of those."""

    def __init__(self, ordering: Ordering, selection: Selection) -> None:
        self.selection = selection
        self.is_of_named = ordering is Ordering.NAMED_KEYS
        self.keys: list[str] = []  # of each message, by offset
        self.until: dict[int, int] = {}  # unfinished messages that were leased, and when they may come again
        self.deliveries: dict[int, int] = {}
        self.finished: set[int] = set()

    def free(self, now: int) -> dict[str, list[int]]:
        """The messages that a pop may lease, by key."""
        out = {self.key(offset) for offset, until in self.until.items() if until > now}
        free: dict[str, list[int]] = {}
        for offset in range(len(self.keys)):
            key = self.key(offset)
            if self.selection is SOME and key[0] == "u":
                self.finished.add(offset)
            elif offset not in self.finished and key not in out and not (self.is_of_named and key in free):
                free.setdefault(key, []).append(offset)
        return free

    def key(self, offset: int) -> str:
        key = self.keys[offset]
        return f"{key}{offset}" if self.is_of_named and key < "x" else key

    def lease(self, popped: PopResult, records: int, now: int, until: int) -> None:
        """Check what a pop leased."""
        free = self.free(now)
        got: dict[str, list[int]] = {}
        for run in popped.runs:
            for offset in range(run.offset, run.offset + run.count):
                got.setdefault(self.key(offset), []).append(offset)
                self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
                assert self.deliveries[offset] == run.deliveries
                self.until[offset] = until
        for key, offsets in got.items():
            assert offsets == free[key][: len(offsets)], "the order of a key is broken"
        available = sum(len(offsets) for offsets in free.values())
        count = sum(len(offsets) for offsets in got.values())
        if self.selection is EVERYTHING:
            assert count == min(records, available), "a key is held up"
        assert count or not available, "a key is held up"


class OrderedRun:
    """An ordered group beside its model."""

    def __init__(self, bench: Bench, early: bool, ordering: Ordering, selection: Selection) -> None:
        self.bench = bench
        self.model = OrderedModel(ordering, selection)
        self.ordering = ordering
        self.early = early

    async def act(self, step: str, argument: int | str) -> None:
        bench, model = self.bench, self.model
        if isinstance(argument, str):
            await bench.append(*(frame_of(key, len(model.keys) + at) for at, key in enumerate(argument)))
            model.keys += argument
        elif step == "pop":
            await self.lease(argument)
        elif step == "later":
            await self.pass_time(argument)
        elif step == "reopen":
            await bench.reopen()
        elif step == "forget":
            await self.settle("extend", 0)  # what is under way is committed
            state = bench.engine._views.pops.find(b"g", P0)
            if state is not None:
                state.order = None
        elif step == "both":
            if len(self.out()) > 1:
                await asyncio.gather(self.settle("finish", 0), self.settle("extend", 1))
        else:
            await self.settle(step, argument)

    async def pass_time(self, time_ms: int) -> None:
        await until(lambda: self.bench.is_idle)  # a lease is not over before it is committed
        self.bench.now += time_ms

    async def lease(self, records: int) -> None:
        request = PopRequest(
            b"g",
            [P0],
            records,
            1 << 20,
            10_000,
            Start.EARLIEST,
            selection=self.model.selection,
            ordering=self.ordering,
            early=self.early,
        )
        popped = await self.bench.engine.pop(request)
        for _ in range(3):
            if popped.runs or popped.available_at not in {self.bench.now, self.bench.now + 10}:
                break
            await until(lambda: self.bench.is_idle)  # it waits for leases under way
            popped = await self.bench.engine.pop(request)
        self.model.lease(popped, records, self.bench.now, self.bench.now + 10_000)

    async def finish_all(self) -> None:
        model = self.model
        got = [Receipts(P0, offset, 1, model.deliveries[offset]) for offset in self.out()]
        assert await self.bench.engine.settle(b"g", got) == []
        model.finished.update(model.until)
        model.until.clear()

    def out(self) -> list[int]:
        return sorted(offset for offset, until_ms in self.model.until.items() if until_ms > self.bench.now)

    async def settle(self, step: str, number: int) -> None:
        """Settle one of the messages that are out."""
        model, now, out = self.model, self.bench.now, self.out()
        if not out:
            return
        offset = out[number % len(out)]
        receipt = Receipts(P0, offset, 1, model.deliveries[offset])
        engine = self.bench.engine
        if step == "finish":
            stale = await engine.settle(b"g", [receipt])
            model.finished.add(offset)
            del model.until[offset]
        elif step == "fail":
            stale = await engine.settle(b"g", [], failed=[Failed(receipt, 1_000)])
            model.until[offset] = now + 1_000
        elif step == "unseen":
            stale = await engine.settle(b"g", [], [], unsent=[(receipt, 0)])
            model.until[offset] = now
            model.deliveries[offset] -= 1
        else:
            stale = await engine.settle(b"g", [], [(receipt, 15_000)])
            model.until[offset] = now + 15_000
        assert stale == []


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    STEPS, st.booleans(), st.sampled_from([Ordering.ALL_KEYS, Ordering.NAMED_KEYS]), st.sampled_from([EVERYTHING, SOME])
)
async def test_no_order_is_broken_and_no_other_key_held_up(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int | str]],
    early: bool,
    ordering: Ordering,
    selection: Selection,
):
    bench = await Bench(tmp_path_factory.mktemp("ordered"), replace(ORDERED, max_deliveries=250)).open()
    run = OrderedRun(bench, early, ordering, selection)
    try:
        for step, argument in steps:
            await run.act(step, argument)
        for _ in range(len(run.model.keys) + 1):
            await run.pass_time(20_000)
            await run.lease(1000)
            await run.finish_all()
        assert run.model.finished == set(range(len(run.model.keys)))
    finally:
        await bench.engine.close()
