"""Disks that fail and processes that are killed: nothing acknowledged is lost, nothing is acknowledged after."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import record
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt, StoreError, StoreFailed
from store.log.disk import Disk
from store.log.segments import Segments, segment_name
from tests.waiting import until

SMALL = StoreConfig(segment_size=1 << 16)


class FailingDisk(Disk):
    """Every flush of the log fails once `fails` is set; counts how often it was asked to after that."""

    __slots__ = ("asked", "fails")

    def __init__(self) -> None:
        self.fails = False
        self.asked = 0

    def write_durable(self, fd: int, data: bytes, offset: int) -> None:
        self._check()
        super().write_durable(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._check()
        super().sync(fd)

    def _check(self) -> None:
        self.asked += self.fails
        if self.fails:
            raise OSError(5, "Input/output error")


def frame(payload: bytes) -> bytes:
    return record.frame(1, 0, 0, b"t", b"", b"", payload)


async def append(engine: Engine, *payloads: bytes) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append([frame(payload) for payload in payloads], answer.set_result)
    return await answer


async def test_after_a_failed_flush_nothing_is_acknowledged_and_nothing_retried(tmp_path: Path):
    disk = FailingDisk()
    engine = await Engine.open(tmp_path, SMALL, disk)
    assert (await append(engine, b"kept")).error is None
    disk.fails = True
    answers: list[Appended] = []
    for _ in range(5):
        engine.append([frame(b"lost")], answers.append)
    assert isinstance((await append(engine, b"lost")).error, StoreFailed)
    assert [type(answer.error) for answer in answers] == [StoreFailed] * 5
    assert engine.stats().failed
    assert engine.stats().pending_bytes == 0
    disk.fails = False
    assert isinstance((await append(engine, b"after")).error, StoreFailed)
    assert disk.asked == 1
    await engine.close()
    engine = await Engine.open(tmp_path, SMALL)
    assert (await engine.bounds(topic_queue(b"t"))).end == 1
    assert (await append(engine, b"again")).error is None
    await engine.close()


async def test_whatever_fails_before_a_flush_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Segments, "prepare", fail)
    engine = await Engine.open(tmp_path, SMALL)
    assert (await append(engine, bytes(SMALL.segment_size * 3 // 4))).error is None
    assert isinstance((await append(engine, b"lost")).error, StoreFailed)
    await engine.close()


async def test_whatever_fails_in_the_flush_thread_is_answered(tmp_path: Path):
    class Exhausted(Disk):
        __slots__ = ()

        def write_durable(self, fd: int, data: bytes, offset: int) -> None:
            if b"too much" in bytes(data):
                raise MemoryError
            super().write_durable(fd, data, offset)

    engine = await Engine.open(tmp_path, SMALL, Exhausted())
    assert isinstance((await append(engine, b"too much")).error, StoreFailed)
    assert isinstance((await append(engine, b"after")).error, StoreFailed)
    await engine.close()


async def test_a_failed_flush_under_the_interval_policy_stops_the_log(tmp_path: Path):
    disk = FailingDisk()
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 16, policy="interval", interval_ms=1), disk)
    disk.fails = True
    assert (await append(engine, b"written")).error is None
    await until(lambda: engine.stats().failed)
    assert isinstance((await append(engine, b"after")).error, StoreFailed)
    assert disk.asked == 1
    await engine.close()
    assert disk.asked == 1


async def test_no_room_for_the_next_segment_is_said(tmp_path: Path):
    class FullDisk(Disk):
        __slots__ = ()
        full = False

        def create_zeroed(self, path, size, is_stopped):
            if self.full:
                raise OSError(28, "No space left on device")
            return super().create_zeroed(path, size, is_stopped)

    disk = FullDisk()
    engine = await Engine.open(tmp_path, SMALL, disk)
    FullDisk.full = True
    acknowledged = 0
    while (answer := await append(engine, bytes(10_000))).error is None:
        acknowledged += 1
    assert isinstance(answer.error, StoreFailed)
    assert "No space" in str(answer.error)
    assert acknowledged == 6
    await engine.close()
    FullDisk.full = False
    engine = await Engine.open(tmp_path, SMALL, disk)
    assert (await engine.bounds(topic_queue(b"t"))).end == acknowledged
    assert (await append(engine, bytes(10_000))).error is None
    await engine.close()


async def test_damage_is_seen_by_the_reader_and_by_the_next_start(tmp_path: Path):
    config = StoreConfig(segment_size=1 << 16, tail_cache_bytes=0)
    engine = await Engine.open(tmp_path, config)
    first = await append(engine, b"first")
    await append(engine, b"second")
    fd = os.open(tmp_path / "log" / segment_name(0), os.O_RDWR)
    os.pwrite(fd, b"!", 50)
    os.close(fd)
    with pytest.raises(LogCorrupt) as caught:
        await engine.fetch(topic_queue(b"t"), 0, 10, 1000)
    assert caught.value.position == 0
    with pytest.raises(LogCorrupt):
        await engine.read(first.positions[0], 1000)
    await engine.close()
    with pytest.raises(LogCorrupt):
        await Engine.open(tmp_path, config)
    with pytest.raises(LogCorrupt):  # not a leftover lock
        await Engine.open(tmp_path, config)


async def test_views_that_cannot_be_folded_stop_the_log(tmp_path: Path):
    engine = await Engine.open(tmp_path, SMALL)
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append([record.frame(2, 0, 0, b"who", b"", b"", b"no json")], answer.set_result)
    error = (await answer).error
    assert isinstance(error, StoreFailed)
    assert "kind 2 at position 0" in str(error)
    await engine.close()
    with pytest.raises(StoreError, match="kind 2 at position 0"):
        await Engine.open(tmp_path, SMALL)


async def test_a_log_without_its_meta_file_is_not_taken_for_a_new_one(tmp_path: Path):
    await (await Engine.open(tmp_path, SMALL)).close()
    (tmp_path / "store.json").unlink()
    with pytest.raises(StoreError, match="missing"):
        await Engine.open(tmp_path, SMALL)


WRITER = """
import asyncio, sys
from pathlib import Path
import record
from store.config import StoreConfig
from store.engine import Engine

