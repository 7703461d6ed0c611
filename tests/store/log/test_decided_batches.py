"""Batches of a shared log: sealed by one writer, and written by all."""

import asyncio
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from store.api import Appended
from store.cluster.history import History
from store.cluster.slot import Founded, LeaderClaim
from store.config import StoreConfig
from store.errors import RecordInvalid, StoreError, StoreFailed
from store.log.commitlog import CommitLog
from store.log.disk import Disk
from store.log.reader import LogReader
from store.log.recovery import recover, sound_batches
from store.log.segments import Segments
from store.log.tail_cache import TailCache
from store.log.writer import SealedBatch, Writer
from tests.waiting import until

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
            batches, positions = leader.writer.seal(list(map(frame, sizes)), leader.writer.position, MOST)
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
    first, _ = log.writer.seal([frame(100)], 0, MOST)
    again, _ = log.writer.seal([frame(100)], 0, MOST)
    assert first[0].data == again[0].data
    assert recover(log.segments, 0, 0).end == log.writer.position == 0
    with pytest.raises(RecordInvalid):
        log.writer.seal([frame(100), b"no frame"], 0, MOST)
    log.close()


def test_a_batch_that_does_not_continue_the_log_is_not_written(tmp_path: Path):
    log = Log(tmp_path)
    data = record.seal([frame(100)], 200, 1, 1000, 200)
    with pytest.raises(StoreError, match="goes on at 0"):
        log.writer.apply(SealedBatch(200, data, 1000))
    assert recover(log.segments, 0, 0).end == 0
    log.close()


class Gate(Disk):
    """A disk whose writes wait until it is open, or fail."""

    __slots__ = ()
    opened = threading.Event()
    fails = False

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        assert self.opened.wait(60)
        if self.fails:
            raise OSError(5, "Input/output error")
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        assert self.opened.wait(60)
        super().sync(fd)


