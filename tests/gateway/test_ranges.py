"""Stretches of queues that sessions share: found where they were read, bounded, replaced."""

from gateway import ranges
from gateway.ranges import BLOCK, Ranges, Stretch, room_in_block
from record import frame
from record.layout import Kind
from store.api import Bounds, Fetched


def stretch(asked: int, first: int, count: int, size: int = 10) -> Stretch:
    data = b"".join(frame(int(Kind.MESSAGE), 1, 0, b"t", b"p", b"", bytes(size)) for _ in range(count))
    return Stretch(asked, Fetched(first, count, data, Bounds(0, 1000)))


def test_what_was_read_is_found_at_each_of_its_offsets_and_nowhere_else() -> None:
    kept = Ranges()
    read = stretch(3, 3, 7)
    kept.keep(b"q", read)
    assert [kept.find(b"q", offset) for offset in (2, 3, 9, 10)] == [None, read, read, None]
    assert kept.find(b"other", 3) is None
    assert [message.payload for message in read.messages] == [bytes(10)] * 7


def test_what_is_gone_in_front_is_part_of_the_stretch() -> None:
    kept = Ranges()
    read = stretch(2, 5, 1)
    kept.keep(b"q", read)
    assert kept.find(b"q", 2) is read
    assert kept.find(b"q", 5) is read
    assert kept.find(b"q", 6) is None


def test_a_later_read_of_a_block_takes_the_place_of_the_earlier() -> None:
    kept = Ranges()
    kept.keep(b"q", stretch(0, 0, 5))
    size = kept.size
    grown = stretch(5, 5, 5)
    kept.keep(b"q", grown)
    assert kept.find(b"q", 0) is None
    assert kept.find(b"q", 5) is grown
    assert kept.size == size


def test_a_read_ends_with_its_block() -> None:
    assert [room_in_block(offset) for offset in (0, 1, BLOCK - 1, BLOCK)] == [BLOCK, BLOCK - 1, 1, BLOCK]


def test_the_oldest_go_when_there_is_no_room() -> None:
    kept = Ranges()
    for block in range(4000):
        kept.keep(b"q", stretch(block * BLOCK, block * BLOCK, 8, 1000))
        assert kept.size <= ranges._MAX_BYTES
    assert kept.find(b"q", 0) is None
    assert kept.find(b"q", 3999 * BLOCK) is not None
    kept.clear()
    assert kept.size == 0
    assert kept.find(b"q", 3999 * BLOCK) is None


def test_one_that_is_larger_than_all_room_is_kept_alone() -> None:
    kept = Ranges()
    kept.keep(b"q", stretch(0, 0, 1))
    large = stretch(BLOCK, BLOCK, 1, ranges._MAX_BYTES)
    kept.keep(b"q", large)
    assert kept.find(b"q", BLOCK) is large
    assert kept.find(b"q", 0) is None
