"""Groups lease messages of queues and settle them, through the engine: against a model, and case by case."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from matcher.selector import EVERYTHING, Selection
from record.layout import Kind
from store.api import (
    Appended,
    Handed,
    Outbound,
    Popped,
    Receipts,
    Run,
    Start,
    dead_letter_queue,
    filter_queue,
    partition_queue,
    topic_queue,
)
from store.config import StoreConfig
from store.control import (
    group_offsets_committed,
    session_ended,
    session_opened,
    share_held,
    share_left,
    subscribed,
)
from store.engine import Engine
from store.errors import LogCorrupt, OffsetOutOfRange, StoreBusy, StoreError, TooManyGroups, ViewsDamaged
from store.pages import PAGE
from store.reader import Reader
from store.segments import segment_name
from tests.store.group_model import Place
from tests.store.test_sessions import wish

Q = topic_queue(b"a/b")
OTHER = topic_queue(b"a/c")
DEAD = dead_letter_queue(b"g")
CONFIG = StoreConfig(segment_size=1 << 16, partitions=2, retry_delays_s=(1, 5), max_deliveries=3)


def message(number: int, topic: bytes = b"a/b", size: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, 0, 0, topic, b"c", b"", b"%d" % number + bytes(size))


def payloads(runs: Sequence[Run]) -> list[bytes]:
    found: list[bytes] = []
    for run in runs:
        starts = record.split(run.data)
        assert len(starts) == run.count
        found += [record.decode(run.data, start)[6].rstrip(b"\0") for start in starts]
    return found


def receipts(popped: Popped) -> list[Receipts]:
    return [Receipts(run.queue, run.offset, run.count, run.deliveries) for run in popped.runs]


def numbers(*wanted: int) -> list[bytes]:
    return [b"%d" % number for number in wanted]


class Bench:
    """An engine whose clock the test holds."""

    def __init__(self, path: Path, config: StoreConfig = CONFIG) -> None:
        self.path = path
        self.config = config
        self.now = 1_000_000
        self.dead: list[list[bytes]] = []  # of each commit that has some

    async def open(self) -> "Bench":
        self.engine = await Engine.open(self.path, self.config, clock=lambda: self.now)
        self.engine.on_commit(lambda commit: self.dead.append(commit.dead_letters) if commit.dead_letters else None)
        return self

    async def reopen(self) -> None:
        await self.engine.close()
        await self.open()

    async def append(self, *frames: bytes) -> Appended:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append(list(frames), answer.set_result)
        done = await answer
        assert done.error is None
        return done

    async def fill(self, count: int, topic: bytes = b"a/b") -> None:
        await self.append(*(message(number, topic) for number in range(count)))

    async def pop(
        self,
        *queues: bytes,
        records: int = 100,
        size: int = 1 << 20,
        invisible: int = 10_000,
        start: Start = Start.EARLIEST,
        most: int = 0,
        group: bytes = b"g",
        selection: Selection = EVERYTHING,
        ordered: bool = False,
    ) -> Popped:
        return await self.engine.pop(group, queues or (Q,), records, size, invisible, start, most, selection, ordered)

    async def take(self, *queues: bytes, records: int = 100, invisible: int = 10_000) -> list[bytes]:
        return payloads((await self.pop(*queues, records=records, invisible=invisible)).runs)

    async def lag(self) -> dict[bytes, tuple[int, int, int, int]]:
        states = [state for state in await self.engine.groups(None, 10) if state.group == b"g"]
        return {each.queue: (each.floor, each.next, each.unfinished, each.lag) for s in states for each in s.queues}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data").open()
    yield bench
    assert bench.engine._groups.is_idle
    await bench.engine.close()


async def test_a_message_is_out_once_and_comes_again_when_its_lease_is_over(bench: Bench):
    await bench.fill(5)
    first = await bench.pop(records=2)
    assert (payloads(first.runs), first.available_at) == (numbers(0, 1), bench.now + 10_000)
    second = await bench.pop(invisible=20_000)
    assert payloads(second.runs) == numbers(2, 3, 4)
    assert await bench.pop() == Popped([], bench.now + 10_000, is_limited=False)
    await bench.engine.settle(b"g", [Receipts(Q, 1, 1, 1)])
    bench.now += 9_999
    assert await bench.take() == []
    bench.now += 1
    again = await bench.pop()
    assert receipts(again) == [Receipts(Q, 0, 1, 2)]
    assert payloads(again.runs) == numbers(0)
    assert await bench.engine.settle(b"g", receipts(first)) == receipts(first)
    assert await bench.engine.settle(b"g", receipts(second)) == []
    assert await bench.engine.settle(b"g", receipts(again)) == []
    assert await bench.pop() == Popped([], None, is_limited=False)
    assert await bench.lag() == {Q: (5, 5, 0, 0)}


async def test_groups_do_not_see_each_other(bench: Bench):
    await bench.fill(2)
    for group in (b"g", b"gg", b""):
        assert payloads((await bench.pop(group=group)).runs) == numbers(0, 1)
    assert [state.group for state in await bench.engine.groups(None, 10)] == [b"", b"g", b"gg"]
    assert [state.group for state in await bench.engine.groups(b"", 1)] == [b"g"]


async def test_what_is_given_back_comes_first_and_by_time(bench: Bench):
    await bench.fill(6)
    (run,) = receipts(await bench.pop(records=4))
    again = [(Receipts(Q, 3, 1, 1), 0), (Receipts(Q, 0, 1, 1), 5), (Receipts(Q, 1, 1, 1), None)]
    assert await bench.engine.settle(b"g", [], again) == []
    bench.now += 5
    popped = await bench.pop(records=3)
    assert payloads(popped.runs) == numbers(3, 0, 4)
    assert [run.deliveries for run in popped.runs] == [2, 2, 1]
    bench.now += 995
    assert (await bench.pop(records=1)).runs[0].offset == 1  # the first delay of the configuration
    assert await bench.engine.settle(b"g", [run]) == [Receipts(Q, 0, 2, 1), Receipts(Q, 3, 1, 1)]


async def test_delays_grow_with_the_deliveries(bench: Bench):
    await bench.fill(1)
    at = []
    for deliveries in (1, 2, 3):
        popped = await bench.pop(most=100)
        assert receipts(popped) == [Receipts(Q, 0, 1, deliveries)]
        await bench.engine.settle(b"g", [], [(receipts(popped)[0], None)])
        available = (await bench.pop()).available_at
        assert available is not None
        at.append(available - bench.now)
        bench.now = available
    assert at == [1_000, 5_000, 5_000]


async def test_a_lease_can_be_extended(bench: Bench):
    await bench.fill(1)
    (mine,) = receipts(await bench.pop())
    for _ in range(3):
        bench.now += 9_000
        assert await bench.engine.settle(b"g", [], [(mine, 10_000)]) == []
        assert await bench.take() == []
    assert await bench.engine.settle(b"g", [mine]) == []


async def test_a_lease_that_is_over_and_that_nobody_took_can_still_be_settled(bench: Bench):
    await bench.fill(1)
    (mine,) = receipts(await bench.pop())
    bench.now += 60_000
    assert await bench.engine.settle(b"g", [mine, mine]) == [mine]
    assert await bench.take() == []


@pytest.mark.parametrize(
    "wrong",
    [
        Receipts(Q, 0, 1, 2),
        Receipts(Q, 2, 5, 1),
        Receipts(Q, -3, 2, 1),
        Receipts(Q, 0, 1, 300),
        Receipts(Q, 1 << 60, 1 << 60, 1),
        Receipts(OTHER, 0, 1, 1),
    ],
)
async def test_wrong_receipts_settle_nothing(bench: Bench, wrong: Receipts):
    await bench.fill(4)
    await bench.pop(records=2)
    for _ in range(2):
        assert await bench.engine.settle(b"g", [wrong], [(wrong, 0)]) == [wrong, wrong]
    assert await bench.engine.settle(b"other", [Receipts(Q, 0, 1, 1)]) == [Receipts(Q, 0, 1, 1)]
    assert (await bench.lag())[Q] == (0, 2, 2, 4)
    assert await bench.engine.settle(b"g", [Receipts(Q, 0, 1 << 60, 1)]) == [Receipts(Q, 2, (1 << 60) - 2, 1)]


@pytest.mark.parametrize("time", [-1, 1 << 63])
async def test_a_time_that_could_not_be_folded_is_refused(bench: Bench, time: int):
    await bench.append(message(0))
    with pytest.raises(ValueError, match="not a time from now"):
        await bench.engine.pop(b"g", [Q], 10, 1 << 20, time, Start.EARLIEST)
    leased = await bench.pop()
    with pytest.raises(ValueError, match="not a time from now"):
        await bench.engine.settle(b"g", [], [(leased_one, time) for leased_one in receipts(leased)])
    assert await bench.engine.settle(b"g", receipts(leased)) == []


async def test_a_message_that_failed_too_often_becomes_a_dead_letter(bench: Bench):
    await bench.fill(4)
    for deliveries in (1, 2, 3):
        popped = await bench.pop()
        assert {run.deliveries for run in popped.runs} == {deliveries}
        await bench.engine.settle(b"g", [Receipts(Q, 1, 1, deliveries)] if deliveries == 2 else [])
        bench.now += 10_000
    assert await bench.pop() == Popped([], None, is_limited=False)
    assert bench.dead == [[b"g"]]
    assert await bench.lag() == {Q: (4, 4, 0, 0)}
    for deliveries in range(1, 9):  # of the group's own dead letters there are none
        dead = await bench.pop(DEAD)
        assert (payloads(dead.runs), dead.runs[0].deliveries) == (numbers(0, 2, 3), deliveries)
        bench.now += 10_000
        await bench.reopen()
    assert await bench.engine.settle(b"g", [Receipts(DEAD, 0, 3, 8)]) == []
    assert await bench.lag() == {Q: (4, 4, 0, 0), DEAD: (3, 3, 0, 0)}


async def test_the_most_deliveries_can_be_said_by_call(bench: Bench):
    await bench.fill(2)
    (mine,) = receipts(await bench.pop(records=1))
    await bench.engine.settle(b"g", [], [(mine, 0)])
    assert payloads((await bench.pop(most=1)).runs) == numbers(1)
    assert await bench.take(DEAD) == numbers(0)


async def test_dead_letters_of_many_messages_are_given_up_in_several_pops(bench: Bench):
    await bench.fill(1_500)
    await bench.pop(records=2_000, invisible=1)
    bench.now += 1
    first = await bench.pop(records=1, most=1)
    assert (first.runs, first.available_at) == ([], bench.now)
    assert (await bench.engine.bounds(DEAD)).end == 1_024
    assert await bench.pop(records=1, most=1) == Popped([], None, is_limited=False)
    assert payloads((await bench.pop(DEAD, records=2_000)).runs) == numbers(*range(1_500))


async def test_everything_survives_a_restart(bench: Bench):
    await bench.fill(600)
    await bench.pop(records=600)
    done = [Receipts(Q, offset, 1, 1) for offset in range(0, 600, 2)]
    assert await bench.engine.settle(b"g", done, [(Receipts(Q, 1, 1, 1), 0)]) == []
    await bench.pop(records=1)
    await bench.reopen()
    assert await bench.engine.settle(b"g", done[:1]) == done[:1]
    assert await bench.pop() == Popped([], bench.now + 10_000, is_limited=False)
    bench.now += 10_000
    popped = await bench.pop(records=600)
    assert payloads(popped.runs) == numbers(*range(1, 600, 2))
    assert [run.deliveries for run in popped.runs[:2]] == [3, 2]


async def test_where_a_new_group_begins_is_kept(bench: Bench):
    await bench.fill(3)
    assert payloads((await bench.pop(start=Start.LATEST)).runs) == []
    await bench.append(message(7))
    await bench.reopen()
    assert await bench.take() == numbers(7)
    assert await bench.lag() == {Q: (3, 4, 1, 1)}


async def test_a_new_group_begins_at_committed_offsets(bench: Bench):
    queue = partition_queue(b"a", 1)
    await bench.append(*(message(number, topic) for number in range(4) for topic in (b"a/b", b"a/c", b"a/d")))
    assert (await bench.engine.bounds(queue)).end > 3
    await bench.append(group_offsets_committed(b"g", b"a", {1: 3}))
    assert (await bench.pop(queue)).runs[0].offset == 3


async def test_any_queue_can_be_popped_and_they_take_turns(bench: Bench):
    await bench.append(session_opened(b"c", 1, 60, True), subscribed(b"c", [wish(b"a/+")]))
    await bench.fill(3)
    await bench.fill(3, b"a/c")
    queues = [Q, OTHER, filter_queue(b"a/+")]
    seen = [(await bench.pop(*queues, records=1)).runs[0] for _ in range(6)]
    assert [(run.queue, run.offset) for run in seen] == [(queue, turn) for turn in range(2) for queue in queues]
    rest = await bench.pop(*queues)
    assert sorted((run.queue, run.offset, run.count) for run in rest.runs) == sorted(
        [(Q, 2, 1), (OTHER, 2, 1), (filter_queue(b"a/+"), 2, 4)]
    )


async def test_what_is_due_comes_by_time_across_queues(bench: Bench):
    await bench.fill(2)
    await bench.fill(2, b"a/c")
    for queue in (Q, OTHER, Q, OTHER):
        await bench.pop(queue, records=1)
        bench.now += 1
    bench.now += 10_000
    popped = await bench.pop(Q, OTHER)
    assert [(run.queue, run.offset) for run in popped.runs] == [(Q, 0), (OTHER, 0), (Q, 1), (OTHER, 1)]


async def test_a_pop_is_bounded_by_bytes(bench: Bench):
    await bench.append(*(message(number, size=1_000) for number in range(6)))
    assert await bench.take(records=0) == []
    assert payloads((await bench.pop(size=1)).runs) == numbers(0)
    assert payloads((await bench.pop(size=2_500)).runs) == numbers(1, 2)
    bench.now += 10_000
    assert payloads((await bench.pop(size=4_500)).runs) == numbers(0, 1, 2, 3)


async def test_limits_end_when_something_is_settled(tmp_path: Path):
    bench = await Bench(tmp_path, replace(CONFIG, max_group_leases=4, max_group_window=6)).open()
    await bench.fill(10)
    assert await bench.take() == numbers(0, 1, 2, 3)
    assert await bench.pop() == Popped([], bench.now + 10_000, is_limited=True)
    await bench.engine.settle(b"g", [Receipts(Q, 1, 3, 1)])
    assert await bench.take() == numbers(4, 5)  # the window stands where the first is
    assert (await bench.pop()).is_limited
    await bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)])
    assert await bench.take() == numbers(6, 7)
    await bench.engine.close()


async def test_the_number_of_groups_and_of_their_queues_is_bounded(tmp_path: Path):
    bench = await Bench(tmp_path, replace(CONFIG, max_groups=2, max_group_queues=2)).open()
    await bench.pop(Q, OTHER)
    with pytest.raises(TooManyGroups, match="2 queues"):
        await bench.pop(DEAD)
    await bench.pop(group=b"h")
    for _ in range(2):
        with pytest.raises(TooManyGroups, match="2 groups"):
            await bench.pop(group=b"i")
        with pytest.raises(TooManyGroups):
            await bench.engine.reset_group(b"i", {Q: 0})
        await bench.reopen()
    await bench.engine.remove_group(b"h")
    await bench.pop(group=b"i")
    await bench.engine.close()


async def test_a_group_is_reset_and_removed(bench: Bench):
    await bench.fill(5)
    (old,) = receipts(await bench.pop())
    await bench.engine.reset_group(b"g", {Q: 3, OTHER: 0})
    assert await bench.engine.settle(b"g", [old]) == [old]
    assert await bench.lag() == {Q: (3, 3, 0, 2), OTHER: (0, 0, 0, 0)}
    assert await bench.take() == numbers(3, 4)
    with pytest.raises(OffsetOutOfRange):
        await bench.engine.reset_group(b"g", {Q: 6})
    await bench.engine.remove_group(b"g")
    await bench.reopen()
    assert await bench.engine.groups(None, 10) == []
    assert payloads((await bench.pop(start=Start.LATEST)).runs) == []


async def test_calls_wait_while_a_group_is_reset(bench: Bench):
    """What is decided meanwhile would be decided about what is no more."""
    await bench.fill(5)
    (old,) = receipts(await bench.pop(records=2))
    reset = asyncio.create_task(bench.engine.reset_group(b"g", {Q: 0}))
    await asyncio.sleep(0)
    popped, stale = await asyncio.gather(bench.pop(), bench.engine.settle(b"g", [old]))
    await reset
    assert payloads(popped.runs) == numbers(0, 1, 2, 3, 4)
    assert stale == [old]


async def test_pops_at_the_same_time_share(bench: Bench):
    await bench.fill(300)
    popped = await asyncio.gather(*(bench.pop(Q, OTHER, records=7) for _ in range(50)))
    got = [payload for each in popped for payload in payloads(each.runs)]
    assert sorted(got, key=int) == numbers(*range(300))
    settled = await asyncio.gather(*(bench.engine.settle(b"g", receipts(each)) for each in [*popped, popped[0]]))
    assert settled[:-1] == [[]] * 50
    assert settled[-1] == receipts(popped[0])
    assert await bench.lag() == {Q: (300, 300, 0, 0), OTHER: (0, 0, 0, 0)}


async def test_what_is_under_way_is_nobody_elses(bench: Bench):
    await bench.fill(2)
    (mine,) = receipts(await bench.pop())
    bench.now += 10_000
    settling = asyncio.create_task(bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)]))
    await asyncio.sleep(0)
    assert not bench.engine._groups.is_idle
    popped = await bench.pop()  # the lease of 0 is over, but its end is under way
    assert payloads(popped.runs) == numbers(1)
    assert await settling == []
    bench.now += 10_000
    popping = asyncio.create_task(bench.pop())
    await asyncio.sleep(0)
    late = Receipts(Q, 1, 1, 2)
    assert await bench.engine.settle(b"g", [late]) == [late]
    assert receipts(await popping) == [Receipts(Q, 1, 1, 3)]
    assert mine.count == 2


async def test_what_others_have_under_way_counts(tmp_path: Path, monkeypatch):
    bench = await Bench(tmp_path, replace(CONFIG, max_group_leases=4)).open()
    await bench.fill(9)
    await bench.pop(OTHER)
    held: list[tuple] = []
    offer = bench.engine._groups._offer
    monkeypatch.setattr(bench.engine._groups, "_offer", lambda *args: held.append(args))
    pops = [asyncio.create_task(bench.pop(Q, records=count, invisible=9_000 * count)) for count in (1, 2)]
    await asyncio.sleep(0)
    offer(*held.pop(0))
    assert payloads((await pops[0]).runs) == numbers(0)
    bench.now += 9_000
    await bench.engine.settle(b"g", [])
    pops.append(asyncio.create_task(bench.pop(Q, records=9)))
    await asyncio.sleep(0)
    assert (await bench.pop(Q)) == Popped([], bench.now + 9_000, is_limited=True)
    for args in held:
        offer(*args)
    assert [payloads((await each).runs) for each in pops[1:]] == [numbers(1, 2), numbers(0, 3)]
    await bench.engine.close()


async def test_a_refused_pop_takes_nothing(bench: Bench, monkeypatch):
    await bench.fill(4)
    await bench.pop(records=2, invisible=0)
    refusal: list[StoreError] = [StoreBusy("full")]
    offer = bench.engine._groups._offer
    monkeypatch.setattr(bench.engine._groups, "_offer", lambda *args: refusal[0] if refusal else offer(*args))
    for _ in range(2):
        with pytest.raises(StoreBusy):
            await bench.pop(records=3)
        assert bench.engine._groups.is_idle
    waiting = asyncio.create_task(bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)]))
    await asyncio.sleep(0)
    assert bench.engine._groups.is_idle
    refusal.clear()
    popped = await bench.pop(records=3)
    assert payloads(popped.runs) == numbers(0, 1, 2)
    assert await waiting == [Receipts(Q, 0, 1, 1)]


async def test_a_cancelled_pop_gives_back(bench: Bench):
    await bench.fill(3)
    popping = asyncio.create_task(bench.pop(records=2))
    await asyncio.sleep(0)
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    popped = await bench.pop()
    while not any(run.offset == 0 for run in popped.runs):
        await asyncio.sleep(0)
        popped = await bench.pop()
    assert receipts(popped)[0] == Receipts(Q, 0, 2, 2)


async def test_a_failed_log_leaves_nothing_under_way(bench: Bench):
    await bench.fill(3)
    await bench.pop(records=1)
    calls = [bench.pop(records=1), bench.pop(records=1), bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)])]
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    bench.engine._log.fail(OSError("gone"))
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(answer, StoreError)
    assert bench.engine._groups.is_idle


async def test_what_left_the_log_is_finished(tmp_path: Path):
    config = replace(CONFIG, segment_size=4096, generation_segments=1, retention_bytes=4096, retention_check_s=1e6)
    bench = await Bench(tmp_path, config).open()
    await bench.append(*(message(number, size=400) for number in range(40)))
    await bench.pop(records=3, invisible=1)
    await bench.pop(records=1, invisible=1_000)
    await bench.pop(group=b"h", records=40, invisible=1)
    await bench.engine.enforce_retention()
    begin = (await bench.engine.bounds(Q)).begin
    assert 4 < begin < 40
    state = (await bench.lag())[Q]
    assert state == (0, 4, 4, 4 + 40 - begin)
    bench.now += 1
    popped = await bench.pop()
    assert payloads(popped.runs) == numbers(*range(begin, 40))
    assert popped.available_at == bench.now + 999
    assert (await bench.lag())[Q] == (3, 40, 41 - begin, 41 - begin)
    assert payloads((await bench.pop(group=b"h")).runs) == numbers(*range(begin, 40))
    assert [each.unfinished for s in await bench.engine.groups(b"g", 1) for each in s.queues] == [40 - begin]
    await bench.engine.close()


def reclaiming(path: Path, segment_size: int) -> Bench:
    """Of which `enforce_retention` leaves a segment or two."""
    bounds = replace(CONFIG, segment_size=segment_size, retention_bytes=segment_size, retention_check_s=1e6)
    return Bench(path, replace(bounds, generation_segments=1))


async def give_up(bench: Bench, count: int) -> None:
    """Have messages that are due become dead letters."""
    end = (await bench.engine.bounds(DEAD)).end + count
    while (await bench.engine.bounds(DEAD)).end < end:
        assert (await bench.pop(records=1, most=1)).runs == []


async def test_dead_letters_that_are_gone_before_their_neighbours_are_passed_over(tmp_path: Path):
    """Their records are older than what is around them in the queue."""
    bench = await reclaiming(tmp_path, 4096).open()
    await bench.fill(4)
    await bench.pop(records=3, invisible=2)
    await bench.append(*(message(number, size=400) for number in range(4, 40)))
    (new,) = (await bench.pop(records=37, invisible=1)).runs
    await bench.engine.settle(b"g", [Receipts(Q, new.offset, new.count - 2, 1)])
    bench.now += 1
    await give_up(bench, 2)
    bench.now += 1
    await give_up(bench, 3)
    assert await bench.take(DEAD, records=4, invisible=1) == numbers(38, 39, 0, 1)
    bench.now += 1
    await bench.engine.enforce_retention()
    await bench.fill(1)
    await bench.pop(records=1, invisible=1)
    bench.now += 1
    await give_up(bench, 1)
    popped = await bench.pop(DEAD)
    assert receipts(popped) == [Receipts(DEAD, 0, 2, 2), Receipts(DEAD, 5, 1, 1)]
    assert await bench.lag() == {Q: (41, 41, 0, 0), DEAD: (0, 6, 3, 3)}
    await bench.engine.close()


async def test_many_records_that_are_gone_are_passed_over_in_several_pops(tmp_path: Path):
    bench = await reclaiming(tmp_path, 1 << 16).open()
    await bench.fill(5_000)
    await bench.pop(records=5_000, invisible=2)
    await bench.append(*(message(number, b"a/c", 1_000) for number in range(150)), message(5_000))
    await bench.pop(records=1, invisible=1)
    bench.now += 1
    await give_up(bench, 1)
    bench.now += 1
    await give_up(bench, 5_000)
    await bench.engine.enforce_retention()
    await bench.append(message(5_001))
    await bench.pop(records=1, invisible=0)
    await give_up(bench, 1)
    assert await bench.take(DEAD, records=10) == numbers(5_000)
    looked = await bench.pop(DEAD, records=1)
    assert looked == Popped([], bench.now, is_limited=False)
    assert await bench.take(DEAD, records=1) == numbers(5_001)
    assert (await bench.lag())[DEAD] == (0, 5_002, 2, 2)
    await bench.engine.close()


async def test_what_leaves_the_log_while_it_is_read_is_finished(tmp_path: Path, monkeypatch):
    bench = await reclaiming(tmp_path, 4096).open()
    bench.config = replace(bench.config, tail_cache_bytes=0)
    await bench.reopen()
    await bench.append(*(message(number, size=400) for number in range(40)))
    await bench.append(message(40))
    records = Reader.records

    async def slowly(reader: Reader, positions: list[int], lengths: list[int]) -> bytes:
        await bench.engine.enforce_retention()
        return await records(reader, positions, lengths)

    monkeypatch.setattr(Reader, "records", slowly)
    popped = await bench.pop()
    begin = (await bench.engine.bounds(Q)).begin
    assert payloads(popped.runs) == numbers(*range(begin, 41))
    while not bench.engine._groups.is_idle or (await bench.lag())[Q] != (begin, 41, 41 - begin, 41 - begin):
        await bench.append(message(0, b"a/c"))
    await bench.engine.close()


async def test_a_damaged_message_does_not_keep_its_neighbours(tmp_path: Path):
    bench = await Bench(tmp_path, replace(CONFIG, tail_cache_bytes=0)).open()
    done = await bench.append(*(message(number, size=20) for number in range(4)))
    await bench.append(message(0, b"a/c", size=PAGE))  # the log's last page would be written again, and whole
    with (bench.path / "log" / segment_name(0)).open("r+b") as file:
        file.seek(done.positions[2] + 60)
        file.write(b"\xff")
    popped = await bench.pop(invisible=1)
    assert payloads(popped.runs) == numbers(0, 1, 3)
    assert await bench.engine.settle(b"g", receipts(popped)) == []
    for _ in range(2):
        bench.now += 1
        with pytest.raises(LogCorrupt):
            await bench.pop(invisible=1)
    bench.now += 1
    assert await bench.pop() == Popped([], None, is_limited=False)
    assert bench.dead == [[b"g"]]
    await bench.engine.close()


commands = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6)),
    st.tuples(st.just("pop"), st.integers(1, 5), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("pop"), st.integers(1, 5), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("done"), st.lists(st.integers(0, 30), min_size=1, max_size=6)),
    st.tuples(st.just("again"), st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 4)),
    st.tuples(st.just("wait"), st.integers(1, 5)),
    st.tuples(st.just("reset"), st.integers(0, 10)),
    st.tuples(st.just("remove")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("checkpoint")),
)


class Model:
    """What pops of one queue give, by a dictionary."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.published = 0
        self.dead: list[int] = []
        self.handed: list[tuple[int, int]] = []  # every receipt that there ever was, (offset, deliveries)

    def pop(self, now: int, records: int, until: int, most: int) -> list[tuple[int, int]]:
        place = self.place = self.place or Place()
        got: list[tuple[int, int]] = []
        due = sorted((at, offset) for offset, (_, at) in place.entries.items() if at <= now)
        for _, offset in due:
            if len(got) == records:
                break
            deliveries = place.entries[offset][0]
            if deliveries >= most:
                del place.entries[offset]
                self.dead.append(offset)
            else:
                place.popped(offset, until)
                got.append((offset, deliveries + 1))
        while len(got) < records and place.next < self.published:
            got.append((place.next, 1))
            place.popped(place.next, until)
        self.handed += got
        return got

    def is_good(self, offset: int, deliveries: int) -> bool:
        return self.place is not None and self.place.entries.get(offset, (0, 0))[0] == deliveries


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commands, max_size=40))
def test_any_use_gives_what_the_model_gives(tmp_path_factory, history):
    asyncio.run(_use(Bench(tmp_path_factory.mktemp("pop") / "data"), history))


