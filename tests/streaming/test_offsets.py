"""Offsets, limits and planning, without Spark."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.history.index import HistoryIndex, _Files
from streaming.history.table import HistoryFile, HistoryState, Progress
from streaming.source.offsets import (
    DataLossError,
    Holding,
    Offsets,
    Partition,
    StreamProgress,
    advance,
    begins,
    ends,
    offsets_from_json,
    skip_lost,
)
from streaming.source.planning import FileRange, JoinedRanges, LogRange, pieces
from streaming.source.topics import Topics

parents = st.sampled_from(["", "a", "b", "0", "$inbox"])
partitions = st.dictionaries(st.tuples(parents, st.integers(0, 40)), st.integers(0, 1 << 62), max_size=12)
WHOLE = Topics.of_parents("p")


def of(offsets: dict[int, int]) -> Offsets:
    """Of the parent topic `p`."""
    return {("p", number): offset for number, offset in offsets.items()}


@given(partitions, st.integers(0, 1 << 62))
def test_json_round_trip_in_ascending_order(offsets: Offsets, skipped: int) -> None:
    text = json.dumps(StreamProgress(offsets, skipped).to_json())
    assert StreamProgress.from_json(json.loads(text), None) == StreamProgress(offsets, skipped)
    shuffled = dict(sorted(offsets.items(), reverse=True))
    assert json.dumps(StreamProgress(shuffled, skipped).to_json()) == text


def test_partitions_of_one_parent_may_stand_alone() -> None:
    assert offsets_from_json({"0": 17, "3": 4}, ["p"]) == {("p", 0): 17, ("p", 3): 4}
    for several in (None, ["p", "q"]):
        with pytest.raises(ValueError, match="by parent"):
            offsets_from_json({"0": 17}, several)
    with pytest.raises(ValueError, match="'q', which is not read"):
        offsets_from_json({"q": {"0": 17}}, ["p"])


@pytest.mark.parametrize(
    "bad", [[], "x", {"a": 1}, {"-1": 1}, {"0": -1}, {"0": "1"}, {"0": 1.5}, {"0": True}, {"p": {"0": 1}, "0": 2}]
)
def test_json_that_is_not_offsets(bad: object) -> None:
    with pytest.raises(ValueError, match=r"offset"):
        offsets_from_json(bad, ["p"])


@given(partitions, partitions, st.integers(1, 1 << 40))
def test_advance_takes_what_the_limit_allows_and_never_goes_back(
    start: Offsets, available: Offsets, limit: int
) -> None:
    reached = advance(start, available, limit)
    backlog = sum(max(0, end - start.get(number, 0)) for number, end in available.items())
    taken = sum(offset - start.get(number, 0) for number, offset in reached.items())
    assert taken == min(limit, backlog)
    for number, offset in reached.items():
        assert start.get(number, 0) <= offset <= max(available.get(number, 0), start.get(number, 0))
    assert advance(start, available, None) == {**start, **{n: max(e, start.get(n, 0)) for n, e in available.items()}}


@given(partitions, partitions, st.integers(1, 1 << 40))
def test_each_partition_advances_by_its_part_of_what_is_left(start: Offsets, available: Offsets, limit: int) -> None:
    backlog = {each: max(0, end - start.get(each, 0)) for each, end in available.items()}
    total = sum(backlog.values())
    reached = advance(start, available, limit)
    for each, count in backlog.items():
        part = Fraction(count * min(limit, total), max(total, 1))
        assert abs(reached[each] - start.get(each, 0) - part) <= 1


@given(st.lists(st.integers(0, 300), min_size=1, max_size=6), st.integers(1, 100))
def test_partitions_reach_their_ends_together(counts: list[int], limit: int) -> None:
    """Else what is young in one partition carries the watermark beyond what is left of another."""
    end = of(dict(enumerate(counts)))
    at = dict.fromkeys(end, 0)
    for turn in range(1, -(-sum(counts) // limit) + 1):
        at = advance(at, end, limit)
        done = Fraction(min(turn * limit, sum(counts)), sum(counts))
        for each, count in end.items():
            assert abs(at[each] - count * done) <= 16  # what rounding adds up to
    assert at == end


def test_an_advance_without_new_records_stays_in_place() -> None:
    assert advance(of({0: 5, 1: 7}), of({0: 5, 1: 7}), 100) == of({0: 5, 1: 7})
    assert advance({}, {}, 100) == {}


@given(st.integers(1, 7), st.integers(0, 1 << 40))
def test_partitions_take_turns_where_the_limit_is_less_than_one_for_each(limit: int, first: int) -> None:
    begin = of(dict.fromkeys(range(8), first))
    at = begin
    for _ in range(80):
        at = advance(at, of(dict.fromkeys(range(8), 1 << 62)), limit)
    taken = [at[each] - begin[each] for each in at]
    assert sum(taken) == 80 * limit
    assert max(taken) - min(taken) <= 6


def test_repeated_advance_arrives() -> None:
    at, end = of({0: 0}), of({0: 7, 1: 90, 2: 400})
    rounds = 0
    while at != end:
        at = advance(at, end, 60)
        rounds += 1
    assert rounds == 9


@given(partitions, st.integers(1, 1 << 20))
def test_pieces_cover_each_offset_once(end: Offsets, span: int) -> None:
    end = {number: offset % (span * 20) for number, offset in end.items()}
    start = {number: offset // 2 for number, offset in end.items()}
    at: dict[Partition, int] = dict(start)
    for part in pieces(start, end, span, WHOLE, HistoryIndex(None)):
        number = (part.parent, part.partition)
        assert part.start == at[number] < part.end <= part.start + span
        at[number] = part.end
    assert at == end


bounds = st.lists(st.integers(0, 60), min_size=2, max_size=5, unique=True).map(sorted)


@given(bounds, st.integers(0, 60), st.integers(1, 60), st.integers(1, 20))
def test_pieces_are_cut_alike_whatever_a_history_has(borders: list[int], first: int, count: int, size: int) -> None:
    """A batch that is done again has the same rows in the same task, also when an exporter went on meanwhile."""
    files = [HistoryFile(f"{begin}", 0, begin, end, end - begin, 1, 0, 0, 0, 0) for begin, end in pairwise(borders)]
    lost = files.pop(len(files) // 2)
    start, end = of({0: first}), of({0: first + count})
    without = pieces(start, end, size, WHOLE, HistoryIndex(None))
    index = HistoryIndex("/nowhere")
    index._known["p"] = _Files.of(HistoryState(files, {0: Progress(borders[-1])}))
    found = pieces(start, end, size, WHOLE, index)
    assert len(found) == len(without)
    for piece, whole in zip(found, without, strict=True):
        assert isinstance(whole, LogRange)
        parts = piece.parts if isinstance(piece, JoinedRanges) else (piece,)
        covered = [offset for part in parts for offset in range(part.start, part.end)]
        # Without a file before them, lost offsets are asked of the node, which says that they are lost.
        gone = range(lost.begin if files and files[0].begin < lost.begin else lost.end, lost.end)
        assert covered == [offset for offset in range(whole.start, whole.end) if offset not in gone]
        for part in parts:
            named = {each.path for each in files if each.begin <= part.start and part.end <= each.end}
            assert ({part.path} if isinstance(part, FileRange) else set()) == named


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 90), max_size=6), st.integers(1, 40))
def test_one_topic_is_read_by_few_tasks(ends_of: dict[int, int], size: int) -> None:
    """Each task has at most one range of each partition, and all of them cover each offset once."""
    end = of(ends_of)
    alone = pieces({}, end, size, WHOLE, HistoryIndex(None), evenly=True)
    found = pieces({}, end, size, replace(WHOLE, also=("p/x",)), HistoryIndex(None), evenly=True)
    tasks = [piece.parts if isinstance(piece, JoinedRanges) else (piece,) for piece in found]
    assert len(tasks) == max((-(-offset // size) for offset in ends_of.values()), default=0)
    assert all(len({part.partition for part in parts}) == len(parts) for parts in tasks)
    ranges = {(part.partition, part.start, part.end) for parts in tasks for part in parts}
    assert ranges == {(part.partition, part.start, part.end) for part in alone if isinstance(part, LogRange)}
    assert len(ranges) == len(alone) == sum(map(len, tasks))


@pytest.mark.parametrize("topics", [
    replace(WHOLE, also=("p/x",), keys=("k",)),  # the node may read all of the range
    replace(WHOLE, also=("p/+",)),
    replace(WHOLE, also=("p/x", "p/y")),
])  # fmt: skip
def test_ranges_that_may_have_much_are_not_joined(topics: Topics) -> None:
    found = pieces({}, of({0: 2, 1: 2}), 10, topics, HistoryIndex(None), evenly=True)
    assert [type(piece) for piece in found] == [LogRange, LogRange]


def test_an_empty_range_has_no_pieces() -> None:
    assert pieces(of({0: 3}), of({0: 3}), 10, WHOLE, HistoryIndex(None)) == []
    assert pieces({}, of({4: 2}), 10, WHOLE, HistoryIndex(None)) == [LogRange("p", 4, 0, 2)]


def test_the_ranges_of_a_history_are_turned_into_offsets() -> None:
    holdings = [Holding(("p", 1), 5, 9), Holding(("p", 0), 2, 4)]
    assert begins(holdings) == of({1: 5, 0: 2})
    assert ends(holdings) == of({1: 9, 0: 4})


def test_lost_records_are_an_error_or_skipped_and_counted() -> None:
    holdings = [Holding(("p", 0), 100, 200), Holding(("p", 1), 0, 50)]
    assert skip_lost(of({0: 100, 1: 50}), holdings, fail=True) == (of({0: 100, 1: 50}), 0)
    with pytest.raises(DataLossError, match=r"partition 0 of 'p': offsets \[40, 100\)"):
        skip_lost(of({0: 40, 1: 0}), holdings, fail=True)
    with pytest.raises(DataLossError, match="partition 1 of 'p': the log ends at 50"):
        skip_lost(of({0: 100, 1: 51}), holdings, fail=True)
    assert skip_lost(of({0: 40, 1: 51}), holdings, fail=False) == (of({0: 100, 1: 50}), 60)
