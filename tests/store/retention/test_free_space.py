"""The oldest segments go when the disk has too little room."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import record
from record.layout import Kind
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.log.disk import Disk
from tests.waiting import until

SEGMENT = 64 << 10
DISK = 20 * SEGMENT
WANTED = 6 * SEGMENT
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    retention_free_bytes=WANTED,
    retention_keep_bytes=0,
    retention_check_s=3600,
    tail_cache_bytes=SEGMENT,
)


class SmallDisk(Disk):
    """A disk of `DISK` bytes, which others use as well."""

    __slots__ = ("fails", "least", "log", "others")

    def __init__(self, log: Path) -> None:
        self.log = log
        self.others = 0
        self.fails = False  # behind the creation of a file
        self.least = DISK  # bytes that were ever free

    def free_bytes(self, folder: Path) -> int:
        assert folder == self.log
        return DISK - self.others - SEGMENT * len(list(self.log.glob("*.log")))

    def create_zeroed(self, path: Path, size: int, is_stopped: Callable[[], bool]) -> bool:
        if self.free_bytes(path.parent) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        is_created = super().create_zeroed(path, size, is_stopped)
        self.least = min(self.least, self.free_bytes(path.parent))
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return is_created


async def open_store(tmp_path: Path, config: StoreConfig = CONFIG) -> tuple[Engine, SmallDisk]:
    disk = SmallDisk(tmp_path / "log")
    return await Engine.open(tmp_path, config, disk=disk), disk


async def append(engine: Engine, segments: int) -> None:
    for _ in range(2 * segments):
        await append_one(engine, SEGMENT // 2 - 200)  # with room for the record of a removal in each segment


async def append_one(engine: Engine, size: int) -> None:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append([record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", bytes(size))], answer.set_result)
    assert (await answer).error is None


@pytest.mark.usefixtures("retention_on_request")
async def test_the_room_stays_free_for_the_next_segment_too(tmp_path: Path):
    engine, disk = await open_store(tmp_path)
    await append(engine, 3)
    await engine._retention.enforce()
    assert engine.stats().log_begin == 0
    for _ in range(30):
        await append_one(engine, SEGMENT // 2 - 200)
        await engine._retention.enforce()  # where the log has begun a segment, as it does by itself
        await append_one(engine, SEGMENT // 2 - 200)
    assert disk.least >= WANTED
    assert engine.stats().log_end - engine.stats().log_begin > DISK - WANTED - 3 * SEGMENT, "too much was removed"
    await engine.close()


async def test_the_log_does_not_fill_the_disk(tmp_path: Path):
    engine, disk = await open_store(tmp_path)
    for _ in range(50):
        await append(engine, 1)
        await until(lambda: disk.free_bytes(disk.log) >= WANTED)
    await until(lambda: not engine.stats().is_disk_low)
    await engine.close()


@pytest.mark.usefixtures("retention_on_request")
async def test_a_next_segment_that_has_a_file_needs_no_more_room(tmp_path: Path):
    """Also if the node does not use it, because its preparation failed after that."""
    engine, disk = await open_store(tmp_path)
    await append(engine, 3)
    await append_one(engine, 1000)
    disk.fails = True
    files = len(list(disk.log.glob("*.log")))
    for _ in range(40):
        await append_one(engine, 1000)
    await until(lambda: len(list(disk.log.glob("*.log"))) > files)
    disk.others = disk.free_bytes(disk.log) - WANTED
    await engine._retention.enforce()
    assert engine.stats().log_begin == 0
    disk.fails = False
    await engine.close()


@pytest.mark.usefixtures("retention_on_request")
async def test_what_others_write_leaves_a_part_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    kept = 5 * SEGMENT - 1000
    engine, disk = await open_store(tmp_path, replace(CONFIG, retention_keep_bytes=kept))
    await append(engine, 12)
    assert not engine.stats().is_disk_low
    disk.others = DISK
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await engine._retention.enforce()
    stats = engine.stats()
    assert kept <= stats.log_end - stats.log_begin < kept + SEGMENT
    assert stats.is_disk_low
    assert caplog.text.count("may remove nothing more") == 1
    disk.others = 0
    await engine._retention.enforce()
    assert not engine.stats().is_disk_low
    assert engine.stats().log_begin == stats.log_begin
    disk.others = DISK
    with caplog.at_level(logging.WARNING):
        await engine._retention.enforce()
    assert caplog.text.count("may remove nothing more") == 2
    await engine.close()


@pytest.mark.usefixtures("retention_on_request")
async def test_a_segment_that_a_backup_shares_frees_nothing(tmp_path: Path):
    engine, disk = await open_store(tmp_path)
    await append(engine, 12)
    copies = tmp_path / "backup"
    copies.mkdir()
    for path in sorted((tmp_path / "log").glob("*.log")):
        os.link(path, copies / path.name)
    disk.others = DISK
    await engine._retention.enforce()
    assert engine.stats().log_begin == 0
    (copies / f"{3 * SEGMENT:020d}.log").unlink()
    await engine._retention.enforce()
    assert engine.stats().log_begin == 4 * SEGMENT
    await engine.close()


async def test_free_bytes_are_those_of_the_file_system(tmp_path: Path):
    found = os.statvfs(tmp_path)
    assert 0 < Disk().free_bytes(tmp_path) <= found.f_bfree * found.f_frsize
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    assert 10_000 <= Disk().freed_by_removal(path) <= 100_000
    os.link(path, tmp_path / "other")
    assert Disk().freed_by_removal(path) == 0