async def _use(bench: Bench, history: list[tuple]) -> None:  # type: ignore[type-arg]
    model = Model()
    await bench.open()
    for name, *args in history:
        if name == "publish":
            await bench.append(*(message(model.published + i) for i in range(args[0])))
            model.published += args[0]
        elif name == "pop":
            records, invisible, most = args
            popped = await bench.pop(records=records, invisible=invisible, most=most)
            expected = model.pop(bench.now, records, bench.now + invisible, most)
            got = [(run.offset + i, run.deliveries) for run in popped.runs for i in range(run.count)]
            assert got == expected
            assert payloads(popped.runs) == numbers(*(offset for offset, _ in got))
            assert model.place is not None
            assert popped.available_at == min((at for _, at in model.place.entries.values()), default=None)
        elif name in {"done", "again"} and model.handed:
            await _settle(bench, model, args[0], None if name == "done" else args[1])
        elif name == "wait":
            bench.now += args[0]
        elif name == "reset":
            offset = min(args[0], model.published)
            await bench.engine.reset_group(b"g", {Q: offset})
            model.place = Place(offset)
        elif name == "remove":
            await bench.engine.remove_group(b"g")
            model.place = None
        elif name == "reopen":
            await bench.reopen()
        elif name == "checkpoint":
            bench.engine._checkpoint()
        assert bench.engine._groups.is_idle
        await _compare(bench, model)
    await bench.engine.close()


