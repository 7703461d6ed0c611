"""Leases and cursors against a plain model."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.rpc.cursor import Cursor
from gateway.rpc.leases import Leases


@given(st.permutations(range(12)), st.integers(0, 12))
def test_committed_is_the_lowest_unacknowledged(order: list[int], count: int) -> None:
    cursor = Cursor(0, b"q", 0)
    cursor.next = 12
    done: set[int] = set()
    for offset in order[:count]:
        before = cursor.committed
        moved = cursor.acknowledge(offset)
        done.add(offset)
        assert cursor.committed == next(each for each in range(13) if each not in done)
        assert moved == (cursor.committed != before)
        assert not cursor.acknowledge(before - 1)
    assert all(offset >= cursor.committed for offset in cursor.acknowledged)


@given(st.sets(st.integers(0, 30)), st.integers(1, 8))
def test_returned_offsets_come_out_once_in_runs(offsets: set[int], limit: int) -> None:
    cursor = Cursor(0, b"q", 0)
    for offset in sorted(offsets, key=lambda each: -each):
        cursor.give_back(offset)
    out: list[int] = []
    while cursor.returned:
        first, count = cursor.returned_run(limit)
        assert 1 <= count <= limit
        out.extend(range(first, first + count))
    assert out == sorted(offsets)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=30), st.randoms())
def test_every_place_ends_exactly_once(takes: list[tuple[int, int]], random) -> None:
    leases = Leases()
    cursor = Cursor(0, b"q", 0)
    ids: list[int] = []
    ended: list[int] = []
    offset = 0
    for now, (deadline, count) in enumerate(takes):
        lease = leases.add(now + deadline, [(cursor, each) for each in range(offset, offset + count)])
        ids += range(lease.base, lease.base + count)
        offset += count
        for lease_id in random.sample(ids, min(len(ids), 2)):
            place = leases.take(lease_id)
            if place is not None:
                ended.append(place[1])
        ended += [each for _, each in leases.expire(now)]
        assert leases.count == offset - len(ended)
    ended += [each for _, each in leases.expire(1_000_000)]
    assert sorted(ended) == list(range(offset))
    assert (leases.count, leases.next_deadline()) == (0, None)


def test_leases_that_end_early_do_not_pile_up() -> None:
    leases = Leases()
    cursor = Cursor(0, b"q", 0)
    for offset in range(5_000):
        assert leases.take(leases.add(1e9, [(cursor, offset)]).base) == (cursor, offset)
    assert len(leases._by_deadline) < 1_000


def test_what_left_the_log_is_forgotten() -> None:
    cursor = Cursor(0, b"q", 2)
    cursor.next = 9
    cursor.acknowledge(6)
    for offset in (3, 8, 5):
        cursor.give_back(offset)
    assert cursor.begin_at(6)
    assert (cursor.committed, cursor.next, cursor.returned, cursor.acknowledged) == (7, 9, [8], set())
    assert not cursor.begin_at(4)
