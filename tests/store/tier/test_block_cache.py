"""Blocks in memory: bounded, and loaded once for all who want them at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import TierUnavailable
from store.tier.block_cache import BlockCache, Key
from tests.waiting import block_until


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=60))
def test_it_has_the_blocks_and_no_more_than_its_limit(limit: int, wanted: list[tuple[int, int]]) -> None:
    cache = BlockCache(limit)
    for number, more in wanted:

        def load(first: int = number, count: int = more) -> list[tuple[Key, bytes]]:
            return [(("o", first + i), bytes([first + i]) * 10) for i in range(count + 1)]

        assert cache.get(("o", number), load) == bytes([number]) * 10
        assert cache.size <= limit
        assert cache.has(("o", number)) or limit < 10


def test_a_block_that_is_used_stays_longer() -> None:
    cache = BlockCache(20)
    for number in (1, 2, 1, 3):
        cache.get(("o", number), lambda number=number: [(("o", number), bytes(10))])  # type: ignore[misc]
    assert [number for number in (1, 2, 3) if cache.has(("o", number))] == [1, 3]
    assert cache.hits == 1


def test_many_who_want_a_block_at_once_load_it_once() -> None:
    cache = BlockCache(100)
    may_load = threading.Event()
    loads: list[int] = []

    def load() -> list[tuple[Key, bytes]]:
        loads.append(1)
        assert may_load.wait(60)
        return [(("o", 0), b"block")]

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(cache.get, ("o", 0), load) for _ in range(4)]
        block_until(lambda: cache.hits == 3)
        may_load.set()
        assert {each.result() for each in found} == {b"block"}
    assert len(loads) == 1


def test_an_error_is_for_those_who_waited_and_not_for_the_next() -> None:
    cache = BlockCache(100)
    may_fail = threading.Event()

    def fail() -> list[tuple[Key, bytes]]:
        assert may_fail.wait(60)
        raise TierUnavailable("no answer")

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(cache.get, ("o", 0), fail) for _ in range(2)]
        block_until(lambda: cache.hits == 1)
        may_fail.set()
        for each in found:
            with pytest.raises(TierUnavailable, match="no answer"):
                each.result()
    assert cache.get(("o", 0), lambda: [(("o", 0), b"block")]) == b"block"