async def _settle(bench: Bench, model: Model, picks: list[int], delay: int | None) -> None:
    chosen = [model.handed[pick % len(model.handed)] for pick in picks]
    given = [Receipts(Q, offset, 1, deliveries) for offset, deliveries in chosen]
    if delay is None:
        stale = await bench.engine.settle(b"g", given)
    else:
        stale = await bench.engine.settle(b"g", [], [(each, delay) for each in given])
    seen: set[int] = set()
    expected: list[Receipts] = []
    for receipt, (offset, deliveries) in zip(given, chosen, strict=True):
        if not model.is_good(offset, deliveries) or offset in seen:
            expected.append(receipt)
        seen.add(offset) if model.is_good(offset, deliveries) else None
    assert stale == expected
    assert model.place is not None or not seen
    for offset in seen:
        assert model.place is not None
        if delay is None:
            del model.place.entries[offset]
        else:
            model.place.again(offset, bench.now + delay)


async def _compare(bench: Bench, model: Model) -> None:
    place = model.place
    if place is None:
        assert await bench.lag() == {}
        return
    ahead = model.published - place.next
    unfinished = len(place.entries)
    assert await bench.lag() == {Q: (place.floor, place.next, unfinished, ahead + unfinished)}
    fetched = await bench.engine.fetch(DEAD, 0, 1_000, 1 << 20)
    dead = [record.decode(fetched.data, start)[6] for start in record.split(fetched.data)]
    assert dead == numbers(*model.dead)


