"""Messages that a member gives up on are dead letters of its group at once, however often they were tried."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store.api import Receipts
from tests.store.groups.test_pop import DEAD, Bench, Q, numbers, payloads, receipts

pytestmark = pytest.mark.any_store


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data").open()
    yield bench
    assert bench.is_idle
    await bench.engine.close()


async def test_a_buried_message_is_a_dead_letter_and_leased_no_more(bench: Bench):
    await bench.fill(5)
    await bench.pop()
    assert await bench.engine.dead_letter(b"g", [Receipts(Q, 1, 1, 1), Receipts(Q, 3, 2, 1)]) == []
    assert bench.dead == [[b"g"]]
    bench.now += 10_000
    assert await bench.take() == numbers(0, 2)
    await bench.reopen()
    assert await bench.take(DEAD) == numbers(1, 3, 4)


async def test_stale_receipts_are_reported_and_bury_nothing(bench: Bench):
    await bench.fill(3)
    popped = receipts(await bench.pop())
    assert popped == [Receipts(Q, 0, 3, 1)]
    await bench.engine.settle(b"g", [Receipts(Q, 1, 1, 1)])
    assert await bench.engine.dead_letter(b"g", popped) == [Receipts(Q, 1, 1, 1)]
    assert await bench.engine.dead_letter(b"g", popped) == popped
    assert await bench.take(DEAD) == numbers(0, 2)
    assert await bench.lag() == {Q: (3, 3, 0, 0), DEAD: (0, 2, 2, 2)}


async def test_more_than_one_record_tells_of(bench: Bench):
    await bench.fill(1_500)
    (all_of_it,) = receipts(await bench.pop(records=2_000))
    assert await bench.engine.dead_letter(b"g", [all_of_it]) == []
    assert payloads((await bench.pop(DEAD, records=2_000)).runs) == numbers(*range(1_500))


async def test_dead_letters_are_not_buried_again(bench: Bench):
    await bench.fill(1)
    await bench.engine.dead_letter(b"g", receipts(await bench.pop()))
    letters = receipts(await bench.pop(DEAD))
    with pytest.raises(ValueError, match="dead letter"):
        await bench.engine.dead_letter(b"g", letters)


@pytest.mark.parametrize("delay", [None, 60_000])
@pytest.mark.parametrize("most", [0, 2])  # 0: as configured, 3
async def test_the_last_failed_delivery_makes_a_dead_letter_at_once(bench: Bench, delay: int | None, most: int):
    await bench.fill(1)
    limit = most or 3
    for deliveries in range(1, limit + 1):
        popped = receipts(await bench.pop(most=most))
        assert popped == [Receipts(Q, 0, 1, deliveries)]
        assert bench.dead == []
        assert await bench.engine.settle(b"g", [], failed=[(popped[0], delay)], max_deliveries=most) == []
        if deliveries < limit:
            assert await bench.take() == []  # it waits for its delay
            bench.now += 60_000
    assert bench.dead == [[b"g"]]
    assert await bench.take(DEAD) == numbers(0)


async def test_an_extended_lease_of_the_last_delivery_stays(bench: Bench):
    await bench.fill(1)
    popped = receipts(await bench.pop(most=1))
    assert await bench.engine.settle(b"g", [], [(popped[0], 60_000)], max_deliveries=1) == []
    assert bench.dead == []
    assert await bench.engine.settle(b"g", popped) == []


async def test_a_failed_dead_letter_stays_one(bench: Bench):
    await bench.fill(1)
    await bench.engine.dead_letter(b"g", receipts(await bench.pop()))
    letter = receipts(await bench.pop(DEAD))[0]
    assert await bench.engine.settle(b"g", [], failed=[(letter, 1)], max_deliveries=1) == []
    bench.now += 1
    assert await bench.take(DEAD) == numbers(0)
