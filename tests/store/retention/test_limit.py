"""The log stays near its limit while it is written: retention follows the writer."""

import asyncio
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import record
from record.layout import FLAG_RETAIN, Kind
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.log.disk import Disk
from store.retention.retention import Retention
from store.views.fold import Views
from tests.waiting import until

SEGMENT = 64 << 10
LIMIT = 4 * SEGMENT - 1000
CONFIG = StoreConfig(segment_size=SEGMENT, retention_bytes=LIMIT, retention_check_s=3600, tail_cache_bytes=SEGMENT)


async def append(engine: Engine, *frames: bytes) -> None:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), answer.set_result)
    assert (await answer).error is None


def message(topic: bytes, size: int, flags: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, 0, topic, b"", b"", bytes(size))


def segments(size: int) -> int:
    """Segments that `size` bytes fill, the last one perhaps in part."""
    return -(-size // SEGMENT)


async def test_the_log_is_at_most_two_segments_and_two_removals_over_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engine = await Engine.open(tmp_path, CONFIG)
    written: list[int] = []  # while each removal ran
    remove = Retention._remove_expired

    async def measured(self: Retention) -> None:
        before = engine.stats().log_end
        await remove(self)
        written.append(engine.stats().log_end - before)

    monkeypatch.setattr(Retention, "_remove_expired", measured)
    most = number = 0
    while engine.stats().log_begin < 50 * SEGMENT:
        number += 1
        assert number < 10_000, "nothing is removed while the log is written"
        await append(engine, *[message(b"t/%d" % (number % 7), 1000, FLAG_RETAIN * (number % 5 == 0))] * 10)
        most = max(most, len(list((tmp_path / "log").iterdir())))
    await engine.close()
    two_removals = max(one + other for one, other in pairwise([*written, 0]))
    assert most <= segments(LIMIT) + 2 + segments(two_removals)
    assert len(written) > 10


class ColdDisk(Disk):
    """Has nothing in the page cache."""

    __slots__ = ()

    def read_cached(self, fd: int, buffer: memoryview, offset: int) -> bool:
        return False


async def test_retained_values_are_copied_with_a_read_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A turn of the loop for each value took minutes while the log was written."""
    engine = await Engine.open(tmp_path, CONFIG, disk=ColdDisk())
    count = 1000
    for first in range(0, count, 50):
        await append(engine, *[message(b"v/%d" % number, 10, FLAG_RETAIN) for number in range(first, first + 50)])
    loop = asyncio.get_running_loop()
    run, calls = loop.run_in_executor, 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return run(*arguments)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    for _ in range(12):
        await append(engine, message(b"other", SEGMENT // 2))
    await engine._retention.enforce()
    assert engine.stats().log_begin > 2 * SEGMENT
    assert calls < count // 5
    monkeypatch.undo()
    assert len(await engine.retained(b"v/#", None, 2 * count)) == count
    await engine.close()


async def test_segments_are_removed_while_the_ends_of_queues_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """That takes long with many queues, and pauses between slices."""
    config = StoreConfig(segment_size=SEGMENT, generation_segments=1, retention_bytes=LIMIT, retention_check_s=3600)
    engine = await Engine.open(tmp_path, config)
    folding, go_on = asyncio.Event(), False
    fold_ends = Views.fold_ends

    def fold_slowly(self: Views, generation: int, digest: bytes, limit: int) -> bytes | None:
        folding.set()
        return fold_ends(self, generation, digest, limit) if go_on else digest

    monkeypatch.setattr(Views, "fold_ends", fold_slowly)
    began: int | None = None
    number = 0
    while began is None or engine.stats().log_begin < began + 3 * SEGMENT:
        number += 1
        assert number < 1000, "nothing is removed meanwhile"
        await append(engine, message(b"t", SEGMENT // 4))
        if began is None and folding.is_set():
            began = engine.stats().log_begin
    go_on = True
    await engine.close()


class SlowRemovals(Disk):
    """Each removal takes 10 ms, and is written down."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []  # when each removal began and ended

    def remove(self, path: Path) -> None:
        began = time.monotonic()
        time.sleep(0.01)
        super().remove(path)
        self.spans.append((began, time.monotonic()))


@pytest.mark.usefixtures("retention_on_request")
async def test_removals_leave_the_disk_to_others_for_most_of_the_time(tmp_path: Path):
    disk = SlowRemovals()
    engine = await Engine.open(tmp_path, CONFIG, disk=disk)
    for _ in range(20):
        await append(engine, message(b"t", SEGMENT // 2))
    await engine._retention.enforce()
    assert len(disk.spans) > 3
    for (began, ended), (following, _) in pairwise(disk.spans):
        assert following - ended >= 3 * (ended - began)
    await engine.close()


class HeldRemovals(Disk):
    """Removals wait for the test."""

    __slots__ = ("asked", "go_on", "removed")

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.removed = 0

    def remove(self, path: Path) -> None:
        self.asked.set()
        self.go_on.wait()
        super().remove(path)
        self.removed += 1


@pytest.mark.usefixtures("retention_on_request")
async def test_a_stop_waits_for_one_removal_and_the_next_start_does_the_others(tmp_path: Path):
    disk = HeldRemovals()
    engine = await Engine.open(tmp_path, CONFIG, disk=disk)
    for _ in range(20):
        await append(engine, message(b"t", SEGMENT // 2))
    removing = asyncio.create_task(engine._retention.enforce())
    await asyncio.to_thread(disk.asked.wait)
    closing = asyncio.create_task(engine.close())
    await until(engine._retention._stopped.is_set)
    disk.go_on.set()
    await closing
    await removing
    assert disk.removed == 1
    engine = await Engine.open(tmp_path, CONFIG, disk=disk)
    await engine._retention.enforce()
    assert disk.removed > 3
    assert segments(engine.stats().log_end - engine.stats().log_begin) <= segments(LIMIT) + 1
    await engine.close()