@pytest.mark.parametrize("fault", ["views", "name"])
async def test_a_pop_that_cannot_be_decided_takes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str):
    await bench.fill(4)
    await bench.pop(records=2, invisible=0)
    await bench.pop(OTHER)

    def fail(*_: object) -> bytes:
        raise ViewsDamaged(bench.path, OSError(5, "Input/output error"))

    for _ in range(2):
        with monkeypatch.context() as patch:
            if fault == "views":
                patch.setattr(bench.engine._views, "references", fail)
            with pytest.raises(ViewsDamaged if fault == "views" else UnicodeDecodeError):
                await bench.pop(Q, topic_queue(b"\xff") if fault == "name" else OTHER)
        assert bench.engine._groups.is_idle
    assert payloads((await bench.pop(records=3)).runs) == numbers(0, 1, 2)


async def test_what_cannot_be_decided_leaves_no_claim_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Nor on what others have under way in the same queue."""
    await bench.fill(9)
    await bench.pop(records=4, invisible=0)
    await bench.engine.settle(b"g", [], [(Receipts(Q, 2, 2, 1), 5_000)])
    held: list[tuple] = []
    offer = bench.engine._groups._offer
    monkeypatch.setattr(bench.engine._groups, "_offer", lambda *args: held.append(args))
    first = asyncio.create_task(bench.pop(records=2))
    await asyncio.sleep(0)
    bench.now += 5_000
    with pytest.raises(UnicodeDecodeError):
        await bench.pop(Q, topic_queue(b"\xff"))
    with pytest.raises(TypeError):
        await bench.engine.settle(b"g", [Receipts(Q, 2, 2, 1), Receipts(Q, "none", 1, 1)])
    second = asyncio.create_task(bench.engine.settle(b"g", [], [(Receipts(Q, 2, 2, 1), 0)]))
    await asyncio.sleep(0)
    monkeypatch.undo()
    for args in held:
        offer(*args)
    assert await second == []
    assert payloads((await first).runs) == numbers(0, 1)
    assert payloads((await bench.pop(records=2)).runs) == numbers(2, 3)


async def test_one_pop_of_many_new_queues_is_bounded_too(tmp_path: Path):
    bench = await Bench(tmp_path, replace(CONFIG, max_group_queues=2)).open()
    with pytest.raises(TooManyGroups, match="2 is the limit"):
        await bench.pop(Q, OTHER, DEAD)
    await bench.pop(Q)
    with pytest.raises(TooManyGroups, match="1 queues"):
        await bench.pop(Q, OTHER, DEAD)
    await bench.pop(Q, OTHER)
    await bench.engine.close()


async def test_what_is_given_back_is_not_taken_from_who_has_it_by_then(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The lease of a pop that is cancelled may have run out while it was reading: somebody else has the message."""
    await bench.fill(1)
    records = Reader.records
    reading = asyncio.Event()

    async def read_for_ever(*_: object) -> bytes:
        reading.set()
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(Reader, "records", read_for_ever)
    popping = asyncio.create_task(bench.pop(invisible=1_000))
    await reading.wait()
    await bench.append(message(9, b"a/c"))
    monkeypatch.setattr(Reader, "records", records)
    bench.now += 1_000
    mine = await bench.pop(invisible=60_000)
    assert receipts(mine) == [Receipts(Q, 0, 1, 2)]
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    await bench.append(message(9, b"a/c"))
    bench.now += 1_000
    assert (await bench.pop()).runs == []
    assert await bench.engine.settle(b"g", receipts(mine)) == []


