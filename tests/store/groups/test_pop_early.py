"""Leases that are answered before they are committed, and decisions about them meanwhile."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from store.api import Handed, Receipts
from store.control import ShareJoined
from store.errors import StoreFailed
from store.log.reader import LogReader
from tests.store.popping import OTHER, Bench, Q, numbers, payloads, receipts
from tests.waiting import until

pytestmark = pytest.mark.any_store


@contextmanager
def flushes(bench: Bench, expected: int) -> Iterator[None]:
    """Check the number of flushes that the block causes.

    The clock of the loop stands still meanwhile. So an early lease is committed only if something else starts a flush.
    """
    before = bench.engine.stats().batches
    loop = asyncio.get_running_loop()
    now = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now)
        yield
        assert bench.engine.stats().batches - before == expected


async def turns() -> None:
    """Give a flush that is due the time to start: an append after that goes with the next one."""
    for _ in range(3):
        await asyncio.sleep(0)


async def until_idle(bench: Bench) -> None:
    await until(lambda: bench.is_idle)


async def test_an_early_lease_is_exclusive_and_waits_for_no_flush(bench: Bench):
    await bench.fill(5)
    await bench.pop(records=0)
    with flushes(bench, 1):  # all go along with the last
        first = await bench.pop(records=2, early=True)
        assert (payloads(first.runs), first.available_at) == (numbers(0, 1), bench.now + 10_000)
        assert payloads((await bench.pop(records=2, early=True)).runs) == numbers(2, 3)
        await turns()
        assert payloads((await bench.pop()).runs) == numbers(4)
    assert bench.is_idle
    bench.now += 10_000
    assert {run.deliveries for run in (await bench.pop()).runs} == {2}


async def test_an_early_lease_is_committed_by_itself_in_a_moment(bench: Bench):
    await bench.fill(2)
    await bench.pop(records=0)
    await bench.pop(early=True)
    assert not bench.is_idle
    await until_idle(bench)
    assert await bench.lag() == {Q: (0, 2, 2, 2)}


async def test_a_late_settlement_joins_the_next_flush(bench: Bench):
    await bench.fill(4)
    leased = receipts(await bench.pop(records=2))
    with flushes(bench, 1):
        settling = asyncio.create_task(bench.engine.settle(b"g", leased, late=True))
        await turns()
        assert payloads((await bench.pop()).runs) == numbers(2, 3)
        assert await settling == []
    assert await bench.lag() == {Q: (2, 4, 2, 2)}


async def test_a_late_settlement_is_committed_by_itself_in_a_moment(bench: Bench):
    await bench.fill(2)
    assert await bench.engine.settle(b"g", receipts(await bench.pop()), late=True) == []
    assert await bench.lag() == {Q: (2, 2, 0, 0)}


async def test_the_start_of_a_group_is_committed_before_its_first_answer(bench: Bench):
    await bench.fill(2)
    with flushes(bench, 1):
        assert payloads((await bench.pop(records=1, early=True)).runs) == numbers(0)
    assert await bench.lag() == {Q: (0, 1, 1, 2)}


async def test_a_settlement_does_not_have_a_group_begin_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """One that comes while it is not committed that the group begins."""
    await bench.fill(4)
    groups, held = bench.engine._groups, []
    offer = groups._offer
    for name in ("_offer", "_offer_later"):
        monkeypatch.setattr(groups, name, lambda *asked: held.append(asked))
    tasks = [asyncio.create_task(bench.pop(records=1))]
    await asyncio.sleep(0)
    second = await bench.pop(records=1, early=True)
    tasks.append(asyncio.create_task(bench.engine.settle(b"g", receipts(second))))
    await asyncio.sleep(0)
    assert payloads(second.runs) == numbers(1)
    assert payloads((await bench.pop(early=True)).runs) == numbers(2, 3)
    for asked in held:
        offer(*asked)
    await asyncio.gather(*tasks)
    await until_idle(bench)
    assert await bench.lag() == {Q: (0, 4, 3, 3)}


async def test_an_early_lease_may_be_settled_at_once(bench: Bench):
    await bench.fill(4)
    await bench.pop(records=0)
    wrong = [Receipts(Q, 4, 1, 1), Receipts(Q, 0, 1, 2), Receipts(OTHER, 0, 1, 1), Receipts(Q, -1, 1, 1)]
    mine = [Receipts(Q, 1, 2, 1), Receipts(Q, 1, 1, 1)]
    with flushes(bench, 1):
        popped = await bench.pop(early=True)
        await turns()
        stale = await bench.engine.settle(b"g", [*wrong, *mine], [(Receipts(Q, 0, 1, 1), 0), (Receipts(Q, 2, 2, 1), 0)])
    assert stale == [*wrong, mine[1], Receipts(Q, 2, 1, 1)]
    assert await bench.lag() == {Q: (0, 4, 2, 2)}
    assert payloads((await bench.pop()).runs) == numbers(0, 3)
    assert await bench.engine.settle(b"g", receipts(popped)) == receipts(popped)


async def test_a_message_may_be_finished_while_its_lease_is_extended(bench: Bench):
    await bench.fill(2)
    await bench.pop()
    both = Receipts(Q, 0, 2, 1)
    extending = bench.engine.settle(b"g", [], [(both, 10_000)])
    assert await asyncio.gather(extending, bench.engine.settle(b"g", [Receipts(Q, 1, 1, 1)])) == [[], []]
    assert await bench.lag() == {Q: (0, 2, 1, 1)}
    finishing = bench.engine.settle(b"g", [Receipts(Q, 0, 1, 1)])
    assert await asyncio.gather(finishing, bench.engine.settle(b"g", [], [(both, 10_000)])) == [[], [both]]
    assert await bench.lag() == {Q: (2, 2, 0, 0)}


async def test_only_the_latest_lease_settles_a_message(bench: Bench):
    await bench.fill(2)
    old = receipts(await bench.pop(invisible=0))
    new = receipts(await bench.pop(early=True))
    assert await bench.engine.settle(b"g", [*old, *new]) == old
    assert await bench.lag() == {Q: (2, 2, 0, 0)}


async def test_an_early_lease_may_be_handed_over_at_once(bench: Bench):
    group = b"$share/s/a/b"
    await bench.append(ShareJoined().frame(group))
    await bench.fill(2)
    handed = [Handed(0, 1, b"c", 0), Handed(2, 1, b"c", 0)]
    with flushes(bench, 1):
        await bench.pop(group=group, early=True)
        await turns()
        assert await bench.engine.hand_over(group, handed) == [2]
    assert await bench.engine.settle(group, [Receipts(Q, 0, 2, 1)]) == [Receipts(Q, 0, 1, 1)]


@pytest.mark.engine_only
async def test_a_refused_settlement_leaves_what_was_under_way_before(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    await bench.fill(2)
    await bench.pop(records=1)
    await bench.pop(records=1)
    mine = Receipts(Q, 0, 1, 1)
    extending = asyncio.create_task(bench.engine.settle(b"g", [], [(mine, 60_000)]))
    await asyncio.sleep(0)
    with monkeypatch.context() as patch:
        patch.setattr(bench.engine._groups, "_offer", lambda *_: StoreFailed("refused"))
        with pytest.raises(StoreFailed):
            await bench.engine.settle(b"g", [Receipts(Q, 0, 2, 1)])
    bench.now += 10_000  # no lease but the extended one is left
    assert payloads((await bench.pop()).runs) == numbers(1)
    assert await extending == []
    assert await bench.engine.settle(b"g", [mine]) == []


async def test_undelivered_leases_do_not_count_as_deliveries(bench: Bench):
    await bench.fill(3)
    for _ in range(5):
        mine = receipts(await bench.pop(most=1))
        assert mine == [Receipts(Q, 0, 3, 1)]
        assert await bench.engine.settle(b"g", [], [], [(each, 0) for each in (*mine, *mine)]) == mine
        assert await bench.engine.settle(b"g", mine) == mine
        await bench.reopen()
    assert await bench.lag() == {Q: (0, 3, 3, 3)}
    (mine,) = receipts(await bench.pop(most=1, records=1))
    await bench.engine.settle(b"g", [], [(mine, 0)])
    (twice,) = receipts(await bench.pop(most=2, records=1))
    assert twice == Receipts(Q, 0, 1, 2)
    assert await bench.engine.settle(b"g", [], [], [(twice, 0)]) == []
    again = receipts(await bench.pop(most=2))
    assert again == [Receipts(Q, 1, 2, 1), twice] or again == [twice, Receipts(Q, 1, 2, 1)]


@pytest.mark.engine_only
async def test_a_cancelled_pop_counts_no_delivery(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    await bench.fill(2)
    read = LogReader.frames

    async def late(*args: Any) -> bytes:
        await asyncio.sleep(0)
        return await read(*args)

    monkeypatch.setattr(LogReader, "frames", late)
    for early in (False, True):
        popping = asyncio.create_task(bench.pop(early=early))
        await asyncio.sleep(0)
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        await until_idle(bench)
    assert receipts(await bench.pop(most=1)) == [Receipts(Q, 0, 2, 1)]


@pytest.mark.parametrize("name", [b"", b"a/b", b"x", b"t\xff", b"pa", b"pa/b\0\0", b"p\xff\0\0\1"])
async def test_an_invalid_queue_is_refused(bench: Bench, name: bytes):
    for call in (bench.pop(Q, name), bench.engine.reset_group(b"g", {name: 0})):
        with pytest.raises(ValueError, match="is no queue"):
            await call
    assert await bench.engine.groups(None, 10) == []
