"""Groups and messages that are gone from the log, or damaged in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from store.api import (
    PopResult,
    Receipts,
)
from store.errors import LogCorrupt
from store.log.pages import PAGE
from store.log.reader import LogReader
from store.log.segments import segment_name
from tests.store.popping import CONFIG, DEAD, OTHER, Bench, Q, message, numbers, payloads, receipts

pytestmark = [pytest.mark.any_store, pytest.mark.usefixtures("retention_on_request")]


async def test_reclaimed_messages_are_finished(tmp_path: Path):
    config = replace(CONFIG, segment_size=4096, generation_segments=1, retention_bytes=4096, retention_check_s=1e6)
    bench = await Bench(tmp_path, config).open()
    await bench.append(*(message(number, size=400) for number in range(40)))
    await bench.pop(records=3, invisible=1)
    await bench.pop(records=1, invisible=1_000)
    await bench.pop(group=b"h", records=40, invisible=1)
    await bench.engine._retention.enforce()
    begin = (await bench.engine.bounds(Q)).begin
    assert 4 < begin < 40
    state = (await bench.lag())[Q]
    assert state == (0, 4, 4, 4 + 40 - begin)
    bench.now += 1
    popped = await bench.pop()
    assert payloads(popped.runs) == numbers(*range(begin, 40))
    assert popped.available_at == bench.now + 999
    assert (await bench.lag())[Q] == (3, 40, 41 - begin, 41 - begin)
    assert payloads((await bench.pop(group=b"h")).runs) == numbers(*range(begin, 40))
    assert [each.unfinished for s in await bench.engine.groups(b"g", 1) for each in s.queues] == [40 - begin]
    await bench.engine.close()


def reclaiming(path: Path, segment_size: int) -> Bench:
    """A bench whose retention leaves one or two segments of the log."""
    bounds = replace(CONFIG, segment_size=segment_size, retention_bytes=segment_size, retention_check_s=1e6)
    return Bench(path, replace(bounds, generation_segments=1))


async def give_up(bench: Bench, count: int) -> None:
    """Have messages that are due become dead letters."""
    end = (await bench.engine.bounds(DEAD)).end + count
    while (await bench.engine.bounds(DEAD)).end < end:
        assert (await bench.pop(records=1, most=1)).runs == []


@pytest.mark.parametrize("objects", [1, 1_000])
async def test_a_pop_continues_where_all_that_it_planned_for_is_gone(tmp_path: Path, objects: int):
    """As many messages as the group may lease are planned for. Nothing has to be settled before it gets others, and
    nothing has to stay in memory."""
    bounds = replace(CONFIG, segment_size=4096, retention_bytes=4096, retention_check_s=1e6, max_group_leases=4)
    bench = await Bench(tmp_path, replace(bounds, max_group_objects=objects, checkpoint_keys=1)).open()
    await bench.fill(3)
    await bench.pop(records=3, invisible=2)
    await bench.append(*(message(number, b"a/c", 400) for number in range(40)))
    await bench.append(message(3))
    await bench.pop(records=1, invisible=1)
    for count in (1, 3):
        bench.now += 1
        await give_up(bench, count)
    await bench.engine._retention.enforce()
    assert await bench.take(DEAD, records=1) == numbers(3)  # those behind it are gone
    (run,) = (await bench.pop(OTHER, records=1)).runs
    assert run.offset > 0
    await bench.engine.settle(b"g", receipts(PopResult([run], None, is_limited=False)))
    popped = await bench.pop(DEAD, OTHER, Q, records=10)
    assert (popped.runs, popped.available_at) == ([], bench.now)  # at once, if the call is repeated
    assert popped.reclaimed == 3
    assert await bench.take(DEAD, OTHER, Q, records=10) == numbers(*range(run.offset + 1, run.offset + 4))
    await bench.engine.close()


async def test_nothing_has_to_be_settled_for_messages_that_are_gone(tmp_path: Path):
    bench = reclaiming(tmp_path, 4096)
    bench.config = replace(bench.config, max_group_leases=1)
    await bench.open()
    await bench.fill(2)
    await bench.engine.settle(b"g", receipts(await bench.pop(records=1)))
    await bench.append(*(message(number, b"a/d", 400) for number in range(40)), message(0, b"a/c"))
    await bench.engine._retention.enforce()
    assert await bench.take(OTHER) == numbers(0)
    popped = await bench.pop(Q, OTHER)
    assert popped == PopResult([], bench.now + 10_000, is_limited=False)
    await bench.engine.close()


async def test_dead_letters_that_are_gone_before_their_neighbours_are_passed_over(tmp_path: Path):
    """Their records are older than what is around them in the queue."""
    bench = await reclaiming(tmp_path, 4096).open()
    await bench.fill(4)
    await bench.pop(records=3, invisible=2)
    await bench.append(*(message(number, size=400) for number in range(4, 40)))
    (new,) = (await bench.pop(records=37, invisible=1)).runs
    await bench.engine.settle(b"g", [Receipts(Q, new.offset, new.count - 2, 1)])
    bench.now += 1
    await give_up(bench, 2)
    bench.now += 1
    await give_up(bench, 3)
    assert await bench.take(DEAD, records=4, invisible=1) == numbers(38, 39, 0, 1)
    bench.now += 1
    await bench.engine._retention.enforce()
    await bench.fill(1)
    await bench.pop(records=1, invisible=1)
    bench.now += 1
    await give_up(bench, 1)
    popped = await bench.pop(DEAD)
    assert receipts(popped) == [Receipts(DEAD, 0, 2, 2), Receipts(DEAD, 5, 1, 1)]
    assert await bench.lag() == {Q: (41, 41, 0, 0), DEAD: (0, 6, 3, 3)}
    await bench.engine.close()


async def test_many_records_that_are_gone_are_passed_over_in_several_pops(tmp_path: Path):
    bench = await reclaiming(tmp_path, 1 << 16).open()
    await bench.fill(5_000)
    await bench.pop(records=5_000, invisible=2)
    await bench.append(*(message(number, b"a/c", 1_000) for number in range(150)), message(5_000))
    await bench.pop(records=1, invisible=1)
    bench.now += 1
    await give_up(bench, 1)
    bench.now += 1
    await give_up(bench, 5_000)
    await bench.engine._retention.enforce()
    await bench.append(message(5_001))
    await bench.pop(records=1, invisible=0)
    await give_up(bench, 1)
    assert await bench.take(DEAD, records=10) == numbers(5_000)
    looked = await bench.pop(DEAD, records=1)
    assert looked == PopResult([], bench.now, is_limited=False, reclaimed=4_096, left=905)
    assert await bench.take(DEAD, records=1) == numbers(5_001)
    assert (await bench.lag())[DEAD] == (0, 5_002, 2, 2)
    await bench.engine.close()


async def test_messages_reclaimed_during_a_read_are_finished(tmp_path: Path, monkeypatch):
    bench = await reclaiming(tmp_path, 4096).open()
    bench.config = replace(bench.config, tail_cache_bytes=0)
    await bench.reopen()
    await bench.append(*(message(number, size=400) for number in range(40)))
    await bench.append(message(40))
    frames = LogReader.frames

    async def slowly(reader: LogReader, refs: bytes, without: int = 0) -> bytes:
        await bench.engine._retention.enforce()
        return await frames(reader, refs, without)

    monkeypatch.setattr(LogReader, "frames", slowly)
    popped = await bench.pop()
    begin = (await bench.engine.bounds(Q)).begin
    assert payloads(popped.runs) == numbers(*range(begin, 41))
    while not bench.is_idle or (await bench.lag())[Q] != (begin, 41, 41 - begin, 41 - begin):
        await bench.append(message(0, b"a/c"))
    await bench.engine.close()


async def test_a_damaged_message_does_not_keep_its_neighbours(tmp_path: Path):
    bench = await Bench(tmp_path, replace(CONFIG, tail_cache_bytes=0)).open()
    done = await bench.append(*(message(number, size=20) for number in range(4)))
    await bench.append(message(0, b"a/c", size=PAGE))  # the log's last page would be written again, and whole
    with (bench.path / "log" / segment_name(0)).open("r+b") as file:
        file.seek(done.positions[2] + 60)
        file.write(b"\xff")
    popped = await bench.pop(invisible=1)
    assert payloads(popped.runs) == numbers(0, 1, 3)
    assert await bench.engine.settle(b"g", receipts(popped)) == []
    for _ in range(2):
        bench.now += 1
        with pytest.raises(LogCorrupt):
            await bench.pop(invisible=1)
    bench.now += 1
    assert await bench.pop() == PopResult([], None, is_limited=False)
    assert bench.dead == [[b"g"]]
    await bench.engine.close()


async def test_reclaimed_messages_that_were_not_finished_are_counted(tmp_path: Path):
    """Once, when the group comes past it: what was leased out and came back, and what never was."""
    bench = await reclaiming(tmp_path, 1 << 16).open()
    await bench.append(*(message(number, size=1_000) for number in range(50)))
    (mine,) = receipts(await bench.pop(records=20))
    await bench.engine.settle(b"g", [Receipts(Q, 0, 5, 1)], [(Receipts(Q, 5, 15, 1), 0)])
    await bench.append(*(message(number, b"a/c", size=1_000) for number in range(400)))
    await bench.engine._retention.enforce()
    counts = [(await bench.pop()).reclaimed for _ in range(3)]
    await bench.append(message(50))
    last = await bench.pop()
    assert (payloads(last.runs), sum(counts) + last.reclaimed) == (numbers(50), 45)
    assert (await bench.pop()).reclaimed == 0
    assert mine.count == 20
    await bench.engine.close()