async def test_a_pop_says_whether_it_was_full(bench: Bench):
    await bench.fill(3)
    assert (await bench.pop(records=2)).is_full
    assert not (await bench.pop(records=2)).is_full
    assert not (await bench.pop(records=2)).is_full
    await bench.append(*(message(number, size=1000) for number in range(3)))
    assert (await bench.pop(size=1500)).is_full


async def test_what_is_released_comes_again_at_once(bench: Bench):
    """All that is out, and what waits for its time; what is finished does not."""
    await bench.fill(6)
    popped = await bench.pop(records=5)
    done, again = Receipts(Q, 0, 1, 1), Receipts(Q, 1, 1, 1)
    await bench.engine.settle(b"g", [done], [(again, 50_000)])
    assert await bench.take(records=1) == numbers(5)
    await bench.engine.release(b"g", Q)
    assert await bench.take() == numbers(1, 2, 3, 4, 5)
    assert await bench.engine.settle(b"g", receipts(popped)) == [Receipts(Q, 0, 5, 1)]
    await bench.engine.release(b"nobody", Q)
    await bench.engine.release(b"g", OTHER)


async def test_messages_that_are_handed_over_are_their_sessions(bench: Bench):
    """In one record: finished for the group, and on their way to clients that the log knows."""
    group = b"$share/s/a/b"
    await bench.append(session_opened(b"c1", 1, 100, True), subscribed(b"c1", [wish(group, qos=2)]))
    await bench.fill(4)
    first = await bench.pop(group=group, records=3)
    assert payloads(first.runs) == numbers(0, 1, 2)
    handed = [Handed(0, 1, b"c1", 7), Handed(1, 1, b"clean", 0), Handed(2, 2, b"c1", 8), Handed(3, 1, b"c1", 9)]
    before = bench.engine.stats().records
    assert await bench.engine.hand_over(group, handed) == [2, 3]
    assert bench.engine.stats().records == before + 1
    session = await bench.engine.session(b"c1")
    assert session is not None
    assert session.outbound == [Outbound(7, group, 0, False, 2)]
    assert await bench.engine.hand_over(group, handed[:2]) == [0, 1]
    await bench.reopen()
    bench.now += 20_000
    assert payloads((await bench.pop(group=group)).runs) == numbers(2, 3)


