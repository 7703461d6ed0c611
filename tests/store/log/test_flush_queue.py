"""The compiled queue of the flush thread: its writes, its jobs and its errors."""

import asyncio
import errno
import os
import threading
from pathlib import Path
from select import select

import pytest

import record
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreFailed
from store.log.flush_queue import FlushQueue
from store.log.pages import PAGE

pytestmark = pytest.mark.skipif(FlushQueue is None, reason="not compiled")


def serve(queue: FlushQueue, jobs: list[str]) -> threading.Thread:
    """Get jobs in a thread until None comes."""

    def run() -> None:
        while (job := queue.get()) is not None:
            jobs.append(job)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_writes_are_done_and_reported_between_jobs(tmp_path: Path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(4 * PAGE))
    fd = os.open(path, os.O_RDWR)
    queue = FlushQueue()
    jobs: list[str] = []
    thread = serve(queue, jobs)
    for turn in range(3):
        assert not queue.ended()
        queue.put(f"before {turn}")
        queue.write(fd, memoryview(bytes([65 + turn]) * PAGE), turn * PAGE)
        select([queue.done_fd], [], [])
        assert queue.ended()
        assert path.read_bytes() == b"".join(bytes([65 + n]) * PAGE for n in range(turn + 1)).ljust(4 * PAGE, b"\0")
    queue.put(None)
    thread.join()
    os.close(fd)
    assert jobs == ["before 0", "before 1", "before 2"]


def test_a_failed_write_says_why_and_the_thread_continues(tmp_path: Path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(PAGE))
    fd = os.open(path, os.O_RDONLY)
    queue = FlushQueue()
    jobs: list[str] = []
    thread = serve(queue, jobs)
    queue.write(fd, memoryview(b"x" * PAGE), 0)
    select([queue.done_fd], [], [])
    with pytest.raises(OSError, match="Bad file descriptor") as failed:
        queue.ended()
    assert failed.value.errno == errno.EBADF
    assert not queue.ended()
    queue.put("next")
    queue.put(None)
    thread.join()
    os.close(fd)
    assert jobs == ["next"]


async def test_the_log_fails_for_good_after_a_failed_write(tmp_path: Path):
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 16))
    frame = record.frame(1, 0, 0, b"t", b"", b"", b"payload")

    async def append() -> Appended:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        engine.append([frame], answer.set_result)
        return await answer

    assert (await append()).error is None
    end = engine.stats().log_end
    fd = os.open(tmp_path, os.O_RDONLY)  # nothing can be written to it
    os.dup2(fd, engine._writer._fd)
    os.close(fd)
    assert isinstance((await append()).error, StoreFailed)
    assert isinstance((await append()).error, StoreFailed)
    assert (engine.stats().failed, engine.stats().log_end) == (True, end)
    await engine.close()
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 16))
    assert engine.stats().log_end == end
    assert (await append()).error is None
    await engine.close()