async def main():
    engine = await Engine.open(Path(sys.argv[1]), StoreConfig(segment_size=1 << 18, checkpoint_keys=20))
    number = (await engine.bounds(b"tt")).end
    def acknowledge(last):
        def done(appended):
            assert appended.error is None
            sys.stdout.write(f"{last}\\n")
            sys.stdout.flush()
        return done
    while True:
        if engine.stats().pending_bytes < 100_000:
            frames = [record.frame(1, 0, 0, b"t", b"", b"", b"%d" % (number + i)) for i in range(7)]
            number += 7
            engine.append(frames, acknowledge(number))
        await asyncio.sleep(0)

asyncio.run(main())
"""


async def test_killed_again_and_again_nothing_acknowledged_is_lost(tmp_path: Path):
    data = tmp_path / "data"
    acknowledged = 0
    for run in range(4):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITER, str(data)), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(40 + 150 * run):
            acknowledged = int(await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = (await process.communicate())[0].decode()
        acknowledged = max([acknowledged, *map(int, rest[: rest.rfind("\n") + 1].split())])
        engine = await Engine.open(data, SMALL)
        end = (await engine.bounds(topic_queue(b"t"))).end
        assert end >= acknowledged
        offset = 0
        while offset < end:
            got = await engine.fetch(topic_queue(b"t"), offset, 1000, 1 << 20)
            numbers = [int(record.decode(got.data, start)[6]) for start in record.split(got.data)]
            assert numbers == list(range(offset, got.next_offset))
            offset = got.next_offset
        await engine.close()
