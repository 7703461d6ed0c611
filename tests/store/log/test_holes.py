"""Records that are gone before their neighbours: offsets stay, fetches skip them and say so."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import record
from record.layout import Kind
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import OffsetOutOfRange
from store.log.disk import Disk
from store.log.reader import LogReader
from tests.store.moves import enter

pytestmark = [pytest.mark.any_store, pytest.mark.usefixtures("retention_on_request")]

SEGMENT = 4096
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    generation_segments=2,
    checkpoint_keys=6,
    max_queue_ends=2,
    retention_bytes=2 * SEGMENT,
    retention_check_s=3600,
    tail_cache_bytes=0,
)
QUEUE = topic_queue(b"t")


def frame(topic: bytes, payload: bytes) -> bytes:
    return record.frame(Kind.MESSAGE, 1, 0, topic, b"", b"", payload)


async def append(engine: Engine, *frames: bytes) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), answer.set_result)
    done = await answer
    assert done.error is None
    return done


class Clock:
    """Milliseconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


class History:
    """A queue `t` into which records enter in their turn or late, and what it must answer."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock
        self.held: list[tuple[int, int, bytes]] = []  # (position, length, payload)
        self.entries: list[tuple[int, int, bytes]] = []  # (position, store time, payload)

    async def publish(self, payload: bytes) -> None:
        self.clock.now += 10
        (position,) = (await append(self.engine, frame(b"t", payload))).positions
        self.entries.append((position, self.clock.now, payload))

    async def hold(self, payload: bytes) -> None:
        """A record that is in another queue for now."""
        made = frame(b"held", payload)
        (position,) = (await append(self.engine, made)).positions
        self.held.append((position, len(made), payload))

    async def release(self, index: int) -> None:
        self.clock.now += 10
        await append(self.engine, frame(b"firing", b""))
        position, length, payload = self.held[index]
        enter(self.engine, b"t", position, length)
        self.entries.append((position, self.clock.now, payload))

    async def other(self, count: int) -> None:
        for _ in range(count):
            self.clock.now += 10
            await append(self.engine, frame(b"other", bytes(600)))

    async def check(self) -> None:
        engine, begin = self.engine, self.engine.stats().log_begin
        there = [at for at, (position, _, _) in enumerate(self.entries) if position >= begin]
        first = there[0] if there else len(self.entries)
        bounds = await engine.bounds(QUEUE)
        assert (bounds.begin, bounds.end) == (first, len(self.entries))
        for step in (1, 2, 1000):
            for start in range(first, len(self.entries) + 1):
                assert await self.read(start, step) == [at for at in there if at >= start]
        for at in range(first):
            with pytest.raises(OffsetOutOfRange) as caught:
                await engine.fetch(QUEUE, at, 10, 1 << 20)
            assert (caught.value.begin, caught.value.end) == (first, len(self.entries))
        times = [time for _, time, _ in self.entries]
        for time in {time + delta for time in times for delta in (-1, 0, 1)}:
            expected = next((at for at in range(first, len(times)) if times[at] >= time), len(times))
            assert await engine.offset_at(QUEUE, time) == expected

    async def read(self, offset: int, step: int) -> list[int]:
        """The offsets that a reader gets from `offset` on; its payloads are those that entered there."""
        found: list[int] = []
        while True:
            fetched = await self.engine.fetch(QUEUE, offset, step, 1 << 20)
            assert fetched.offset >= offset
            starts = record.split(fetched.data)
            assert len(starts) == fetched.count
            for number, start in enumerate(starts):
                entry = self.entries[fetched.offset + number]
                assert record.position_of(fetched.data, start) == entry[0]
                assert record.decode(fetched.data, start)[6] == entry[2]
            if fetched.count == 0:
                assert fetched.offset == len(self.entries)
                return found
            found += range(fetched.offset, fetched.next_offset)
            offset = fetched.next_offset


@pytest.mark.parametrize("tail", [0, 64 << 20], ids=["from disk", "from the tail cache"])
async def test_late_releases_are_removed_by_the_age_of_their_records(tmp_path: Path, tail: int):
    config, clock = replace(CONFIG, tail_cache_bytes=tail), Clock()
    engine = await Engine.open(tmp_path, config, clock=clock)
    history = History(engine, clock)
    for number in range(12):
        await history.hold(b"held %d" % number * 80)
        await history.publish(b"%d" % number)
    for number in (3, 1, 11, 11, 0):  # in no order of their positions, side by side, twice and alone
        await history.release(number)
    await history.publish(b"between")
    await history.release(2)
    await history.release(10)
    await history.publish(b"last")
    await history.check()
    seen = set()
    while history.entries[-1][0] >= engine.stats().log_begin:
        if len(seen) == 2:
            await history.release(11)  # into the memory of a queue whose index is gone in part
            await history.publish(b"behind")
        await history.other(3)
        await engine._retention.enforce()
        await history.check()
        seen.add(engine.stats().log_begin)
    assert len(seen) > 2
    await engine.close()
    engine = history.engine = await Engine.open(tmp_path, config, clock=clock)
    await history.check()
    await engine.close()


async def test_a_run_of_holes_longer_than_is_stepped_over_at_once(tmp_path: Path):
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    history = History(engine, clock)
    await history.hold(b"old")
    await history.other(20)
    clock.now += 10
    await append(engine, frame(b"firing", b""))
    position, length, _ = history.held[0]
    for _ in range(70_000):
        enter(engine, b"t", position, length)
    await history.publish(b"behind")
    await engine._retention.enforce()
    bounds = await engine.bounds(QUEUE)
    assert 0 < bounds.begin < 70_000 < bounds.end == 70_001
    fetched = await engine.fetch(QUEUE, bounds.begin, 1, 1 << 20)
    assert (fetched.offset, fetched.count, fetched.next_offset) == (70_000, 1, 70_001)
    assert record.decode(fetched.data, 0)[6] == b"behind"
    await engine.close()


async def test_a_record_reclaimed_in_the_middle_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    engine = await Engine.open(tmp_path, CONFIG, clock=clock)
    history = History(engine, clock)
    await history.hold(b"old")
    await history.other(20)
    await history.publish(b"0")
    await history.release(0)
    await history.publish(b"2")
    from_device = LogReader._from_device
    late = True

    async def read(reader: LogReader, position: int, length: int) -> bytes:
        nonlocal late
        if late and position == history.held[0][0]:
            late = False
            await engine._retention.enforce()
        return await from_device(reader, position, length)

    monkeypatch.setattr(Disk, "read_cached", lambda *_: False)
    monkeypatch.setattr(LogReader, "_from_device", read)
    fetched = await engine.fetch(QUEUE, 0, 3, 1 << 20)
    assert not late
    assert (fetched.offset, fetched.count) == (0, 1)
    assert (await engine.fetch(QUEUE, 1, 3, 1 << 20)).offset == 2
    await engine.close()
