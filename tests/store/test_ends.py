"""Ends remembered are the ends that were put, or forgotten: never others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.views.ends import Ends, PlainEnds
from store.views.queues import queue_digest

KINDS = [pytest.param(Ends, id="compiled"), pytest.param(PlainEnds, id="plain")]


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1 << 60))))
def test_the_newest_end_is_the_one_that_is_found(kind, puts):
    ends, model = kind(1 << 16), {}
    for number, end in puts:
        ends.put(queue_digest(b"%d" % number), end)
        model[number] = end
    for number in range(60):
        assert ends.get(queue_digest(b"%d" % number)) == model.get(number, -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 10_000, 1_000_000])
def test_many_more_than_the_limit(kind, limit):
    """What is not remembered is forgotten; nearly all are remembered up to the limit; no memory beyond it."""
    ends = kind(limit)
    count = 50_000
    for again in range(2):
        for number in range(count):
            ends.put(queue_digest(b"%d" % number), number + again)
    found = [ends.get(queue_digest(b"%d" % number)) for number in range(count)]
    kept = sum(end >= 0 for end in found)
    assert all(end in (-1, number + 1) for number, end in enumerate(found))
    assert kept <= max(2 * limit, 4096)
    assert kept >= min(limit, count) * 9 // 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_digest_has_16_bytes(kind):
    ends = kind(10)
    with pytest.raises(ValueError, match="16 bytes"):
        ends.put(b"short", 1)
    with pytest.raises(ValueError, match="16 bytes"):
        ends.get(b"short")
