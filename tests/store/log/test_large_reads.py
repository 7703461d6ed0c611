"""Large reads of old records leave the loop, a bounded number at a time; small ones that are cached do not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Lock, get_ident
from time import sleep

import pytest

import record
from store.api import topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import LogCorrupt
from store.log.disk import Disk
from store.log.segments import segment_name
from tests.store.test_engine import append, message

CONFIG = StoreConfig(segment_size=1 << 20, tail_cache_bytes=0, max_reads=2)
QUEUE = topic_queue(b"t")
LARGE = 8 << 20
COUNT = 3000


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """A store with 3 MB of log in 4 segments, with records of other topics between those that are read."""
    engine = await Engine.open(tmp_path, CONFIG)
    for _ in range(30):
        answer = asyncio.get_running_loop().create_future()
        frames = [message(b"t" if number % 4 else b"other", b"%d" % number * 250) for number in range(COUNT // 30)]
        engine.append(frames, answer.set_result)
        assert (await answer).error is None
    yield engine
    await engine.close()


class Threads:
    """Notes in which threads records are checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.used: list[int] = []
        function = getattr(record, name)

        def checked(*arguments: object) -> object:
            self.used.append(get_ident())
            return function(*arguments)

        monkeypatch.setattr(record, name, checked)


class Reads:
    """Notes how many reads of segments take place at a time. Each lasts long enough for others to begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self._now = 0
        self._lock = Lock()
        function = Disk.read

        def read(disk: Disk, fd: int, length: int, offset: int) -> bytes:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            sleep(0.02)
            with self._lock:
                self._now -= 1
            return function(disk, fd, length, offset)

        monkeypatch.setattr(Disk, "read", read)


async def test_large_reads_are_checked_in_threads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, "pick")
    small: list[bytes] = []
    offset = 0
    end = (await engine.bounds(QUEUE)).end
    while offset < end:
        fetched = await engine.fetch(QUEUE, offset, 100, LARGE)
        small.append(fetched.data)
        offset = fetched.next_offset
    assert set(threads.used) == {get_ident()}
    threads.used.clear()
    reads = Reads(monkeypatch)
    found = await asyncio.gather(*[engine.fetch(QUEUE, 0, COUNT, LARGE) for _ in range(6)])
    assert {each.data for each in found} == {b"".join(small)}
    assert get_ident() not in threads.used
    assert reads.most <= CONFIG.max_reads


async def test_large_reads_of_the_log_are_checked_in_threads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, "verify")
    small = await engine.read(0, 1000)
    assert set(threads.used) == {get_ident()}
    threads.used.clear()
    large = await engine.read(0, LARGE)
    assert large.data.startswith(small.data)
    assert len(large.data) > 1 << 19
    assert get_ident() not in threads.used


async def test_damage_in_a_large_read_is_named(engine: Engine, tmp_path: Path) -> None:
    whole = await engine.fetch(QUEUE, 0, COUNT, LARGE)
    start = record.split(whole.data)[1000]
    position = record.position_of(whole.data, start)
    base = position - position % CONFIG.segment_size
    with (tmp_path / "log" / segment_name(base)).open("r+b") as segment:
        segment.seek(position - base + 60)
        segment.write(b"?")
    with pytest.raises(LogCorrupt) as caught:
        await engine.fetch(QUEUE, 0, COUNT, LARGE)
    assert caught.value.position == position
    assert (await engine.fetch(QUEUE, 0, 1000, LARGE)).count == 1000


async def test_a_record_that_is_large_by_itself(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, "pick")
    assert (await append(engine, message(b"large", bytes(600_000)))).error is None
    fetched = await engine.fetch(topic_queue(b"large"), 0, 1, 1)
    assert record.decode(fetched.data, 0)[6] == bytes(600_000)
    assert get_ident() not in threads.used
