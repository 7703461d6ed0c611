"""When a flush starts: at once for the lone and the large, spaced for the many and small."""

import asyncio
from pathlib import Path

import record
from store.api import Appended, topic_queue
from store.config import StoreConfig
from store.engine import Engine
from store.log.commitlog import LARGE, MANY
from tests.waiting import patience

PATIENT = StoreConfig(segment_size=1 << 20, spacing_ms=3_600_000)


def append(engine: Engine, size: int = 10) -> asyncio.Future[Appended]:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append([record.frame(1, 0, 0, b"t", b"", b"", bytes(size))], answer.set_result)
    return answer


async def test_a_lone_publisher_never_waits(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    for _ in range(50):
        assert (await append(engine)).error is None
    assert engine.stats().batches == 50
    await engine.close()


async def test_many_small_appends_are_spaced_until_they_are_worth_a_flush(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    await asyncio.gather(*[append(engine) for _ in range(MANY)])
    assert engine.stats().batches == 1
    small = append(engine)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not small.done()
    large = append(engine, LARGE)
    assert (await small).error is None
    assert (await large).error is None
    assert engine.stats().batches == 2
    await engine.close()


async def test_a_flush_waits_for_those_that_were_answered_and_no_longer(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    for round_number in range(1, 4):
        await asyncio.gather(*[append(engine) for _ in range(MANY)])
        assert engine.stats().batches == round_number
    few = [append(engine) for _ in range(MANY - 1)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(each.done() for each in few)
    await append(engine)
    assert all(each.done() for each in few)
    assert engine.stats().batches == 4
    await engine.close()


async def test_waiting_and_new_appends_share_a_flush(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    first = [append(engine) for _ in range(MANY)]
    await asyncio.sleep(0)  # their flush is under way
    second = [append(engine) for _ in range(MANY)]
    await asyncio.gather(*first)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(each.done() for each in second)
    await asyncio.gather(*[append(engine) for _ in range(MANY)])
    assert all(each.done() for each in second)
    assert engine.stats().batches == 2
    await engine.close()


async def test_the_wait_for_likely_appends_begins_when_a_slow_flush_ends(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    first = [append(engine) for _ in range(MANY)]
    await asyncio.sleep(0)  # their flush is under way
    engine._log._last_start -= 2 * PATIENT.spacing_ms / 1000  # and has been for longer than the spacing
    second = [append(engine) for _ in range(MANY)]
    await asyncio.gather(*first)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(each.done() for each in second)
    await asyncio.gather(*[append(engine) for _ in range(MANY)])
    assert all(each.done() for each in second)
    assert engine.stats().batches == 2
    await engine.close()


async def test_closing_does_not_wait_for_the_next_slot(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    await asyncio.gather(*[append(engine) for _ in range(MANY)])
    last = append(engine)
    await engine.close()
    assert (await last).error is None
    engine = await Engine.open(tmp_path, PATIENT)
    assert (await engine.bounds(topic_queue(b"t"))).end == MANY + 1
    await engine.close()


async def test_records_without_a_waiter_join_the_next_flush(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    late: list[Appended] = []
    frame = record.frame(1, 0, 0, b"t", b"", b"", b"late")
    for count in range(1, 4):
        assert engine._log.offer_later([frame], late.append) is None
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(late) == count - 1
        assert (await append(engine)).error is None
        assert (len(late), engine.stats().batches) == (count, count)
    await asyncio.gather(*[append(engine) for _ in range(MANY)])
    assert engine._log.offer_later([frame], late.append) is None
    few = [append(engine) for _ in range(MANY - 1)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(each.done() for each in few)  # it is none of those that are likely to append
    await append(engine)
    assert all(each.done() for each in few)
    assert (len(late), engine.stats().batches) == (4, 5)
    assert [each.error for each in late] == [None] * 4
    await engine.close()


async def test_records_without_a_waiter_are_flushed_after_a_while(tmp_path: Path):
    engine = await Engine.open(tmp_path, PATIENT)
    for size in (10, LARGE):
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        assert engine._log.offer_later([record.frame(1, 0, 0, b"t", b"", b"", bytes(size))], answer.set_result) is None
        async with patience():
            assert (await answer).error is None
    last: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine._log.offer_later([record.frame(1, 0, 0, b"t", b"", b"", b"last")], last.set_result)
    await engine.close()
    assert (await last).error is None
