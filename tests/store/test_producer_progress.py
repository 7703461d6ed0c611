"""Appends of producers: whatever a crash leaves of one, the store knows how much, and a second time adds the rest."""

import asyncio
import shutil
from pathlib import Path

import pytest

import record
from record.layout import Kind
from store import control
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.producer_progress import appends_from

CONFIG = StoreConfig(segment_size=4096, generation_segments=2)


def message(number: int) -> bytes:
    return record.frame(Kind.MESSAGE, 0, 0, b"a/b", b"c", b"", b"%d" % number)


async def append(engine: Engine, frames: list[bytes]) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    assert engine.offer(frames, answer.set_result) is None
    return await answer


async def produce(engine: Engine, sequence: int, frames: list[bytes]) -> Appended:
    return await append(engine, [control.Produced(sequence, len(frames)).frame(b"p"), *frames])


async def test_the_store_knows_the_last_append_of_a_producer(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    assert await engine.produced(b"p") is None
    await produce(engine, 0, [])
    assert await engine.produced(b"p") == (0, 0, 0)
    await produce(engine, 1, [message(n) for n in range(100)])  # goes across segments
    await append(engine, [message(1000)])
    assert await engine.produced(b"p") == (1, 0, 0)
    await engine.close()
    engine = await Engine.open(tmp_path, CONFIG)
    assert await engine.produced(b"p") == (1, 0, 0)
    assert [row.producer for row in await engine.producers(None, 10)] == [b"p"]
    await append(engine, [control.ProducerEnded().frame(b"p")])
    assert await engine.produced(b"p") is None
    assert await engine.producers(None, 10) == []
    await engine.close()


async def test_a_producer_that_appends_again_is_not_ended(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    await produce(engine, 1, [message(1)])
    (old,) = await engine.producers(None, 10)
    await produce(engine, 2, [message(2)])
    await append(engine, [control.ProducerEnded(old.position).frame(b"p")])
    (known,) = await engine.producers(None, 10)
    assert known.sequence == 2
    await append(engine, [control.ProducerEnded(known.position).frame(b"p")])
    assert await engine.producers(None, 10) == []
    await engine.close()


async def test_the_digest_of_an_append_is_kept_with_it(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    await append(engine, [control.Produced(1, 1, (1 << 64) - 1).frame(b"p"), message(0)])
    assert await engine.produced(b"p") == (1, 0, (1 << 64) - 1)
    assert [(row.producer, row.digest) for row in await engine.producers(None, 10)] == [(b"p", (1 << 64) - 1)]
    await engine.close()


@pytest.mark.parametrize("count", [1, 3, 60])
async def test_an_append_that_a_crash_cut_anywhere_is_completed_once(tmp_path: Path, count: int):
    config = StoreConfig(segment_size=1 << 16)
    engine = await Engine.open(tmp_path / "whole", config)
    await produce(engine, 6, [message(7)])
    frames = [message(n) for n in range(count)]
    positions = (await produce(engine, 7, frames)).positions
    await engine.close()
    shutil.rmtree(tmp_path / "whole" / "views")  # they are ahead of what is cut now
    cuts = [positions[0], *positions[1::7], positions[-1] + 5, positions[-1] + len(frames[-1])]
    for number, cut in enumerate(cuts):
        folder = tmp_path / f"cut{number}"
        shutil.copytree(tmp_path / "whole", folder)
        log = next((folder / "log").glob("0*.log"))
        data = log.read_bytes()
        log.write_bytes(data[:cut].ljust(len(data), b"\0"))
        engine = await Engine.open(folder, config)
        produced = await engine.produced(b"p")
        assert produced is not None
        sequence, missing, _ = produced
        there = (
            -1 if cut == positions[0] else sum(p + len(f) <= cut for p, f in zip(positions[1:], frames, strict=True))
        )
        if there < 0:  # not even its first record
            assert (sequence, missing) == (6, 0)
            missing = count
        else:
            assert (sequence, missing) == (7, count - there)
        # Somebody else writes in between: that is not taken for what is missing.
        await append(engine, [message(5000)])
        if there >= 0:
            assert await engine.produced(b"p") == (7, count - there, 0)
        await produce(engine, 7, frames[count - missing :])
        assert await engine.produced(b"p") == (7, 0, 0)
        got = await engine.fetch(topic_queue(b"a/b"), 1, 1000, 1 << 20)
        payloads = [record.decode(got.data, start)[6] for start in record.split(got.data)]
        payloads.remove(b"5000")
        assert payloads == [b"%d" % n for n in range(count)]
        found = [each async for each in appends_from(engine, b"p", 0, engine.stats().log_end)]
        assert [sequence for sequence, _, _ in found] == [6, 7]
        payloads = [record.decode(await engine.message(position), 0)[6] for position in found[1][2]]
        assert payloads == [b"%d" % n for n in range(count)]
        await engine.close()
