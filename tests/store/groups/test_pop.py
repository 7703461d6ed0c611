"""Groups lease messages of queues out: which come, in which order, how often, and to whom."""

import asyncio

import pytest

from matcher.selector import EVERYTHING, Selection
from store.api import (
    Ordering,
    PopResult,
    Receipts,
    Start,
    filter_queue,
    partition_queue,
)
from store.control import GroupOffsetsCommitted, SessionOpened, subscribed
from store.errors import OffsetOutOfRange
from tests.store.popping import DEAD, OTHER, Bench, Q, message, numbers, payloads, receipts
from tests.store.views.sessions.test_sessions import wish

pytestmark = pytest.mark.any_store


async def test_a_message_is_out_once_and_comes_again_when_its_lease_is_over(bench: Bench):
    await bench.fill(5)
    first = await bench.pop(records=2)
    assert (payloads(first.runs), first.available_at) == (numbers(0, 1), bench.now + 10_000)
    second = await bench.pop(invisible=20_000)
    assert payloads(second.runs) == numbers(2, 3, 4)
    assert await bench.pop() == PopResult([], bench.now + 10_000, is_limited=False)
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
    assert await bench.pop() == PopResult([], None, is_limited=False)
    assert await bench.lag() == {Q: (5, 5, 0, 0)}


@pytest.mark.parametrize("ordering", Ordering)
@pytest.mark.parametrize("selection", [EVERYTHING, Selection(sql="a IS NULL")])
async def test_a_pop_says_how_many_messages_it_left(bench: Bench, ordering: Ordering, selection: Selection):
    await bench.fill(5)
    await bench.fill(3, b"a/c")

    leased = 0
    for number, records in enumerate((2, 1, 1, 100)):
        popped = await bench.pop(Q, OTHER, records=records, ordering=ordering, selection=selection)
        leased += sum(run.count for run in popped.runs)
        assert popped.left == 8 + number - leased
        await bench.reopen()
        await bench.fill(1)
    assert leased > 2


async def test_groups_do_not_see_each_other(bench: Bench):
    await bench.fill(2)
    for group in (b"g", b"gg", b""):
        assert payloads((await bench.pop(group=group)).runs) == numbers(0, 1)
    assert [state.group for state in await bench.engine.groups(None, 10)] == [b"", b"g", b"gg"]
    assert [state.group for state in await bench.engine.groups(b"", 1)] == [b"g"]


async def test_a_message_that_failed_too_often_becomes_a_dead_letter(bench: Bench):
    await bench.fill(4)
    for deliveries in (1, 2, 3):
        popped = await bench.pop()
        assert {run.deliveries for run in popped.runs} == {deliveries}
        await bench.engine.settle(b"g", [Receipts(Q, 1, 1, deliveries)] if deliveries == 2 else [])
        bench.now += 10_000
    assert await bench.pop() == PopResult([], None, is_limited=False)
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
    assert await bench.pop(records=1, most=1) == PopResult([], None, is_limited=False)
    assert payloads((await bench.pop(DEAD, records=2_000)).runs) == numbers(*range(1_500))


async def test_everything_survives_a_restart(bench: Bench):
    await bench.fill(600)
    await bench.pop(records=600)
    done = [Receipts(Q, offset, 1, 1) for offset in range(0, 600, 2)]
    assert await bench.engine.settle(b"g", done, [(Receipts(Q, 1, 1, 1), 0)]) == []
    await bench.pop(records=1)
    await bench.reopen()
    assert await bench.engine.settle(b"g", done[:1]) == done[:1]
    assert await bench.pop() == PopResult([], bench.now + 10_000, is_limited=False)
    bench.now += 10_000
    popped = await bench.pop(records=600)
    assert payloads(popped.runs) == numbers(*range(1, 600, 2))
    assert [run.deliveries for run in popped.runs[:2]] == [3, 2]


@pytest.mark.parametrize(("age_ms", "got"), [(0, 3), (3_599_999, 3), (3_600_000, 0)])
@pytest.mark.parametrize("selection", [EVERYTHING, Selection(sql="a IS NULL")])
async def test_a_recent_start_is_the_first_message_of_the_last_hour(
    bench: Bench, age_ms: int, got: int, selection: Selection
):
    await bench.fill(3)
    bench.now += age_ms
    await bench.fill(1, b"a/c")
    popped = await bench.pop(start=Start.RECENT, selection=selection)
    assert payloads(popped.runs) == numbers(*range(got))
    assert payloads((await bench.pop(OTHER, start=Start.RECENT, selection=selection)).runs) == numbers(0)
    await bench.fill(4)
    assert payloads((await bench.pop(selection=selection)).runs) == numbers(*range(4))


async def test_the_start_of_a_new_group_is_recorded(bench: Bench):
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
    await bench.append(GroupOffsetsCommitted(b"a", {1: 3}).frame(b"g"))
    assert (await bench.pop(queue)).runs[0].offset == 3


async def test_any_queue_can_be_popped_and_they_take_turns(bench: Bench):
    await bench.append(SessionOpened(1, 60, True).frame(b"c"), subscribed(b"c", [wish(b"a/+")]))
    await bench.fill(3)
    await bench.fill(3, b"a/c")
    queues = [Q, OTHER, filter_queue(b"a/+")]
    seen = [(await bench.pop(*queues, records=1)).runs[0] for _ in range(6)]
    assert [(run.queue, run.offset) for run in seen] == [(queue, turn) for turn in range(2) for queue in queues]
    rest = await bench.pop(*queues)
    assert sorted((run.queue, run.offset, run.count) for run in rest.runs) == sorted(
        [(Q, 2, 1), (OTHER, 2, 1), (filter_queue(b"a/+"), 2, 4)]
    )


async def test_due_messages_come_by_time_across_queues(bench: Bench):
    await bench.fill(2)
    await bench.fill(2, b"a/c")
    for queue in (Q, OTHER, Q, OTHER):
        await bench.pop(queue, records=1)
        bench.now += 1
    bench.now += 10_000
    popped = await bench.pop(Q, OTHER)
    assert [(run.queue, run.offset) for run in popped.runs] == [(Q, 0), (OTHER, 0), (Q, 1), (OTHER, 1)]


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
    """A decision made meanwhile would concern a group that no longer exists."""
    await bench.fill(5)
    (old,) = receipts(await bench.pop(records=2))
    reset = asyncio.create_task(bench.engine.reset_group(b"g", {Q: 0}))
    await asyncio.sleep(0)
    stale, popped = await asyncio.gather(bench.engine.settle(b"g", [old]), bench.pop())
    await reset
    assert payloads(popped.runs) == numbers(0, 1, 2, 3, 4)
    assert stale == [old]


async def test_released_messages_come_again_at_once(bench: Bench):
    """All that is out, and what waits for its time; what is finished does not."""
    await bench.fill(6)
    popped = await bench.pop(records=5)
    done, again = Receipts(Q, 0, 1, 1), Receipts(Q, 1, 1, 1)
    await bench.engine.settle(b"g", [done], [(again, 50_000)])
    assert await bench.take(records=1) == numbers(5)
    await bench.engine.release_leases(b"g", Q)
    assert await bench.take() == numbers(1, 2, 3, 4, 5)
    assert await bench.engine.settle(b"g", receipts(popped)) == [Receipts(Q, 0, 5, 1)]
    await bench.engine.release_leases(b"nobody", Q)
    await bench.engine.release_leases(b"g", OTHER)