class Decided:
    """A commitlog whose batches are decided when the test says so."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.segments = Segments(path, 1 << 20, disk or Disk(), is_copy=True)
        self.segments.load()
        self.writer = Writer(self.segments, 0, 0, 1, "shared", lambda: 1000)
        self.writer.open()
        self.asked: list[bytes] = []  # batches that are to be decided, or are
        self.folded: list[int] = []  # their positions
        self.synced: list[int] = []  # how many were folded, for each sync
        self.failures = 0
        self.answers: list[Appended] = []
        self._may_decide = asyncio.Semaphore(0)
        config = StoreConfig(segment_size=1 << 20, policy="shared", spacing_ms=3_600_000)
        self.log = CommitLog(
            self.writer,
            config,
            asyncio.get_running_loop(),
            self._fold,
            lambda: False,
            lambda: self.synced.append(len(self.folded)),
            self._fail,
            self._decide,
        )

    def append(self, *sizes: int) -> None:
        self.log.append([frame(size) for size in sizes], self.answers.append)

    def decide(self) -> None:
        self._may_decide.release()

    async def close(self) -> None:
        await self.log.close()
        self.segments.close()

    def _fold(self, batch: SealedBatch) -> bool:
        self.folded.append(batch.position)
        return False

    def _fail(self) -> None:
        self.failures += 1

    async def _decide(self, position: int, data: bytes) -> None:
        self.asked.append(data)
        await self._may_decide.acquire()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_decision_waits_for_records_of_a_gateway_and_not_for_appends(tmp_path: Path):
    decided = Decided(tmp_path)
    decided.append(*[60] * 41)  # one append, with the record of its producer
    await until(lambda: decided.asked)
    decided.log._last_start -= 3600  # the decision took so long
    decided.append(*[60] * 31)
    decided.decide()
    await until(lambda: decided.answers)
    decided.append(*[60] * 21)
    await turns()
    assert len(decided.asked) == 1
    decided.append(*[60] * 21)
    await until(lambda: len(decided.asked) == 2)
    decided.decide()
    await until(lambda: len(decided.answers) == 4)
    assert len(record.split(decided.asked[1])) == 31 + 21 + 21
    await decided.close()


async def test_a_decision_waits_for_others_no_longer_than_the_last_one_took(tmp_path: Path):
    decided = Decided(tmp_path)
    decided.append(*[60] * 41)
    await until(lambda: decided.asked)
    decided.decide()
    await until(lambda: decided.answers)
    decided.append(60)
    await until(lambda: len(decided.asked) == 2)  # and not for an hour
    decided.decide()
    await decided.close()


async def test_what_is_decided_is_folded_and_answered_while_it_is_written(tmp_path: Path):
    disk = Gate()
    disk.opened.clear()
    decided = Decided(tmp_path, disk)
    for _ in range(2):
        decided.decide()
    decided.append(100)
    await until(lambda: decided.answers)
    assert decided.folded == [0]
    decided.log.sync()
    decided.append(100)
    await until(lambda: len(decided.asked) == 2)
    await turns()
    assert (decided.folded, decided.synced) == ([0], [])  # the next one waits for the disk, and a sync for the first
    disk.opened.set()
    await until(lambda: len(decided.answers) == 2)
    assert (decided.folded, decided.synced) == ([0, 100], [1])
    await decided.close()
    assert [each.error for each in decided.answers] == [None, None]


async def test_nothing_is_folded_between_a_sync_and_its_end_that_the_sync_does_not_have(tmp_path: Path):
    disk = Gate()
    disk.opened.set()
    decided = Decided(tmp_path, disk)
    for _ in range(2):
        decided.decide()
    decided.append(100)
    await until(lambda: decided.answers and decided.writer.position == 100)
    await turns()  # the loop hears of that
    disk.opened.clear()
    decided.log.sync()
    decided.append(100)
    await until(lambda: len(decided.asked) == 2)
    await turns()
    assert (decided.folded, decided.synced) == ([0], [])
    disk.opened.set()
    await until(lambda: len(decided.answers) == 2)
    assert (decided.folded, decided.synced) == ([0, 100], [1])
    await decided.close()


async def test_closing_waits_for_what_is_written(tmp_path: Path):
    disk = Gate()
    disk.opened.clear()
    decided = Decided(tmp_path, disk)
    decided.decide()
    decided.append(100)
    await until(lambda: decided.answers)
    closing = asyncio.create_task(decided.close())
    await turns()
    assert not closing.done()
    disk.opened.set()
    await closing
    again = Segments(tmp_path, 1 << 20, Disk())
    again.load()
    assert recover(again, 0, 0).end == 100
    again.close()


async def test_the_log_fails_if_what_is_decided_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Gate()
    disk.opened.set()
    monkeypatch.setattr(Gate, "fails", True)
    decided = Decided(tmp_path, disk)
    decided.decide()
    decided.append(100)
    await until(lambda: decided.failures)
    assert [each.error for each in decided.answers] == [None]  # the shared log has it
    decided.append(100)
    await until(lambda: len(decided.answers) == 2)
    assert isinstance(decided.answers[1].error, StoreFailed)
    await decided.close()


@pytest.mark.parametrize("size", [100, 200_000])
async def test_a_read_takes_from_memory_what_is_not_in_the_segment_yet(tmp_path: Path, size: int):
    segments = Segments(tmp_path, 1 << 20, Disk(), is_copy=True)
    segments.load()
    writer = Writer(segments, 0, 0, 1, "shared", lambda: 1000)
    writer.open()
    batches, positions = writer.seal([frame(size)] * 3, 0, size)
    tail = TailCache(0)
    for batch in batches:
        tail.add(batch.position, batch.data)
    for batch in batches[:-1]:
        writer.apply(batch)
    reader = LogReader(segments, tail, 1)
    assert await reader.records(positions, [size] * 3) == b"".join(batch.data for batch in batches)
    writer.close()
    segments.close()


def test_segments_of_a_copy_are_made_without_writing_them(tmp_path: Path):
    class Unwritten(Disk):
        __slots__ = ()

        def write(self, fd: int, data: bytes | memoryview, offset: int) -> None:
            raise AssertionError("something is written")

    segments = Segments(tmp_path, 1 << 20, Unwritten(), is_copy=True)
    segments.load()
    fd = segments.open_for_writing(0)
    assert os.pread(fd, 2 << 20, 0) == bytes(1 << 20)
    os.close(fd)
    segments.close()
