"""Settling: leased messages are finished, given back, extended and returned."""

import pytest

from store.api import (
    Failed,
    PopRequest,
    Receipts,
    Start,
)
from tests.store.popping import OTHER, Bench, Q, message, numbers, payloads, receipts

pytestmark = pytest.mark.any_store


async def test_returned_messages_come_first_and_by_time(bench: Bench):
    await bench.fill(6)
    (run,) = receipts(await bench.pop(records=4))
    again = [(Receipts(Q, 3, 1, 1), 0), (Receipts(Q, 0, 1, 1), 5)]
    assert await bench.engine.settle(b"g", [], again, failed=[Failed(Receipts(Q, 1, 1, 1), None)]) == []
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
        await bench.engine.settle(b"g", [], failed=[Failed(receipts(popped)[0], None)], max_deliveries=100)
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


async def test_an_expired_lease_that_was_not_leased_again_can_be_settled(bench: Bench):
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
        await bench.engine.pop(PopRequest(b"g", [Q], 10, 1 << 20, time, Start.EARLIEST))
    leased = await bench.pop()
    with pytest.raises(ValueError, match="not a time from now"):
        await bench.engine.settle(b"g", [], [(leased_one, time) for leased_one in receipts(leased)])
    assert await bench.engine.settle(b"g", receipts(leased)) == []
