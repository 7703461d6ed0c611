"""Limits of a pop and of groups: bytes, windows, queues, groups."""

from dataclasses import replace
from pathlib import Path

import pytest

from store.api import (
    PopResult,
    Receipts,
)
from store.errors import TooManyGroups
from tests.store.popping import CONFIG, DEAD, OTHER, Bench, Q, message, numbers, payloads

pytestmark = pytest.mark.any_store


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
    assert await bench.pop() == PopResult([], bench.now + 10_000, is_limited=True, left=6)
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


async def test_one_pop_of_many_new_queues_is_bounded_too(tmp_path: Path):
    bench = await Bench(tmp_path, replace(CONFIG, max_group_queues=2)).open()
    with pytest.raises(TooManyGroups, match="the limit is 2"):
        await bench.pop(Q, OTHER, DEAD)
    await bench.pop(Q)
    with pytest.raises(TooManyGroups, match="1 queues"):
        await bench.pop(Q, OTHER, DEAD)
    await bench.pop(Q, OTHER)
    await bench.engine.close()


async def test_a_pop_says_whether_it_was_full(bench: Bench):
    await bench.fill(3)
    assert (await bench.pop(records=2)).is_full
    assert not (await bench.pop(records=2)).is_full
    assert not (await bench.pop(records=2)).is_full
    await bench.append(*(message(number, size=1000) for number in range(3)))
    assert (await bench.pop(size=1500)).is_full
