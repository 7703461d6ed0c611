"""Opening a log after a crash: a torn tail is cut at any byte, damage before it is refused at any byte."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from store.errors import LogCorrupt
from store.log.disk import Disk
from store.log.recovery import clear, frames_behind, recover, sound_batches
from store.log.segments import Segments, segment_name
from store.log.writer import SealedBatch, Writer

SIZE = 4096


def frame(payload: bytes) -> bytes:
    return record.frame(1, 0, 0, b"t/opic", b"c", b"", payload)


class Folder:
    """A log in a folder that can be written to, damaged and recovered."""

    def __init__(self, path: Path, policy: str = "fsync") -> None:
        self.path = path
        self.segments = Segments(path, SIZE, Disk())
        self.segments.load()
        self.writer = Writer(self.segments, 0, 0, 1, policy, lambda: 1000)
        self.writer.open()

    def write(self, *payloads: bytes) -> list[SealedBatch]:
        return self.writer.write([frame(payload) for payload in payloads])[0]

    def close(self) -> None:
        self.writer.close()
        self.segments.close()

    def edit(self, position: int, data: bytes) -> None:
        base = position - position % SIZE
        fd = os.open(self.path / segment_name(base), os.O_RDWR)
        os.pwrite(fd, data, position - base)
        os.close(fd)

    def bytes_at(self, position: int, length: int) -> bytes:
        base = position - position % SIZE
        return (self.path / segment_name(base)).read_bytes()[position - base :][:length]

    def settle(self) -> None:
        """Wait for a segment that is being prepared: two openers of one folder are no case of the product."""
        preparing = self.segments._preparing
        if preparing is not None:
            preparing.join()

    def recover(self, checked: int = 0, durable: int = 0) -> tuple[int, int]:
        self.settle()
        segments = Segments(self.path, SIZE, Disk())
        segments.load()
        found = recover(segments, checked, durable)
        assert sum(len(batch.data) for batch in sound_batches(segments, 0)) <= found.end
        segments.close()
        return found.end, found.cut


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "log")
    yield folder
    folder.close()


def test_an_empty_folder_is_an_empty_log(tmp_path: Path):
    segments = Segments(tmp_path / "log", SIZE, Disk())
    segments.load()
    assert recover(segments, 0, 0).end == 0
    with pytest.raises(LogCorrupt, match="gone"):
        recover(segments, 0, 10)


def test_the_last_batch_torn_at_every_byte_is_cut(log: Folder):
    log.write(b"one", b"two")
    (last,) = log.write(b"three", b"four", b"five")
    for kept in range(len(last.data)):
        log.edit(last.position, last.data[:kept] + bytes(len(last.data) - kept))
        whole = record.verify(last.data[:kept], last.position)[1]
        assert log.recover()[0] == last.position + whole
        assert log.bytes_at(last.position + whole, 500) == bytes(500)
    log.edit(last.position, last.data)
    assert log.recover() == (last.position + len(last.data), 0)


def test_a_last_batch_whose_pages_came_out_of_order_is_cut(log: Folder):
    """Its later frames are sound and its first is not: they say themselves that the first was not durable."""
    log.write(b"one")
    (last,) = log.write(b"three", b"four", b"five")
    log.edit(last.position, bytes(20))
    assert log.recover()[0] == last.position
    assert log.bytes_at(last.position, 500) == bytes(500)


def test_damage_before_the_tail_is_refused_at_every_byte(log: Folder):
    first, *_ = log.write(b"one", b"two")
    log.write(b"three")
    for at in range(len(first.data)):
        log.edit(first.position + at, bytes([first.data[at] ^ 0x10]))
        with pytest.raises(LogCorrupt) as caught:
            log.recover()
        hit = max(start for start in record.split(first.data) if start <= at)
        assert (caught.value.segment, caught.value.position) == (segment_name(0), hit)
        log.edit(first.position + at, first.data[at : at + 1])
    assert log.recover()[1] == 0


def test_a_log_of_many_segments_is_whole(log: Folder):
    batches = [batch for i in range(40) for batch in log.write(b"%d" % i * 100, b"y" * 700)]
    end = batches[-1].position + len(batches[-1].data)
    assert end > 5 * SIZE
    log.settle()
    assert log.recover(0) == (end, 0)
    assert log.recover(end, end) == (end, 0)
    segments = Segments(log.path, SIZE, Disk())
    segments.load()
    for start in (batches[0], batches[7], batches[-1]):
        data = b"".join(batch.data for batch in sound_batches(segments, start.position))
        assert data == b"".join(batch.data for batch in batches[batches.index(start) :])


def test_a_zeroed_end_of_an_older_segment_is_damage_and_not_padding(log: Folder):
    batches = [batch for i in range(12) for batch in log.write(b"%d" % i * 600)]
    lost = max(batch.position for batch in batches if batch.position < SIZE)
    log.edit(lost, bytes(SIZE - lost))
    with pytest.raises(LogCorrupt) as caught:
        log.recover()
    assert caught.value.position == lost


def test_a_batch_across_segments_torn_in_the_second_is_cut_there(log: Folder):
    log.write(b"a" * 3000)
    first, second = log.write(b"b" * 500, b"c" * 2000)
    assert second.position == SIZE
    log.edit(second.position + 100, b"\xff")
    assert log.recover()[0] == first.position + len(first.data)


def test_a_lost_tail_that_the_views_saw_durable_is_damage(log: Folder):
    (batch,) = log.write(b"one")
    end = batch.position + len(batch.data)
    log.edit(0, bytes(end))
    with pytest.raises(LogCorrupt, match="lost"):
        log.recover(end, end)
    assert log.recover(end, 0) == (0, 0)


def test_unsynced_batches_may_be_lost_in_any_order(tmp_path: Path):
    log = Folder(tmp_path / "log", "interval")
    (kept,) = log.write(b"kept")
    log.writer.sync()
    (lost,) = log.write(b"lost")
    log.write(b"later")
    log.edit(lost.position, bytes(len(lost.data)))
    assert log.recover()[0] == lost.position
    log.edit(kept.position, bytes(len(kept.data)))
    log.close()


def test_synced_batches_may_not(tmp_path: Path):
    log = Folder(tmp_path / "log", "interval")
    (kept,) = log.write(b"kept")
    log.writer.sync()
    log.write(b"later")
    log.edit(kept.position, bytes(len(kept.data)))
    with pytest.raises(LogCorrupt):
        log.recover()
    log.close()


def test_segments_that_are_missing_or_strange_are_refused(log: Folder):
    for _ in range(20):
        log.write(b"x" * 600)
    (log.path / segment_name(SIZE)).rename(log.path / "kept")
    with pytest.raises(LogCorrupt, match="missing"):
        log.recover()
    (log.path / "kept").rename(log.path / segment_name(SIZE))
    with (log.path / segment_name(SIZE)).open("ab") as file:
        file.write(b"x")
    with pytest.raises(LogCorrupt, match="name or size"):
        log.recover()


def test_an_unfinished_preallocation_is_swept(log: Folder):
    unfinished = (log.path / segment_name(SIZE)).with_suffix(".new")
    unfinished.write_bytes(b"half")
    log.recover()
    assert not unfinished.exists()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.binary(max_size=900), min_size=1, max_size=4), min_size=1, max_size=12), st.data())
def test_any_single_flipped_byte_is_cut_only_in_the_last_batch(tmp_path_factory, history, data):
    log = Folder(tmp_path_factory.mktemp("log") / "log")
    batches = [batch for payloads in history for batch in log.write(*payloads)]
    hit = data.draw(st.sampled_from(batches))
    at = data.draw(st.integers(0, len(hit.data) - 1))
    log.edit(hit.position + at, bytes([hit.data[at] ^ 1 << data.draw(st.integers(0, 7))]))
    if hit is batches[-1]:
        start = max(start for start in record.split(hit.data) if start <= at)
        expected = hit.position + start
        found = log.recover()[0]
        # A batch that begins a segment leaves the segment before it as the end when its first frame is gone.
        previous = batches[-2].position + len(batches[-2].data) if len(batches) > 1 else 0
        assert found == (previous if start == 0 else expected)
        assert log.recover() == (found, 0)
    else:
        with pytest.raises(LogCorrupt):
            log.recover()
    log.close()


def test_only_what_was_written_is_read_behind_the_end(tmp_path: Path):
    """Segments of a copy are mostly room that is reserved, and a node that stops to lead opens its copy again."""
    read: list[int] = []

    class CountingDisk(Disk):
        def read(self, fd: int, size: int, offset: int) -> bytes:
            read.append(size)
            return super().read(fd, size, offset)

    size = 64 << 20
    for base in (0, size):
        Disk().create_reserved(tmp_path / segment_name(base), size)
    segments = Segments(tmp_path, size, CountingDisk(), is_copy=True)
    segments.load()
    fd = segments.open(0)
    if Disk().written_ranges(fd, 0):
        pytest.skip("this file system does not tell what was reserved and not written")
    for offset in (100, 5000, size - 1):
        os.pwrite(fd, b"x", offset)
    os.close(fd)
    try:
        assert not list(frames_behind(segments, 4000))
        assert clear(segments, 4000) > 0
        content = (tmp_path / segment_name(0)).read_bytes()
        assert content[100] == ord("x") and not content[4000:].strip(b"\0")
        assert sum(read) < 1 << 20
    finally:
        segments.close()
