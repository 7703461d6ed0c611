"""Faults that the simulator found, each as the shortest history that shows it."""

import asyncio
from pathlib import Path
from random import Random

import pytest

import record
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt
from store.log.recovery import recover
from store.log.segments import Segments
from store.log.writer import SealedBatch, Writer
from tests.store.simulation.disk import Fault, PowerCut, SimulatedDisk

SIZE = 4096


class Log:
    """A log on a simulated disk."""

    def __init__(self, root: Path, policy: str) -> None:
        self.disk = SimulatedDisk(root, Random(1))
        self.policy = policy
        self.path = root / "log"

    def open(self, checked: int = 0) -> Writer:
        """Recover it, as the store does with views that are true up to `checked`."""
        segments = Segments(self.path, SIZE, self.disk)
        segments.load()
        self.end = recover(segments, checked, 0).end
        writer = Writer(segments, self.end, 0, 1, self.policy, lambda: 1000)
        writer.open()
        return writer

    def close(self, writer: Writer) -> None:
        writer.close()
        writer._segments.close()


def write(writer: Writer, *sizes: int) -> list[SealedBatch]:
    return writer.write([record.frame(1, 0, 0, b"t", b"", b"", bytes(size)) for size in sizes])[0]


def lose_all(log: Log) -> None:
    """A power cut of which nothing survives that was not synced."""
    log.disk._rng.choice = lambda options: "nothing"  # type: ignore[method-assign, assignment]
    log.disk._rng.random = lambda: 0.0  # type: ignore[method-assign]
    log.disk.cut_power()


def test_the_names_of_new_folders_are_synced(tmp_path: Path):
    """Seed 3: the first segment was durable, the folder that it is in was not."""
    log = Log(tmp_path, "fsync")
    writer = log.open()
    (batch,) = write(writer, 10)
    log.close(writer)
    lose_all(log)
    log.close(log.open())
    assert log.end == len(batch.data)


def test_a_segment_whose_name_was_not_synced_is_not_relied_upon(tmp_path: Path):
    """Seed 163: killed between the rename of a new segment and the sync of its folder, then a power cut."""
    log = Log(tmp_path, "fsync")
    segments = Segments(log.path, SIZE, log.disk)
    segments.load()
    log.disk.fault = Fault("cut", 1)
    with pytest.raises(PowerCut):
        segments.open_for_writing(0)
    segments.close()
    log.disk.kill()
    writer = log.open()
    (batch,) = write(writer, 10)
    log.close(writer)
    lose_all(log)
    log.close(log.open())
    assert log.end == len(batch.data)


def test_pages_after_a_failed_sync_are_written_again_before_use(tmp_path: Path):
    """Seed 252: after a failed sync pages are called clean; a restarted process saw them and a sync wrote nothing."""
    log = Log(tmp_path, "interval")
    writer = log.open()
    (batch,) = write(writer, 10, 20)
    log.disk.fault = Fault("error", 0)
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    log.close(writer)
    log.disk.kill()
    writer = log.open()
    assert log.end == len(batch.data)
    (later,) = write(writer, 30)
    writer.sync()
    log.close(writer)
    lose_all(log)
    log.close(log.open())
    assert log.end == len(batch.data) + len(later.data)


def test_the_end_is_found_in_an_earlier_segment_than_the_views_saw(tmp_path: Path):
    """Seed 28: the views had folded records of a segment of which nothing reached the disk."""
    log = Log(tmp_path, "interval")
    writer = log.open()
    (first,) = write(writer, 3000)
    (second,) = write(writer, 2000)
    assert second.position == SIZE
    log.close(writer)
    lose_all(log)
    log.close(log.open(checked=second.position + len(second.data)))
    assert log.end == len(first.data)


def test_a_record_that_proves_the_damage_is_still_found_then(tmp_path: Path):
    """If a later record says that the missing part was durable, nothing is cut."""
    log = Log(tmp_path, "fsync")
    writer = log.open()
    write(writer, 3000)
    write(writer, 2000)
    (third,) = write(writer, 100)
    log.close(writer)
    log.disk.flip(log.path / "00000000000000004096.log", 60, 3)
    with pytest.raises(LogCorrupt):
        log.open(checked=third.position)


async def test_torn_bytes_left_at_a_segments_end_are_no_damage(tmp_path: Path):
    """Seed 2424: torn bytes came back behind a segment's last record; the next segment proves that none is there."""
    config = StoreConfig(segment_size=SIZE, tail_cache_bytes=0)
    engine = await Engine.open(tmp_path, config)
    loop = asyncio.get_running_loop()
    for size in (3000, 2000, 10):
        answer: asyncio.Future[Appended] = loop.create_future()
        engine.append([record.frame(1, 0, 0, b"t", b"", b"", bytes(size))], answer.set_result)
        assert (await answer).error is None
    end = (await engine.read(0, 1)).next_position
    with (tmp_path / "log" / "00000000000000000000.log").open("r+b") as file:
        file.seek(end + 8)
        file.write(b"torn")
    assert (await engine.read(end, 1)).position == SIZE
    await engine.close()
    engine = await Engine.open(tmp_path, config)
    assert (await engine.read(end, 1)).position == SIZE
    await engine.close()
