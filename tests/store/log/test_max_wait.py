"""Messages are refused at once when they would wait too long for their commit; control records are not."""

import asyncio
from pathlib import Path
from threading import Semaphore
from time import sleep

import pytest

from store import control
from store.api import Appended
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreBusy
from store.log.disk import Disk
from store.log.wait_limit import WaitLimit
from tests.store.remote.linked import Linked
from tests.store.test_engine import append, message
from tests.waiting import until

MB = 1 << 20
CONFIG = StoreConfig(segment_size=MB, max_wait_ms=50)


class HeldUpDisk(Disk):
    """A write is done when `allowed` is released, from when `is_slow` is set."""

    __slots__ = ("allowed", "is_slow")

    def __init__(self) -> None:
        self.is_slow = False
        self.allowed = Semaphore(0)

    def write_durable(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.is_slow:
            self.allowed.acquire(timeout=30)
        super().write_durable(fd, data, offset)


async def refused(engine: Engine) -> StoreBusy:
    """Append messages until one is refused. Returns why."""
    answers: list[Appended] = []

    def is_refused() -> bool:
        engine.append([message(b"t", b"late")], answers.append)
        return any(isinstance(answer.error, StoreBusy) for answer in answers)

    await until(is_refused)
    return next(answer.error for answer in answers if isinstance(answer.error, StoreBusy))


@pytest.mark.any_store
async def test_messages_are_refused_while_a_flush_lasts_too_long(tmp_path: Path) -> None:
    disk = HeldUpDisk()
    engine = await Engine.open(tmp_path, CONFIG, disk)
    assert (await append(engine, message(b"t"))).error is None
    disk.is_slow = True
    first = asyncio.ensure_future(append(engine, message(b"t", b"in the flush")))
    assert "0.05 s" in str(await refused(engine))
    work = control.Produced(1, 1).frame(b"producer")  # as in front of all that the SDK and gateways send
    assert isinstance((await append(engine, work, message(b"t"))).error, StoreBusy)
    # Control records still find room, and what was accepted is committed.
    closed = asyncio.ensure_future(append(engine, control.SessionClosed(1, 60, 1).frame(b"c")))
    await asyncio.sleep(0)
    assert not closed.done()
    disk.is_slow = False
    disk.allowed.release()
    assert (await first).error is None
    assert (await closed).error is None
    assert (await append(engine, message(b"t", b"after"))).error is None
    await engine.close()


async def test_a_limit_of_0_lets_messages_wait(tmp_path: Path) -> None:
    disk = HeldUpDisk()
    engine = await Engine.open(tmp_path, StoreConfig(segment_size=MB, max_wait_ms=0), disk)
    disk.is_slow = True
    first = asyncio.ensure_future(append(engine, message(b"t")))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(append(engine, message(b"t")))
    await asyncio.sleep(0.1)
    assert not first.done()
    assert not second.done()
    disk.is_slow = False
    disk.allowed.release()
    assert (await first).error is None
    assert (await second).error is None
    await engine.close()


async def test_a_queue_that_a_slow_disk_would_not_commit_in_time_is_not_accepted(tmp_path: Path) -> None:
    """Two flushes of 40 ms, with room for 4 KB each: what needs a third one would wait for more than 100 ms."""
    config = StoreConfig(segment_size=MB, max_wait_ms=100, batch_bytes=4096)
    disk = HeldUpDisk()
    engine = await Engine.open(tmp_path, config, disk)
    log = engine._log
    log._waits.committed(0.04, 1000)
    log._waits.committed(0.04, 1000)
    disk.is_slow = True
    answers: list[Appended] = []
    for _ in range(20):
        engine.append([message(b"t", bytes(2000))], answers.append)
    await until(lambda: len(answers) == 17)
    assert {type(answer.error) for answer in answers} == {StoreBusy}
    disk.is_slow = False
    disk.allowed.release(20)
    await until(lambda: len(answers) == 20)
    assert [answer.error for answer in answers[17:]] == [None] * 3
    await engine.close()


class PonderousDisk(Disk):
    """A write takes 50 ms."""

    __slots__ = ()

    def write_durable(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        sleep(0.05)
        super().write_durable(fd, data, offset)


async def test_a_large_append_is_no_sign_of_a_slow_disk(tmp_path: Path) -> None:
    """In 50 ms the disk writes 100 KB here: in 10 s, that is more than flushes of 200 bytes would bring."""
    config = StoreConfig(segment_size=MB, max_wait_ms=10_000, batch_bytes=200)
    engine = await Engine.open(tmp_path, config, PonderousDisk())
    for _ in range(2):
        assert (await append(engine, message(b"t", bytes(100_000)))).error is None
    assert engine._log._waits.room > 10_000 // 50 * config.batch_bytes
    await engine.close()


async def test_a_gateway_follows_the_pace_of_its_store(tmp_path: Path) -> None:
    store = await Linked.open(tmp_path, StoreConfig(segment_size=MB, max_wait_ms=40), PonderousDisk())
    for _ in range(2):
        assert (await append(store, message(b"t"))).error is None  # nothing else waits
    assert store._appends._waits.room == 0
    await store.close()


@pytest.mark.parametrize(
    ("commits", "room"),
    [
        ([], 56 * MB),
        ([(0.01, 1), (0.01, 1)], 56 * MB),
        ([(2, 1), (0.01, 1)], 56 * MB),  # one slow commit between quick ones says little
        ([(0.01, 1), (2, 1)], 56 * MB),
        ([(2, 1), (2, MB)], 2 * MB),
        ([(2, 8 * MB), (2, 8 * MB)], 20 * MB),  # a quarter of a second for each MB
        ([(2, 1), (2, 1), (0.01, 1)], 56 * MB),
        ([(6, 1), (6, 1)], 0),
    ],
)
def test_the_room_follows_the_pace_of_commits(commits: list[tuple[float, int]], room: int) -> None:
    waits = WaitLimit(5000, 64 * MB, MB)
    for seconds, size in commits:
        waits.committed(seconds, size)
    assert waits.room == room
