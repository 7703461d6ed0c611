"""Offsets, limits and planning, without Spark."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.offsets import (
    DataLossError,
    OffsetRange,
    advance,
    begins,
    ends,
    offsets_from_json,
    offsets_to_json,
    plan,
    skip_lost,
)


@dataclass
class Bound:
    partition: int
    begin: int
    end: int


partitions = st.dictionaries(st.integers(0, 40), st.integers(0, 1 << 62), max_size=12)


@given(partitions)
def test_json_round_trip_in_ascending_order(offsets: dict[int, int]) -> None:
    text = json.dumps(offsets_to_json(offsets))
    assert offsets_from_json(json.loads(text)) == offsets
    shuffled = dict(sorted(offsets.items(), reverse=True))
    assert json.dumps(offsets_to_json(shuffled)) == text


@pytest.mark.parametrize("bad", [[], "x", {"a": 1}, {"-1": 1}, {"0": -1}, {"0": "1"}, {"0": 1.5}, {"0": True}])
def test_json_that_is_not_offsets(bad: object) -> None:
    with pytest.raises(ValueError, match=r"offset"):
        offsets_from_json(bad)


@given(partitions, st.dictionaries(st.integers(0, 40), st.integers(0, 1 << 62), max_size=12), st.integers(1, 1 << 40))
def test_advance_takes_what_the_limit_allows_and_never_goes_back(
    start: dict[int, int], available: dict[int, int], limit: int
) -> None:
    reached = advance(start, available, limit)
    backlog = sum(max(0, end - start.get(number, 0)) for number, end in available.items())
    taken = sum(offset - start.get(number, 0) for number, offset in reached.items())
    assert taken == min(limit, backlog)
    for number, offset in reached.items():
        assert start.get(number, 0) <= offset <= max(available.get(number, 0), start.get(number, 0))
    assert advance(start, available, None) == {**start, **{n: max(e, start.get(n, 0)) for n, e in available.items()}}


def test_advance_shares_and_passes_on_what_is_left() -> None:
    assert advance({0: 0, 1: 10, 2: 0}, {0: 1, 1: 1000, 2: 1000}, 101) == {0: 1, 1: 60, 2: 50}


def test_advance_without_news_is_where_it_stood() -> None:
    assert advance({0: 5, 1: 7}, {0: 5, 1: 7}, 100) == {0: 5, 1: 7}
    assert advance({}, {}, 100) == {}


def test_repeated_advance_arrives() -> None:
    at: dict[int, int] = {0: 0}
    rounds = 0
    while at != {0: 7, 1: 90, 2: 400}:
        at = advance(at, {0: 7, 1: 90, 2: 400}, 60)
        rounds += 1
    assert rounds == 9


@given(partitions, st.integers(1, 1 << 20))
def test_plan_covers_each_offset_once(end: dict[int, int], span: int) -> None:
    end = {number: offset % (span * 20) for number, offset in end.items()}
    start = {number: offset // 2 for number, offset in end.items()}
    at = dict(start)
    for part in plan(start, end, span):
        assert part.start == at[part.partition] < part.end <= part.start + span
        at[part.partition] = part.end
    assert at == end


def test_plan_of_nothing_is_empty() -> None:
    assert plan({0: 3}, {0: 3}, 10) == []
    assert plan({}, {4: 2}, 10) == [OffsetRange(4, 0, 2)]


def test_bounds_as_offsets() -> None:
    bounds = [Bound(1, 5, 9), Bound(0, 2, 4)]
    assert begins(bounds) == {1: 5, 0: 2}
    assert ends(bounds) == {1: 9, 0: 4}


def test_lost_records_are_an_error_or_skipped() -> None:
    bounds = [Bound(0, 100, 200), Bound(1, 0, 50)]
    assert skip_lost({0: 100, 1: 50}, bounds, fail=True) == {0: 100, 1: 50}
    with pytest.raises(DataLossError, match=r"partition 0: offsets \[40, 100\)"):
        skip_lost({0: 40, 1: 0}, bounds, fail=True)
    with pytest.raises(DataLossError, match="partition 1: the log ends at 50"):
        skip_lost({0: 100, 1: 51}, bounds, fail=True)
    assert skip_lost({0: 40, 1: 51}, bounds, fail=False) == {0: 100, 1: 50}
