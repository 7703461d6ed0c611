"""Messages that nobody takes who has room."""

from gateway.shared.parked import Aside, Waiting
from tests.gateway.shared.test_ready_queue import member, message


def aside(*sizes: int) -> Aside:
    """Messages with so long payloads, each one offset behind the one before, in the round of its offset."""
    made = Aside()
    for offset, size in enumerate(sizes):
        made.add(Waiting(message(size, 1), offset, 1, offset), 0)
    return made


def offsets(items: list[Waiting]) -> list[int]:
    return [item.offset for item in items]


def test_a_member_gets_what_it_takes_and_the_rest_stays() -> None:
    kept = aside(300, 100, 200, 100)
    assert kept.take(member(90), 0) == []
    assert offsets(kept.take(member(150), 0)) == [1, 3]
    assert offsets(kept.items) == [0, 2]
    assert kept.take(member(150), 0) == []
    assert offsets(kept.take(member(250), 0)) == [2]
    assert offsets(kept.take(member(0), 0)) == [0]
    assert kept.items == []
    kept.add(Waiting(message(50, 1), 9, 1, 9), 0)  # smaller than all that were here
    assert offsets(kept.take(member(90), 0)) == [9]


def test_everything_can_be_taken_out() -> None:
    kept = aside(300, 100)
    assert offsets(kept.take(None, 0)) == [0, 1]
    assert kept.items == []


def test_the_oldest_64_stay() -> None:
    kept = aside(*[100] * 70)
    assert offsets(kept.take_excess()) == list(range(64, 70))
    assert offsets(kept.items) == list(range(64))
    assert kept.take_excess() == []


def test_what_has_been_here_for_long_can_be_taken_out() -> None:
    kept = aside(100, 200, 300)
    assert kept.take_older(5, 5) == []
    assert offsets(kept.take_older(6, 4)) == [0, 1]
    assert offsets(kept.items) == [2]
    assert kept.take(member(250), 0) == []
