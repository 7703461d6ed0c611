"""Stretches of queues that sessions share: found where they were read, bounded, replaced."""

from gateway.delivery import shared_reads as ranges
from gateway.delivery.shared_reads import BLOCK, QueueRange, SharedReads, room_in_block
from record import frame
from record.layout import Kind
from store.api import Bounds, Fetched


def queue_range(asked: int, first: int, count: int, size: int = 10) -> QueueRange:
    data = b"".join(frame(int(Kind.MESSAGE), 1, 0, b"t", b"p", b"", bytes(size)) for _ in range(count))
    return QueueRange(asked, Fetched(first, count, data, Bounds(0, 1000)))


def test_a_read_is_found_at_its_offsets_only() -> None:
    kept = SharedReads()
    read = queue_range(3, 3, 7)
    kept.keep(b"q", read)
    assert [kept.find(b"q", offset) for offset in (2, 3, 9, 10)] == [None, read, read, None]
    assert kept.find(b"other", 3) is None
    assert [message.payload for message in read.messages] == [bytes(10)] * 7


def test_reclaimed_offsets_in_front_belong_to_the_range() -> None:
    kept = SharedReads()
    read = queue_range(2, 5, 1)
    kept.keep(b"q", read)
    assert kept.find(b"q", 2) is read
    assert kept.find(b"q", 5) is read
    assert kept.find(b"q", 6) is None


def test_a_block_takes_several_reads() -> None:
    """Each of a part of it: messages are large, or the queue has grown."""
    kept = SharedReads()
    parts = [queue_range(first, first, 5) for first in range(0, 60, 5)]
    for part in parts:
        kept.keep(b"q", part)
    assert [kept.find(b"q", offset) for offset in range(60)] == [parts[offset // 5] for offset in range(60)]
    assert kept.find(b"q", 60) is None
    assert kept.size == sum(part.size for part in parts)


def test_a_later_read_replaces_those_that_it_covers() -> None:
    kept = SharedReads()
    for first in (0, 5, 10):
        kept.keep(b"q", queue_range(first, first, 5))
    size = kept.size
    again = queue_range(0, 3, 10)
    kept.keep(b"q", again)
    assert [kept.find(b"q", offset) for offset in (0, 12)] == [again] * 2
    last = kept.find(b"q", 13)
    assert last is not None
    assert last.begin == 10
    assert kept.size == size


def test_a_single_block_that_is_too_large_keeps_its_newest() -> None:
    kept = SharedReads()
    for first in range(20):
        kept.keep(b"q", queue_range(first, first, 1, 1 << 20))
        assert kept.size <= ranges._MAX_BYTES
    assert kept.find(b"q", 0) is None
    assert kept.find(b"q", 19) is not None


def test_a_read_ends_with_its_block() -> None:
    assert [room_in_block(offset) for offset in (0, 1, BLOCK - 1, BLOCK)] == [BLOCK, BLOCK - 1, 1, BLOCK]


def test_the_oldest_go_when_there_is_no_room() -> None:
    kept = SharedReads()
    for block in range(4000):
        kept.keep(b"q", queue_range(block * BLOCK, block * BLOCK, 8, 1000))
        assert kept.size <= ranges._MAX_BYTES
    assert kept.find(b"q", 0) is None
    assert kept.find(b"q", 3999 * BLOCK) is not None
    kept.clear()
    assert kept.size == 0
    assert kept.find(b"q", 3999 * BLOCK) is None


def test_a_read_larger_than_the_cache_is_kept_alone() -> None:
    kept = SharedReads()
    kept.keep(b"q", queue_range(0, 0, 1))
    large = queue_range(BLOCK, BLOCK, 1, ranges._MAX_BYTES)
    kept.keep(b"q", large)
    assert kept.find(b"q", BLOCK) is large
    assert kept.find(b"q", 0) is None