async def test_handing_over_and_settling_are_not_both_done(bench: Bench):
    """Whoever decides first has the message."""
    group = b"$share/s/a/b"
    await bench.append(share_held(group))
    await bench.fill(2)
    await bench.pop(group=group)
    settling = asyncio.create_task(bench.engine.settle(group, [], [(Receipts(Q, 0, 1, 1), 0)]))
    handing = asyncio.create_task(bench.engine.hand_over(group, [Handed(0, 1, b"c", 0), Handed(1, 1, b"c", 0)]))
    again = asyncio.create_task(bench.engine.settle(group, [], [(Receipts(Q, 1, 1, 1), 0)]))
    assert await settling == []
    assert await handing == [0]
    assert await again == [Receipts(Q, 1, 1, 1)]


async def test_groups_of_shared_subscriptions_are_there_while_they_have_members(bench: Bench):
    """A pop that was decided before the last one left leaves nothing behind."""
    group = b"$share/s/a/+"
    await bench.append(session_opened(b"c1", 1, 100, True), subscribed(b"c1", [wish(group)]), share_held(group))
    await bench.fill(2)
    assert [state.group for state in await bench.engine.groups(None, 10)] == [group]
    queue = filter_queue(b"a/+")
    await bench.append(session_ended(b"c1", 1))
    assert payloads((await bench.pop(queue, group=group, records=1)).runs) == numbers(0)
    left = asyncio.create_task(bench.append(share_left(group)))
    await asyncio.sleep(0)
    await bench.pop(queue, group=group)
    await left
    assert await bench.engine.groups(None, 10) == []
    end = (await bench.engine.bounds(queue)).end
    await bench.fill(1)
    assert (await bench.engine.bounds(queue)).end == end
    await bench.pop(queue, group=group)
    assert await bench.engine.groups(None, 10) == []
    assert await bench.engine.shares_held(None, 10) == []
