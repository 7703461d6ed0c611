"""Batches of a shared log: sealed by one writer, and written by all."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from store.cluster.history import History
from store.cluster.slot import Founded, LeaderClaim
from store.errors import RecordInvalid, StoreError
from store.log.disk import Disk
from store.log.recovery import recover, sound_batches
from store.log.segments import Segments
from store.log.writer import SealedBatch, Writer

SIZE = 4096
MOST = 1500


def frame(length: int) -> bytes:
    """A frame of exactly so many bytes."""
    return record.frame(1, 0, 0, b"t", b"", b"", bytes(length - 49))


class Log:
    """A log in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.segments = Segments(path, SIZE, Disk())
        self.segments.load()
        self.writer = Writer(self.segments, 0, 0, 1, "shared", lambda: 1000)
        self.writer.open()

    def close(self) -> None:
        self.writer.close()
        self.segments.close()


@given(st.lists(st.lists(st.integers(50, MOST), min_size=1, max_size=12), min_size=1, max_size=8))
def test_followers_write_what_the_leader_sealed(flushes: list[list[int]]):
    with tempfile.TemporaryDirectory() as folder:
        leader, follower = Log(Path(folder) / "leader"), Log(Path(folder) / "follower")
        history = History().after(History().next(Founded("1", SIZE, 1, 1)))
        history = history.after(history.next(LeaderClaim("a", "a:1", "o"), epoch=1))
        ends: dict[int, int] = {}
        for sizes in flushes:
            batches, positions = leader.writer.seal(list(map(frame, sizes)), MOST)
            ends |= {position: position + size for position, size in zip(positions, sizes, strict=True)}
            for batch in batches:
                assert len(batch.data) <= MOST
                history = history.after(history.next(batch=batch.data, position=batch.position))
                leader.writer.apply(batch)
                follower.writer.apply(batch)
                assert leader.writer.position == follower.writer.position == history.end
        follower.writer.sync()
        recovered = recover(follower.segments, 0, 0)
        assert (recovered.end, recovered.cut) == (history.end, 0)
        found = [
            (batch.position + start, batch.position + start + record.length_of(batch.data, start))
            for batch in sound_batches(follower.segments, 0)
            for start in record.split(batch.data)
        ]
        assert found == list(ends.items())
        leader.close()
        follower.close()


def test_sealing_writes_nothing_and_moves_nothing(tmp_path: Path):
    log = Log(tmp_path)
    first, _ = log.writer.seal([frame(100)], MOST)
    again, _ = log.writer.seal([frame(100)], MOST)
    assert first[0].data == again[0].data
    assert recover(log.segments, 0, 0).end == log.writer.position == 0
    with pytest.raises(RecordInvalid):
        log.writer.seal([frame(100), b"no frame"], MOST)
    log.close()


def test_a_batch_that_does_not_continue_the_log_is_not_written(tmp_path: Path):
    log = Log(tmp_path)
    data = record.seal([frame(100)], 200, 1, 1000, 200)
    with pytest.raises(StoreError, match="goes on at 0"):
        log.writer.apply(SealedBatch(200, data, 1000))
    assert recover(log.segments, 0, 0).end == 0
    log.close()
